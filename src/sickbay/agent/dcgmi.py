"""Running `dcgmi`, listening to it, and fetching a page of dcgm-exporter, each with a deadline."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sickbay.model.sign import Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.dcgm_health import DcgmHealth

ENDS_WITHIN = 3.0  # seconds after a polite request
MOST = 4 << 20  # bytes of an answer
PAGE = 16 << 20
AGAIN = 60.0  # seconds before a listener that ended is started anew
LISTEN = ("policy", "--reg")


@dataclass(frozen=True, slots=True)
class Ran:
    """`code` is None if it had to be ended."""

    code: int | None
    text: str


Run = Callable[[Sequence[str], float], Ran]  # arguments of dcgmi, seconds


def run_dcgmi(arguments: Sequence[str], seconds: float, program: str = "dcgmi") -> Ran:
    """`dcgmi` with these arguments, in a session of its own. Raises OSError where there is none."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"there is no {program}: DCGM is not installed here, or not wholly")
    until = time.monotonic() + seconds
    process = subprocess.Popen(  # noqa: S603 - our own arguments
        [found, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    held = bytearray()
    try:
        while time.monotonic() < until:
            over = _drain(process, held)
            if over:
                break
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.01, min(1.0, until - time.monotonic())))
        code = process.poll()
    finally:
        end(process)
    return Ran(code=code, text=held.decode("utf-8", "replace"))


def _drain(process: "subprocess.Popen[bytes]", held: bytearray) -> bool:
    """What it has written so far; True at the end of its output."""
    assert process.stdout is not None
    while True:
        try:
            data = os.read(process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not data or len(held) >= MOST:  # at its end, or it says more than anybody asked for
            return True
        held += data


def end(process: "subprocess.Popen[bytes]") -> None:
    """Politely first: dcgmi then stops the test that it had the host engine begin."""
    if process.poll() is None:
        for how, seconds in ((signal.SIGTERM, ENDS_WITHIN), (signal.SIGKILL, ENDS_WITHIN)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
    if process.stdout is not None:
        process.stdout.close()


def fetch(url: str, seconds: float) -> str:
    """A page of an exporter. Raises OSError."""
    if not url.startswith(("http://", "https://")):
        raise OSError(f"'{url}' is no address of an exporter; write http://host:9400/metrics")
    import urllib.request  # here: few agents read an exporter, and it brings megabytes along

    until = time.monotonic() + seconds
    held = bytearray()
    with urllib.request.urlopen(url, timeout=seconds) as answer:  # noqa: S310 - http only, see above
        while len(held) < PAGE:
            if time.monotonic() > until:
                raise TimeoutError(f"{url} did not send its page within {seconds:g} s")
            data = answer.read1(1 << 16)
            if not data:
                break
            held += data
    return held.decode("utf-8", "replace")


class Listener:
    """`dcgmi policy --reg`: says at once when a condition of the policy is violated."""

    def __init__(self, program: str = "dcgmi") -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._held = bytearray()
        self._started = -AGAIN
        self._reader = DcgmHealth()

    def look(self, now: float) -> list[Sign]:
        if self._process is None:
            self._start(now)
            return []
        over = _drain(self._process, self._held)
        lines = self._held.split(b"\n")
        self._held = bytearray(lines.pop())
        found = [sign for line in lines for sign in self._reader.read(0, line.decode("utf-8", "replace"))]
        if over:
            self.close()
        return found

    def _start(self, now: float) -> None:
        found = shutil.which(self._program)
        if found is None or now - self._started < AGAIN:
            return
        self._started = now
        self._process = subprocess.Popen(  # noqa: S603 - our own arguments
            [found, *LISTEN],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process)


def document_in(text: str) -> Any:
    """The JSON of an answer: dcgmi may say something before it, or nothing else at all. None: there is none."""
    at = text.find("{")
    if at < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def read_answer(reader: Document, text: str) -> list[Sign]:
    """What an answer says, as JSON where it has some, else line by line."""
    value = document_in(text)
    if value is not None:
        return list(reader.value(1, value))
    found = [sign for number, line in enumerate(text.splitlines(), 1) for sign in reader.read(number, line)]
    return [*found, *reader.end()]
