"""Two hundred small jobs over many nodes while things break at random: make soak

Everything is real: processes, agents, kill -9. In the end every job is as it should be, every node is back, and
nothing has leaked: no process, no file handle, no row that waits for ever.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.support.up_rig import QUICK, SAMPLE, NotNowError, Sickbay

# A soak breaks more in ten minutes than a fleet does in months: the brake would rightly stop everything.
POLICY = f"""{QUICK}
brakes:
  - {{scope: pool, signature: "*", nodes: 10000, why: faults at random are the point of a soak}}
limits:
  - {{pool: "*", out_percent: 25, repairing_percent: 25, why: many faults in little time}}
ladders:
  - match: {{fault: "*"}}
    why: Short deadlines, so that a lost repair is tried again within the run.
    rungs:
      - {{do: reboot, tries: 2, deadline: 60s, verify: 1, verify_deadline: 60s, on_could_not_run: fail}}
      - {{do: replace, tries: 3, deadline: 60s, verify: 1, verify_deadline: 60s, on_could_not_run: fail}}
"""
OVER = {"COMPLETE", "FAILED", "STOPPED"}
XIDS = (48, 62, 74, 79, 95, 119)


class Soak:
    def __init__(self, rig: Sickbay, *, jobs: int, seconds: float, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.wanted = jobs
        self.seconds = seconds
        self.expected: dict[str, str] = {}
        self.broke: Counter[str] = Counter()
        self.problems: list[str] = []
        self.handles = 0

    def run(self) -> bool:
        begin = time.monotonic()
        fault_every = max(1.0, self.seconds / 120)
        next_job = next_fault = begin
        self.handles = psutil.Process(self.rig.pid).num_fds()
        while time.monotonic() - begin < self.seconds:
            now = time.monotonic()
            if now >= next_job and len(self.expected) < self.wanted:
                self._carefully(self._submit)
                next_job = now + self.seconds * 0.8 / self.wanted
            if now >= next_fault:
                self._carefully(self._break)
                next_fault = now + self.rng.expovariate(1 / fault_every)
                self._say(begin)
            time.sleep(0.05)
        return self._settle(begin)

    def _carefully(self, act: Any) -> None:
        """A controller that is just being started again cannot answer: that is no failure of what it looks after."""
        try:
            act()
        except (httpx.HTTPError, ProcessLookupError, NotNowError):
            self.broke["(not answered)"] += 1

    # --- what people do
    def _submit(self) -> None:
        kind = self.rng.choices(("train", "plain", "bug", "stopped"), (70, 15, 10, 5))[0]
        nodes = self.rng.choices((1, 2, 4), (60, 30, 10))[0]
        number = len(self.expected)
        more: dict[str, Any] = {"name": f"soak{number}", "nodes": nodes, "max_restarts": 50}
        more |= self._rank(nodes)
        words: tuple[str, ...]
        match kind:
            case "train":
                words = (*SAMPLE, "--steps", str(self.rng.randint(20, 120)), "--every", "5", "--step-seconds", "0.1")
            case "plain":
                words = (sys.executable, "-c", f"import time; time.sleep({self.rng.uniform(1, 10):.1f})")
            case "bug":
                words = (sys.executable, "-c", "raise TypeError('a bug of the program')")
            case _:
                words = (*SAMPLE, "--steps", "100000")
        job = self.rig.submit(*words, **more)
        self.expected[job] = {"bug": "FAILED", "stopped": "STOPPED"}.get(kind, "COMPLETE")

    def _rank(self, nodes: int) -> dict[str, Any]:
        """A mixed queue: a few jobs want most of the pool, some are urgent, some say how long they run at most."""
        asks: dict[str, Any] = {"priority": self.rng.choice((0, 0, 0, 0, -10, 10))}
        if self.rng.random() < 0.05:
            most = max(nodes, self.rig.nodes_wanted * 3 // 4)
            return {**asks, "nodes": most, "min_nodes": max(1, most // 2), "grow": self.rng.random() < 0.5 and most > 1}
        if self.rng.random() < 0.3:
            asks["time_limit"] = 600.0  # longer than any runs: it may only let it begin sooner
        return asks

    def _break(self) -> None:
        how = self.rng.choices(("xid", "agent", "node", "rank", "controller", "stop"), (40, 15, 15, 20, 4, 6))[0]
        self.broke[how] += 1
        node = self.rng.choice(self.rig.nodes())
        status = self.rig.status(node["id"])
        match how:
            case "xid":
                cure = self.rng.choices(("reboot", "replace"), (80, 20))[0]
                self.rig.inject(node["id"], xid=self.rng.choice(XIDS), cured_by=cure)
            case "agent" if status is not None and status.agent_pid:
                self.rig.signal(status.agent_pid, signal.SIGKILL)
            case "node" if status is not None:
                self.rig.signal(status.pid, signal.SIGKILL)
            case "rank" if status is not None:
                ranks = [rank for rank in status.ranks if rank.state == "running"]
                if ranks:
                    self.rig.signal(self.rng.choice(ranks).pid, signal.SIGKILL)
            case "controller":
                self.rig.kill()
                self.rig.up()
            case "stop":
                self._stop_one()

    def _stop_one(self) -> None:
        for job, ends in self.expected.items():
            if ends == "STOPPED" and self.rig.job(job)["state"] not in OVER:
                self.rig.post(f"/v1/jobs/{job}/stop", reason="the soak's person")
                return

    # --- how it ends
    def _settle(self, begin: float) -> bool:
        for job, ends in self.expected.items():
            if ends == "STOPPED" and self.rig.job(job)["state"] not in OVER:
                self.rig.post(f"/v1/jobs/{job}/stop", reason="the soak is over")
        until = time.monotonic() + 600
        while time.monotonic() < until and (self._unfinished() or self._unwell()):
            time.sleep(2)
            self._say(begin)
        jobs = {job["id"]: job for job in self.rig.get("/v1/jobs")}
        for job, ends in self.expected.items():
            if jobs[job]["state"] != ends:
                self.problems.append(f"{job} is {jobs[job]['state']}, not {ends}: {jobs[job]['because']}")
        self.problems += [f"{n['id']} is {n['state']}: {n['because']}" for n in self._unwell()]
        handles = psutil.Process(self.rig.pid).num_fds()
        if handles > self.handles + 100:
            self.problems.append(f"the controller has {handles} file handles open; it began with {self.handles}")
        running = [
            r for n in self.rig.nodes() if (s := self.rig.status(n["id"])) for r in s.ranks if r.state == "running"
        ]
        if running:
            self.problems.append(f"ranks that belong to no job are left: {running[:3]}")
        return not self.problems

    def _unfinished(self) -> list[str]:
        jobs = {job["id"]: job["state"] for job in self.rig.get("/v1/jobs")}
        return [job for job in self.expected if jobs.get(job) not in OVER]

    def _unwell(self) -> list[dict[str, Any]]:
        return [node for node in self.rig.nodes() if node["state"] != "READY"]

    def _say(self, begin: float) -> None:
        states = Counter(job["state"] for job in self.rig.get("/v1/jobs"))
        nodes = Counter(node["state"] for node in self.rig.nodes())
        text = f"{time.monotonic() - begin:6.0f} s  jobs {dict(states)}  nodes {dict(nodes)}  broke {dict(self.broke)}"
        print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="sickbay-soak-"))
    rig = Sickbay(place / "state", nodes=asked.nodes, gpus=1, policy=POLICY)
    well = False
    try:
        rig.up()
        rig.ready(300)
        soak = Soak(rig, jobs=asked.jobs, seconds=asked.seconds, seed=asked.seed)
        well = soak.run()
        for problem in soak.problems:
            print(f"PROBLEM {problem}")
    finally:
        rig.down()
    left = rig.processes()
    if left:
        print(f"PROBLEM left behind: {[' '.join(p.cmdline())[:120] for p in left]}")
    if well and not left:
        shutil.rmtree(place)
        print("all as it should be")
        return 0
    print(f"what there is to look at is in {place}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
