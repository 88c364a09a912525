"""Somebody who follows a manual to the letter: a home of its own, a shell, and the commands as they are written.

What a manual cannot know is put in as a reader would: the ids that Sickbay gave (`first-1a2b3c4d` stands for the newest
job named first, `i12` for the newest incident), and a port that is free.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from click.testing import CliRunner

from sickbay.faces.cli.main import main

ROOT = Path(__file__).parents[2]
JOB = re.compile(r"\b([a-z]+)-1a2b3c4d\b")
INCIDENT = re.compile(r"\bi12\b")
NO_IS_AN_ANSWER = ("sickbay policy diff", "sickbay agent --once")  # exit code 1: they differ; something is wrong here
PATIENCE = 120.0  # seconds for one command


def in_blocks(page: Path) -> list[list[str]]:
    """The commands of a page, block by block: what begins with sickbay, lines that go on put together."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [commands for block in blocks if (commands := _commands(block.replace("\\\n", " ")))]


def at_the_head(example: Path) -> list[str]:
    """The commands below `Run it:`, up to the first empty line; in a comment or in a docstring."""
    text = example.read_text(encoding="utf-8")
    after = text.partition("Run it:")[2].lstrip("\n")
    lines = [line.lstrip("#").strip() for line in after.splitlines()]
    return _commands("\n".join(lines[: lines.index("")] if "" in lines else lines))


def _commands(block: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line.startswith(("sickbay ", "sh "))]


class Reader:
    def __init__(self, home: Path, where: Path = ROOT) -> None:
        self.home = home
        self._where = where
        home.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SICKBAY_", "XDG_"))}
        self._env = {
            **own,
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "SICKBAY_STATE": str(home / "state"),
            "SICKBAY_URL": f"http://127.0.0.1:{self._port}",
            "PYTHONWARNINGS": "default",
        }

    # --- following the manual
    def follow(self, command: str) -> str:
        """Run one command as it is written; what it prints. It must end well."""
        up = command.startswith("sickbay up ")
        line = f"{command} --port {self._port}" if up else self._with_ids(command)
        ran = self.run(line)
        fine = {0, 1} if command.startswith(NO_IS_AN_ANSWER) else {0}
        assert ran.returncode in fine, f"{line}: exit {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
        assert "Traceback" not in ran.stderr, f"{line}\n{ran.stderr}"
        if up:
            self.ready()
        return ran.stdout

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self._where,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def _with_ids(self, command: str) -> str:
        command = JOB.sub(lambda found: self.job(found[1])["id"], command)
        return INCIDENT.sub(lambda _: self.incident()["id"], command)

    # --- looking
    def ask(self, words: str) -> Any:
        """The command as it is, but in this process: who waits asks often, and a process takes more than its answer."""
        env: dict[str, str | None] = {**dict.fromkeys(os.environ), **self._env}
        ran = CliRunner().invoke(main, [*shlex.split(words), "--json"], env=env)
        assert ran.stdout, (ran.stderr, ran.exception)
        return json.loads(ran.stdout)

    def job(self, name: str) -> dict[str, Any]:
        """The newest of this name."""
        jobs = [job for job in self.ask("jobs") if job["name"] == name]
        assert jobs, f"no job is named {name}"
        found: dict[str, Any] = jobs[0]
        return found

    def incident(self, node: str = "") -> dict[str, Any]:
        """The newest that is open, or else the newest of all."""
        known = [one for one in self.ask("incidents") if node in {"", one["node"].rpartition("/")[2]}]
        assert known, "there is no incident"
        found: dict[str, Any] = max(known, key=lambda one: (one["closed_at"] is None, one["opened_at"]))
        return found

    def ready(self, seconds: float = 60) -> None:
        """A node that a policy leaves alone with its fault stays SUSPECT."""
        done = {"READY", "SUSPECT"}
        self.until(lambda: all(node["state"] in done for node in self.ask("nodes") or [{"state": ""}]), seconds)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                state = self.run("sickbay nodes; sickbay jobs; sickbay incidents").stdout
                raise AssertionError(f"not within {seconds:g} s\n{state}")
            time.sleep(0.1)

    # --- leaving
    def calm(self) -> None:
        """Whatever a page left behind is over: jobs stopped, incidents closed, nodes ready."""
        self.run("sickbay unpause --reason tidy; sickbay brake reset --reason tidy")
        for row in self.ask("exclude list"):
            self.run(f"sickbay exclude remove {row['id']} --reason tidy")
        for job in self.ask("jobs"):
            if job["state"] not in {"COMPLETE", "FAILED", "STOPPED"}:
                self.run(f"sickbay stop {job['id']} --reason tidy")
        self.until(self._tidied)

    def _tidied(self) -> bool:
        for one in self.ask("incidents --open"):
            if one["phase"] not in {"REPAIRING", "VERIFYING"}:  # a repair under way would happen in the next scene
                self.run(f"sickbay dismiss {one['id']} --reason tidy")
        nodes = self.ask("nodes")
        return all(node["state"] == "READY" and not node["job"] for node in nodes)

    def leave(self) -> None:
        self.run("sickbay down")
        self.until(lambda: not self.processes(), 20)

    def processes(self) -> list[psutil.Process]:
        """Everything that was started from this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HOME") == str(self.home):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def reading(home: Path, where: Path = ROOT) -> Iterator[Reader]:
    """A reader who leaves nothing behind. `where`: the directory that commands are given in."""
    reader = Reader(home, where)
    try:
        yield reader
    finally:
        reader.leave()
