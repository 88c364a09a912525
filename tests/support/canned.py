"""A server that answers as it was told, over a real socket, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

CUT = object()  # as an answer: the connection is cut without a word
AT = "2026-01-01T00:10:00.000Z"


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


class Answer(NamedTuple):
    body: Any
    status: int = 200
    media: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Canned:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, Any] = {}
        self.url = ""

    def says(self, route: str, *answers: Any) -> None:
        """One after the other, the last one again and again. A function is given what was asked."""
        self.answers[route] = list(answers)

    def refuses(self, route: str, status: int, error: str) -> None:
        self.says(route, Answer({"error": error}, status))

    def answer(self, asked: Asked) -> Any:
        self.asked.append(asked)
        answers = self.answers.get(f"{asked.method} {asked.path}")
        if answers is None:
            return Answer({"error": f"there is nothing at {asked.path}"}, 404)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return found(asked) if callable(found) else found

    def of(self, method: str, path: str) -> list[Asked]:
        return [one for one in self.asked if (one.method, one.path) == (method, path)]


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client may leave before it is answered; that is no news."""
        del request, client_address


def _handler(canned: Canned) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, parts.path, query, json.loads(raw) if raw else None, headers)
            found = canned.answer(asked)
            if found is CUT:
                self.close_connection = True
                return
            answer = found if isinstance(found, Answer) else Answer(found)
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.media)
            self.send_header("Content-Length", str(len(body)))
            for name, value in answer.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _do  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            del format, args

    return Handler


@contextmanager
def serving(port: int = 0) -> Iterator[Canned]:
    canned = Canned()
    server = _Server(("127.0.0.1", port), _handler(canned))
    server.daemon_threads = True
    canned.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield canned
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def one_after(*answers: Any) -> Callable[[Asked], Any]:
    """As `says` does, but for use inside another answer."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


# --- what a server may say


def node(name: str = "n0", **other: Any) -> dict[str, Any]:
    made = {
        "id": f"local/{name}", "pool": "gpu", "state": "READY", "schedulable": True, "boot_id": "b1",
        "instance_id": "m1", "devices": [{"index": 0, "serial": "s0"}, {"index": 1, "serial": "s1"}], "job": None,
        "jobs": [], "incident": None, "cordons": [], "because": "",
    }  # fmt: skip
    return made | other


def job(ident: str = "train-1a2b3", **other: Any) -> dict[str, Any]:
    made = {
        "id": ident, "name": "train", "state": "RUNNING", "attempt": 1, "restarts": 0, "owner": "ann",
        "pool": "local/default", "nodes": ["local/n0", "local/n1"], "step": 40, "resumed_from": None,
        "resumed_of": None, "saved": None, "saved_at": None, "continues": None, "continued_by": None,
        "save_failed": "", "doing": "", "diagnosis": "", "checkpoint": "",
        "submitted_at": "2026-01-01T00:00:00.000Z", "ended_at": None, "interruptions": [], "queue": None, "because": "",
    }  # fmt: skip
    return made | other


def interruption(*stages: str) -> dict[str, Any]:
    names = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")
    times = {name: f"2026-01-01T00:00:{10 + n:02d}.000Z" if name in stages else None for n, name in enumerate(names)}
    again = 6.0 if "first_step" in stages else None
    return {"attempt": 1, "cause": "xid.79 on local/n0", "incidents": ["i12"], "stages": times,
            "training_again_after": again}  # fmt: skip


def incident(ident: str = "i12", **other: Any) -> dict[str, Any]:
    made = {
        "id": ident, "node": "local/n0", "incident_kind": "fault",
        "fault": {"code": "xid.79", "component": "gpu", "severity": "fatal", "evidence": ["NVRM: Xid 79"]},
        "remedy": "reboot", "phase": "REPAIRING", "opened_at": AT, "closed_at": None,
        "stages": [{"phase": "SUSPECT", "entered_at": AT, "seconds": 0.2, "because": "seen"},
                   {"phase": "REPAIRING", "entered_at": AT, "seconds": None, "because": "reboots"}],
        "tries": [], "jobs": ["train-1a2b3"], "because": "waits for a new boot id",
    }  # fmt: skip
    return made | other


def order(verb: str, target: str, **other: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": "order-1a2b", "verb": verb, "target": target, "by": "ann", "reason": "x", "asked_at": AT,
        "verdict": "under_way", "because": "DRAINING: it drains", "until": None, "then": "", "changed_by": [],
        "incident": "i12", "job": None,
    }  # fmt: skip
    return made | other


def fleet(**other: Any) -> dict[str, Any]:
    made = {
        "nodes": [node("n-0000", job="train-1a2b3"), node("n-0001", state="OUT", incident="i12")],
        "jobs": [job()], "incidents": [incident()],
        "budgets": [{"pool": "gpu", "size": 2, "out": 1, "may_be_out": 1, "repairing": 1, "may_be_repairing": 1,
                     "held": 0, "used_by": []}],
        "brakes": [], "withheld": [], "trouble": "", "as_of": AT,
    }  # fmt: skip
    return made | other
