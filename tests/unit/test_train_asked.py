"""A script that is asked to save by the agent of its node: a file beside its heartbeat, in a process of its own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.test_train_heartbeat import environment, script

ASK = """
import json, os, time
from sickbay.train import asked, beats
asked.EVERY = 0.0
def ask(ident):
    with open("aside", "w") as file:
        file.write(ident if ident.startswith("{") else json.dumps({"id": ident}))
    os.rename("aside", asked.ASKED)
"""


def answers(tmp_path: Path, code: str) -> Any:
    """Run it below the directory of its heartbeat; the ask that its last heartbeat answers."""
    return script(tmp_path, f"import os; os.chdir({str(tmp_path)!r}){ASK}{code}").get("answered")


def test_each_ask_is_heard_once_however_often_it_comes(tmp_path: Path) -> None:
    code = """
train.heartbeat(1)
assert not train.should_save()
for ident in ("a", "a", "b"):
    ask(ident)
    print(ident, train.should_save(), train.should_save())
"""
    told = subprocess.run(
        [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r})\nfrom sickbay import train{ASK}{code}"],
        env=environment(tmp_path), check=True, timeout=60, capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == ["a True False", "a False False", "b True False"]


def test_what_is_no_ask_is_not_heard_and_does_not_end_the_script(tmp_path: Path) -> None:
    code = """
train.heartbeat(1)
for text in ("{", "{}", '{"id"', "{1}"):
    ask(text)
    assert not train.should_save()
os.unlink(asked.ASKED)
os.mkdir(asked.ASKED)
assert not train.should_save()
"""
    assert answers(tmp_path, code) is None


def test_the_answer_is_a_save_of_the_step_at_which_it_was_heard_and_not_one_that_was_under_way(tmp_path: Path) -> None:
    code = """
train.heartbeat(7)
ask("a")
assert train.should_save()
beats.saved(6)
assert "answered" not in json.load(open(beats.PATH))
beats.saved(7)
"""
    assert answers(tmp_path, code) == "a"
    code = """
train.heartbeat(7)
ask("b")
assert train.should_save()
train.heartbeat(8, saved=6)
assert "answered" not in json.load(open(beats.PATH))
train.heartbeat(9, saved=8)
"""
    assert answers(tmp_path, code) == "b", "a script with checkpoints of its own"


def test_a_save_that_fails_is_no_answer_and_the_next_one_is(tmp_path: Path) -> None:
    code = """
train.heartbeat(7)
ask("a")
assert train.should_save()
beats.save_failed(7, "No space left on device")
assert "answered" not in json.load(open(beats.PATH))
train.heartbeat(20)
beats.saved(20)
assert "save_failed" not in json.load(open(beats.PATH))
"""
    assert answers(tmp_path, code) == "a"


def test_who_has_never_asked_does_not_listen(tmp_path: Path) -> None:
    assert "listens" not in script(tmp_path, "train.heartbeat(1)")
    assert script(tmp_path, "train.heartbeat(1); train.should_save()")["listens"] is True
