"""A real `sickbay up` for tests: a controller process, nodes, agents and ranks, in a state directory of its own."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from sickbay.clusters.local.files import Paths, Rank, Status, read

# Silence is noticed within seconds, and a call whose caller was killed is not doubted longer than need be: so that a
# test need not wait for half a minute.
QUICK = """\
extends: default
pace:
  call_timeout: 4s
silence:
  agent: 3s
  agent_restarts: 2
  restart_deadline: 20s
"""
SAMPLE = (sys.executable, "-m", "sickbay.train.sample")


class NotNowError(AssertionError):
    """What was asked does not fit the present state."""


Rig = TypeVar("Rig", bound="Sickbay")


class Sickbay:
    """One state directory and the controller on it, which may be killed and started again."""

    def __init__(
        self, state: Path, *, nodes: int = 4, gpus: int = 2, policy: str = QUICK, trusts: Path | None = None
    ) -> None:
        self.state = state
        self.nodes_wanted = nodes
        self._trusts: ssl.SSLContext | bool = ssl.create_default_context(cafile=str(trusts)) if trusts else True
        self.url = ""
        self.gpus = gpus
        state.mkdir(parents=True, exist_ok=True)
        self._policy = state / "policy.yaml"
        self._policy.write_text(policy)
        self._controller: subprocess.Popen[bytes] | None = None
        self._http: httpx.Client | None = None
        self._port = 0
        self.killed = 0

    # --- the controller
    def up(self, *more: str) -> None:
        port = str(self._port)
        command = [sys.executable, "-m", "sickbay", "up", "--state", str(self.state), "--port", port]
        command += [*self.words(), *more]
        env = self.environment()
        record = self.state / "controller.json"
        with (self.state / "up.out").open("ab") as out:
            self._controller = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )
        self.until(lambda: self._serves(record), 60, "the controller serves")
        told = json.loads(record.read_text())
        self._port = int(told["url"].rpartition(":")[2])  # agents find a new controller at the same place
        token = (self.state / "operator.token").read_text()
        if self._http is not None:
            self._http.close()
        self.url = told["url"]
        secure = self.url.startswith("https:")  # else no certificates are read, which takes longer than the start
        self._http = httpx.Client(
            base_url=self.url,
            verify=self._trusts if secure else False,
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )

    def words(self) -> list[str]:
        return ["--nodes", str(self.nodes_wanted), "--gpus", str(self.gpus), "--policy", str(self._policy)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_CONFIG_HOME": str(self.state / "config")}

    def _serves(self, record: Path) -> bool:
        assert self._controller is not None
        if self._controller.poll() is not None:
            raise AssertionError(f"the controller ended: {(self.state / 'up.out').read_text()[-2000:]}")
        return record.exists() and json.loads(record.read_text() or "{}").get("pid") == self._controller.pid

    @property
    def pid(self) -> int:
        assert self._controller is not None
        return self._controller.pid

    def kill(self) -> None:
        """-9, as if its machine had failed."""
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()
        self.killed += 1

    def down(self) -> None:
        if self._http is not None:
            self._http.close()
        env = {**os.environ, "XDG_CONFIG_HOME": str(self.state / "config")}
        command = [sys.executable, "-m", "sickbay", "down", "--state", str(self.state)]
        if (self.state / "sickbay.db").exists():
            subprocess.run(command, env=env, capture_output=True, timeout=90, check=False)
        if self._controller is not None and self._controller.poll() is None:
            self._controller.kill()
        if self._controller is not None:
            self._controller.wait()

    # --- what people ask
    def get(self, path: str, **params: str | int) -> Any:
        assert self._http is not None
        answer = self._http.get(path, params=params)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, **body: Any) -> Any:
        assert self._http is not None
        answer = self._http.post(path, json=body)
        if answer.status_code == httpx.codes.CONFLICT:
            raise NotNowError(answer.text)
        assert answer.status_code < 300, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def submit(self, *command: str, name: str = "train", nodes: int = 2, **more: Any) -> str:
        # The code under test may be another than what is installed: a rank has no environment of ours.
        own = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        body = {"name": name, "command": list(command), "nodes": nodes, **more, "env": {**own, **more.get("env", {})}}
        return str(self.post("/v1/jobs", **body)["id"])

    def train(self, steps: int, *, nodes: int = 2, step: float = 0.05, every: int = 10, **more: Any) -> str:
        words = (*SAMPLE, "--steps", str(steps), "--every", str(every), "--step-seconds", str(step))
        return self.submit(*words, nodes=nodes, **more)

    def inject(self, node: str, **what: Any) -> None:
        self.post(f"/v1/nodes/-/{node.rpartition('/')[2]}/inject", **what)

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/jobs/{job}")
        return found

    def node(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/nodes/-/{node.rpartition('/')[2]}")
        return found

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/nodes")
        return found

    def incidents(self, node: str = "") -> list[dict[str, Any]]:
        """Without intake: those of faults and operators, oldest first."""
        found = [i for i in self.get("/v1/incidents", which="all") if i["incident_kind"] != "intake"]
        return sorted((i for i in found if node in {"", i["node"]}), key=lambda i: i["opened_at"])

    def story(self, name: str) -> list[str]:
        return [line["text"] for line in self.get("/v1/explain", name=name)["story"]]

    def notices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/notices")
        return found

    # --- waiting
    def until(self, condition: Callable[[], Any], seconds: float, what: str = "") -> Any:
        """Asks less often the longer it takes: requests cost the controller more than its own work."""
        begin, pause = time.monotonic(), 0.01
        while not (found := condition()):
            if time.monotonic() - begin > seconds:
                raise AssertionError(f"not within {seconds:g} s: {what or condition}\n{self.dump()}")
            time.sleep(pause)
            pause = min(pause * 1.25, 0.1)
        return found

    def ready(self, seconds: float = 60) -> None:
        def all_ready() -> bool:
            nodes = self.nodes()
            return len(nodes) == self.nodes_wanted and all(n["state"] == "READY" for n in nodes)

        self.until(all_ready, seconds, "all nodes are ready")

    def reaches(self, job: str, step: int, seconds: float = 60) -> dict[str, Any]:
        self.until(lambda: (self.job(job)["step"] or 0) >= step, seconds, f"{job} reaches step {step}")
        return self.job(job)

    def ends(self, job: str, state: str = "COMPLETE", seconds: float = 120) -> dict[str, Any]:
        over = {"COMPLETE", "FAILED", "STOPPED"}
        self.until(lambda: self.job(job)["state"] in over, seconds, f"{job} ends")
        found = self.job(job)
        assert found["state"] == state, (found, self.story(job))
        return found

    def phase(self, node: str, phase: str, seconds: float = 60) -> dict[str, Any]:
        """The node's newest incident, once it is (or has been) in this phase."""

        def reached() -> dict[str, Any] | None:
            found = self.incidents(node)
            return found[-1] if found and phase in [s["phase"] for s in found[-1]["stages"]] else None

        newest: dict[str, Any] = self.until(reached, seconds, f"{node} reaches {phase}")
        return newest

    def dump(self) -> str:
        """For a test that fails: what the controller said, and every story."""
        said = (self.state / "up.out").read_text()[-1500:] if (self.state / "up.out").exists() else ""
        log = self.state / "controller.log"
        told = log.read_text()[-3000:] if log.exists() else ""
        try:
            jobs = [(j["id"], j["state"], j["step"], j["because"]) for j in self.get("/v1/jobs")]
            nodes = [(n["id"], n["state"], n["because"]) for n in self.nodes()]
            stories = {i["id"]: self.story(i["id"]) for i in self.incidents()[-3:]}
        except (httpx.HTTPError, AssertionError) as error:
            return f"{said}\n{told}\n{error!r}"
        return f"{said}\n{told}\njobs {jobs}\nnodes {nodes}\n{json.dumps(stories, indent=1)}"

    # --- the processes below
    def status(self, node: str) -> Status | None:
        return read(Paths(self.state / "local", node.rpartition("/")[2]).status, Status)

    def ranks(self, node: str, job: str) -> list[Rank]:
        status = self.status(node)
        found = [r for r in status.ranks if r.job == job and r.state == "running"] if status else []
        return sorted(found, key=lambda r: (r.attempt, r.rank))

    def processes(self) -> list[psutil.Process]:
        """Everything that belongs to this state: it names its directory, or was started by one that does."""
        mine: list[psutil.Process] = []
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = " ".join([*process.cmdline(), *process.environ().values()])
            except psutil.Error:
                continue
            if str(self.state) in words and "pytest" not in words.partition(" ")[0]:
                mine.append(process)
        return mine

    def signal(self, pid: int, number: signal.Signals) -> None:
        os.kill(pid, number)


def running(state: Path, **how: Any) -> Iterator[Sickbay]:
    """Up and ready; afterwards down, and nothing may be left."""
    yield from running_rig(Sickbay(state, **how))


def running_rig(rig: Rig) -> Iterator[Rig]:
    try:
        rig.up()
        rig.ready()
        yield rig
    finally:
        rig.down()
    left = [p for p in rig.processes() if p.pid != os.getpid()]
    assert not left, f"left behind: {[' '.join(p.cmdline()) for p in left]}"
