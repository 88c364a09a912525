"""Reports behind their route: one thread stores what came meanwhile together, and a slow store is not fed for ever."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.support.api_ward import NODE, QUIET, Clinic, HeardStore, Ward, clinic, ward
from tests.support.waiting import until

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.faces.api import report_queue
from sickbay.faces.api.credentials import TokenLookups
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.report_queue import ONE_NODES_MOST, ReportQueue
from sickbay.faces.api.route import AGENTS
from sickbay.hosts.backend import Backend, hash_of
from sickbay.hosts.changes import Changes
from sickbay.hosts.clock import SystemClock
from sickbay.hosts.server import served
from sickbay.model.errors import StoreUnavailable
from sickbay.model.facts import Fact, Observed
from sickbay.model.fleet import NodeId, Role, Token
from sickbay.model.protocol import PROTO, Item, Reply, Report
from sickbay.policy.load import load_policy

pytestmark = pytest.mark.slow


def report(node: int, seq: int = 1) -> Report:
    return Report(
        proto=PROTO, node=NodeId(f"c/n{node}"), instance_id="i", boot_id="b", agent_run="r", first_seq=seq,
        mono_now=1.0, wall_now=1.0, watermark=1.0,
    )  # fmt: skip


class GatedStore:
    """Takes reports when a gate is open; writes down who came together, and on which thread."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.groups: list[list[str]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def receive(self, reports: Sequence[Report]) -> list[Reply | Exception]:
        self.groups.append([f"{each.node}/{each.first_seq}" for each in reports])
        self.threads.add(threading.get_ident())
        self.entered.set()
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        return [Reply(ack=each.first_seq, report_every=1.0, poll_for=1.0) for each in reports]


def queued(act: Callable[[ReportQueue, GatedStore], Coroutine[Any, Any, None]]) -> GatedStore:
    """With a report of node 0 that is being stored, and a gate that is closed."""
    store = GatedStore()

    async def run() -> None:
        queue = ReportQueue(store.receive)
        first = asyncio.create_task(queue.store(report(0), 10))
        await asyncio.to_thread(store.entered.wait, 20)
        try:
            await act(queue, store)
        finally:
            store.gate.set()
        await asyncio.gather(first, return_exceptions=True)
        assert (queue._bytes, queue._of_node) == (0, {}), "what has left the queue takes no place"

    asyncio.run(run())
    return store


async def begun(queue: ReportQueue, *reports: Report, size: int = 10) -> list["asyncio.Task[Reply]"]:
    """On their way; each has come as far as it comes now."""
    tasks = [asyncio.create_task(queue.store(each, size)) for each in reports]
    await asyncio.sleep(0)
    return tasks


def test_those_that_come_while_others_are_stored_are_stored_together_on_one_thread() -> None:
    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = await begun(queue, *[report(n) for n in range(1, 30)])
        store.gate.set()
        assert {reply.ack for reply in await asyncio.gather(*tasks)} == {1}

    store = queued(act)
    assert [len(group) for group in store.groups] == [1, 29]
    assert len(store.threads) == 1


def test_what_one_node_says_next_is_read_after_it_was_answered_and_in_its_order() -> None:
    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = await begun(queue, report(1, 1), report(1, 2), report(2, 1), report(1, 3))
        store.gate.set()
        assert [reply.ack for reply in await asyncio.gather(*tasks)] == [1, 2, 1, 3]

    assert queued(act).groups[1:] == [["c/n1/1", "c/n2/1"], ["c/n1/2"], ["c/n1/3"]]


def test_a_store_that_is_slow_is_not_fed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "WAITING_MOST", 5)

    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = await begun(queue, *[report(n) for n in range(1, 6)])
        with pytest.raises(ApiRefusal, match="the store is slow: 5 reports wait") as caught:
            await queue.store(report(9), 10)
        assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
        store.gate.set()
        await asyncio.gather(*tasks)
        assert (await queue.store(report(9), 10)).ack == 1

    queued(act)


def test_large_reports_do_not_fill_the_memory_and_one_alone_is_taken_however_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_queue, "BYTES_MOST", 100)

    async def act(queue: ReportQueue, store: GatedStore) -> None:
        (large,) = await begun(queue, report(1), size=1000)
        with pytest.raises(ApiRefusal, match="the store is slow"):
            await queue.store(report(2), 1)
        store.gate.set()
        assert (await large).ack == 1

    queued(act)


