"""`sickbay doctor`: one line for what is missing or follows, with the way out, and nothing is changed by asking."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.api_ward import NODE, TOKENS, Clinic, clinic
from tests.support.waiting import until

from sickbay.faces.cli.main import main
from sickbay.hosts import doctor
from sickbay.model.finding import Finding, warning
from sickbay.model.fleet import Role
from sickbay.model.protocol import PROTO
from sickbay.wiring import OWN_KINDS, ClusterGround, ClusterKind, WiredCluster, open_store

SECRET = "a-join-token-that-was-chosen"


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


def asked(*words: str, env: dict[str, str] | None = None) -> tuple[int, list[dict[str, str]]]:
    found = CliRunner().invoke(main, ["doctor", *words, "--json"], env=env)
    return found.exit_code, json.loads(found.stdout)


def of(found: list[dict[str, str]], subject: str) -> list[tuple[str, str]]:
    return [(one["level"], one["text"]) for one in found if one["subject"] == subject]


def config(tmp_path: Path, text: str = "", **parts: str) -> Path:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {
        "state": "state", "listen": f"{{port: {port}}}", "clusters": "{train: {kind: local, settings: {nodes: 1}}}",
        **parts,
    }  # fmt: skip
    file = tmp_path / "controller.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in known.items()) + text)
    return file


# --- before anything runs


def test_a_good_configuration_is_told_part_by_part_and_nothing_is_made(tmp_path: Path) -> None:
    code, found = asked("--config", str(config(tmp_path)))
    assert code == 0
    assert not [one for one in found if one["level"] == "missing"]
    assert [one["subject"] for one in found if one["level"] == "ok"] == [
        "config", "state", "listen", "store", "policy", "cluster train", "cluster train",
    ]  # fmt: skip
    assert [one["subject"] for one in found if one["level"] == "warning"] == ["certificate", "notifiers"]
    assert all(one["way_out"] for one in found if one["level"] != "ok")
    assert [path.name for path in tmp_path.iterdir()] == ["controller.yaml"]


def test_without_json_each_finding_is_a_line_with_its_way_out_below(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["doctor", "--config", str(config(tmp_path, "policy: nowhere.yaml\n"))])
    assert shown.exit_code == 1
    lines = shown.output.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("missing  policy: "))
    assert lines[at + 1].startswith("         → ")
    assert lines[-1] == "1 missing, 2 warnings"


@pytest.mark.parametrize(
    ("parts", "subject", "says"),
    [
        ({"clusters": "{train: {kind: slurmy}}"}, "config", "unknown kind 'slurmy'"),
        ({"polcy": "default"}, "config", "unknown key 'polcy'"),
        ({"state": "controller.yaml"}, "state", "is no directory"),
        ({"store": "postgresql://nobody@127.0.0.1:1/none"}, "store", "127.0.0.1"),
        ({"store": "sqlite:////nonexistent/sickbay.db"}, "store", "is not there yet"),
        (
            {"machines": "{bmc: {kind: command, fence: [nosuchpower, '{name}']}}"},
            "machines bmc",
            "fence: there is no program 'nosuchpower'",
        ),
        ({"clusters": "{train: {kind: local, machines: {'*': [agent]}}}"}, "cluster train", "cannot be fenced"),
        ({"clusters": "{train: {kind: local, machines: {'*': [agent]}}}"}, "cluster train", "cannot replace"),
        ({"clusters": "{train: {kind: local, select: {rack: a}}}"}, "cluster train", "leave out 'select'"),
    ],
)
def test_what_would_fail_or_follow_is_named(tmp_path: Path, parts: dict[str, str], subject: str, says: str) -> None:
    _, found = asked("--config", str(config(tmp_path, **parts)))
    assert any(says in text for _, text in of(found, subject)), found


def test_a_state_that_others_may_enter_a_store_of_another_version_and_a_taken_port_are_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    (state / "sickbay.db").write_text("this is no database, whatever its name says; it is text")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        file = config(tmp_path, listen=f"{{port: {taken.getsockname()[1]}}}")
        code, found = asked("--config", str(file))
    assert code == 1
    assert of(found, "state")[0][0] == "warning"
    assert of(found, "store")[0][0] == "missing"
    assert of(found, "listen")[0][0] == "missing"
    assert (state / "sickbay.db").read_text().startswith("this is no database")


@pytest.mark.parametrize(("days", "level"), [(400, "ok"), (5, "warning")])
def test_a_certificate_says_how_long_it_is_good(tmp_path: Path, days: int, level: str) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
         str(days), "-subj", "/CN=sickbay", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True,
    )  # fmt: skip
    _, found = asked("--config", str(config(tmp_path, listen="{port: 0, cert: tls.crt, key: tls.key}")))
    assert [one[0] for one in of(found, "certificate")] == [level]


def test_a_kind_of_another_package_says_its_own_findings_and_a_cluster_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(ground: ClusterGround) -> WiredCluster:
        wired = OWN_KINDS["local"]().build(ground)
        told = warning("permissions", "may not cordon", "kubectl …")
        return wired._replace(own_nodes=None, findings=lambda: [told])

    kind = OWN_KINDS["local"]()
    monkeypatch.setattr(doctor, "cluster_kind", lambda _: ClusterKind(kind.settings, build, kind.channels))
    _, found = asked("--config", str(config(tmp_path)))
    assert of(found, "permissions") == [("warning", "may not cordon")]
    assert ("ok", "can be read: 1 nodes, 0 jobs") in of(found, "cluster train")
    monkeypatch.setattr(doctor, "in_time", _hangs)
    _, found = asked("--config", str(config(tmp_path)))
    assert of(found, "cluster train")[0] == ("missing", "does not answer within 20 s")


def _hangs(_: object) -> None:
    raise TimeoutError


def test_what_hangs_neither_holds_up_the_end_of_the_program_nor_is_waited_for() -> None:
    """A child with a call that never ends: an executor's thread would be joined when the interpreter ends."""
    program = (
        "import threading\nfrom sickbay.hosts import doctor\ndoctor.ANSWERS_WITHIN = 0.1\n"
        "try:\n    doctor.in_time(threading.Event().wait)\nexcept TimeoutError:\n    print('told')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "told\n"


def test_a_database_that_takes_connections_and_says_nothing_is_told_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ANSWERS_WITHIN", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        store = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        _, found = asked("--config", str(config(tmp_path, store=store)))
    assert of(found, "store") == [("missing", f"{store} does not answer within 0.5 s")]


def test_findings_of_a_kind_that_break_are_one_line_of_that_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = OWN_KINDS["local"]()

    def broken() -> list[Finding]:
        raise RuntimeError("no such API")

    def build(ground: ClusterGround) -> WiredCluster:
        return kind.build(ground)._replace(findings=broken)

    monkeypatch.setattr(doctor, "cluster_kind", lambda _: ClusterKind(kind.settings, build, kind.channels))
    code, found = asked("--config", str(config(tmp_path)))
    assert code == 1
    assert ("missing", "cannot say what is missing there: no such API") in of(found, "cluster train")


def test_a_store_is_looked_at_and_not_a_file_is_made_beside_it(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    open_store(f"sqlite:///{tmp_path / 'state' / 'sickbay.db'}").close()
    before = sorted(path.name for path in (tmp_path / "state").iterdir())
    _, found = asked("--config", str(config(tmp_path)))
    assert of(found, "store")[0][0] == "ok"
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == before


def test_an_empty_database_is_the_first_start_and_nothing_that_fails(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "sickbay.db").touch()
    code, found = asked("--config", str(config(tmp_path)))
    assert (code, of(found, "store")[0][0]) == (0, "ok")


def test_a_key_with_a_pass_phrase_is_a_finding_and_no_question_on_the_terminal(tmp_path: Path) -> None:
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-passout", "pass:phrase",
         "-subj", "/CN=sickbay", "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True,
    )  # fmt: skip
    _, found = asked("--config", str(config(tmp_path, listen="{port: 0, cert: tls.crt, key: tls.key}")))
    ((level, text),) = of(found, "certificate")
    assert level == "missing"
    assert "has a pass phrase: give one without" in text


# --- a running controller


def found_by(calls: Clinic, role: str = "admin") -> list[dict[str, str]]:
    return asked(env={"SICKBAY_URL": calls.url, "SICKBAY_TOKEN": TOKENS[role]})[1]


def test_a_running_controller_names_who_leads_what_is_read_and_what_is_heard(calls: Clinic) -> None:
    found = found_by(calls, "viewer")
    assert of(found, "controller")[:2] == [("ok", f"{calls.url} answers"), ("ok", "this one leads")]
    assert of(found, "agents of sim")[0][0] in {"ok", "missing"}


def test_a_cluster_that_the_file_does_not_name_any_more_is_missed(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls.ward.desk, "clusters", {})
    (line,) = of(found_by(calls), "cluster sim")
    assert line[0] == "missing"
    assert line[1].startswith("is not in the controller's file: nobody looks after its ")


def test_agents_whose_clock_or_protocol_differs_are_named_until_they_agree(calls: Clinic) -> None:
    now = calls.ward.sim.clock.wall()
    body: dict[str, Any] = {
        "proto": PROTO, "node": NODE, "instance_id": "i", "boot_id": "b", "agent_run": "r", "first_seq": 1,
        "mono_now": 1.0, "wall_now": now + 90, "watermark": 0.0, "items": [], "ended": True,
    }  # fmt: skip
    calls.agent.post("/v1/agent/report", body)
    (line,) = of(found_by(calls), f"node {NODE}")
    assert line[0] == "warning"
    assert "s ahead of the controller's" in line[1]
    calls.agent.post("/v1/agent/report", {**body, "proto": 9})
    assert of(found_by(calls), f"node {NODE}") == [
        ("missing", f"its agent speaks protocol 9, and here {PROTO} is spoken")
    ]
    calls.agent.post("/v1/agent/report", {**body, "wall_now": calls.ward.sim.clock.wall()})
    assert of(found_by(calls), f"node {NODE}") == []


def test_tokens_that_end_soon_are_told_to_admins_only(calls: Clinic) -> None:
    calls.admin.post("/v1/tokens", {"name": "short", "role": "viewer", "seconds": 3600})
    calls.admin.post("/v1/tokens", {"name": "nodes", "role": "join", "cluster": "sim"})
    (line,) = of(found_by(calls), "token short")
    assert line[1].startswith("(viewer) expires at ")
    assert "nodes (of sim)" in of(found_by(calls), "join tokens")[0][1]
    assert of(found_by(calls, "operator"), "token short") == []


def test_a_pause_is_told_with_the_command_that_ends_it(calls: Clinic) -> None:
    calls.operator.post("/v1/pause", {"reason": "night shift", "seconds": 3600})
    found = until(lambda: [one for one in found_by(calls) if one["way_out"] == "sickbay unpause"])
    assert "night shift" in found[0]["text"]


def test_nobody_answering_is_a_finding_too() -> None:
    code, found = asked(env={"SICKBAY_URL": "http://127.0.0.1:9", "SICKBAY_TOKEN": "x"})
    assert code == 1
    assert of(found, "controller")[0][0] == "missing"


# --- a node


def node(tmp_path: Path, url: str, **more: str) -> Path:
    known = {
        "url": url, "node": "sim/new-1", "instance_id": "i-new", "state": str(tmp_path / "state"),
        "ranks": str(tmp_path / "run"), "sources": f"[{tmp_path / 'log'}]", "trust_logs": "true", **more,
    }  # fmt: skip
    (tmp_path / "log").touch()
    file = tmp_path / "agent.yaml"
    file.write_text("".join(f"{name}: {value}\n" for name, value in known.items()))
    return file


def test_a_node_that_is_ready_to_join_is_told_so_without_joining(calls: Clinic, tmp_path: Path) -> None:
    calls.ward.desk.issue("doctors", Role.JOIN, by="ada", secret=SECRET, cluster="sim")
    token = tmp_path / "join"
    token.write_text(SECRET)
    token.chmod(0o600)
    code, found = asked("--agent", "--config", str(node(tmp_path, calls.url, join_token_file=str(token))))
    assert code == 0, found
    assert of(found, "token") == [("ok", f"the join token in {token} is good")]
    assert [one for one in calls.admin.get("/v1/tokens").json() if one["node"] == "sim/new-1"] == []
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("more", "subject", "says"),
    [
        ({"url": "http://127.0.0.1:9"}, "url", "cannot be reached"),
        ({"token": "wrong"}, "token", "the one in the settings is refused: this token is not known"),
        ({"token": TOKENS["agent"]}, "token", "this token is for the agent of sim/train-0000"),
        ({"token_file": "/nonexistent"}, "token", "/nonexistent cannot be read"),
        ({"sources": "[/nonexistent/log]"}, "kernel log", "/nonexistent/log may not be read"),
        ({"gpus": "8"}, "gpus", "8"),
        ({"allow": "[reboot]", "reboot_command": "[nosuchreboot]"}, "commands", "there is no nosuchreboot here"),
        ({"node": "nowhere"}, "settings", "write cluster/name"),
        ({"statee": "/x"}, "settings", "did you mean state?"),
    ],
)
def test_what_keeps_a_node_from_working_is_named(
    calls: Clinic, tmp_path: Path, more: dict[str, str], subject: str, says: str
) -> None:
    code, found = asked("--agent", "--config", str(node(tmp_path, more.pop("url", calls.url), **more)))
    assert code == 1
    assert [text for level, text in of(found, subject) if level == "missing" and says in text], found


def test_a_token_of_this_very_node_is_good_and_no_sign_of_life(calls: Clinic, tmp_path: Path) -> None:
    mine = node(tmp_path, calls.url, node=NODE, token=TOKENS["agent"])
    _, found = asked("--agent", "--config", str(mine))
    assert of(found, "token") == [("ok", "the one in the settings is good")]
