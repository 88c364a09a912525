"""Nothing that a controller answers ends a thread of the agent, makes it shout, or makes it forget."""

import itertools
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.thorough import examples
from tests.support.waiting import until
from tests.support.wild_controller import Facing, facing, http, well

from sickbay.agent import limits
from sickbay.agent.limits import Nonsense, read_reply
from sickbay.agent.reporter import A_SECOND, AT_ONCE, STUCK_AFTER
from sickbay.model.protocol import RunLook

pytestmark = pytest.mark.slow

BACK_WITHIN = 6.0  # seconds: the longest pause between two tries, and the try
COMMAND = {
    "id": "k/c/n1", "node": "c/n1", "order": {"order": "look", "look": "k"}, "posted_at": "2026-01-01T00:00:00Z",
    "expires_after": 10.0,
}  # fmt: skip


def report_of(reply: dict[str, Any]) -> Any:
    def answer(_: str, asked: dict[str, Any]) -> bytes:
        ack = asked["first_seq"] + len(asked["items"]) - 1 if "items" in asked else 0
        return http({"ack": ack, "poll_for": 0, **reply})

    return answer


# --- one answer


@pytest.mark.parametrize(
    "value", ["1e10", "1e300", "1e999", "-1e300", "0", "-5", "true", "null", '"5"', "[]", "NaN", "Infinity", "9" * 400]
)
@pytest.mark.parametrize("name", ["report_every", "poll_for"])
def test_no_number_of_an_answer_ends_the_thread_or_keeps_it_silent(tmp_path: Path, name: str, value: str) -> None:
    bad = f'{{"ack": 0, "report_every": 0.3, "poll_for": 0.3, "{name}": {value}}}'.encode()
    with facing(tmp_path, lambda _, __: http(raw=bad)) as (wild, agent):
        until(wild.reports)
        time.sleep(0.05)
        assert agent.reporter.report_every <= 60.0
        assert agent.reporter.poll_for <= 60.0
        wild.answer = well
        agent.say("after it")
        until(lambda: "after it" in wild.texts(), BACK_WITHIN)
        assert agent.lives


@pytest.mark.parametrize("ack", [0, -1, -(10**30), 10**6, 10**30])
@pytest.mark.slow
def test_an_acknowledgement_of_what_was_not_sent_stores_nothing_is_no_word_and_is_not_asked_again_at_once(
    tmp_path: Path, ack: int
) -> None:
    with facing(tmp_path, report_of({})) as (wild, agent):
        until(agent.reporter.heard.is_set)
        wild.answer = report_of({"ack": ack})
        agent.say("kept")
        until(lambda: "kept" in wild.texts())
        before = len(wild.asked)
        time.sleep(1.0)
        assert len(wild.asked) - before <= 5
        assert not agent.reporter.heard.is_set()
        assert not agent.outbox.empty
        wild.answer = well
        until(lambda: agent.outbox.empty, BACK_WITHIN)


@pytest.mark.slow
def test_polls_that_are_answered_at_once_with_nothing_new_become_rare(tmp_path: Path) -> None:
    answers = report_of({"poll_for": 20, "commands": [COMMAND]})
    with facing(tmp_path, answers) as (wild, agent):
        until(lambda: any(path.endswith("poll") for _, path, _ in wild.asked))
        time.sleep(2.0)
        assert len([1 for _, path, _ in wild.asked if path.endswith("poll")]) <= 8
        assert agent.lives


