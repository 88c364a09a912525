"""Every command in the documents runs, in its order; where a page needs a cluster, on real processes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.manual import ROOT, Reader, in_blocks, reading

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
# Needs no cluster that runs.
ALONE = re.compile(r"sickbay (demo|policy|sim|diagnose|knowledge|agent|check --level|explain .*--sim)\b")
PAGES = [page for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))] if in_blocks(page)]
RUNBOOKS = [page for page in sorted((DOCS / "runbooks").glob("*.md")) if in_blocks(page)]

LINE = "--line 'NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.'"


def _held(reader: Reader) -> None:
    reader.follow("sickbay cordon node-3 --reason scene")
    reader.until(lambda: reader.incident("node-3")["phase"] == "HELD")


def _no_budget(reader: Reader) -> None:
    reader.follow(f"sickbay inject node-0 {LINE}")  # a person's own cordon would not use the budget up

    def held() -> bool:
        mine = [one for one in reader.ask("incidents --open") if one["node"] == "local/node-0"]
        for one in mine:
            reader.run(f"sickbay hold {one['id']} --reason scene")
        if not mine:  # healed before it was held
            reader.run(f"sickbay inject node-0 {LINE}")
        return any(one["phase"] == "HELD" for one in mine)

    reader.until(held)

    def deferred() -> bool:
        # Again and again: a machine that the page before has sent to be replaced may change under our hands.
        reader.run(f"sickbay inject node-1 {LINE}")
        return any("may lack" in one["because"] for one in reader.ask("incidents --open"))

    reader.until(deferred)


def _braked(reader: Reader) -> None:
    for number in (1, 2, 3):
        reader.follow(f"sickbay inject node-{number} {LINE}")
    reader.until(lambda: reader.ask("brake list"))


def _paused(reader: Reader) -> None:
    reader.follow("sickbay pause --for 1h --reason scene")
    reader.follow(f"sickbay inject node-2 {LINE}")
    reader.until(lambda: reader.ask("incidents --open"))


def _failed(reader: Reader) -> None:
    reader.follow("sickbay submit --name train --nodes 1 -- python -c 'import no_such_module'")
    reader.until(lambda: reader.job("train")["state"] == "FAILED")


def _starved(reader: Reader) -> None:
    _held(reader)
    reader.follow("sickbay submit --name train --nodes 4 -- python -m sickbay.train.sample --steps 20")
    reader.until(lambda: reader.job("train")["state"] == "QUEUED" and reader.job("train")["because"])


def _trains(reader: Reader) -> None:
    reader.follow("sickbay submit --name train --nodes 2 -- python -m sickbay.train.sample --steps 5000")
    reader.until(lambda: reader.job("train")["state"] == "RUNNING")


# What must be so for a runbook's commands to make sense; the others need nothing but a cluster.
SCENES: dict[str, Callable[[Reader], None]] = {
    "held": _held,
    "release_failed": _held,
    "vacancy": _held,  # here a seat is filled at once; the order that gives one up is the same
    "budget": _no_budget,
    "brake": _braked,
    "withheld": _paused,
    "unconfirmed": _paused,  # SUSPECT, as it would be
    "job_failed": _failed,
    "job_waits": _starved,
    "job_stuck": _trains,
    "log_rule_off": _trains,
    "save_failed": _trains,
}


@pytest.fixture(scope="session")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A cluster that the pages of this run share."""
    home = tmp_path_factory.mktemp("ward")
    with reading(home, home) as reader:
        reader.follow("sickbay up --detach --gpus 1")
        yield reader


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_their_order(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    commands = [line for block in in_blocks(page) for line in block]
    if all(ALONE.match(line) for line in commands):
        reader = Reader(tmp_path, tmp_path)
        (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone; what a command leaves stays here
    elif not any(line.startswith("sickbay up") for line in commands):
        reader = request.getfixturevalue("ward")
    else:  # a page that starts its own cluster ends it, too
        assert commands[-1] == "sickbay down"
        with reading(tmp_path / "home", tmp_path) as reader:
            for command in commands:
                reader.follow(command)
            assert not reader.processes()
        return
    for command in commands:
        reader.follow(command)


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.name)
def test_what_a_runbook_tells_to_do_can_be_done(page: Path, ward: Reader) -> None:
    """A page begins with looking; each block after that is one way out of the same scene."""
    look, *ways = in_blocks(page)
    for number, block in enumerate([look + (ways[0] if ways else []), *ways[1:]]):
        if number or page.stem in SCENES:
            ward.calm()
        if page.stem in SCENES:
            SCENES[page.stem](ward)
        for command in block:
            ward.follow(command)


def test_the_readme_names_only_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert "".join(target) in targets, f"{page.name} names make {''.join(target)}"


def test_the_picture_in_the_readme_shows_a_run_that_healed() -> None:
    picture = (DOCS / "pictures" / "demo.svg").read_text(encoding="utf-8").replace("&#160;", " ")
    for words in ("$ sickbay demo", "falls off the bus", "training again after", "RELEASED", "COMPLETE"):
        assert words in picture, f"{words!r} is not in docs/pictures/demo.svg: run `make pictures`"
