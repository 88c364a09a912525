"""What a person writes becomes a policy, or one line that says what to write instead."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.model.durations import format_duration, parse_duration
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.model.policy import Trigger
from sickbay.policy.load import digest, load_policy, parse_policy, shipped

BASE = "extends: default\n"


def refused(text: str, where: str = "p.yaml") -> str:
    with pytest.raises(BadInput) as caught:
        parse_policy(text, where)
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_every_shipped_policy_loads_and_carries_its_own_name() -> None:
    assert set(shipped()) == {
        "default",
        "ecs-gpu-recovery",
        "ecs-hybrid",
        "eks-llm",
        "hyperpod",
        "parallelcluster",
        "recommend",
    }
    assert [load_policy(name).name for name in shipped()] == list(shipped())


def test_a_profile_keeps_what_it_does_not_say() -> None:
    policy = parse_policy(BASE + "silence: {agent: 1m}\n", "mine.yaml")
    default = load_policy("default")
    assert policy.silence.agent == timedelta(minutes=1)
    assert policy.ladders == default.ladders
    assert (policy.name, policy.about) == ("mine", "")


def test_a_bare_name_is_shipped_and_a_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "default").write_text(BASE + "about: a file\n")
    assert load_policy("default").about != "a file"
    assert load_policy(str(tmp_path / "default")).about == "a file"
    assert load_policy(tmp_path / "default").about == "a file"


def test_a_file_extends_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BASE + "silence: {agent: 1m}\n")
    (tmp_path / "b.yaml").write_text("extends: ./a.yaml\npace: {drain: wait}\n")
    policy = load_policy(tmp_path / "b.yaml")
    assert (policy.silence.agent, policy.pace.drain) == (timedelta(minutes=1), "wait")


def test_policies_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: ./a.yaml\n")
    with pytest.raises(BadInput, match="circle"):
        load_policy(tmp_path / "a.yaml")


def test_on_is_a_word_and_22_00_is_a_time() -> None:
    policy = parse_policy(BASE + "examine:\n- on: join\n  level: 2\nwindows:\n- start: 22:00\n  end: 24:00\n", "p.yaml")
    assert policy.examine[0].on is Trigger.JOIN
    assert policy.windows[0].start == "22:00"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.yaml:1: the file is empty: write 'extends: default'"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "p.yaml:1:1: expected 'key: value' lines at the top, got a list"),
        ("hello", "expected 'key: value' lines at the top, got 'hello'"),
        ("pace:\n\tdrain: wait\n", "p.yaml:2:1: not valid YAML, a tab is used to indent: indent with spaces"),
        ("a: b: c\n", "p.yaml:1:5: not valid YAML, mapping values are not allowed here: check the indentation"),
        ("pace: {drain: wait\n", "not valid YAML"),
        ("pace: {}\nname: x\npace: {}\n", "p.yaml:3:1: 'pace' is given twice (first on line 1)"),
        ("extends: default\nextends: default\n", "'extends' is given twice"),
        ("a: &x 1\n", "p.yaml:1:4: not valid YAML, anchors (&) and aliases (*) are not used here"),
        (BASE + "limits:\n- pool: *\n", "quote text that begins with & or *"),
        ("name: !!python/object/apply:os.system [ls]\n", "expected text"),
        ("name: !!python/name:os.system x\n", "tags such as"),
        ("name: a\n---\nname: b\n", "keep one document in one file"),
        ("name: \x07\n", "the character U+0007 is not allowed"),
        ("[" * 5000, "nested too deeply"),
        ("ladders: {}\n", "p.yaml:1:10: ladders: expected a list, got a block of 'key: value' lines: put '- '"),
        ("ladders:\n", "ladders: expected a list, got nothing: write [] for none"),
        (
            "ladders:\n- rungs:\n  - do: reboot\n    deadlin: 5m\n",
            (
                "p.yaml:4:5: ladders[0].rungs[0]: unknown key 'deadlin':"
                " did you mean 'deadline'? known: do, tries, deadline, verify,"
            ),
        ),
        (
            "ladders:\n- rungs:\n  - do: rebot\n",
            ("p.yaml:3:9: ladders[0].rungs[0].do: unknown value 'rebot': did you mean 'reboot'? known: none, watch,"),
        ),
        ("ladders:\n- rungs:\n  - tries: 1\n", "p.yaml:3:5: ladders[0].rungs[0]: 'do' is missing: add 'do: …'"),
        (
            "ladders:\n- rungs:\n  - do: reboot\n    tries: two\n",
            ("p.yaml:4:12: ladders[0].rungs[0].tries: expected a whole number, got 'two'"),
        ),
        ("ladders:\n- rungs:\n  - do: reboot\n    tries: 99999999999999999999\n", "expected a whole number"),
        (
            "ladders:\n- rungs:\n  - do: reboot\n    deadline: 10\n",
            "deadline: expected a duration (write a number with",
        ),
        (
            "ladders:\n- rungs:\n  - do: reboot\n    deadline: 10 min\n",
            "'10 min' is not a duration: write a number with ms",
        ),
        ("ladders:\n- rungs:\n  - do: reboot\n    deadline: -10m\n", "'-10m' is negative"),
        ("pace: {drain: politely}\n", "pace.drain: unknown value 'politely': known: evict, force, wait"),
        ("name: 5\n", "name: expected text (put it in quotes), got the number 5"),
        ("faults:\n- needs_human: maybe\n", "expected true or false, got 'maybe'"),
        ("faults:\n- match: {severity: fatal}\n", "severity: expected a list, got 'fatal': write [fatal]"),
        ("channels: {rebot: ssm}\n", "channels.rebot: unknown value 'rebot': did you mean 'reboot'?"),
        ("withhold:\n- {id: a, because: b, by: c, pol: x}\n", "withhold[0]: unknown key 'pol': did you mean 'pool'?"),
        (
            "withhold:\n- {id: a, because: b, by: c, until: soon}\n",
            ("p.yaml:2:30: withhold[0].until: invalid rfc3339 encoded datetime: write a time such as 2030"),
        ),
        ("extends: defualt\n", "p.yaml:1:10: extends: unknown policy 'defualt': did you mean 'default'?"),
        ("extends: ./gone.yaml\n", "p.yaml:1:10: extends: ./gone.yaml: no such file"),
        ("extends: [default]\n", "extends: expected text"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_what_to_write(text: str, said: str) -> None:
    assert said in refused(text)


def test_a_missing_unreadable_or_undecodable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.yaml: no such file: give a \.yaml file, or one of default"):
        load_policy(tmp_path / "gone.yaml")
    with pytest.raises(BadInput, match="cannot be read"):
        load_policy(str(tmp_path) + "/")
    (tmp_path / "latin.yaml").write_bytes(b"name: ok\nabout: caf\xe9\n")
    with pytest.raises(BadInput, match=r"latin\.yaml:2: not UTF-8 \(byte 0xe9\): save the file as UTF-8"):
        load_policy(tmp_path / "latin.yaml")
    with pytest.raises(BadInput, match="unknown policy 'hyperpood': did you mean 'hyperpod'"):
        load_policy("hyperpood")


def test_a_mark_of_utf8_at_the_start_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfextends: default\r\nname: bom\r\n")
    assert load_policy(tmp_path / "bom.yaml").name == "bom"


def test_an_error_in_what_is_inherited_names_both_files() -> None:
    """A change up here can break a rule that stands down there."""
    said = refused(BASE + "notify:\n- {events: [job_failed], to: [log]}\n")
    assert said.startswith("p.yaml → default.yaml:")
    assert "notify rule for the event 'held'" in said


@given(st.text(max_size=300))
def test_no_text_makes_the_loader_fail_in_another_way(text: str) -> None:
    try:
        parse_policy(text, "p.yaml")
    except BadInput as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - most texts are refused, a few are not


@given(
    st.lists(
        st.sampled_from(
            [
                "faults:",
                "- ",
                "  ",
                "match: ",
                "{",
                "}",
                "[",
                "]",
                "fault: x",
                "do: reboot",
                "\n",
                ": ",
                "rungs:",
                "ladders:",
                "'",
                '"',
                "extends: default",
                "!!",
                "?",
                "|",
                ">",
                "null",
                "5m",
            ]
        ),
        max_size=25,
    ).map("".join)
)
def test_no_broken_policy_makes_the_loader_fail_in_another_way(text: str) -> None:
    try:
        parse_policy(text, "p.yaml")
    except BadInput as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - as above


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("28d", 2419200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "10", "m", "30m1h", "1h1h", "1 h", "1H", "1w", "99999d", "1e3s", "10m!"])
def test_other_words_are_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"write|missing"):
        parse_duration(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_a_duration_survives_being_written(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


def test_the_digest_follows_content_not_form() -> None:
    one = parse_policy(BASE + "name: x\nsilence: {agent: 60s}\n", "p.yaml")
    same = parse_policy("name: x\nsilence:\n  agent: 1m  # a comment\n" + BASE, "q.yaml")
    other = msgspec.structs.replace(one, channels={Remedy.REBOOT: "ssm"})
    assert digest(one) == digest(same) != digest(other)
    assert len(digest(one)) == 12
