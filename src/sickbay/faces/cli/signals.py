"""How commands that serve are told to end (signals), and who started them."""

import contextlib
import os
import select
import signal


class Signals:
    """Ctrl-C ends everything; SIGTERM (an upgrade, a stop by the system) ends only the controller.

    Kept by a pipe: two signals at once (a process group and its parent) would lock an event against itself.
    """

    def __init__(self, *, hangups: bool = False) -> None:
        """`hangups`: SIGHUP asks for a reload, and ends nobody."""
        self.by: int = 0
        self.reload = False
        self._hears, self._tells = os.pipe()
        os.set_blocking(self._tells, False)
        signal.signal(signal.SIGTERM, self._told)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if hangups:
            signal.signal(signal.SIGHUP, self._asked)

    def _asked(self, number: int, frame: object) -> None:
        del number, frame
        self.reload = True

    def _told(self, number: int, frame: object) -> None:
        del frame
        self.by = number
        with contextlib.suppress(BlockingIOError):  # full of earlier ones: heard all the same
            os.write(self._tells, b".")

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._hears], [], [], seconds)[0])


def who_starts() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container knows no name for its user
        return f"user {os.getuid()}"
