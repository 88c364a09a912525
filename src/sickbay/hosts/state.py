"""The state directory of `sickbay up`: where it is, who serves it (a lock that dies with its holder), how it ends."""

import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from sickbay.clusters.local.locks import holder
from sickbay.clusters.local.processes import is_alive
from sickbay.clusters.local.rack import Rack
from sickbay.model.errors import BadInput

LOCK = "controller.lock"
FIRST_TOKEN = "operator.token"  # noqa: S105 - a file: the secret of whoever started it
CLUSTERS = "clusters"  # a directory for each cluster of a config
RECORD = "controller.json"  # where the controller can be reached
DATABASE = "sickbay.db"
OWN = (LOCK, RECORD, DATABASE)  # by any of these a directory is known as a controller's state
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def refuse_open_door(host: str, *, secured: bool) -> None:
    """Anybody who can reach us could end every job: beyond this machine only with TLS, so that tokens stay secret."""
    if host not in LOOPBACK and not secured:
        raise BadInput(
            f"--host {host} can be reached from other machines, where tokens would not stay secret: "
            "give --cert and --key, or use 127.0.0.1"
        )


def serving(state: Path) -> int:
    """The process whose controller has this state, as long as it lives; 0: none has."""
    try:
        return holder(state / LOCK) or 0
    except NotADirectoryError:  # a file is in the way: nobody can serve there
        return 0


def refuse_second(state: Path, pid: int) -> NoReturn:
    raise BadInput(
        f"a controller serves {state} already (process {pid or 'unknown'}): look with 'sickbay nodes', end it with "
        "'sickbay down', or start another with a state directory and a port of its own"
    )


def lock_alone(state: Path) -> IO[str]:
    """A lock that dies with us and says who we are, from the first moment on. A number in a file could do neither: it
    would outlive us, and then mean some other process.
    """
    try:
        file = (state / LOCK).open("a", encoding="ascii")
    except OSError as error:
        raise _unusable(state, error) from None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        refuse_second(state, serving(state))
    return file


def default_state() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(os.environ.get("SICKBAY_STATE") or Path(home) / "sickbay")


def make_private(directory: Path) -> None:
    """Ours alone. Raises BadInput for one that others use: closed to them, `/var` would stop half of a machine."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_open = bool(directory.stat().st_mode & 0o077)
        if (
            is_open
            and not any((directory / own).exists() for own in OWN)
            and any(map(Path.is_dir, directory.iterdir()))
        ):
            raise BadInput(f"the state directory {directory} holds other things: give one that is the controller's own")
        directory.chmod(0o700)
    except OSError as error:
        raise _unusable(directory, error) from None


def _unusable(directory: Path, error: OSError) -> BadInput:
    return BadInput(f"the state directory {directory} cannot be used ({error.strerror}): give another with --state")


class ControllerRecord(NamedTuple):
    pid: int
    url: str


def recorded(state: Path) -> ControllerRecord:
    """What the last controller here wrote of itself; 0 and an empty URL: nothing that can be read."""
    with suppress(ValueError, OSError, KeyError, TypeError):
        found = json.loads((state / RECORD).read_text())
        return ControllerRecord(pid=int(found["pid"]), url=str(found["url"]))
    return ControllerRecord(pid=0, url="")


class Ended(NamedTuple):
    """What `end_all` found living: `url` is where the controller could be reached, as far as it is known."""

    controller: bool
    nodes: int
    url: str


def end_all(state: Path) -> Ended | None:
    """The controller and every node of this state, with all that runs there. None: there is no state of a cluster."""
    url = recorded(state).url
    racks = [Rack(room) for room in (state / "local", *sorted((state / CLUSTERS).glob("*")))]
    racks = [rack for rack in racks if rack.exists()]
    # The nodes may run though the database was lost or moved away.
    if not (state / DATABASE).exists() and not racks:
        return None
    pid = serving(state)
    if pid:
        _end_controller(state, pid)
    living = sum(rack.alive(name) for rack in racks for name in rack.names())
    for rack in racks:
        rack.down()  # also where no supervisor lives: one that died may have left its ranks behind
    (state / RECORD).unlink(missing_ok=True)
    return Ended(controller=bool(pid), nodes=living, url=url)


def _end_controller(state: Path, pid: int) -> None:
    """First, as it would take what ends next for an illness."""
    for how, seconds in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        with suppress(ProcessLookupError):
            os.kill(pid, how)
            os.kill(pid, signal.SIGCONT)  # one that Ctrl-Z put to sleep would not hear it
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if serving(state) != pid:
                _await_exit(pid)
                return
            time.sleep(0.05)


def _await_exit(pid: int) -> None:
    """Its lock is free a moment before it is gone. Waited for, never killed: its number may be another's by now."""
    until = time.monotonic() + 5.0
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