def test_an_agent_that_sends_without_end_takes_the_place_of_no_other() -> None:
    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = await begun(queue, *[report(1, n) for n in range(ONE_NODES_MOST)])
        with pytest.raises(ApiRefusal, match="reports of c/n1 wait") as caught:
            await queue.store(report(1, 9), 10)
        assert caught.value.status == 503
        (other,) = await begun(queue, report(2))
        store.gate.set()
        assert (await other).ack == 1
        await asyncio.gather(*tasks)
        assert (await queue.store(report(1, 9), 10)).ack == 9

    queued(act)


def test_a_group_that_is_large_leaves_the_store_to_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_queue, "GROUP_BYTES", 25)
    monkeypatch.setattr(report_queue, "GROUP_MOST", 3)

    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = [
            *await begun(queue, report(1), report(2), report(3)),
            *await begun(queue, *map(report, range(4, 8)), size=1),
        ]
        store.gate.set()
        await asyncio.gather(*tasks)

    assert [len(group) for group in queued(act).groups] == [1, 2, 3, 2]


def test_only_those_of_a_group_hear_that_it_failed() -> None:
    async def act(queue: ReportQueue, store: GatedStore) -> None:
        tasks = await begun(queue, report(1), report(2))
        store.error = StoreUnavailable("no disk")
        store.gate.set()
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [StoreUnavailable] * 2
        store.error = None
        assert (await queue.store(report(1), 10)).ack == 1

    queued(act)


def test_whoever_hangs_up_keeps_no_other_from_its_answer() -> None:
    async def act(queue: ReportQueue, store: GatedStore) -> None:
        gone, waits = await begun(queue, report(1), report(2))
        gone.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        assert (await waits).ack == 1

    assert queued(act).groups[1] == ["c/n1/1", "c/n2/1"]


def test_the_engine_is_woken_by_what_is_new_and_not_by_a_sign_of_life() -> None:
    woken: list[str] = []
    desk = Backend(
        MemoryStore(), load_policy("default"), {}, {}, SystemClock(), lambda: woken.append("woken"), Changes()
    )
    desk.receive_all([report(1), report(2)])
    assert woken == []
    item = Item(seq=1, mono=1.0, news=Observed(node=NodeId("c/n1"), kind="kernel.line"))
    desk.receive_all([replace(report(1), items=(item,)), report(2)])
    assert woken == ["woken"]


# --- their tokens
def test_tokens_that_are_asked_for_meanwhile_are_read_together_and_each_once() -> None:
    gate, entered, asked = threading.Event(), threading.Event(), list[list[str]]()

    def look_up(hashes: Sequence[str]) -> list[Token | None]:
        asked.append(list(hashes))
        entered.set()
        assert gate.wait(20)
        if hash_of("bad") in hashes:
            raise StoreUnavailable("no disk")
        return [None for _ in hashes]

    async def run() -> None:
        lookups = TokenLookups(look_up, AGENTS)
        first = asyncio.create_task(lookups.find("bad"))
        await asyncio.to_thread(entered.wait, 20)
        tasks = [asyncio.create_task(lookups.find(name)) for name in ("a", "b", "a")]
        await asyncio.sleep(0)
        tasks[0].cancel()  # who asked first for a has hung up
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*tasks[1:]) == [None, None]
        with pytest.raises(StoreUnavailable):
            await first

    asyncio.run(run())
    assert asked == [[hash_of("bad")], [hash_of("a"), hash_of("b")]]


# --- through HTTP
class SlowDisk(HeardStore):
    """A store whose appends of reports wait at a gate; what is poison to it, it does not take."""

    gate = threading.Event()
    waiting = threading.Semaphore(0)

    def append(self, facts: Sequence[Fact], *rest: Any, **more: Any) -> int:
        said = {fact.news.text for fact in facts if isinstance(fact.news, Observed)}
        if "slow" in said:
            self.waiting.release()
            assert self.gate.wait(20)
        if "poison" in said:
            raise StoreUnavailable("not this one")
        return super().append(facts, *rest, **more)


NODES = [NodeId(f"sim/train-000{n}") for n in range(6)]


def secret(node: NodeId) -> str:
    return f"secret-of-the-agent-of-{node}"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Clinic]:
    with clinic(QUIET, store=SlowDisk) as calls:
        for node in NODES:
            calls.ward.desk.issue(f"agent of {node}", Role.AGENT, by="setup", node=node, secret=secret(node))
        yield calls


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    SlowDisk.gate.clear()
    yield SlowDisk.gate
    SlowDisk.gate.set()


