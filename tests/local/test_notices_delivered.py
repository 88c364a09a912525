"""A real controller that is killed, and a far side that hangs up: everybody is told, and by one key."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.far_sides import FarHttp, serving
from tests.support.up_rig import QUICK, Sickbay

from sickbay.testing.notifier_contract import FarMood

pytestmark = pytest.mark.slow

SECRET = "hmac-5f1c9a77d2"
RULES = "notify:\n  - {events: [held, closed], to: [tickets], next: [spare]}\n"


@pytest.fixture
def far() -> Iterator[FarHttp]:
    server = FarHttp()
    with serving(server):
        yield server


@pytest.fixture
def notifiers(tmp_path: Path, far: FarHttp) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "url").write_text(f"{far.url}/services/{SECRET}")
    (tmp_path / "url").chmod(0o600)
    path = tmp_path / "notifiers.yaml"
    path.write_text(
        "notifiers:\n"
        f"  tickets: {{kind: webhook, url: '{far.url}/t', secret_file: secret, timeout: 2s, closing: true}}\n"
        f"  spare: {{kind: slack, url_file: url, timeout: 2s}}\n"
    )
    return path


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Sickbay]:
    sickbay = Sickbay(tmp_path / "state", nodes=2, policy=QUICK + RULES)
    try:
        yield sickbay
    finally:
        sickbay.down()


def cli(sickbay: Sickbay, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CONFIG_HOME": str(sickbay.state / "config"), "SICKBAY_URL": sickbay.url}
    command = [sys.executable, "-m", "sickbay", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_killed_at_any_moment_everybody_is_told_by_one_key(ours: Sickbay, far: FarHttp, notifiers: Path) -> None:
    ours.up("--notifiers", str(notifiers))
    ours.ready()
    far.script = [FarMood.CUT_AFTER, FarMood.CUT_BEFORE, FarMood.BUSY, FarMood.HANGS, FarMood.CUT_AFTER]
    for turn, node in enumerate(("node-0", "node-1", "node-0")):
        _held_and_back(ours, far, node, sent=turn > 0)
    ours.until(lambda: not ours.get("/v1/notices", which="open"), 180, "every notice is settled")
    wanted = {one["key"] for one in ours.get("/v1/notices") if one["to"] == "tickets" and one["outcome"] == "delivered"}
    keys = defaultdict(set)
    for request in far.taken:
        message = json.loads(request.body)
        keys[message["incident"], message["event"]].add(request.headers["idempotency-key"])
    assert all(len(names) == 1 for names in keys.values()), "whatever was sent again has the key of the first sending"
    assert {key for names in keys.values() for key in names} >= wanted, "told means delivered"
    assert [event for _, event in keys].count("closed") == 3
    assert ours.killed == 3
    _no_secret(ours)


def _held_and_back(ours: Sickbay, far: FarHttp, node: str, *, sent: bool) -> None:
    """A person cordons a node; the controller dies before his notice is sent, or while it is; then he gives it back."""
    seen = len(far.seen)
    ours.post(f"/v1/nodes/-/{node}/cordon", reason="cable")
    if sent:
        ours.until(lambda: len(far.seen) > seen, 60, "it is sent")
    ours.kill()
    ours.up()  # with the notifiers of last time
    ours.until(lambda: ours.node(node)["state"] == "HELD", 60, "it is held")
    ours.post(f"/v1/nodes/-/{node}/uncordon", reason="done")
    ours.until(lambda: ours.node(node)["state"] == "READY", 60, "it is back")


def _no_secret(ours: Sickbay) -> None:
    """Neither in the store, nor in a log, nor in an answer."""
    for path in ours.state.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path
    for page in ("/v1/notices", "/v1/audit", "/v1/fleet"):
        assert SECRET not in json.dumps(ours.get(page))
    assert SECRET not in json.dumps(ours.get("/v1/explain", name="node-0"))


def test_a_test_says_of_each_channel_what_came_of_it(ours: Sickbay, far: FarHttp, notifiers: Path) -> None:
    ours.up("--notifiers", str(notifiers))
    well = cli(ours, "notify", "test")
    assert (well.returncode, well.stderr) == (0, ""), well.stdout
    assert [line.split()[:2] for line in well.stdout.splitlines()[1:]] == [
        ["log", "delivered"], ["tickets", "delivered"], ["spare", "delivered"],
    ]  # fmt: skip
    far.be(FarMood.REFUSES)
    refused = cli(ours, "notify", "test", "spare", "--json")
    (told,) = json.loads(refused.stdout)
    assert (refused.returncode, told["outcome"]) == (1, "refused")
    assert SECRET not in refused.stdout
    assert "answers 400" in told["answer"]
    ours.until(lambda: ours.get("/healthz")["status"] == "in trouble", 30, "it is visible")
    listed = cli(ours, "notices", "--failed")
    assert "spare" in listed.stdout
    far.be(FarMood.TAKES)
    assert cli(ours, "notify", "test").returncode == 0
    ours.until(lambda: ours.get("/healthz")["status"] == "ok", 30, "it is well again")
    unknown = cli(ours, "notify", "test", "spar")
    assert (unknown.returncode, "did you mean 'spare'?" in unknown.stderr) == (2, True)
    _no_secret(ours)


def test_a_policy_that_names_nobody_there_starts_nothing(ours: Sickbay, notifiers: Path, tmp_path: Path) -> None:
    policy = ours.state / "policy.yaml"
    command = ("up", "--state", str(tmp_path / "new"), "--port", "0", "--policy", str(policy))
    refused = cli(ours, *command)
    assert refused.returncode == 2
    assert f"{policy}:9:" in refused.stderr
    assert "notify[0].to[0]: unknown notifier 'tickets': known: log" in refused.stderr
    assert not (tmp_path / "new").exists()
    lint = cli(ours, "policy", "lint", str(policy))
    assert "unless there are these notifiers: tickets, spare" in lint.stdout
    assert cli(ours, "policy", "lint", str(policy), "--notifiers", str(notifiers)).returncode == 0
