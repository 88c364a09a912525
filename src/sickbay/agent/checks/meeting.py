"""Rendezvous of ranks on many machines: rank 0 waits at an address, hears from all, and tells all what to do.

Its connections stay open, so that at the end every rank says what it found. A rank that says nothing is the one that
broke the others: its neighbours only noticed.
"""

import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result

LINE: Final = 65_536
MOST_LINES: Final = 64
# Shares of the whole time: what is left of it when nobody waits any longer for who has not come, and when the work
# is broken off so that all can still tell what they saw.
COME: Final = 0.5
TELL: Final = 0.2
NAMED: Final = 8

Hello = dict[str, Any]


class NeverCame(Exception):  # noqa: N818 - a verdict
    """Somebody never came."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """`plan` is what rank 0 told all. `lines`: to every other rank at rank 0, to rank 0 at the others."""

    number: int
    plan: Mapping[str, Any]
    lines: Mapping[int, socket.socket]

    def name(self, number: int) -> str:
        return f"rank {number} ({self.plan['who'][number]})"

    def conclude(self, found: Mapping[str, Any], until: float, floor: float | None) -> Result:
        """The same for all ranks: raises `CouldNotRun`, or says what is wrong with whom."""
        if self.number == 0:
            summary = self._gathered({**found, "floor": floor}, until - TELL / 4 * max(0.0, until - time.monotonic()))
            for line in self.lines.values():
                with contextlib.suppress(OSError):
                    _send(line, summary)
        else:
            try:
                _send(self.lines[0], {**found, "floor": floor})
                summary = json.loads(read_line(self.lines[0], until))
            except (OSError, ValueError):
                own = f"; here: {found['because']}" if found.get("because") else ""
                return Result(f"{self.name(0)} went away in the middle{own}", found.get("figures") or {})
        if summary.get("unrun"):
            raise CouldNotRun(summary["because"], summary["figures"])
        return Result(summary["because"], summary["figures"])

    def _gathered(self, found: Mapping[str, Any], until: float) -> dict[str, Any]:
        told: dict[int, Mapping[str, Any]] = {0: found}
        gone = []
        for number, line in sorted(self.lines.items()):
            try:
                told[number] = dict(json.loads(read_line(line, until)))
            except TimeoutError:
                gone.append(f"{self.name(number)} went silent in the middle")
            except (OSError, ValueError, TypeError):
                gone.append(f"{self.name(number)} went away in the middle")
        return judged(gone, {self.name(number): one for number, one in sorted(told.items())})


def judged(gone: Sequence[str], told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Who went away without a word is the cause; then what failed; then what could not run; then what was too slow.

    The highest floor that a rank was told holds for all.
    """
    floor = max((float(one["floor"]) for one in told.values() if one.get("floor") is not None), default=None)
    failed = [f"{name}: {one['because']}" for name, one in told.items() if one.get("because") and not one.get("unrun")]
    unrun = [f"{name}: {one['because']}" for name, one in told.items() if one.get("unrun")]
    measured = [one["figures"] for one in told.values() if one.get("figures")]
    figures = {key: min(one[key] for one in measured if key in one) for key in (measured[0] if measured else ())}
    for bad in (gone, failed):
        if bad:
            return {"because": _few(bad, "; "), "figures": figures}
    if unrun:
        return {"because": _few(unrun, "; "), "figures": figures, "unrun": True}
    speed = figures.get("busbw_gbps")
    if floor is not None and (speed is None or speed < floor):
        slow = f"bus bandwidth {speed or 0.0:.2f} GB/s, at least {floor:.2f} expected, over {_few(list(told), ', ')}"
        return {"because": slow, "figures": figures}
    return {"because": "", "figures": figures}


def meet(
    at: str, ranks: int, hello: Hello, until: float, identity: Callable[[], str], stack: contextlib.ExitStack
) -> Meeting:
    """Raises `NeverCame` where somebody never came, OSError where the address is of no use."""
    host, _, port = at.rpartition(":")
    host = host.strip("[]")
    if hello["rank"]:
        return _come(host, int(port), hello, until, stack)
    callers: list[tuple[int, socket.socket]] = []
    twice = ""
    hellos: dict[int, Hello] = {0: {**hello, "address": host}}
    # On every interface: a machine's own name often means only itself to it (127.0.1.1).
    with listening(host if _loopback(host) else "", int(port)) as door:
        while len(hellos) < ranks and not twice:
            try:
                door.settimeout(max(0.05, until - time.monotonic()))
                caller, (address, *_) = door.accept()
            except TimeoutError:
                break
            stack.enter_context(caller)
            if (came := _heard(caller, ranks, until)) is None:
                caller.close()  # a stranger
                continue
            if came["rank"] in hellos:
                twice = f"two processes say that they are rank {came['rank']}: give each a rank of its own"
            near = _loopback(address) and not _loopback(host)
            hellos[came["rank"]] = {**came, "address": host if near else address}
            callers.append((came["rank"], caller))
    absent = [number for number in range(ranks) if number not in hellos]
    if twice:
        plan: dict[str, Any] = {"cannot": twice}
    elif absent:
        plan = {"absent": absent}
    else:
        plan = planned([hellos[one] for one in range(ranks)], identity)
    for _, line in callers:
        with contextlib.suppress(OSError):
            _send(line, plan)
    if plan.get("absent"):
        raise _absent(absent)
    return Meeting(0, plan, dict(callers))


