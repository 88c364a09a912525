"""Source address selection: at which address of this machine the other nodes of a job reach it."""

import errno
import ipaddress
import logging
import os
import socket
from contextlib import suppress
from typing import Any

log = logging.getLogger("sickbay.train")
LOOPBACK = "127.0.0.1"
SAY = "set SICKBAY_PEER_HOST to an address of this node that the others reach"
BACKLOG = 128


def reachable_host() -> str:
    """This machine's address as the other nodes see it: the one from which it would speak to MASTER_ADDR.

    SICKBAY_PEER_HOST has the last word. Where no other machine is spoken of it is loopback.
    """
    if host := os.environ.get("SICKBAY_PEER_HOST", "").strip():
        return host
    master = os.environ.get("MASTER_ADDR", "").strip().strip("[]")
    if not master:
        return LOOPBACK
    sources = [source for family, where in _lookup(master, "MASTER_ADDR") if (source := _source(family, where))]
    if not sources:
        raise OSError(errno.EHOSTUNREACH, f"there is no way from here to MASTER_ADDR={master}: {SAY}")
    chosen = next((source for source in sources if not _is_loopback(source)), sources[0])
    if _is_loopback(chosen) and master != "localhost" and not _is_loopback(master):
        log.warning("MASTER_ADDR=%s is loopback on this node, so no other node reaches its peers: %s", master, SAY)
    return chosen


def listen(host: str) -> socket.socket:
    """A socket that listens at one address of this machine, on a port that the system chooses."""
    family, where = _lookup(host, "the host")[0]
    if _is_any(where[0]):
        raise OSError(errno.EADDRNOTAVAIL, f"{host!r} would be every address of this machine: {SAY}")
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((where[0], 0, *where[2:]))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {host} ({error.strerror}): {SAY}") from error
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connect(address: str, seconds: float) -> socket.socket:
    """A connection to where a server says that it is."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise OSError(errno.EINVAL, "that is no address: it has a host, a colon and a port")
    try:
        return socket.create_connection((host.strip("[]"), int(port)), seconds)
    except TimeoutError:
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer: its node is gone, or no way leads there") from None
    except UnicodeError:
        raise OSError(errno.EINVAL, "that is no address: its host is no name") from None


def _lookup(host: str, what: str) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(host.strip("[]") or "0.0.0.0", 9, type=socket.SOCK_DGRAM)  # noqa: S104  # is refused
    except (OSError, UnicodeError) as error:
        raise OSError(errno.EHOSTUNREACH, f"{what} {host!r:.80} is not known here ({error}): {SAY}") from error
    return [(family, where) for family, _, _, _, where in found]


def _source(family: int, where: Any) -> str | None:
    """The address from which the system would speak to another one. Nothing is sent: UDP knows no connections."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_any(host: str) -> bool:
    found = ipaddress.ip_address(host)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return found.is_unspecified or bool(mapped and mapped.is_unspecified)
