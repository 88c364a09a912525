"""A default name for a job: the script that its command runs."""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

LONGEST = 63  # as the server takes them

# Programs that run another: the script is the first word after them that is one.
LAUNCHERS = re.compile(
    r"(?:python|pypy)[\d.]*|torchrun|accelerate|deepspeed|horovodrun|bash|sh|zsh|dash|env|uv|uvx|poetry|pixi|conda|srun"
    r"|mpirun|mpiexec|nice|nohup|numactl|taskset|timeout|time|nsys|sickbay"
)
MODULES_THAT_LAUNCH = ("torch.distributed.", "accelerate.", "deepspeed.")
SCRIPT = re.compile(r".+\.(?:py|sh|bash|ipynb)", re.DOTALL)


def name_of(command: Sequence[str]) -> str:
    """`python -m lab.train_gpt --lr 1` is train_gpt, `torchrun --nproc-per-node 8 src/train.py` is train."""
    program = PurePosixPath(command[0].split()[0] if command[0].split() else "").name
    script = next(_scripts(command[1:]), "") if LAUNCHERS.fullmatch(program) else ""
    return _clean(script or _stem(program)) or "job"


def free_name(name: str, taken: Collection[str]) -> str:
    """It, or the first with a number behind it that nobody has: `sickbay job train` means one of them."""
    number = 1
    said = name
    while said in taken:
        number += 1
        said = f"{name[: LONGEST - 1 - len(str(number))]}-{number}"
    return said


def _scripts(words: Sequence[str]) -> Iterator[str]:
    """In the order of the command line; what is given to the script comes after it."""
    for before, word in zip(("", *words), words, strict=False):
        if before in {"-m", "--module"} and not word.startswith(("-", *MODULES_THAT_LAUNCH)):
            yield word.removesuffix(".__main__").removesuffix(".py").rpartition(".")[2]
        elif SCRIPT.fullmatch(word) and not word.startswith("-"):
            yield _stem(word)


def _stem(path: str) -> str:
    last = PurePosixPath(path).name
    return PurePosixPath(last).stem if SCRIPT.fullmatch(last) else last


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:LONGEST]
