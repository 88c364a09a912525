"""Lint, diff and the command line."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sickbay.faces.cli.main import main
from sickbay.model.fleet import Capability
from sickbay.policy.diff import diff, in_words, to_yaml
from sickbay.policy.lint import lint
from sickbay.policy.load import digest, load_policy, parse_policy, shipped

BASE = "extends: default\n"
ALL = frozenset(Capability)


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["policy", *args])


def test_the_default_raises_no_doubts() -> None:
    assert lint(load_policy("default"), ALL) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: [{out_percent: 100}]\n", "lets the whole pool out"),
        ("limits: [{size: 4, out_at_least: 4}]\n", "lets the whole pool out"),
        ("limits: [{out_at_least: 0}]\n", "a small pool can never have a node out"),
        ("limits: [{repairing_at_least: 0}]\n", "a small pool can never have a node in repair"),
        ("resume: {faults_count: true, max_restarts: 0}\n", "no job is ever restarted, even when a node was to blame"),
        ("resume: {exit_codes: [0, 1]}\n", "0 is success"),
        ("resume: {max_interruptions: 0}\n", "no job is ever restarted"),
        ("resume: {max_interruptions: 2}\n", "below max_restarts"),
        ("brakes: []\n", "brakes: none"),
        ("brakes: [{signature: xid.79}]\n", "none for silence"),
        ("brakes: [{nodes: 1}]\n", "trips on the first sick node"),
        ("faults: [{match: {severity: [fatal]}, mode: observe}]\n", "nobody is told"),
        ("faults: [{match: {severity: [fatal]}, cap: watch}]\n", "fatal faults stay in service"),
        ("faults: [{cap: watch, needs_human: true}]\n", "so nobody is asked"),
        ("ladders: [{}]\n", "waits for a person: is that meant?"),
        ("ladders: [{rungs: [{do: reboot, tries: 9}]}]\n", "9 tries of reboot"),
        ("ladders: [{rungs: [{do: reboot, deadline: 10s}]}]\n", "not longer than pace.call_timeout (10s)"),
        ("examine: []\n", "newcomers and spares join unchecked"),
        ("examine: [{on: join, level: 2}, {on: schedule, level: 2, every: 10m}]\n", "checked without pause"),
        ("pace: {cordon_deadline: 5s}\n", "pace.cordon_deadline"),
        ("silence: {agent: 1s}\n", "silence.agent"),
        ("withhold: [{id: a, because: b, by: c}]\n", "'a' never ends"),
    ],
)
def test_lint_names_the_setting_and_the_doubt(text: str, said: str) -> None:
    found = lint(parse_policy(BASE + text, "p.yaml"), None)
    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (Capability.REPLACE, "ladders[0].rungs[1].do: this cluster cannot replace: the rung is skipped"),
        (Capability.CHECK, "this cluster has no checks"),
        (Capability.CHECK_CORDONED, "checks cannot start on a cordoned node"),
        (Capability.FENCE, "cannot be fenced"),
        (Capability.LOOK, "cannot be looked at"),
    ],
)
def test_lint_says_what_the_cluster_cannot_do(missing: Capability, said: str) -> None:
    assert any(said in line for line in lint(load_policy("default"), ALL - {missing}))


def test_lint_says_when_no_rung_is_left() -> None:
    lines = lint(load_policy("ecs-hybrid"), ALL - {Capability.REBOOT})
    assert any("can do none of them" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_what_show_prints_is_the_same_policy(name: str, tmp_path: Path) -> None:
    shown = run("show", name)
    assert shown.exit_code == 0
    (tmp_path / "shown.yaml").write_text(shown.stdout, encoding="utf-8")
    policy = load_policy(name)
    assert load_policy(tmp_path / "shown.yaml") == policy
    assert digest(parse_policy(to_yaml(policy), "x.yaml")) == digest(policy)


@pytest.mark.slow
def test_show_survives_words_that_look_like_something_else() -> None:
    odd = [
        "on",
        "yes",
        "null",
        "~",
        "1",
        "089",
        "1e3",
        "0x1f",
        "1_000",
        "22:00",
        "2030-01-01",
        "*",
        "&a",
        "a: b",
        " x ",
        "é",
    ]
    for word in odd:
        policy = parse_policy(BASE + f"about: {json.dumps(word)}\n", "p.yaml")
        assert parse_policy(to_yaml(policy), "p.yaml").about == word


def test_show_json_is_alone_on_stdout_with_seconds() -> None:
    result = run("show", "--json")
    shown: dict[str, Any] = json.loads(result.stdout)
    assert (shown["name"], shown["silence"]["agent"], result.stderr) == ("default", 30.0, "")
    assert shown["digest"] == digest(load_policy("default"))


@pytest.mark.parametrize(("nodes", "warns"), [(1, False), (4, True), (19, True), (20, False)])
def test_lint_says_where_one_held_node_turns_healing_off(nodes: int, warns: bool) -> None:
    found = lint(load_policy("default"), ALL, {"*": nodes})
    assert [line.startswith("limits[0].out_at_least: ") for line in found] == ([True] if warns else [])
    assert all(f"a pool of {nodes} nodes may lack one node" in line for line in found)


def test_lint_judges_each_pool_by_its_own_limit_and_size() -> None:
    text = BASE + "limits: [{pool: big, out_at_least: 2}, {pool: '*'}]\n"
    found = lint(parse_policy(text, "p.yaml"), ALL, {"sim/big": 8, "sim/small": 8})
    assert [line.split(":")[0] for line in found if "out_at_least" in line] == ["limits[1].out_at_least"]
    assert any("pool sim/small (8 nodes)" in line for line in found)


@pytest.mark.parametrize("args", [("show", "nope"), ("lint", "./nope.yaml"), ("diff", "default", "nope")])
@pytest.mark.parametrize("flag", [(), ("--json",)])
def test_bad_input_is_one_line_on_stderr_and_exit_2(args: tuple[str, ...], flag: tuple[str, ...]) -> None:
    result = run(*args, *flag)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "nope" in result.stderr


def test_lint_exits_1_only_when_strict(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(BASE + "brakes: []\n")
    path = str(tmp_path / "p.yaml")
    assert run("lint", path).exit_code == 0
    assert run("lint", path, "--strict").exit_code == 1
    assert run("lint", "--strict").exit_code == 0
    assert len(json.loads(run("lint", path, "--json").stdout)["warnings"]) == 1
    assert "cannot replace" in run("lint", "--can", "reboot", "--can", "check").stdout


def test_diff_speaks_of_rules_not_of_positions() -> None:
    a = load_policy("default")
    added = "examine:\n- {on: job_end, level: 1}\n"
    b = parse_policy(BASE + "silence: {agent: 1m}\n" + added, "mine.yaml")
    said = [in_words(change, "default", "mine") for change in diff(a, b)]
    assert "silence.agent: 30s in default, 1m in mine" in said
    assert any(line.startswith("examine[job_end]: only in mine: on job_end, level 1") for line in said)
    assert any(line.startswith("examine[join]: only in default") for line in said)
    assert len(said) == 4


def test_diff_follows_a_rule_that_moved_down() -> None:
    rule = "faults:\n%s- {match: {fault: xid.48}, floor: %s}\n"
    a = parse_policy(BASE + rule % ("", "reboot"), "a.yaml")
    b = parse_policy(BASE + rule % ("- {match: {fault: xid.1}, cap: watch}\n", "replace"), "b.yaml")
    changes = [(change.path, change.change) for change in diff(a, b)]
    assert changes == [("faults[xid.1]", "added"), ("faults[xid.48].floor", "changed")]


def test_diff_exits_0_when_same_and_1_when_not() -> None:
    assert run("diff", "default", "default").exit_code == 0
    assert json.loads(run("diff", "default", "default", "--json").stdout) == []
    reworded = parse_policy(BASE + "notify: [{why: another reason}]\n", "p.yaml")
    assert diff(load_policy("default"), reworded) == []
    result = run("diff", "default", "hyperpod", "--json")
    assert result.exit_code == 1
    changed = {change["path"]: change for change in json.loads(result.stdout)}
    assert changed["resume.start_deadline"]["b"] == 1800.0
    assert "resume.max_restarts: 3 in default, 2 in hyperpod" in run("diff", "default", "hyperpod").stdout


@pytest.mark.parametrize(("trigger", "more"), [("fault", ""), ("schedule", ", every: 1d")])
def test_lint_has_nothing_against_checks_on_schedule_and_on_faults(trigger: str, more: str) -> None:
    rules = f"{{on: join, level: 2}}, {{on: {trigger}, level: 1{more}}}"
    assert lint(parse_policy(f"extends: default\nexamine: [{rules}]\n", "p.yaml"), None) == []


def test_a_job_that_is_never_called_hung_is_no_mistake() -> None:
    assert parse_policy("extends: default\nresume: {stall_after: 0s}\n", "p.yaml").resume.stall_after == timedelta(0)