def said(node: NodeId, text: str, run: str) -> dict[str, Any]:
    news = {"news": "observed", "node": node, "kind": "kernel.line", "fields": {}, "text": text}
    return {
        "proto": PROTO, "node": node, "instance_id": "i", "boot_id": "b", "agent_run": run, "first_seq": 1,
        "mono_now": 1.0, "wall_now": 1.0, "watermark": 1.0, "items": [{"seq": 1, "mono": 1.0, "news": news}],
    }  # fmt: skip


def sent(url: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"Authorization": f"Bearer {secret(body['node'])}"}
    return httpx.post(f"{url}/v1/agent/report", json=body, headers=headers, timeout=30)


def stored(ward: Ward, run: str) -> set[str]:
    return {fact.id.split("/b/")[0] for fact in ward.sim.store.facts(after=0, limit=100_000) if f"/{run}/" in fact.id}


@contextmanager
def amid_a_commit(
    url: str, gate: threading.Event, run: str
) -> Iterator[tuple[ThreadPoolExecutor, "Future[httpx.Response]"]]:
    """While the first node's report is being stored."""
    with ThreadPoolExecutor(16) as pool:
        try:
            first = pool.submit(sent, url, said(NODES[0], "slow", run))
            assert SlowDisk.waiting.acquire(timeout=20)
            yield pool, first
        finally:
            gate.set()


def waiting_reports(ward: Ward) -> int:
    return len(ward.app.state.shared.store_report.__self__._waiting)


def test_of_a_group_only_the_report_that_the_store_does_not_take_is_refused(
    fleet: Clinic, gate: threading.Event
) -> None:
    with amid_a_commit(fleet.url, gate, "r1") as (pool, _):
        bodies = [said(node, "poison" if node == NODES[3] else "well", "r1") for node in NODES[1:]]
        answers = [pool.submit(sent, fleet.url, body) for body in bodies]
        until(lambda: waiting_reports(fleet.ward) == len(bodies))
        gate.set()
        told = {body["node"]: answer.result().status_code for body, answer in zip(bodies, answers, strict=True)}
    assert told == {node: 503 if node == NODES[3] else 200 for node in NODES[1:]}
    assert stored(fleet.ward, "r1") == {*NODES} - {NODES[3]}


def test_garbage_of_one_agent_is_refused_to_it_alone_and_a_held_poll_is_answered(
    fleet: Clinic, gate: threading.Event
) -> None:
    with amid_a_commit(fleet.url, gate, "r2") as (pool, first):
        bad = pool.submit(sent, fleet.url, said(NODES[1], "well", "r2\0"))
        good = pool.submit(sent, fleet.url, said(NODES[2], "well", "r2"))
        until(lambda: waiting_reports(fleet.ward) == 2)
        assert sent(fleet.url, {**said(NODES[3], "well", "r2"), "first_seq": "one"}).status_code == 400
        poll = {"proto": PROTO, "node": NODE, "instance_id": "i", "boot_id": "b"}
        held = pool.submit(fleet.agent.post, "/v1/agent/poll", poll)
        fleet.ward.post("look-amid-a-commit")
        assert [each["id"] for each in held.result().json()["commands"]] == ["look-amid-a-commit"]
        assert not first.done()
        gate.set()
        assert (bad.result().status_code, good.result().status_code, first.result().status_code) == (400, 200, 200)
    assert "NUL" in bad.result().json()["error"]


def test_a_server_that_is_stopped_amid_a_commit_acknowledges_nothing_that_is_not_stored(gate: threading.Event) -> None:
    with ward(QUIET, store=SlowDisk) as made:
        for node in NODES:
            made.desk.issue(f"agent of {node}", Role.AGENT, by="setup", node=node, secret=secret(node))
        with served(made.app) as server, amid_a_commit(server.url, gate, "r3") as (pool, first):
            answers = [first, *(pool.submit(sent, server.url, said(node, "well", "r3")) for node in NODES[1:])]
            until(lambda: waiting_reports(made) == 5)
            server.stop()
            until(lambda: made.app.state.shared.mail.closed)
            gate.set()  # the disk comes back while the server ends
            outcomes = [answer.exception() or answer.result().status_code for answer in answers]
        acknowledged = {node for node, outcome in zip(NODES, outcomes, strict=True) if outcome == 200}
        assert acknowledged <= stored(made, "r3")
        assert acknowledged, "whoever waits is answered before the server ends"
