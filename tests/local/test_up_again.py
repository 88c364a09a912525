"""A controller that is started again: its policy, its credentials, and tokens that were revoked."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow


class Shell:
    """Somebody's terminal: one home, one state directory."""

    def __init__(self, home: Path) -> None:
        self.state = home / "state"
        self.env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        self.env |= {"SICKBAY_STATE": str(self.state)}
        self.env.pop("SICKBAY_TOKEN", None)

    def run(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "sickbay", *args]
        return subprocess.run(words, env={**self.env, **more}, capture_output=True, text=True, timeout=120, check=False)

    def done(self, *args: str) -> str:
        result = self.run(*args)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def up(self, *more: str) -> str:
        said = self.done("up", "--detach", *more)
        self.env["SICKBAY_URL"] = json.loads((self.state / "controller.json").read_text())["url"]
        return said

    def found(self, *args: str) -> Any:
        return json.loads(self.done(*args, "--json"))

    @property
    def secret(self) -> str:
        return (self.state / "operator.token").read_text()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.run("down")


def test_the_policy_stays_in_force_across_restarts(shell: Shell) -> None:
    assert "policy recommend (" in shell.up("--nodes", "1", "--port", "0", "--policy", "recommend")
    shell.done("down")
    said = shell.up()
    assert "policy recommend (" in said
    assert "which recommends and touches no node" in said
    assert "as before: port 0, policy recommend" in said
    assert [act["target"] for act in shell.found("audit") if act["verb"] == "start"] == ["recommend", "recommend"]


def test_nobody_is_locked_out_whatever_was_revoked_or_lost(shell: Shell) -> None:
    shell.up("--nodes", "1", "--port", "0")
    first = shell.secret
    assert shell.run("token", "revoke", "operator").returncode == 1  # the last admin's
    alice = shell.found("token", "create", "alice", "--role", "admin")["token"]
    shell.done("token", "revoke", "operator", "--reason", "it was leaked")
    assert shell.run("token", "revoke", "agent of local/node-0", SICKBAY_TOKEN=alice).returncode == 0
    for lost in (False, True):
        shell.done("down")
        if lost:
            (shell.state / "operator.token").unlink()
        shell.up()
        assert shell.found("nodes")[0]["id"] == "local/node-0"
        names = [token["name"] for token in shell.found("token", "list")]
        assert sorted(names) == ["agent of local/node-0", "alice", "operator"]
        refused = httpx.get(f"{shell.env['SICKBAY_URL']}/v1/nodes", headers={"Authorization": f"Bearer {first}"})
        assert refused.status_code == 401  # what was revoked opens nothing again


def test_a_store_whose_first_token_was_an_operators_gets_an_admin(shell: Shell) -> None:
    """Before there were admins, the first token was an operator's."""
    shell.up("--nodes", "1", "--port", "0")
    shell.done("down")
    before = shell.secret
    change = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        'c.execute("UPDATE nouns SET body = replace(CAST(body AS TEXT), \'\\"role\\":\\"admin\\"\', '
        '\'\\"role\\":\\"operator\\"\') WHERE key LIKE \'token:%\'"); c.commit()'
    )
    subprocess.run([sys.executable, "-c", change, str(shell.state / "sickbay.db")], check=True)
    shell.up()
    assert shell.secret == before
    roles = {token["name"]: token["role"] for token in shell.found("token", "list")}
    assert roles["operator"] == "admin"
