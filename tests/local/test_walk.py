"""A walk through the pages for newcomers: what they say is pasted, in its order, and what they claim is seen."""

import importlib.util
import re
from pathlib import Path

import pytest
from tests.support.manual import ROOT, Reader, at_the_head, in_blocks, reading
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
QUICK = ROOT / "docs" / "quickstart.md"
TORCH = importlib.util.find_spec("torch") is not None
# What a reader sees after a command, by how it begins: from the page's own words.
CLAIMS = {
    "sickbay up": ["serving on"],
    "sickbay submit": [r"train-[0-9a-f]{8}"],
    "sickbay jobs": ["train"],
    "sickbay job ": ["node-"],
    "sickbay inject": ["xid_79", "cured by reboot"],
    "sickbay incidents": ["xid.79"],
    "sickbay top": ["budget", "train"],
    "sickbay explain node": [
        "SUSPECT",
        "cordons the node",
        "QUARANTINED",
        "REPAIRING",
        "rebooted",
        "VERIFYING",
        "RELEASED",
    ],
    "sickbay explain train": ["DIAGNOSING", "GATING", "RUNNING", "training again", "first_step"],
    "sickbay check": ["pass"],
    "sickbay down": ["4 nodes"],
}


def claims(command: str) -> list[str]:
    return next((said for begins, said in CLAIMS.items() if command.startswith(begins)), [])


def test_the_quick_start_shows_what_it_says(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        sick = ""
        for command in (line for block in in_blocks(QUICK) for line in block):
            if command.startswith("sickbay inject"):
                reader.until(lambda: (reader.job("train")["step"] or 0) > 20, 90)
                sick = reader.job("train")["nodes"][0].rpartition("/")[2]  # "take one of those nodes"
            if command.startswith("sickbay incidents"):
                reader.until(lambda: reader.ask("incidents"))
            if command.startswith("sickbay explain node"):  # "now watch"
                _healed(reader, sick)
            said = reader.follow(command.replace("node-0", sick) if sick else command)
            for claim in claims(command):
                assert re.search(claim, said), f"{command}: no {claim!r} in\n{said}"
            if command.startswith("sickbay nodes") and not sick:
                assert len(reader.ask("nodes")) == 4
        assert not reader.processes()


def _healed(reader: Reader, sick: str) -> None:
    reader.until(lambda: reader.incident(sick)["phase"] == "RELEASED", 90)
    reader.until(lambda: reader.job("train")["interruptions"][0]["stages"]["first_step"], 90)


# Twice, in orders that nobody would think of: what one leaves behind is the next one's beginning.
ORDER = ("03", "01", "04", "02", "05", "01", "04", "03", "05", "02")[: None if THOROUGH else 7]


def test_the_examples_run_in_any_order_and_again(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        for number in ORDER:
            (example,) = EXAMPLES.glob(f"{number}_*.py" if number == "05" else f"{number}_*")
            if number == "05" and not TORCH:
                continue
            _run(reader, example)
        assert not reader.ask("brake list")
        reader.follow("sickbay down")
        assert not reader.processes()


def _run(reader: Reader, example: Path) -> None:
    for command in at_the_head(example):
        reader.follow(command)
    over = [job for job in reader.ask("jobs") if job["state"] not in {"COMPLETE", "RUNNING"}]
    assert not over, f"{example.name}: {over}"


def test_what_up_offers_to_try_can_be_pasted_into_a_new_terminal(tmp_path: Path) -> None:
    with reading(tmp_path / "home") as reader:
        reader.follow("sickbay up --detach --nodes 2")
        log = (tmp_path / "home" / "state" / "up.log").read_text(encoding="utf-8")
        block = log.partition("Now try, in another terminal:\n")[2].partition("\n\n")[0]
        lines = [line.strip() for line in block.splitlines()]
        start = [line for line in lines if line.startswith((". ", "export "))]
        assert start, "a new terminal knows neither the environment nor the address"
        (nodes,) = [line for line in lines if re.match(r"\S.*\bnodes  ", line)]
        bare = f"env -i HOME='{tmp_path / 'home'}' PATH=/usr/bin:/bin sh -c '"
        pasted = "\n".join([*start, nodes])
        told = reader.run(f"{bare}{pasted}'")
        assert told.returncode == 0, told.stderr
        assert "local/node-1" in told.stdout
