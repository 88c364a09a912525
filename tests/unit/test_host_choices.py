"""What was chosen for `sickbay up` stays chosen; what has become of its policy file is said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from sickbay.faces.cli.main import main
from sickbay.hosts.choices import (
    COPY,
    FILE,
    ChosenPolicy,
    UpChoices,
    as_before,
    chosen,
    keep,
    policy_of,
    remembered,
    words_of,
)
from sickbay.model.errors import BadInput
from sickbay.model.policy import Mode
from sickbay.policy.load import digest, load_policy, parse_policy, shipped

OURS = "extends: default\nname: ours\nfaults: [{mode: recommend}]\n"


def start(state: Path, **given: str | int | None) -> ChosenPolicy:
    """What a start of the controller does about its choices."""
    before = remembered(state)
    choices = chosen(before, **given)
    found = policy_of(state, before, choices, ("log",), given=given.get("policy") is not None)
    keep(state, choices, found.policy)
    return found


def test_a_policy_once_chosen_stays_until_another_is_given(tmp_path: Path) -> None:
    assert start(tmp_path).policy.name == "default"
    assert start(tmp_path, policy="recommend").policy.name == "recommend"
    assert start(tmp_path) == ChosenPolicy(load_policy("recommend"))
    assert start(tmp_path, policy="default").policy.name == "default"
    assert start(tmp_path).policy.name == "default"


def test_address_certificate_and_knowledge_stay_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    start(tmp_path, port=8931, host="0.0.0.0", cert="c.pem", key="k.pem", knowledge="own.yaml")
    choices = chosen(remembered(tmp_path), port=None)
    assert (choices.port, choices.host) == (8931, "0.0.0.0")
    assert (choices.cert, choices.key) == (str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))
    assert choices.knowledge == str(tmp_path / "own.yaml")
    line = as_before(choices, {"port"})
    assert line.startswith("as before: host 0.0.0.0, cert ")
    assert "port" not in line
    assert as_before(UpChoices(), set()) == ""
    without = chosen(choices, cert="none", key="none", knowledge="none")
    assert (without.cert, without.key, without.knowledge) == ("", "", "")


def test_a_policy_file_that_has_changed_is_in_force_and_said(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(OURS)
    first = digest(start(tmp_path, policy=str(file)).policy)
    assert start(tmp_path).remark == ""
    file.write_text(OURS.replace("recommend", "observe"))
    found = start(tmp_path)
    assert found.policy.faults[0].mode is Mode.OBSERVE
    assert "has changed since the last start" in found.remark
    assert first in found.remark
    assert digest(found.policy) in found.remark


@pytest.mark.parametrize("becomes", ["", "faults: [{mode: recommned}]\n"])
def test_a_policy_file_that_is_gone_or_broken_leaves_in_force_what_was(tmp_path: Path, becomes: str) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(OURS)
    before = start(tmp_path, policy=str(file)).policy
    if becomes:
        file.write_text(becomes)
    else:
        file.unlink()
    found = start(tmp_path)
    assert digest(found.policy) == digest(before)  # never the default, which acts
    assert ("cannot be used" if becomes else "is gone") in found.remark
    assert "\n" not in found.remark
    assert start(tmp_path).remark == found.remark  # and is said again each time
    with pytest.raises(BadInput):
        start(tmp_path, policy=str(file))  # asked for now it must be good


def test_without_a_copy_nothing_is_guessed(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    file.write_text(OURS)
    start(tmp_path, policy=str(file))
    file.unlink()
    (tmp_path / COPY).unlink()
    with pytest.raises(BadInput, match="say which with --policy"):
        start(tmp_path)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        start(tmp_path)


@pytest.mark.parametrize("name", shipped())
def test_the_copy_of_a_policy_is_that_policy(tmp_path: Path, name: str) -> None:
    policy = load_policy(name)
    keep(tmp_path, UpChoices(policy=name), policy)
    assert digest(load_policy(tmp_path / COPY)) == digest(policy)


def test_recommend_is_the_default_policy_with_its_hands_tied() -> None:
    policy, usual = load_policy("recommend"), load_policy("default")
    assert policy.hands_off
    assert not usual.hands_off
    assert policy.faults[:-1] == tuple(replace(rule, mode=Mode.RECOMMEND) for rule in usual.faults)
    assert replace(policy, name=usual.name, about=usual.about, faults=usual.faults) == usual
    assert "touches no node" in words_of(policy)
    assert "touches no node" not in words_of(usual)


@pytest.mark.parametrize(
    ("faults", "hands_off"),
    [
        ("[{mode: recommend}]", True),
        ("[{mode: observe}]", True),
        ("[{match: {fault: 'xid.*'}, mode: recommend}]", False),  # all others are acted upon
        ("[{match: {fault: xid.79}}, {mode: recommend}]", False),
        ("[{match: {pool: test}, mode: recommend}]", False),
    ],
)
def test_hands_off_means_that_no_fault_makes_it_act(faults: str, hands_off: bool) -> None:
    assert parse_policy(f"extends: default\nfaults: {faults}\n", "ours.yaml").hands_off is hands_off


# --- the commands


@pytest.mark.parametrize("detach", [True, False])
def test_a_start_that_is_refused_leaves_no_state_directory(tmp_path: Path, detach: bool) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_text("no certificate")
    key.write_text("no key")
    state = tmp_path / "a" / "state"
    more = ["--detach"] if detach else []
    args = ["up", "--state", str(state), "--port", "0", "--cert", str(cert), "--key", str(key), *more]
    refused = CliRunner().invoke(main, args)
    assert refused.exit_code == 2
    assert "cannot be used" in refused.output
    assert not (tmp_path / "a").exists()


def test_an_agent_does_not_take_a_controllers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sickbay.db").touch()
    monkeypatch.setenv("SICKBAY_STATE", str(tmp_path))
    refused = CliRunner().invoke(main, ["agent", "--url", "http://127.0.0.1:1", "--node", "lab/a", "--set", "token=x"])
    assert refused.exit_code == 2
    assert "is that of a controller" in refused.output


def test_a_controller_does_not_take_an_agents_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("SICKBAY_STATE", str(tmp_path))
    refused = CliRunner().invoke(main, ["up", "--port", "0"])
    assert refused.exit_code == 2
    assert "is the state of an agent" in refused.output


WRITES = """
import os, sys
from pathlib import Path
from sickbay.faces.cli import up
up.UP_LOG_BYTES = 10_000
bounded = up.BoundedOutput(Path(sys.argv[1]))
for n in range(5_000):
    os.write(1, b"a line of the story\\n")
    os.write(2, b"an error\\n")
    bounded.look()
"""


def test_what_a_detached_controller_says_does_not_fill_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "up.log"
    with file.open("ab") as out:
        subprocess.run(
            [sys.executable, "-c", WRITES, str(file)], stdout=out, stderr=out, check=True, env={**os.environ}
        )
    sizes = [one.stat().st_size for one in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 25_000
