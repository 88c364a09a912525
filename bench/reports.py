"""Reports of agents per second, through HTTP into SQLite. The server is a process of its own (`-m bench.reports`)."""

import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import msgspec

from bench.figure import Figure, Line, Size, in_words, percentile
from bench.load import RUN, Done, Task, news, secret
from bench.rig import Bench, RealClock, busy, incarnation, node_id, open_policy, store_of
from sickbay.adapters.stores.sql import open_store
from sickbay.engine.ingest import Ingest
from sickbay.engine.view import moment
from sickbay.faces.api.app import app
from sickbay.faces.api.route import AGENTS, THREADS
from sickbay.hosts.backend import Backend, hash_of
from sickbay.hosts.changes import Changes
from sickbay.hosts.server import served
from sickbay.model.facts import Fact, TokenIssued
from sickbay.model.fleet import Role
from sickbay.policy.load import digest

ROOT = Path(__file__).resolve().parent.parent
FILE = "bench.db"
NOTHING = -1  # items: no report at all, but a request that does nothing
SIZES = (0, 1, 20)  # items in a report
NAMES = {0: "empty reports", 1: "reports of 1 item"}
PROCESSES = 2  # of agents
TURNS = 5  # of reports and nothing, in turn: the median is no moment in which the machine did something else
ENOUGH, WITHIN = 3000, 2.0  # reports of one item in a second, or so many times slower than nothing at all
GOAL = f"≥ {ENOUGH:,}/s, or ≤ {WITHIN:g}"


# --- the server
class Host:
    """The real server over the real reception and store; an engine beside it that plans only when it is asked to."""

    def __init__(self, directory: Path, agents: int) -> None:
        clock, policy = RealClock(), open_policy()
        self.store = open_store(f"sqlite:///{directory / FILE}")
        self._bench = Bench.over(self.store, clock, policy)
        self._bench.populate(agents)
        self.store.append([_token(number) for number in range(agents)])
        self._bench.settle()
        self._news = threading.Event()
        self.desk = Backend(self.store, policy, {digest(policy): policy}, {}, clock, self._news.set, Changes())

    def plan(self, until: threading.Event) -> float:
        """Rounds until that is over and nothing is left; the seconds that were still needed then."""
        over = 0.0
        while True:
            self._news.clear()
            ended = until.is_set()
            over = over or (time.perf_counter() if ended else 0.0)
            if not self._bench.engine.round():
                if ended:
                    return time.perf_counter() - over
                self._news.wait(0.05)

    def wake(self) -> None:
        self._news.set()


def _token(number: int) -> Fact:
    held = hash_of(secret(number))
    issued = TokenIssued(hash=held, name=f"agent {number}", role=Role.AGENT, by="bench", node=node_id(number))
    return Fact(id=f"token/{held}", at=moment(time.time()), news=issued)


def serve(directory: str, agents: str) -> None:
    """Says its URL, then does as it is told on stdin (`plan`, `planned`, `spent`: processor time), and ends with it."""
    host = Host(Path(directory), int(agents))
    over, needed = threading.Event(), [0.0]
    thread = threading.Thread(target=lambda: needed.insert(0, host.plan(over)))
    with served(app(host.desk)) as server:
        print(server.url, flush=True)
        for line in sys.stdin:
            if line.strip() == "spent":
                print(time.process_time(), flush=True)
                continue
            if line.strip() == "plan":
                thread.start()
            else:
                over.set()
                host.wake()
                thread.join()
            print(needed[0], flush=True)
    host.store.close()


# --- the measurement
@dataclass(frozen=True, slots=True)
class Load:
    rate: float  # answered in a second, all agents together
    latencies: Sequence[float]
    spent: float  # seconds of the server's processor time for each

    @classmethod
    def median(cls, loads: "Sequence[Load]") -> "Load":
        latencies = [each for load in loads for each in load.latencies]
        return cls(median(load.rate for load in loads), latencies, median(load.spent for load in loads))


