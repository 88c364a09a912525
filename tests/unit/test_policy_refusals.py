"""Policies that must not be turned on."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.model.errors import BadInput
from sickbay.policy.load import parse_policy
from sickbay.policy.refusals import covers

BASE = "extends: default\n"
RUNG = "ladders:\n- rungs:\n  - {do: reboot, %s}\n"


def refused(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        parse_policy(BASE + text, "p.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "faults:\n- {floor: replace, cap: reboot}\n",
            "p.yaml:3:4: faults[0].floor: floor replace is above cap reboot",
        ),
        ("faults:\n- match: {fault: []}\n", "faults[0].match.fault: an empty list matches no fault"),
        ("faults:\n- {repeat: {times: 1, within: 1d, floor: reboot}}\n", "repeat.times: must be 2 or more"),
        ("faults:\n- {repeat: {times: 2, within: 1d, floor: reboot, jobs: 3}}\n", "repeat.jobs: must be from 1 to"),
        ("faults:\n- {repeat: {times: 20, within: 1d, floor: reboot, jobs: 17}}\n", "repeat.jobs: must be 16 or less"),
        (
            "faults:\n- {cap: watch, repeat: {times: 3, within: 1d, floor: reboot}}\n",
            "repeat.floor: floor reboot is above",
        ),
        (
            "ladders:\n- rungs: [{do: reboot}, {do: reset_gpu}]\n",
            "p.yaml:3:26: ladders[0].rungs[1].do: reset_gpu comes after",
        ),
        ("ladders:\n- rungs: [{do: reboot}, {do: reboot}]\n", "reboot comes after reboot"),
        (
            "ladders:\n- rungs: [{do: watch}]\n",
            "watch repairs nothing: write one of restart_service, reset_gpu, reboot",
        ),
        (RUNG % "tries: 0", "p.yaml:4:18: ladders[0].rungs[0].tries: must be 1 or more, not 0"),
        (RUNG % "verify: 0", "verify: a check has level 1 to 4, not 0"),
        (RUNG % "verify: 5", "verify: a check has level 1 to 4, not 5"),
        (RUNG % "deadline: 0s", "ladders[0].rungs[0].deadline: must be longer than nothing"),
        ("ladders:\n- {rungs: [{do: reboot}], strikes: [{after: 2, within: 1d}]}\n", "says nothing to do"),
        ("ladders:\n- {rungs: [{do: reboot}], strikes: [{after: 2, within: 1d, first: replace}]}\n", "no rung replace"),
        (
            "ladders:\n- {rungs: [{do: reboot}], strikes: [{after: 0, within: 1d, first: reboot}]}\n",
            "must be 1 or more",
        ),
        (
            "ladders:\n- {rungs: [{do: reboot}], strikes: [{after: 1, within: 1d, first: reboot, needs_human: true}]}",
            "keep 'first' or 'needs_human'",
        ),
        ("ladders: []\n", "faults that no ladder matches could never be repaired"),
        (
            "faults: [{floor: reboot}]\nladders:\n- {match: {fault: xid.79}, rungs: [{do: reboot}]}\n",
            "no ladder says how to repair what this rule",
        ),
        ("examine: [{on: join, level: 0}]\n", "examine[0].level: a check has level 1 to 4, not 0"),
        ("examine: [{on: schedule, level: 2}]\n", "a schedule needs 'every'"),
        ("examine: [{on: join, level: 2, every: 1d}]\n", "only 'on: schedule' repeats"),
        (
            "examine:\n- {on: join, level: 2}\n- {on: join, level: 3}\n",
            ("p.yaml:4:4: examine[1].on: 'on: join' is never reached, the first match wins (line 3)"),
        ),
        ("resume: {exit_codes: [256]}\n", "resume.exit_codes[0]: an exit code is 0 to 255, not 256"),
        ("resume: {exit_codes: [-1]}\n", "an exit code is 0 to 255, not -1"),
        ("resume: {place: []}\n", "resume.place: name each of"),
        ("resume: {max_restarts: -1}\n", "resume.max_restarts: must be 0 or more"),
        ("resume: {max_gates: 0}\n", "resume.max_gates: must be 1 or more"),
        ("resume: {settle: 3s}\n", "must be longer than 'settle'"),
        ("resume: {window: 0s}\n", "resume.window: must be longer than nothing"),
        ("limits: [{out_percent: 101}]\n", "limits[0].out_percent: a percentage is 0 to 100, not 101"),
        ("limits: [{repairing_percent: -1}]\n", "a percentage is 0 to 100, not -1"),
        ("limits: [{out_at_least: 5, out_absolute: 2}]\n", "at_least 5 is above absolute 2"),
        (
            "limits: [{out_percent: 0, out_at_least: 0}]\n",
            "no node could ever be taken out of service: write 1 or more",
        ),
        (
            "limits: [{repairing_absolute: 0, repairing_at_least: 0}]\n",
            "no node could ever be repaired: write 1 or more",
        ),
        ("limits: [{size: 0}]\n", "limits[0].size: must be 1 or more"),
        ("limits: []\n", "some pools have no limit"),
        ("limits: [{pool: a}]\n", "some pools have no limit: end the list with one for pool '*'"),
        ("limits:\n- {pool: 'gpu*'}\n- {pool: gpu-a}\n- {}\n", "limits[1]: can never match: limits[0] (line 3)"),
        ("brakes: [{nodes: 0}]\n", "brakes[0].nodes: must be 1 or more, not 0"),
        ("brakes: [{percent: 200}]\n", "brakes[0].percent: a percentage is 0 to 100, not 200"),
        ("brakes:\n- {signature: '*'}\n- {signature: silence}\n", "brakes[1]: can never match: brakes[0] (line 3)"),
        ("windows: [{start: '10:00', end: '10:00'}]\n", "start 10:00 is not before end 10:00: write two windows"),
        ("windows: [{start: '22:00', end: '06:00'}]\n", "write two windows to go over midnight"),
        ("windows: [{start: 9am}]\n", "windows[0].start: '9am' is not a time of day"),
        ("windows: [{days: [7]}]\n", "windows[0].days: days are 0 (Monday) to 6 (Sunday)"),
        ("channels: {watch: ssm}\n", "channels.watch: no machine does watch"),
        ("channels: {reboot: ''}\n", "channels.reboot: names no adapter"),
        ("notify: [{to: []}]\n", "notify[0].to: is empty"),
        (
            "withhold:\n- {id: '{a}', because: b, by: c}\n- {id: '{a}', because: b, by: c}\n",
            "the id '{a}' is taken (line 3)",
        ),
        ("withhold:\n- {id: a, because: b, by: c, until: '2030-01-01T00:00:00'}\n", "has no time zone"),
        ("silence: {agent_restarts: -1}\n", "silence.agent_restarts: must be 0 or more"),
        ("pace: {call_timeout: 0s}\n", "pace.call_timeout: must be longer than nothing"),
        ("retention: {history: 6h}\n", "retention.history: shorter than a day"),
        ("retention: {history: 0s}\n", "retention.history: must be longer than nothing"),
        ("retention: {log_mib: 0}\n", "retention.log_mib: 0 is not from 1 to 10,000 MiB"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    assert said in refused(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{}", "{fault: xid.79}"),
        ("{fault: 'xid.*'}", "{fault: xid.79}"),
        ("{fault: 'xid.*'}", "{fault: [xid.79, 'xid.1?']}"),
        ("{severity: [info, warning, error, fatal]}", "{}"),
        ("{severity: [error, fatal]}", "{severity: [fatal], pool: a}"),
        ("{pool: 'gpu-*'}", "{pool: gpu-a, node: 'c/*'}"),
    ],
)
def test_a_rule_that_can_never_match_is_refused_with_both_lines(first: str, second: str) -> None:
    text = f"faults:\n- {{match: {first}, cap: reboot}}\n- {{match: {second}, cap: reboot}}\n"
    assert "p.yaml:4:3: faults[1]: can never match: faults[0] (line 3) matches all of it first" in refused(text)


def test_a_narrow_rule_before_a_wide_one_is_fine() -> None:
    rule = "- {match: {fault: %s}, cap: watch}\n"
    parse_policy(BASE + "faults:\n" + rule % "xid.79" + rule % "'xid.*'", "p.yaml")
    parse_policy(BASE + "faults:\n" + rule % "['xid.*', 'sxid.*']" + rule % "'*xid.7'", "p.yaml")  # axid.7 is left


@pytest.mark.parametrize("told", ["notify: []\n", "notify: [{events: [job_failed]}]\n"])
@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            "faults: [{match: {fault: xid.79}, floor: reboot, needs_human: true}]\n",
            "needs a person, but nobody is told",
        ),
        ("ladders: [{match: {fault: xid.79}}, {rungs: [{do: reboot}]}]\n", "for ever when this ladder has no rungs"),
        ("ladders: [{rungs: [{do: reboot}]}]\n", "for ever when this ladder ends"),
    ],
)
def test_never_loads_a_policy_that_could_cordon_for_ever(told: str, rules: str, said: str) -> None:
    assert said in refused(told + rules)


def test_a_policy_that_touches_nothing_needs_neither_ladder_nor_listener() -> None:
    parse_policy("faults: [{mode: observe}]\nladders: []\nnotify: []\n", "p.yaml")


_GLOB = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]"]), max_size=4).map("".join)


@given(_GLOB, _GLOB, st.text("abc", max_size=5))
def test_a_glob_that_covers_another_matches_all_its_texts(wide: str, narrow: str, text: str) -> None:
    if covers((wide,), (narrow,)) and fnmatchcase(text, narrow):
        assert fnmatchcase(text, wide)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("xid.*", "xid.1?"), ("a?*", "a*b*"), ("*?b*", "*ab"), ("xid.*", "xid.7[0-9]"), ("[ab]*", "[ab]*")],
)
def test_a_wide_glob_covers_a_narrow_one_and_a_class_covers_what_it_matches_only(wide: str, narrow: str) -> None:
    assert covers((wide,), (narrow,))
    assert covers((narrow,), (wide,)) == (wide == narrow)
    assert not covers(("[ab]*",), ("a*",))  # hard to tell: so the ladders end with one for everything


_TEXTS = [a + b + c for a in ("", *"abc") for b in ("", *"abc") for c in ("", *"abc")]


@given(st.lists(_GLOB, min_size=1, max_size=2), st.sampled_from(_TEXTS))
def test_a_text_is_covered_exactly_when_it_is_matched(wide: list[str], text: str) -> None:
    assert covers(wide, (text,)) == any(fnmatchcase(text, glob) for glob in wide)