def planned(hellos: Sequence[Hello], identity: Callable[[], str]) -> dict[str, Any]:
    """NCCL where all have it, TCP where none has; those that differ could not be compared."""
    who = [str(one["host"]) for one in hellos]
    plan: dict[str, Any] = {
        "who": who, "places": [[one["address"], one["port"]] for one in hellos], "gpus": shared(hellos), "id": "",
        "cannot": "",
    }  # fmt: skip
    cannot = [f"rank {number} ({who[number]}): {one['cannot']}" for number, one in enumerate(hellos) if one["cannot"]]
    able = [bool(one["gpus"]) and bool(one["library"]) for one in hellos]
    if not cannot and any(able) and not all(able):
        cannot = [f"rank {number} ({who[number]}) has no GPU or no NCCL" for number, one in enumerate(able) if not one]
        cannot[-1] += ", the others have both"
    if not cannot and all(able):
        bare = [f"rank {number} ({who[number]})" for number, one in enumerate(plan["gpus"]) if not one]
        cannot = [f"no GPU is left for {_few(bare, ', ')}: start fewer ranks on a machine"] if bare else []
    if cannot:
        return {**plan, "cannot": _few(cannot, "; ")}
    try:
        return {**plan, "id": identity()} if all(able) else plan
    except CouldNotRun as error:
        return {**plan, "cannot": f"rank 0 ({who[0]}): {error}"}


def shared(hellos: Sequence[Hello]) -> list[list[str]]:
    """Ranks of one machine that see the same GPUs share them; one that is alone there, or sees others, takes all."""
    mine: list[list[str]] = []
    for number, one in enumerate(hellos):
        alike = [at for at, each in enumerate(hellos) if (each["host"], each["gpus"]) == (one["host"], one["gpus"])]
        part = len(one["gpus"]) // len(alike)
        begin = alike.index(number) * part
        mine.append(list(one["gpus"])[begin : begin + part])
    return mine


def _come(host: str, port: int, hello: Hello, until: float, stack: contextlib.ExitStack) -> Meeting:
    try:
        line = stack.enter_context(dial(host, port, until))
    except socket.gaierror as error:
        raise OSError(f"{host!r} is no name that this machine knows: give an address instead") from error
    except OSError as error:
        raise NeverCame(f"rank 0 never came, or cannot be reached from here: {error}") from error
    patience = until + (until - time.monotonic()) + 1.0  # rank 0 may have begun later
    try:
        _send(line, hello)
        plan = json.loads(read_line(line, patience))
    except TimeoutError as error:
        raise NeverCame("rank 0 went silent while the ranks came together") from error
    except OSError as error:
        raise NeverCame(f"rank 0 went away while the ranks came together: {error}") from error
    if plan.get("absent"):
        raise _absent(plan["absent"])
    return Meeting(hello["rank"], plan, {0: line})


def _heard(caller: socket.socket, ranks: int, until: float) -> Hello | None:
    try:
        came = json.loads(read_line(caller, min(until, time.monotonic() + 5.0)))
        sound = isinstance(came["rank"], int) and 0 < came["rank"] < ranks and 0 < int(came["port"]) < 65_536
        return came if sound and {"host", "gpus", "library", "cannot"} <= set(came) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _absent(numbers: Sequence[int]) -> NeverCame:
    return NeverCame(f"rank {_few([str(one) for one in numbers], ', ')} never came")


def _few(names: Sequence[str], between: str) -> str:
    more = f"{between}and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return between.join(names[:NAMED]) + more


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), backlog=128)


def dial(host: str, port: int, until: float) -> socket.socket:
    """Whoever is to answer may not be there yet."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"nobody answers at {host}:{port}")
        try:
            return socket.create_connection((host, port), timeout=left)
        except ConnectionRefusedError:
            time.sleep(min(0.05, left))
        except TimeoutError:
            raise TimeoutError(f"nobody answers at {host}:{port}") from None


def _send(peer: socket.socket, said: Mapping[str, Any]) -> None:
    peer.sendall((json.dumps(said) + "\n").encode())


def read_line(peer: socket.socket, until: float | None = None) -> bytes:
    """Until then, or with the time limit that the connection has."""
    data = bytearray()
    while not data.endswith(b"\n"):
        if until is not None:
            peer.settimeout(max(0.05, until - time.monotonic()))
        more = peer.recv(LINE)
        if not more or len(data) > LINE * MOST_LINES:
            raise OSError("the rendezvous broke off")
        data += more
    return bytes(data)