class Server:
    """The server's process, from outside."""

    def __init__(self, process: "subprocess.Popen[str]", directory: Path, agents: int) -> None:
        self._process = process
        self._agents = agents
        self._streams = count(1)
        self._db = directory / FILE
        self.url = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the server's process has ended")
        return line

    def tell(self, word: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return float(self._line())

    def load(self, items: int, seconds: float) -> Load:
        """All agents at once, from processes of their own; all that was acknowledged must be stored."""
        stream = f"s{next(self._streams)}"
        tasks = [
            Task(url=self.url, agents=list(range(n, self._agents, PROCESSES)), items=items, seconds=seconds,
                 stream=stream)
            for n in range(PROCESSES)
        ]  # fmt: skip
        before = self.tell("spent")
        done = _all(tasks)
        answered = sum(one.answered for one in done)
        spent = (self.tell("spent") - before) / max(1, answered)
        if items > 0 and (stored := self._stored(stream)) < answered * items:
            raise RuntimeError(f"{answered * items} items were acknowledged, {stored} are stored")
        rate = sum(one.answered / one.seconds for one in done)
        return Load(rate, [took for one in done for took in one.latencies], spent)

    def _stored(self, stream: str) -> int:
        connection = sqlite3.connect(f"file:{self._db}?mode=ro", uri=True)
        try:
            asked = connection.execute("SELECT count(*) FROM facts WHERE id LIKE ?", (f"%/{RUN}/{stream}/%",))
            return int(asked.fetchone()[0])
        finally:
            connection.close()


def _all(tasks: Sequence[Task]) -> list[Done]:
    command = [sys.executable, "-m", "bench.load"]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in tasks
    ]
    try:
        for process, task in zip(running, tasks, strict=True):
            _say(process, msgspec.json.encode(task).decode())
        for process in running:
            _hear(process)
        for process in running:
            _say(process, "go")
        return [msgspec.json.decode(_hear(process), type=Done) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of agents has ended")
    return line


@contextmanager
def server(agents: int) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        command = [sys.executable, "-m", "bench.reports", directory, str(agents)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Server(process, Path(directory), agents)
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=30)
            finally:
                process.kill()


def bare(items: int, reports: int, seconds: float) -> float:
    """Reports per second when nothing is between them and the store: so many in one append, one append at a time."""
    clock = RealClock()
    pulses = {node_id(number): incarnation(number) for number in range(reports)}
    spent, taken = 0.0, 0
    with store_of("sqlite") as store:
        ingest = Ingest(store, clock)
        for turn in count():
            facts = [
                Fact(id=f"{turn}/{number}/{seq}", at=moment(clock.wall()), news=news(number, seq))
                for number in range(reports)
                for seq in range(items)
            ]
            begun = time.perf_counter()
            ingest.take(facts, pulses)
            spent += time.perf_counter() - begun
            taken += reports
            if spent >= seconds:
                return taken / spent
    raise AssertionError("unreachable")


def _beside(http: Server, items: int, together: int, seconds: float, turned: int) -> list[Line]:
    """One size of report: through HTTP and, in turn with it, HTTP without them; and without HTTP."""
    one, many = bare(items, 1, seconds / 5), bare(items, together, seconds / 5)
    turns = [(http.load(items, seconds / turned), http.load(NOTHING, seconds / turned)) for _ in range(turned)]
    got, idle = Load.median([turn[0] for turn in turns]), Load.median([turn[1] for turn in turns])
    ratio = median(nothing.rate / reports.rate for reports, nothing in turns)
    of = NAMES.get(items, f"reports of {items} items")
    p50, p99 = (in_words(percentile(got.latencies, share)) for share in (0.5, 0.99))
    in_items = f" ({got.rate * items:,.0f} items/s)" if items > 1 else ""
    goal = (GOAL, got.rate >= ENOUGH or ratio <= WITHIN) if items == 1 else ("", None)
    return [
        Line(f"{of}, through HTTP", f"{got.rate:,.0f}/s{in_items}"),
        Line(f"{of}: the server's processor time for each", in_words(got.spent)),
        Line(f"{of}: that ÷ a request that does nothing", f"{got.spent / idle.spent:.2f}"),
        Line(f"{of}: answered in, p50, p99", f"{p50}, {p99}"),
        Line(f"{of}, straight into the store, one by one", f"{one:,.0f}/s"),
        Line(f"{of}, straight into the store, {together} at a time", f"{many:,.0f}/s"),
        Line(f"{of}: one by one ÷ HTTP", f"{one / got.rate:.2f}"),
        Line(f"{of}: {together} at a time ÷ HTTP", f"{many / got.rate:.2f}"),
        Line(f"{of}: requests that do nothing ÷ HTTP", f"{ratio:.2f}", *goal),
    ]


def run(size: Size) -> Figure:
    then = busy()
    agents = size.pick(full=64, quick=32, tiny=4)
    seconds = size.pick(full=50, quick=15, tiny=2) / 10
    turned = size.pick(full=TURNS, quick=TURNS, tiny=1)
    together = min(agents, THREADS[AGENTS])
    with server(agents) as http:
        http.load(1, seconds / 5)  # the first ones open connections and look tokens up
        lines = [line for items in SIZES for line in _beside(http, items, together, seconds, turned)]
        lines.append(Line("requests that do nothing (/healthz)", f"{http.load(NOTHING, seconds / 2).rate:,.0f}/s"))
        http.tell("plan")
        got = http.load(1, seconds)
        late = http.tell("planned")
    lines += [
        Line("reports of 1 item while the engine learns them", f"{got.rate:,.0f}/s"),
        Line("the last of these was learned, after it was stored", in_words(late)),
    ]
    return Figure(
        title="Reports of agents, through HTTP into SQLite",
        about=(
            f"{agents} agents in {PROCESSES} processes, each with a connection that it keeps, each sending its next"
            " report when the last one was acknowledged, that is, stored and synced. The real server, reception and"
            " store in one process. Beside it, in the same run: the same facts given to the store directly, one report"
            f" in each commit, and {together}; and, in turn with the reports, requests to the same server that do"
            " nothing (/healthz)."
        ),
        lines=tuple(lines),
        notes=(
            then,
            "Server and agents share the machine: where it has few cores, the server has less than it would alone.",
            "An empty report is a sign of life, and is not synced.",
        ),
    )


if __name__ == "__main__":
    serve(*sys.argv[1:])
