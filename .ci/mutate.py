"""Mutation testing of what decides: changes one thing at a time and asks its tests; goes on where it stopped.

    make mutate                                       all of it, some hours
    make mutate ARGS='brain/admit.py brain/drift.py'  some modules; or the names of mutants, with *

Prints the score and every survivor as a diff. What is mutated, and by which tests it is judged, is in pyproject.toml.
"""

import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

TOOLS = Path(sys.executable).parent
MUTMUT = [str(TOOLS / "mutmut")]
CAUGHT = ("killed", "timeout", "suspicious", "caught by type check", "segfault")


def pattern(wanted: str) -> str:
    """brain/admit.py → sickbay.brain.admit.*"""
    if not wanted.endswith(".py"):
        return wanted
    return "sickbay." + wanted.removeprefix("src/sickbay/").removesuffix(".py").replace("/", ".") + ".*"


def verdicts(patterns: list[str]) -> dict[str, str]:
    listed = subprocess.run([*MUTMUT, "results", "--all", "true"], check=True, capture_output=True, text=True).stdout
    found = dict(line.strip().split(": ", 1) for line in listed.splitlines() if ": " in line)
    return {name: said for name, said in found.items() if not patterns or any(fnmatchcase(name, p) for p in patterns)}


def main() -> None:
    patterns = [pattern(wanted) for wanted in sys.argv[1:]]
    os.environ["PATH"] = f"{TOOLS}:{os.environ['PATH']}"  # mypy catches some
    ran = subprocess.run([*MUTMUT, "run", *patterns], check=False)
    found = verdicts(patterns)
    judged = {name: said for name, said in found.items() if said != "not checked"}
    left = [name for name, said in judged.items() if said not in CAUGHT]
    for name in left:
        print(f"\n{name}: {judged[name]}", flush=True)
        subprocess.run([*MUTMUT, "show", name], check=False)
    print(f"\n{len(judged) - len(left)} of {len(judged)} caught, {len(found) - len(judged)} not looked at yet")
    sys.exit(ran.returncode)


if __name__ == "__main__":
    main()
