"""A real `sickbay controller` for tests: the same people and waiting as of `up_rig`, with a config file of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.support.up_rig import QUICK, Sickbay, running_rig


class Controlled(Sickbay):
    """One state directory, and the controller on it.

    `config`: the file's text without `listen`, `state` and `policy`; `path`: of packages that it may import.
    """

    def __init__(self, root: Path, config: str, *, nodes: int, path: tuple[Path, ...] = ()) -> None:
        super().__init__(root / "state", nodes=nodes)
        self.file = root / "controller.yaml"
        self.config = config
        self.policy = root / "quick.yaml"
        self.policy.write_text(QUICK)
        found = os.pathsep.join([*map(str, path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
        self.env |= {"XDG_CONFIG_HOME": str(self.state / "config"), "PYTHONPATH": found}

    def write(self, *more: str, policy: str = "", port: int | None = None) -> None:
        port = self._port if port is None else port
        listen = f"listen: {{port: {port}}}\nstate: {self.state}\npolicy: {policy or self.policy}\n"
        self.file.write_text(listen + self.config + "".join(more))

    def up(self, *more: str) -> None:
        self.write()
        self.state.mkdir(exist_ok=True)
        record = self.state / "controller.json"
        with (self.state / "up.out").open("ab") as out:
            self._controller = subprocess.Popen(
                self.words(*more),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.env,
                start_new_session=True,
            )
        self.until(lambda: self._serves(record), 60, "the controller serves")
        self.url = json.loads(record.read_text())["url"]
        self._port = int(self.url.rpartition(":")[2])
        token = self.state / "operator.token"
        if token.exists():
            self.trust(token.read_text())

    def trust(self, token: str) -> None:
        """Ask with this token from now on."""
        if self._http is not None:
            self._http.close()
        self._http = httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        self.env |= {"SICKBAY_TOKEN": token, "SICKBAY_URL": self.url}

    def words(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "sickbay", "controller", "--config", str(self.file), *more]

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of a person beside it."""
        command = [sys.executable, "-m", "sickbay", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, check=False)

    def said(self) -> list[str]:
        return (self.state / "up.out").read_text().splitlines()

    def hears(self, words: str) -> str:
        """Have the file read again; the line with these words that it says then."""
        before = len(self.said())
        self.signal(self.pid, signal.SIGHUP)
        lines: list[str] = self.until(lambda: [one for one in self.said()[before:] if words in one], 20, words)
        return lines[0]

    def ended_by(self, number: signal.Signals) -> int:
        assert self._controller is not None
        self.signal(self.pid, number)
        return self._controller.wait(30)

    def down(self) -> None:
        self.types("down", "--state", str(self.state))
        super().down()


@contextmanager
def controlled(root: Path, config: str, *, nodes: int) -> Iterator[Controlled]:
    """Up and ready; afterwards down, and nothing may be left."""
    yield from running_rig(Controlled(root, config, nodes=nodes))
