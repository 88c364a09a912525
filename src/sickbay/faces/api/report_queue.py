"""Group commit behind the report route, with back-pressure: one thread stores all reports that came while it stored the
ones before. A thread for each report would have them fight for the interpreter and for the store's one connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sickbay.faces.api.refusal import AGAIN, ApiRefusal
from sickbay.faces.api.route import MIB, REPORTS, on_thread
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Reply, Report

WAITING_MOST = 4096  # reports that wait for the store: more than a fleet sends while one commit takes
BYTES_MOST = 128 * MIB  # of their bodies: a store that stands still must not fill the memory
ONE_NODES_MOST = 4  # an agent sends one after the other, and again when it has waited in vain
GROUP_MOST = 512  # reports of one commit
GROUP_BYTES = 16 * MIB  # of their bodies, or one: others write to the store, too

Receive = Callable[[Sequence[Report]], Sequence[Reply | Exception]]


@dataclass(frozen=True, slots=True, eq=False)
class WaitingReport:
    report: Report
    size: int  # bytes of its body
    answer: asyncio.Future[Reply]


class ReportQueue:
    """Lives on one event loop: nothing here needs a lock. What is answered is what `receive` has said of the report;
    a queue that ends has answered nothing that was not stored.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._waiting: deque[WaitingReport] = deque()
        self._bytes = 0
        self._of_node: dict[NodeId, int] = {}  # how many of a node wait or are being stored
        self._storing: asyncio.Task[None] | None = None

    async def store(self, report: Report, size: int) -> Reply:
        """When it is stored, the answer to it. Raises ApiRefusal(503), and what `receive` has returned."""
        self._refuse_if_full(report.node, size)
        waiting = WaitingReport(report, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._bytes += size
        self._of_node[report.node] = self._of_node.get(report.node, 0) + 1
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_all(), name="reports")
        return await waiting.answer

    def _refuse_if_full(self, node: NodeId, size: int) -> None:
        if self._of_node.get(node, 0) >= ONE_NODES_MOST:
            raise _later(f"{ONE_NODES_MOST} reports of {node} wait to be stored already")
        if len(self._waiting) >= WAITING_MOST or (self._waiting and self._bytes + size > BYTES_MOST):
            raise _later(f"the store is slow: {len(self._waiting)} reports wait to be stored")

    async def _store_all(self) -> None:
        try:
            while self._waiting:
                await self._store_group(self._next_group())
        finally:
            self._storing = None

    def _next_group(self) -> list[WaitingReport]:
        """The oldest, but of one node one only: its next is read after this one has been answered."""
        group: dict[NodeId, WaitingReport] = {}
        left: deque[WaitingReport] = deque()
        size = 0
        while self._waiting and len(group) < GROUP_MOST:
            first = self._waiting.popleft()
            if first.report.node in group:
                left.append(first)
                continue
            if group and size + first.size > GROUP_BYTES:
                self._waiting.appendleft(first)
                break
            group[first.report.node] = first
            size += first.size
        self._waiting.extendleft(reversed(left))
        return list(group.values())

    async def _store_group(self, group: Sequence[WaitingReport]) -> None:
        answers: Sequence[Reply | Exception] = ()
        try:
            answers = await on_thread(REPORTS, self._receive, [each.report for each in group])
        except Exception as error:  # noqa: BLE001 - whoever waits hears it, and the next group is stored all the same
            answers = [error] * len(group)
        finally:
            for each in group:
                self._leave(each)
        for each, answer in zip(group, answers, strict=True):
            if each.answer.done():
                continue  # nobody waits for it any more
            if isinstance(answer, Exception):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)

    def _leave(self, each: WaitingReport) -> None:
        node = each.report.node
        self._bytes -= each.size
        self._of_node[node] -= 1
        if not self._of_node[node]:
            del self._of_node[node]


def _later(why: str) -> ApiRefusal:
    return ApiRefusal(503, f"{why}: {AGAIN}", **{"Retry-After": "1"})
