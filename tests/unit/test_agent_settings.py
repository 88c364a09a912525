"""The agent's settings: every mistake is one line that says what to write, and the later source wins."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.agent.settings import SETTINGS, AgentSettings, instance_id, load, printable
from sickbay.model.errors import BadInput

URL = {"SICKBAY_URL": "http://controller:8080"}


def loaded(text: str, tmp_path: Path, env: dict[str, str] | None = None, **flags: Any) -> AgentSettings:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load(path, {**URL, "SICKBAY_INSTANCE_ID": "i-1", **(env or {})}, flags)


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    text = "node: a/file\nstate: /file\ngpus: 4\n"
    found = loaded(text, tmp_path, {"SICKBAY_NODE": "a/env", "SICKBAY_STATE": "/env"}, node="a/flag")
    assert (found.node, found.state, found.gpus) == ("a/flag", "/env", 4)


def test_without_anything_the_defaults_are_careful(tmp_path: Path) -> None:
    found = loaded("", tmp_path)
    assert found.allow == ("reset", "check")
    assert found.self_fence is None
    assert found.sources == ("auto",)
    assert not found.trust_logs
    assert found.node.startswith("default/")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("url: controller", "write http://HOST:PORT"),
        ("url: http://controller:99999", "write http://HOST:PORT"),
        ("url: http://controller:80a", "write http://HOST:PORT"),
        ("boot_id_file: /nonexistent/boot_id", "is not there"),
        ("host_root: /nonexistent", "mount the host's / there"),
        ("host_root: host", "begins with /"),
        ("kmsg: /nonexistent/kmsg", "is not there"),
        ("reboot_command: systemctl reboot", "must be a list of words"),
        ("reset_command: []", "must be a list of words"),
        ("node: gpu-7", "write cluster/name"),
        ("gpus: many", "write a whole number"),
        ("gpus: -1", "write a whole number"),
        ("allow: [reset, explode]", "write some of reset, reboot, inject, check"),
        ("sources: [messages]", "full path"),
        ("sources: []", "no source is left"),
        ("trust_logs: sometimes", "write true or false"),
        ("state: here", "begins with /"),
        ("metrics: fast", "is not a duration"),
        ("metrics: 2h", "1s to 1h"),
        ("self_fence: yes", "write {after: 30m"),
        ("self_fence: {after: 1m, probe: [x]}", "write 5m or more"),
        ("self_fence: {after: 10m}", "say how to ask the cluster"),
        ("self_fence: {after: 10m, probe: scontrol ping}", "must be a list of words"),
        ("self_fence: {after: 10m, probe: [x], comand: [y]}", "it has no comand"),
        ("tokn: x", "did you mean token?"),
        ("zzz: x", "known: url"),
        ("ca: /nonexistent/ca.pem", "is not there"),
        ("- a\n- b", "each as `name: value`"),
        ("a: [", "agent.yaml:1:5: not valid YAML"),
        ("node: a/b\n\ngpus: many", "agent.yaml:3:7: gpus: "),
        ("gpus: 1\ngpus: 2", "'gpus' is given twice (first on line 1)"),
    ],
)
def test_a_mistake_says_what_to_write(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)) as error:
        loaded(text, tmp_path)
    assert "\n" not in str(error.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"node: .*; .*gpus: "):
        loaded("node: x\ngpus: y\n", tmp_path)


def test_a_controller_is_needed_unless_it_looks_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("instance_id: i-1")
    with pytest.raises(BadInput, match="url is not set"):
        load(tmp_path / "a.yaml", {}, {})
    assert load(tmp_path / "a.yaml", {}, {}, alone=True).url == ""


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        load(tmp_path / "none.yaml", URL, {})


def test_fencing_is_read_whole(tmp_path: Path) -> None:
    text = (
        "self_fence: {after: 30m, command: [systemctl, stop, slurmd], undo: [systemctl, start, slurmd], probe: [true]}"
    )
    with pytest.raises(BadInput, match="list of words"):
        loaded(text, tmp_path)  # YAML reads true as a truth
    found = loaded(text.replace("[true]", "['true']"), tmp_path).self_fence
    assert found is not None
    assert (found.after, found.command, found.probe) == (1800.0, ("systemctl", "stop", "slurmd"), ("true",))


def test_what_is_printed_has_every_setting_and_no_secret(tmp_path: Path) -> None:
    found = loaded("token: s3cret-token", tmp_path)
    shown = printable(found)
    assert list(shown) == list(SETTINGS)
    assert "s3cret" not in str(shown)
    assert all(setting.about and setting.default for setting in SETTINGS.values())


def test_settings_survive_the_way_to_the_agents_process(tmp_path: Path) -> None:
    found = loaded("self_fence: {after: 30m, probe: [x]}\nallow: [inject]\nmounts: [/fsx]\n", tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(found), type=AgentSettings) == found


@pytest.mark.parametrize(
    ("asset", "uuid", "machine", "found"),
    [
        ("i-0123456789abcdef0", "EC2abcde", "", "i-0123456789abcdef0"),
        ("Not Specified", "4C4C4544-0051-3610-8052-B4C04F4D3132", "", "4c4c4544-0051-3610-8052-b4c04f4d3132"),
        ("", "00000000-0000-0000-0000-000000000000", 4 * "0123abcd", 4 * "0123abcd"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_the_machines_own_name_is_found(tmp_path: Path, asset: str, uuid: str, machine: str, found: str) -> None:
    (tmp_path / "board_asset_tag").write_text(f"{asset}\n")
    (tmp_path / "product_uuid").write_text(f"{uuid}\n")
    (tmp_path / "machine-id").write_text(f"{machine}\n")
    assert instance_id(tmp_path, tmp_path / "machine-id") == found


@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some, max_size=3), max_leaves=5),
    max_size=4))  # fmt: skip
def test_whatever_a_person_writes_is_taken_or_refused_in_words(given_: dict[str, Any]) -> None:
    with suppress(BadInput):
        load(Path("/dev/null"), {**URL, "SICKBAY_INSTANCE_ID": "i"}, given_)


def test_a_single_look_needs_no_name_that_no_other_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sickbay.agent.settings.instance_id", lambda *_: "")
    assert load(None, {}, {}, alone=True).instance_id == "here"
    with pytest.raises(BadInput, match="write a name that no other machine has"):
        load(None, URL, {})
