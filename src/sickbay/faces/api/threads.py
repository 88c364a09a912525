"""Where blocking work is done: agents and people have threads of their own, so that neither waits for the other."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, to_thread

Args = TypeVarTuple("Args")
Result = TypeVar("Result")

AGENTS = "agents"
PEOPLE = "people"
THREADS = {AGENTS: 16, PEOPLE: 32}

_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, CapacityLimiter]] = WeakKeyDictionary()


async def on_thread(group: str, call: Callable[[*Args], Result], *args: *Args) -> Result:
    mine = _limiters.setdefault(asyncio.get_running_loop(), {})
    if group not in mine:
        mine[group] = CapacityLimiter(THREADS[group])
    return await to_thread.run_sync(call, *args, limiter=mine[group])