def test_an_answer_that_drips_is_given_up_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.reporter.REPORT_TAKES", 0.5)
    drip = [b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n", *([b" "] * 399)]
    with facing(tmp_path, lambda _, __: list(drip)) as (wild, agent):
        wild.drip = 0.05
        until(wild.reports)
        wild.answer = well
        agent.say("after the drip")
        until(lambda: "after the drip" in wild.texts(), 5.0)


GARBAGE = {
    "html": http(raw=b"<html>Welcome to the hotel's network</html>"),
    "another's JSON": http({"status": "ok"}),
    "an empty object": http({}),
    "a list": http([]),
    "nested without end": http(raw=b"[" * 200_000),
    "no text": http(raw=b'{"ack": 0, "report_every": "\xff\xfe"}'),
    "204": b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
    "429": http({"error": "slow down"}, "429 Too Many Requests", "Retry-After: 86400\r\n"),
    "a redirect": http(raw=b"", status="302 Found", head="Location: http://127.0.0.1:1/login\r\n"),
    "too short": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n{}",
    "a huge length": b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999\r\nConnection: close\r\n\r\n{}",
    "only announcements": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "a proxy's refusal": http(raw=b"<html>413</html>", status="413 Request Entity Too Large"),
    "a proxy's other refusal": http(raw=b"<html>no</html>", status="400 Bad Request"),
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "500": http({"error": "something went wrong here"}, "500 Internal Server Error"),
}


@pytest.mark.slow
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_whoever_talks_nonsense_is_not_heard_costs_little_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    monkeypatch.setattr("sickbay.agent.reporter.REPORT_TAKES", 0.5)
    monkeypatch.setattr("sickbay.agent.reporter.SLOWLY", 1.0)
    with facing(tmp_path, lambda _, __: garbage) as (wild, agent):
        for number in range(3):
            agent.say(f"fault {number}")
        time.sleep(1.0)
        assert len(wild.asked) <= 14  # each try may be made twice, where a kept connection is closed
        assert agent.lives
        assert not agent.reporter.heard.is_set()
        assert not agent.outbox.empty
        wild.answer = well
        until(lambda: agent.outbox.empty, BACK_WITHIN)
        told = set(wild.texts())
        assert {f"fault {number}" for number in range(3)} <= told


@pytest.mark.parametrize("found", [{}, {"status": "ok"}, {"ack": "0"}, {"ack": None}, [], "ack", 7])
def test_who_answers_a_sign_of_life_with_something_else_is_no_controller(tmp_path: Path, found: object) -> None:
    with facing(tmp_path, lambda _, __: http(found)) as (wild, agent):
        until(lambda: len(wild.reports()) > 1)
        assert not agent.reporter.heard.is_set()


@pytest.mark.slow
def test_a_certificate_that_fails_and_an_address_that_is_none_are_a_controller_that_is_away(tmp_path: Path) -> None:
    for number, url in enumerate(("https://127.0.0.1:{port}", "http://127.0.0.1:99999", "http://[::1", "nonsense")):
        folder = tmp_path / str(number)
        with facing(folder) as (wild, _):
            agent = Facing(folder / "other", url.format(port=wild.url.rpartition(":")[2]))
            agent.reporter.start()
            time.sleep(0.1)
            assert agent.reporter.well(time.monotonic() + 0.1)
            assert not agent.reporter.heard.is_set()
            agent.end()


# --- refusals


def refusing(bad: str) -> Any:
    def answer(path: str, asked: dict[str, Any]) -> bytes:
        if any(bad in item["news"].get("text", "") for item in asked.get("items", ())):
            return http({"error": "item 2: no such moment"}, "400 Bad Request")
        return well(path, asked)

    return answer


@pytest.mark.slow
def test_one_item_that_the_controller_refuses_is_left_out_and_told_and_the_others_arrive(tmp_path: Path) -> None:
    with facing(tmp_path, refusing("poison")) as (wild, agent):
        agent.outbox.put([])
        for text in ("before", "poison", "after"):
            agent.say(text)
        until(lambda: agent.outbox.empty, 10.0)
        stored = wild.texts()
        assert {"before", "after"} <= set(stored)
        until(lambda: any("a report was refused: 400" in text for text in wild.texts()), 5.0)


@pytest.mark.slow
def test_a_proxy_that_refuses_one_report_makes_the_agent_forget_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets signs of life through: so it is no proof that the item is at fault."""
    monkeypatch.setattr("sickbay.agent.reporter.SLOWLY", 0.2)

    def answer(path: str, asked: dict[str, Any]) -> bytes:
        page = http(raw=b"<html>request entity too large</html>", status="413 Payload Too Large")
        return page if asked.get("items") else well(path, asked)

    with facing(tmp_path, answer) as (wild, agent):
        agent.say("a fault")
        until(lambda: len([one for one in wild.reports() if one["items"]]) > 3)
        wild.answer = well
        until(lambda: agent.outbox.empty, BACK_WITHIN)
        assert wild.reports()[-1]["items"] == [] or "a fault" in wild.texts()[-2:]
        assert not [text for text in wild.texts() if "was refused" in text]


@pytest.mark.slow
def test_a_controller_that_refuses_everything_makes_the_agent_forget_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.agent.reporter.SLOWLY", 0.5)
    no = http({"error": "protocol 1 is not spoken here"}, "400 Bad Request")
    with facing(tmp_path, lambda _, __: no) as (wild, agent):
        for number in range(4):
            agent.say(f"fault {number}")
        time.sleep(3.0)
        assert not agent.reporter.heard.is_set()
        wild.answer = well
        until(lambda: agent.outbox.empty, BACK_WITHIN)
        last = [item["news"]["text"] for report in wild.reports() if report["items"] for item in report["items"]]
        assert {f"fault {number}" for number in range(4)} <= set(last[-8:])


# --- commands


def test_a_command_that_this_agent_does_not_understand_is_refused_by_name_and_silences_nobody(tmp_path: Path) -> None:
    strange = {**COMMAND, "id": "new/c/n1", "order": {"order": "dance", "key": "x"}}
    with facing(tmp_path, report_of({"commands": [strange, COMMAND, 7, {"id": 3}]})) as (wild, agent):
        until(lambda: agent.taken and agent.refused)
        assert agent.taken[0].id == "k/c/n1"
        name, why = agent.refused[0]
        assert name == "new/c/n1"
        assert "dance" in why
        assert agent.reporter.heard.is_set()
        assert wild.reports()


# --- any answer at all

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
SHAPED = st.fixed_dictionaries(
    {},
    optional={
        "ack": VALUES, "report_every": VALUES, "poll_for": VALUES,
        "commands": st.lists(
            VALUES
            | st.fixed_dictionaries(
                {"id": VALUES, "node": VALUES, "order": VALUES, "posted_at": VALUES, "expires_after": VALUES}
            ),
            max_size=4,
        ),
    },
)  # fmt: skip


@pytest.mark.slow
@given(found=VALUES | SHAPED)
@settings(max_examples=60, deadline=None)
def test_any_answer_is_a_reply_within_its_limits_or_nonsense(found: object) -> None:
    try:
        reply = read_reply(json.dumps(found).encode())
    except Nonsense:
        return
    for name, (least, most) in limits.SECONDS.items():
        value = getattr(reply, name, least)
        assert least <= value <= most
    assert len(reply.commands) + len(reply.unread) <= limits.COMMANDS


@given(found=st.binary(max_size=200))
@settings(max_examples=examples(100), deadline=None)
def test_any_bytes_are_a_reply_or_nonsense(found: bytes) -> None:
    with suppress(Nonsense):
        assert read_reply(found).ack is not None


STATUS = st.sampled_from(
    ["200 OK", "204 Empty", "301 Moved", "400 Bad", "401 No", "413 Big", "429 Slow", "500 Oh", "503 Later"]
)
BODIES = st.one_of(st.binary(max_size=60), (VALUES | SHAPED).map(lambda found: json.dumps(found).encode()))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    body, status = draw(BODIES), draw(STATUS)
    kind = draw(st.sampled_from(["whole", "chunked", "short", "long", "none", "bytes"]))
    head = f"HTTP/1.1 {status}\r\n".encode()
    match kind:
        case "chunked":
            size = draw(st.sampled_from([len(body), 0, 10**9]))
            return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + body + b"\r\n0\r\n\r\n"
        case "short":
            return head + b"Content-Length: %d\r\n\r\n" % (len(body) + 7) + body
        case "long":
            return head + b"Content-Length: %d\r\n\r\n" % max(0, len(body) - 3) + body
        case "none":
            return head + b"Connection: close\r\n\r\n" + body
        case "bytes":
            return body
        case _:
            return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.slow
@given(script=st.lists(answers(), min_size=1, max_size=4))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_controller_answers_the_next_report_arrives_once_it_answers_well(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, script: list[bytes]
) -> None:
    monkeypatch.setattr("sickbay.agent.reporter.REPORT_TAKES", 0.5)
    monkeypatch.setattr("sickbay.agent.reporter.SLOWLY", 0.5)
    left = list(script)

    def answer(path: str, asked: dict[str, Any]) -> bytes:
        return left.pop() if left else well(path, asked)

    with facing(tmp_path_factory.mktemp("f"), answer) as (wild, agent):
        agent.say("the news")
        until(lambda: not left, 20.0)
        began = len(wild.asked)
        since = time.monotonic()
        agent.say("the last news")
        until(lambda: agent.outbox.empty and "the last news" in wild.texts(), 2 * BACK_WITHIN)
        assert agent.lives
        assert len(wild.asked) - began <= 20 + 12 * (time.monotonic() - since)


# --- threads, and who feeds the watchdog


def test_a_thread_that_cannot_be_started_ends_no_other(tmp_path: Path) -> None:
    def balks(command: object) -> bool:  # noqa: ARG001 - in the place of take
        raise RuntimeError("can't start new thread")

    with facing(tmp_path, report_of({"poll_for": 0.3, "commands": [COMMAND]})) as (wild, agent):
        agent.take = balks  # type: ignore[method-assign]
        until(lambda: len(wild.asked) > 3)
        assert agent.lives


def test_the_watchdog_is_fed_while_the_controller_is_away_and_not_once_the_reporter_is_dead(tmp_path: Path) -> None:
    with facing(tmp_path, url="http://127.0.0.1:1") as (_, agent):
        until(lambda: agent.reporter.well(time.monotonic()))
        assert agent.reporter.well(time.monotonic() + STUCK_AFTER / 2)
        assert not agent.reporter.well(time.monotonic() + 2 * STUCK_AFTER)
    until(lambda: not agent.reporter.is_alive())
    assert not agent.reporter.well(time.monotonic())


def test_an_agent_that_cannot_even_put_a_report_together_is_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, batch: object) -> bytes:  # noqa: ARG001 - in the place of encode
        raise ValueError("a bug of ours")

    monkeypatch.setattr("sickbay.agent.reporter.Reporter.encode", broken)
    with facing(tmp_path) as (_, agent):
        time.sleep(0.3)
        assert agent.lives
        began = agent.reporter.left_at
        time.sleep(0.3)
        assert agent.reporter.left_at == began


def test_a_stderr_that_nobody_reads_any_more_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd's journal was restarted: whoever writes gets EPIPE."""

    class Broken:
        def write(self, text: str) -> int:  # noqa: ARG002 - a file's
            raise BrokenPipeError(32, "Broken pipe")

        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    with facing(tmp_path, lambda _, __: http([])) as (wild, agent):
        monkeypatch.setattr("sys.stderr", Broken())
        until(lambda: len(wild.asked) > 3)
        assert agent.lives
        monkeypatch.undo()


def test_a_stderr_that_somebody_holds_open_and_does_not_read_holds_nobody_up() -> None:
    """A journal that has stopped, a terminal that was paused."""
    talk = "from sickbay.agent.complaints import complain\nfor n in range(500): complain('x' * 900)\nprint('said all')"
    with subprocess.Popen(
        [sys.executable, "-c", talk], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        timer = threading.Timer(20.0, process.kill)
        timer.start()
        assert process.stdout is not None
        said = process.stdout.read()
        timer.cancel()
        process.kill()
    assert said == "said all\n"


def test_thousands_of_commands_that_no_controller_would_give_cost_little(tmp_path: Path) -> None:
    count = itertools.count()

    def answer(path: str, asked: dict[str, Any]) -> bytes:
        orders = [{**COMMAND, "id": f"new {next(count)}"} for _ in range(50)]
        reply = {"ack": 0, "commands": orders, "poll_for": 60, "report_every": 0.2}
        return well(path, asked) if path.endswith("report") else http(reply)

    with facing(tmp_path, answer) as (wild, agent):
        until(lambda: agent.taken)
        began = time.monotonic()
        time.sleep(1.0)
        took = time.monotonic() - began
        assert len(agent.taken) <= AT_ONCE + A_SECOND * (took + 1.0)
        assert len(wild.asked) < 40 * took
        wild.answer = well


def test_a_controller_of_before_says_what_to_do() -> None:
    with pytest.raises(Nonsense, match=r"`ack`.*older controllers do not say it: upgrade the controller first"):
        read_reply(b"{}")


# --- one command: what cannot be meant is refused by name


def named(order: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"ack": 0, "commands": [{**COMMAND, "order": order, **more}]}).encode()


LONG = "x" * 2001
WRONG = {
    "devices: (-1,)": {"order": "reset", "key": "k", "devices": [-1]},
    "devices: (0, 1024)": {"order": "reset", "key": "k", "devices": [0, 1024]},
    "devices: at most": {"order": "reset", "key": "k", "devices": list(range(65))},
    "each once": {"order": "reset", "key": "k", "devices": [1, 1]},
    "level: 10": {"order": "check", "check": "k", "level": 10},
    "level: -1": {"order": "check", "check": "k", "level": -1},
    "storage: it must": {"order": "check", "check": "k", "level": 0, "storage": ["fsx"]},
    "at most 16 absolute paths": {"order": "check", "check": "k", "level": 0, "storage": ["/a"] * 17},
    "check: it has 2001": {"order": "check", "check": LONG, "level": 1},
    "profile: it has 2001": {"order": "check", "check": "k", "level": 1, "profile": LONG},
    "reason: it has 2001": {"order": "reboot", "key": "k", "reason": LONG},
    "line: it has 2001": {"order": "inject", "key": "k", "line": LONG},
    "key: it has 2001": {"order": "collect", "key": LONG},
    "save: it has 2001": {"order": "save", "save": LONG, "job": "j", "attempt": 1},
    "stacks_of: it has 2001": {"order": "look", "look": "l", "stacks_of": LONG},
    "key: it has control": {"order": "reset", "key": "k\n"},
    "look: it has control": {"order": "look", "look": "l\u200b"},
    "Expected `int`": {"order": "reset", "key": "k", "devices": [True]},
    "Invalid value 'dance'": {"order": "dance"},
}


@pytest.mark.parametrize(("says", "order"), WRONG.items(), ids=WRONG.keys())
def test_an_order_that_cannot_be_meant_is_refused_by_name(says: str, order: dict[str, Any]) -> None:
    reply = read_reply(named(order))
    assert not reply.commands
    assert reply.unread[0].id == COMMAND["id"]
    assert says in reply.unread[0].why


@pytest.mark.parametrize("value", [1e9, 1e300, -1.0, -1e300])
def test_the_seconds_of_a_command_are_taken_for_the_nearest_that_are_allowed(value: float) -> None:
    (look,) = read_reply(named({"order": "look", "look": "l", "settle": value}, expires_after=value)).commands
    assert look.expires_after in limits.SECONDS["expires_after"]
    assert isinstance(look.order, RunLook)
    assert look.order.settle in limits.SECONDS["settle"]


@pytest.mark.parametrize("name", ["", "x" * 501, "x" * 100_000, "a\nb", "a\u200bb", "a\xa0b", "a\0b"])
def test_a_command_whose_name_cannot_be_one_is_left_out(name: str) -> None:
    reply = read_reply(named({"order": "look", "look": "l"}, id=name))
    assert (reply.commands, reply.unread) == ((), ())


def test_more_commands_than_an_answer_may_have_are_for_the_next_one() -> None:
    many = {"ack": 0, "commands": [{**COMMAND, "id": str(number)} for number in range(5000)]}
    assert len(read_reply(json.dumps(many).encode()).commands) == limits.COMMANDS
