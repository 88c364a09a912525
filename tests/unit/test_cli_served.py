"""The commands against the real API, over a simulated fleet: what one writes is what the other reads."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.api_ward import TOKENS, Clinic, clinic

from sickbay.faces.cli.main import main

KEYS = {
    "node": "id pool state schedulable boot_id instance_id devices job incident because",
    "job": "id name state attempt restarts nodes step resumed_from diagnosis interruptions because",
    "incident": "id node fault remedy phase opened_at closed_at stages jobs because",
}


@pytest.fixture(scope="module")
def ward() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


@pytest.fixture(autouse=True)
def reached(ward: Clinic, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("SICKBAY_URL", ward.url)
    monkeypatch.setenv("SICKBAY_TOKEN", TOKENS["admin"])


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def done(*args: str) -> str:
    result = sickbay(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def found(*args: str) -> Any:
    return json.loads(done(*args, "--json"))


@pytest.mark.parametrize("kind", ["node", "job", "incident"])
def test_lists_and_objects_have_the_keys_of_the_design(kind: str) -> None:
    rows = found(f"{kind}s")
    assert rows
    for row in [*rows, found(kind, rows[0]["id"])]:
        assert set(KEYS[kind].split()) <= set(row)


@pytest.mark.parametrize(
    "args",
    [
        ("nodes",), ("jobs",), ("incidents",), ("incidents", "--all"), ("node", "train-0000"), ("job", "llama"),
        ("explain", "train-0000"), ("explain", "llama"), ("top",), ("brake", "list"), ("exclude", "list"),
        ("token", "list"),
    ],
)  # fmt: skip
def test_what_people_read_is_whole_in_a_pipe_and_has_no_colours(args: tuple[str, ...]) -> None:
    shown = done(*args)
    assert "\x1b" not in shown
    assert "…" not in shown


def test_an_incident_can_be_read_and_explained_by_its_id() -> None:
    ident = found("incidents", "--open")[0]["id"]
    assert "HELD" in done("incident", ident)
    assert "What would change that" in done("explain", ident)
    assert found("explain", ident)["kind"] == "incident"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("node", "train-000"), "did you mean train-000"),
        (("job", "lama"), "did you mean llama?"),
        (("explain", "lama"), "did you mean llama?"),
        (("cordon", "train-9999x", "--reason", "x"), "did you mean"),
        (("stop", "short"), "is over"),
        (("unpause", "--reason", "x"), "nothing is paused"),
        (("brake", "reset", "--reason", "x"), "no brake is on"),
        (("exclude", "remove", "nope"), "exclusion"),
        (("submit", "--name", "x", "--nodes", "999", "true"), "ask for fewer"),
        (("submit", "--name", "a b", "--nodes", "1", "true"), "name"),
        (("submit", "--name", "x", "--nodes", "1", "--min-nodes", "2", "true"), "min_nodes"),
        (("token", "revoke", "nobody"), "token"),
        (("node", "../../healthz"), "there is no"),
    ],
)
def test_what_the_server_refuses_is_its_own_line_and_no_success(args: tuple[str, ...], says: str) -> None:
    result = sickbay(*args)
    as_things_stand = says in {"is over", "nothing is paused", "no brake is on"}
    assert result.exit_code == (1 if as_things_stand else 2), result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_a_wrong_token_and_a_viewer_who_acts_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_TOKEN", "wrong")
    wrong = sickbay("nodes")
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "set SICKBAY_TOKEN" in wrong.stderr
    monkeypatch.setenv("SICKBAY_TOKEN", TOKENS["viewer"])
    assert sickbay("nodes").exit_code == 0
    viewer = sickbay("cordon", "train-0001", "--reason", "x")
    assert (viewer.exit_code, viewer.stderr.count("\n")) == (2, 1)
    assert "not allowed with this token" in viewer.stderr


def test_an_operators_words_have_their_effect(ward: Clinic) -> None:
    done("cordon", "train-0006", "--reason", "a cable")
    assert found("node", "train-0006")["incident"] is not None
    done("uncordon", "train-0006", "--reason", "in place")
    done("pause", "--reason", "works", "--for", "1h")
    assert "pause by admin: works" in done("top")
    done("unpause", "--reason", "done")
    made = found("exclude", "add", "--fault", "xid.94", "--reason", "known")
    assert made["id"] in done("exclude", "list")
    done("exclude", "remove", made["id"])
    assert found("exclude", "list") == []
    said = done("inject", "train-0007", "--xid", "79", "--device", "1")
    assert said == "sim/train-0007: broke device 1 of sim/train-0007\n"
    assert ward.ward.tinker.broken[-1][1].xid == 79


def test_a_token_that_was_made_works_until_it_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = done("token", "create", "vera", "--role", "viewer").strip()
    with monkeypatch.context() as hers:
        hers.setenv("SICKBAY_TOKEN", secret)
        done("nodes")
    done("token", "revoke", "vera")
    monkeypatch.setenv("SICKBAY_TOKEN", secret)
    assert sickbay("jobs").exit_code == 2


@pytest.mark.slow
def test_a_job_is_submitted_stopped_and_its_output_read(ward: Clinic) -> None:
    made = json.loads(done("submit", "--name", "mine", "--nodes", "1", "--precheck", "none", "--json", "--", "true"))
    assert made["name"] == "mine"
    assert "mine" in done("jobs")
    done("stop", made["id"], "--reason", "enough")
    ward.ward.cluster.written["llama", found("job", "llama")["attempt"], 0] = "step 1\nstep 2\n"  # type: ignore[index]
    assert done("logs", "llama") == "step 1\nstep 2\n"
