"""The shipped policies: each value says why, and the first act that their tables expect follows from their rules."""

import csv
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from tests.support.cases import one_by_one
from tests.support.golden import GoldenRow, load_golden

from sickbay.model.fault import Fault, Remedy, Scope, Severity, highest, lowest
from sickbay.model.policy import Policy
from sickbay.policy.load import load_policy, shipped, shipped_files

_FREE = {"name", "about", "extends", "why"}


def _unexplained(node: yaml.Node, lines: list[str], *, said: bool) -> Iterator[int]:
    """Lines of values that neither a comment nor the `why` of their rule explains."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _unexplained(item, lines, said=said)
        return
    if not isinstance(node, yaml.MappingNode):
        return
    said = said or any(key.value == "why" for key, value in node.value if value.value)
    for key, value in node.value:
        line = key.start_mark.line
        # Strikes and rungs below a ladder explain themselves: a ladder's `why` is about the ladder.
        below = said and key.value not in {"rungs", "strikes"}
        commented = "#" in lines[line] or lines[line - 1].lstrip().startswith("#")
        nested = isinstance(value, yaml.SequenceNode | yaml.MappingNode) and value.start_mark.line != line
        if nested:
            yield from _unexplained(value, lines, said=below)
        elif key.value not in _FREE and not said and not commented:
            yield line + 1


@pytest.mark.parametrize("name", shipped())
def test_every_value_of_a_shipped_policy_says_why(name: str) -> None:
    text = shipped_files()[name].read_text(encoding="utf-8")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node is not None
    lines = text.splitlines()
    assert [f"{n}: {lines[n - 1]}" for n in _unexplained(node, lines, said=False)] == []


def test_the_default_writes_every_top_level_setting_down() -> None:
    written = yaml.safe_load(shipped_files()["default"].read_text(encoding="utf-8"))
    assert set(written) == set(Policy.__struct_fields__)


def _known_faults() -> dict[str, Fault]:
    known = {}
    data = Path(str(files("sickbay.knowledge"))) / "data"
    for table, prefix, key in (("xid", "xid.", "xid"), ("sxid", "sxid.", "sxid"), ("faults", "", "code")):
        with (data / f"{table}.csv").open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                code = prefix + row[key]
                known[code] = Fault(
                    code=code,
                    component=row["component"],
                    severity=Severity(row["severity"]),
                    scope=Scope(row["scope"]),
                    remedy=Remedy(row["remedy"]),
                    because=row["because"],
                )
    return known


_ROWS = [(name, row) for name in shipped() for row in load_golden(name)]


@one_by_one(("name", "row"), _ROWS, ids=[f"{name}: {row.when}" for name, row in _ROWS])
def test_the_first_repair_of_a_golden_row_follows_from_the_rules(name: str, row: GoldenRow) -> None:
    policy, known = load_policy(name), _known_faults()
    first = next((known[code] for code in row.evidence if code in known), None)
    if first is not None and first.code == "xid.79" and "check.failed" in row.evidence:
        first = known["check.failed"]  # where the Xid is only watched, the failed check is what asks
    wanted, human = Remedy.NONE, False
    if first is not None:
        wanted = first.remedy
        rule = next((rule for rule in policy.faults if rule.match.fits(first, pool="p", node="c/n")), None)
        if rule is not None:
            wanted = highest(wanted, rule.floor) if rule.floor else wanted
            wanted = lowest(wanted, rule.cap) if rule.cap else wanted
            human = rule.needs_human
    expected = next((act for act in row.acts if act.startswith("repair.")), None)
    if policy.hands_off:
        assert not row.acts
        return
    if not wanted.disrupts or human:
        assert expected is None
        assert row.acts == (("quarantine",) if human else ())
        return
    assert first is not None
    ladder = next(ladder for ladder in policy.ladders if ladder.match.fits(first, pool="p", node="c/n"))
    assert expected == f"repair.{next(rung.do for rung in ladder.rungs if rung.do.rank >= wanted.rank)}"


@one_by_one(("name", "row"), _ROWS, ids=[f"{name}: {row.when}" for name, row in _ROWS])
def test_golden_rows_never_repair_outside_quarantine_nor_release_without_proof(name: str, row: GoldenRow) -> None:
    out, before = False, ""
    for act in row.acts:
        assert act in {"quarantine", "verify", "release", *(f"repair.{rung}" for rung in Remedy if rung.disrupts)}, name
        assert (act == "quarantine") is not out
        assert act != "release" or before == "verify"
        out, before = act != "release", act
    assert row.told or not out  # a node that stays out is told of
    assert row.told or row.job != "fails"
