"""One judge of a training log: the engine and `sickbay diagnose` name the same cause, however the log is wrapped."""

import json
from collections.abc import Callable

import pytest
from tests.support.cases import one_by_one
from tests.unit.test_diagnose import LINES
from tests.unit.test_diagnose_corpus import samples

from sickbay.knowledge.load import load_tables
from sickbay.model.tables import RAISED
from sickbay.signs.readers.stream import read_stream
from sickbay.signs.symptoms import name_all
from sickbay.signs.training_log import EVIDENCE, judge

TABLES = load_tables()
RULES_OF = {rule.fault: rule.name for rule in TABLES.diagnosis if rule.fault} | {"slurm.preempted": "preempted"}
JOBS = {f"job.{name}" for name in (RAISED, *(rule.name for rule in TABLES.diagnosis))}
RANKS = {rule.name: rule.rank for rule in TABLES.diagnosis}
HINT = "hint: if you run into CUDA out of memory, lower --batch-size"
NCCL = "[rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"

Wrapping = Callable[[str], str]
CONTAINERS: dict[str, Wrapping] = {
    "docker's JSON": lambda line: json.dumps(
        {"log": f"{line}\n", "stream": "stderr", "time": "2026-01-01T00:00:00.1Z"}
    ),
    "JSON with the log alone": lambda line: json.dumps({"log": line}),
    "a structured logger": lambda line: json.dumps({"message": line, "level": "error"}),
    "CloudWatch": lambda line: json.dumps({"timestamp": 1700000000000, "message": line, "ingestionTime": 1}),
    "CRI": lambda line: f"2026-01-01T00:00:00.123456789Z stderr F {line}",
    "CRI without a fraction": lambda line: f"2026-01-01T00:00:00Z stderr F {line}",
    "kubectl --prefix": lambda line: f"[pod/train-0/main] {line}",
    "docker logs -t": lambda line: f"2026-01-01T00:00:00.123456789Z {line}",
    "docker compose": lambda line: f"trainer-1  | {line}",
    "aws logs": lambda line: f"EVENTS\t1700000000000\t{line}\t1700000000001",
    "as it is": lambda line: line,
}
LAUNCHERS: dict[str, Wrapping] = {
    "torchrun": lambda line: f"[rank3]: {line}",
    "torchrun's redirect": lambda line: f"[default3]:{line}",
    "srun -l": lambda line: f"3: {line}",
    "srun -l over torchrun": lambda line: f" 3: [rank3]: {line}".lstrip(),
    "Open MPI": lambda line: f"[1,3]<stderr>:{line}",
    "Ray": lambda line: f"(RayTrainWorker pid=12, ip=10.0.0.1) {line}",
    "pdsh": lambda line: f"node-7: {line}",
    "a terminal": lambda line: f"\x1b[31m{line}\x1b[0m",
    "a logger": lambda line: f"2026-01-01 00:00:00,123 - ERROR - {line}",
    "a logger's level": lambda line: f"[ERROR] {line}",
    "as it is": lambda line: line,
}


def by_engine(text: str) -> str:
    found = judge(text, TABLES.diagnosis)
    return found[0].name if found else ""


def by_diagnose(text: str) -> str:
    """Its root cause, by the rules' own names: a fault that has a code of its own is the same fault."""
    codes = [symptom.code for symptom in name_all(read_stream(text.split("\n")), TABLES)]
    names = [
        RULES_OF.get(code, code.removeprefix("job.")) for code in codes if code in RULES_OF or code.startswith("job.")
    ]
    return min(names, key=lambda name: RANKS.get(name, RANKS["python_error"] + 1), default="")


# A cluster's own lists and logs, which no job prints: the readers that know them judge their columns.
NO_JOBS_LOG = (
    "sacct |",
    "a job that would not end, in slurmd's log |",
    "squeue |",
    "kubectl get pods |",
    "scontrol show job |",
)


@one_by_one(("title", "text"), [*samples("sick.txt"), *samples("well.txt")])
def test_both_name_the_same_cause_of_a_text_in_the_corpus(title: str, text: str) -> None:
    found, told = by_engine(text), by_diagnose(text)
    if not title.startswith(NO_JOBS_LOG):
        # What is no traceback is an error only in what a program printed itself: it decides nothing.
        assert found == told or (found, told) == (RAISED, "")


@pytest.mark.slow
@one_by_one("launcher", LAUNCHERS)
@one_by_one("container", CONTAINERS)
def test_both_know_every_rule_in_every_wrapping(container: str, launcher: str) -> None:
    wrapped = [(CONTAINERS[container](LAUNCHERS[launcher](line)), name) for line, name, _ in LINES]
    assert [(text, name) for text, name in wrapped if by_engine(f"epoch 1\n{text}") != name] == []
    signs = list(read_stream(f"{text}\n" for text, _ in wrapped))
    told = {s.line: s.fields["name"] if s.kind == "job" else RULES_OF.get(s.kind) for s in signs}
    assert [(text, name, told.get(n)) for n, (text, name) in enumerate(wrapped, 1) if told.get(n) != name] == []


TALK = (
    HINT,
    "if you see CUDA out of memory, please make the batch smaller first",
    "raise RuntimeError('CUDA out of memory')",
    "# ModuleNotFoundError: No module named 'apex'",
    'logger.error("No space left on device")',
    "alice: did you see job 55? it died with CUDA out of memory I think",
    "    TypeError: If :attr:`dtype` isn't one that this function takes.",
    "n1:55:99 [0] NCCL INFO Call to connect returned Connection refused, retrying",
)


@one_by_one("talk", TALK)
@one_by_one("launcher", LAUNCHERS)
def test_both_pass_over_a_line_that_only_talks_about_an_error(launcher: str, talk: str) -> None:
    for container in CONTAINERS.values():
        text = container(LAUNCHERS[launcher](talk))
        assert (by_engine(text), by_diagnose(text)) == ("", "")


def test_a_hint_before_the_error_does_not_hide_it() -> None:
    text = f"{HINT}\n{NCCL}\n"
    assert (by_engine(text), by_diagnose(text)) == ("network_unreachable", "network_unreachable")


def test_evidence_is_the_line_as_it_stands_in_the_text_and_is_cut() -> None:
    (found,) = judge(f"{NCCL}{'x' * 5000}", TABLES.diagnosis)
    assert found.line == f"{NCCL}{'x' * 5000}"[:EVIDENCE]
    (found,) = judge(json.dumps({"log": "ImportError: No module named 'apex'"}), TABLES.diagnosis)
    assert found.line == "ImportError: No module named 'apex'"


def test_an_error_of_a_known_traceback_is_nearer_than_what_its_peers_say() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    run()\nmine.Stop: no more'
    found = judge(f"{NCCL}\n{trace}", TABLES.diagnosis)
    assert [diagnosis.name for diagnosis in found] == [RAISED, "network_unreachable"]
    assert by_diagnose(f"{NCCL}\n{trace}") == RAISED
