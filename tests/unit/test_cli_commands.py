"""The commands against a server: what they ask, what they print, and how they end."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.canned import AT, Answer, Asked, Canned, fleet, incident, interruption, job, node, order, serving

from sickbay.faces.api.examples import ONE_JOB
from sickbay.faces.api.routes import ROUTES
from sickbay.faces.cli import orders
from sickbay.faces.cli.columns import columns, field
from sickbay.faces.cli.main import COMMANDS, main

SICKBAY = str(Path(sys.executable).with_name("sickbay"))
EXPLAINED = {
    "kind": "node", **node(), "waits_for": None, "as_of": AT, "now": "local/n0 is READY: it is idle.",
    "chapter": "all of it", "earlier": {"lines": 0, "incidents": 0, "since": None},
    "story": [{"at": AT, "what": "seen", "about": "node:local/n0", "text": "it is there", "event": "seen"}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SICKBAY_TOKEN", "secret")
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    with serving() as canned:
        monkeypatch.setenv("SICKBAY_URL", canned.url)
        yield canned


def sickbay(*args: str, color: bool = False) -> Result:
    return CliRunner().invoke(main, list(args), color=color)


def done(*args: str) -> Result:
    result = sickbay(*args)
    assert result.exit_code == 0, result.output
    return result


LISTS: list[tuple[tuple[str, ...], str, list[dict[str, Any]], str]] = [
    (("nodes",), "GET /v1/nodes", [node(), node("n1", state="HELD", because="x" * 200)], "local/n1"),
    (("jobs",), "GET /v1/jobs", [job(), job("b-2", state="QUEUED", because="waits " * 40)], "train-1a2b3"),
    (("incidents",), "GET /v1/incidents", [incident(), incident("i13", closed_at=AT)], "i12"),
    (("brake", "list"), "GET /v1/brakes",
     [{"scope": "pool:gpu", "signature": "xid.79", "tripped_at": AT, "goes_off": AT,
       "nodes": [f"local/n{n}" for n in range(40)]}],
     "xid.79"),
    (("exclude", "list"), "GET /v1/exclusions",
     [{"id": "exclude-7", "fault": "xid.94", "pool": "*", "node": "*", "until": AT, "by": "ann", "because": "b " * 90}],
     "exclude-7"),
    (("token", "list"), "GET /v1/tokens",
     [{"name": "ann", "role": "operator", "node": None, "cluster": None, "by": "setup", "issued_at": AT,
       "expires_at": AT, "expired": True, "used_at": None}], "ann"),
    (("audit",), "GET /v1/audit",
     [{"at": AT, "by": "ann", "verb": "cordon", "target": "local/n1", "reason": "r " * 90, "text": "x", "about": []}],
     "local/n1"),
]  # fmt: skip
lists = pytest.mark.parametrize(
    ("args", "route", "rows", "shows"), LISTS, ids=lambda x: "-".join(x[:2]) if isinstance(x, tuple) else ""
)


ROUTES_BY_NAME = {f"{route.method} {route.path}": route for route in ROUTES}
SHOWN = [(route, rows) for _, route, rows, _ in LISTS] + [("GET /v1/fleet", fleet()), ("GET /v1/explain", EXPLAINED)]


@pytest.mark.parametrize(("route", "answer"), SHOWN, ids=[route for route, _ in SHOWN])
def test_what_these_tests_answer_is_what_the_api_promises(route: str, answer: Any) -> None:
    msgspec.convert(answer, ROUTES_BY_NAME[route].returns)


@lists
def test_a_list_is_one_whole_line_for_each_or_the_servers_own_array(
    server: Canned, args: tuple[str, ...], route: str, rows: list[dict[str, Any]], shows: str
) -> None:
    server.says(route, rows)
    shown = done(*args)
    assert shows in shown.stdout
    assert len(shown.stdout.splitlines()) == len(rows) + 1
    assert shown.stderr == ""
    assert json.loads(done(*args, "--json").stdout) == rows


@lists
def test_an_empty_list_says_what_to_do_next_and_is_still_an_array(
    server: Canned, args: tuple[str, ...], route: str, rows: list[dict[str, Any]], shows: str
) -> None:
    del rows, shows
    server.says(route, [])
    shown = done(*args)
    assert shown.stdout == ""
    assert shown.stderr.startswith("no")
    assert done(*args, "--json").stdout == "[]\n"


@lists
def test_colours_are_for_terminals_only_and_never_in_json(
    server: Canned,
    args: tuple[str, ...],
    route: str,
    rows: list[dict[str, Any]],
    shows: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del shows
    server.says(route, rows)
    assert "\x1b" not in sickbay(*args).stdout
    assert "\x1b[" in sickbay(*args, color=True).stdout
    assert "\x1b" not in sickbay(*args, "--json", color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in sickbay(*args, color=True).stdout


CARDS: list[tuple[tuple[str, ...], str, dict[str, Any], tuple[str, ...]]] = [
    (("node", "n0"), "GET /v1/nodes/-/n0", node(incident="i12", state="OUT", because="REPAIRING: x"),
     ("local/n0", "OUT", "i12", "REPAIRING: x", "0: s0, 1: s1")),
    (("job", "train-1a2b3"), "GET /v1/jobs/train-1a2b3",
     job(interruptions=[interruption("detected", "stopped", "first_step")], resumed_from=0),
     ("RUNNING", "step 0", "training again after 6.0 s", "stopped 1.0 s", "xid.79 on local/n0 (i12)")),
    (("incident", "i12"), "GET /v1/incidents/i12", incident(),
     ("REPAIRING", "xid.79 (gpu, fatal)", "reboot", "NVRM: Xid 79", "SUSPECT", "0.2 s")),
    (("explain", "n0"), "GET /v1/explain", EXPLAINED,
     ("node local/n0", "it is there", "local/n0 is READY: it is idle.")),
]  # fmt: skip


@pytest.mark.parametrize(("args", "route", "row", "shows"), CARDS, ids=lambda x: x[0] if isinstance(x, tuple) else "")
def test_one_object_is_a_card_or_the_servers_own_object(
    server: Canned, args: tuple[str, ...], route: str, row: dict[str, Any], shows: tuple[str, ...]
) -> None:
    server.says(route, row)
    shown = done(*args).stdout
    for text in shows:
        assert text in shown
    assert "\x1b" not in shown
    assert json.loads(done(*args, "--json").stdout) == row


def test_what_a_terminal_would_obey_is_not_passed_on(server: Canned) -> None:
    server.says("GET /v1/nodes", [node(because="\x1b]0;owned\x07\x1b[2J\nsecond line\u202e")])
    shown = done("nodes").stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\u202e" not in shown
    assert len(shown.splitlines()) == 2


def test_a_complete_job_needs_no_reason_and_one_without_steps_is_back_when_its_ranks_run(server: Canned) -> None:
    over = job(state="COMPLETE", because="xid.79 on local/n0", diagnosis="xid.79 on local/n0")
    server.says("GET /v1/jobs", [over])
    server.says("GET /v1/jobs/x", {**over, "interruptions": [interruption("detected", "stopped", "started")]})
    assert "xid.79" not in done("jobs").stdout
    assert "running again after 5.0 s" in done("job", "x").stdout


def test_a_job_says_each_thing_once_and_why_an_attempt_was_ended(server: Canned) -> None:
    one = {**ONE_JOB["attempts"][0], "first_failed": None}
    server.says("GET /v1/jobs/x", {**ONE_JOB, "attempts": [one]})
    said = done("job", "x").stdout
    names = [line[2:].split("  ")[0] for line in said.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(names) == len(set(names)), said
    assert "on train-0000, train-0001: xid.79 on lab/train-0000" in said, "it has not just failed"


def test_a_jobs_owner_is_said_once(server: Canned) -> None:
    server.says("GET /v1/jobs/x", job())
    assert done("job", "x").stdout.count("owner") == 1


def test_a_held_nodes_state_is_not_said_twice(server: Canned) -> None:
    server.says("GET /v1/nodes", [node(state="HELD", because="HELD: a person must decide")])
    assert done("nodes").stdout.count("HELD") == 1


def test_names_are_never_cut_even_if_the_line_gets_long(server: Canned) -> None:
    long = "a" * 63 + "-1a2b3"
    server.says("GET /v1/jobs", [job(long)])
    assert long in done("jobs").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wider_terminal_shows_more_of_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(wide: int) -> int:
        monkeypatch.setenv("COLUMNS", str(wide))
        with contextlib.redirect_stdout(Terminal()) as terminal:
            columns((field("id"), field("because", cut=True)), [node(because="word " * 60)])
        return max(map(len, terminal.getvalue().splitlines()))

    assert drawn(80) <= 80 < drawn(140) <= 140 < drawn(240) <= 240


@pytest.mark.parametrize("command", ["nodes", "jobs", "incidents", "top"])
def test_what_goes_into_a_pipe_or_a_file_is_never_cut(server: Canned, command: str) -> None:
    reason = "waiting for proof of reboot, and " * 12 + "this is its end"
    rows = {"nodes": node(because=reason), "jobs": job(because=reason, state="QUEUED"), "incidents": incident()}
    rows["incidents"] |= {"because": reason}
    server.says(f"GET /v1/{command}", [rows.get(command, {})])
    server.says("GET /v1/fleet", fleet(jobs=[rows["jobs"]], incidents=[rows["incidents"]]))
    shown = done(command).stdout
    assert "this is its end" in shown
    assert "…" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("args", [("nodes",), ("nodes", "--json"), ("explain", "n0"), ("jobs",)])
def test_a_controller_in_trouble_says_so_beside_every_answer(server: Canned, args: tuple[str, ...]) -> None:
    full = (("Sickbay-Trouble", "the store: database or disk is full"),)
    for path, found in (("nodes", [node()]), ("jobs", [job()]), ("explain", EXPLAINED)):
        server.says(f"GET /v1/{path}", Answer(found, headers=full))
    result = done(*args)
    assert result.stderr.count("warning: the controller is in trouble: the store: database or disk is full") == 1
    assert "trouble" not in result.stdout


def test_top_shows_that_the_controller_is_in_trouble(server: Canned) -> None:
    server.says("GET /v1/fleet", fleet(trouble="the store: database or disk is full"))
    assert "the controller is in trouble: the store: database or disk is full" in done("top").stdout


@pytest.mark.parametrize("command", ["nodes", "jobs", "incidents"])
def test_a_list_of_any_length_is_read_in_pages(server: Canned, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("sickbay.faces.cli.client.PAGE", 3)
    made = {"nodes": node, "jobs": job, "incidents": incident}[command]
    rows = [made(f"x{n}") for n in range(7)]
    ids = [row["id"] for row in rows]

    def page(asked: Asked) -> list[dict[str, Any]]:
        begin = ids.index(asked.query["after"]) + 1 if "after" in asked.query else 0
        return rows[begin : begin + int(asked.query["limit"])]

    server.says(f"GET /v1/{command}", page)
    assert [row["id"] for row in json.loads(done(command, "--json").stdout)] == ids
    assert len(server.asked) == 3


def test_filters_are_asked_of_the_server(server: Canned) -> None:
    server.says("GET /v1/nodes", [])
    server.says("GET /v1/jobs", [])
    server.says("GET /v1/incidents", [])
    done("nodes", "--pool", "a b")
    done("jobs", "--state", "running")
    done("incidents", "--open")
    done("incidents", "--all")
    done("incidents")
    said = [{name: value for name, value in one.query.items() if name != "limit"} for one in server.asked]
    assert all("after" not in one.query for one in server.asked)
    assert said == [{"pool": "a b"}, {"state": "RUNNING"}, {"which": "open"}, {"which": "all"}, {}]


# --- acts


@pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "reset", "reboot", "replace"])
def test_a_persons_word_about_a_node_goes_with_its_reason(server: Canned, verb: str) -> None:
    begun = order(verb, "local/n0")
    server.says(f"POST /v1/nodes/local/n0/{verb}", node(state="OUT", incident="i12", order=begun))
    said = done(verb, "local/n0", "--reason", "a loud fan").stdout
    assert said == f"{verb} of local/n0: under way: DRAINING: it drains\n"
    shown = json.loads(done(verb, "local/n0", "--reason", "x", "--json").stdout)
    assert (shown["incident"], shown["order"]["verdict"]) == ("i12", "under_way")
    assert server.asked[0].body == {"reason": "a loud fan"}
    missing = sickbay(verb, "local/n0")
    assert missing.exit_code == 2
    assert "add --reason" in missing.stderr
    assert len(server.asked) == 2


def test_now_is_sent_where_it_is_said(server: Canned) -> None:
    server.says("POST /v1/nodes/-/n0/reboot", node(order=order("reboot", "local/n0")))
    done("reboot", "n0", "--reason", "x", "--now")
    assert server.asked[0].body == {"reason": "x", "now": True}
    assert sickbay("cordon", "n0", "--reason", "x", "--now").exit_code == 2


def test_an_order_that_waits_says_until_when_and_what_would_make_it_go_on(server: Canned) -> None:
    waits = order(
        "reboot", "local/n0", verdict="waits", because="SUSPECT: repairs wait for the window", until=AT,
        then="the window opens, and it goes on", changed_by=["the window opens"],
    )  # fmt: skip
    server.says("POST /v1/nodes/-/n0/reboot", node(order=waits))
    said = done("reboot", "n0", "--reason", "x").stdout
    assert said.startswith("reboot of local/n0: waits: SUSPECT: repairs wait for the window (until about ")
    assert "then the window opens, and it goes on" in said
    assert "  it goes on when the window opens\n" in said


@pytest.mark.parametrize("shown", [(), ("--json",)], ids=["plain", "json"])
def test_a_refused_order_is_one_line_and_exit_code_1(server: Canned, shown: tuple[str, ...]) -> None:
    no = order("reboot", "local/n0", verdict="refused", because="reboot is under way for i12 already")
    server.says("POST /v1/nodes/-/n0/reboot", node(order=no))
    refused = sickbay("reboot", "n0", "--reason", "x", *shown)
    assert refused.exit_code == 1
    if shown:
        assert json.loads(refused.stdout)["order"]["verdict"] == "refused"
    else:
        assert refused.stderr == "reboot of local/n0: refused: reboot is under way for i12 already\n"
        assert refused.stdout == ""


@pytest.mark.parametrize(("end", "code"), [("done", 0), ("refused", 1)])
def test_wait_stays_until_an_order_is_done_or_refused(
    server: Canned, monkeypatch: pytest.MonkeyPatch, end: str, code: int
) -> None:
    monkeypatch.setattr(orders, "AGAIN", 0.0)
    server.says("POST /v1/nodes/-/n0/reboot", node(order=order("reboot", "local/n0")))
    server.says("GET /v1/orders/order-1a2b", order("reboot", "local/n0", verdict=end, because="so"))
    found = sickbay("reboot", "n0", "--reason", "x", "--wait")
    assert found.exit_code == code
    assert found.output.splitlines() == [
        "reboot of local/n0: under way: DRAINING: it drains",
        f"reboot of local/n0: {end}: so",
    ]


@pytest.mark.parametrize("verb", ["confirm", "hold", "dismiss", "escalate"])
def test_a_persons_word_about_an_incident_goes_with_its_reason(server: Canned, verb: str) -> None:
    checked = order(verb, "i12", verdict="done", because="its check passed: i12 is RELEASED")
    server.says(f"POST /v1/incidents/i12/{verb}", incident(phase="RELEASED", order=checked))
    assert done(verb, "i12", "--reason", "swapped").stdout == (
        f"{verb} of i12: done: its check passed: i12 is RELEASED\n"
    )
    assert server.asked[0].body == {"reason": "swapped"}
    assert "add --reason" in sickbay(verb, "i12").stderr


def test_stopping_needs_no_reason_but_keeps_one(server: Canned) -> None:
    stopped = order("stop", "train-1a2b3", verdict="done", because="it is STOPPED", incident=None, job="train-1a2b3")
    server.says("POST /v1/jobs/train-1a2b3/stop", job(state="STOPPED", order=stopped))
    assert done("stop", "train-1a2b3").stdout == "stop of train-1a2b3: done: it is STOPPED\n"
    done("stop", "train-1a2b3", "--reason", "too slow")
    assert [one.body["reason"] for one in server.asked] == ["stopped by its owner", "too slow"]


@pytest.mark.parametrize(
    ("args", "body"),
    [
        (("--xid", "79"), {"xid": 79}),
        (("--xid", "48", "--device", "1", "--cured-by", "replace"), {"xid": 48, "device": 1, "cured_by": "replace"}),
        (("--line", "NVRM: x"), {"line": "NVRM: x"}),
        (("--defect", "gpu_off_bus", "--cured-by", "nothing"), {"defect": "gpu_off_bus", "cured_by": "nothing"}),
    ],
)
def test_what_is_broken_is_sent_as_it_was_said(server: Canned, args: tuple[str, ...], body: dict[str, Any]) -> None:
    server.says("POST /v1/nodes/-/n0/inject", {"node": "local/n0", "done": "GPU 0 is broken"})
    assert done("inject", "n0", *args).stdout == "local/n0: GPU 0 is broken\n"
    assert server.asked[0].body == body


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("inject", "n0"), "say what breaks"),
        (("inject", "--xid", "79"), "which node?"),
        (("inject", "n0", "--xid", "79", "--line", "x"), "one of them"),
        (("inject", "n0", "--line", "x", "--cured-by", "reset"), "only writes a line"),
        (("incidents", "--open", "--all"), "exclude each other"),
        (("check", "n0", "--all"), "one of them"),
        (("check", "--all", "--level", "5"), "--level"),
        (("pause",), "add --reason"),
        (("pause", "--reason", "x", "--for", "2 hours"), "--for"),
        (("exclude", "add", "--reason", "x"), "--fault CODE, --pool P or --node NODE"),
        (("token", "create", "x", "--role", "agent"), "--role agent --node NODE"),
        (("token", "create", "x", "--node", "n0"), "--role agent --node NODE"),
        (("token", "create", "x", "--for", "1s"), "--for: a token lasts a minute at least, and 1s is less"),
        (("explain", "n0", "--policy", "default"), "leave it out"),
        (("node", ""), "a name is missing"),
        (("jobs", "--state", "happy"), "queued"),
        (("logs",), "Missing argument"),
        (("completion", "tcsh"), "bash"),
    ],
)
def test_wrong_use_is_one_line_and_asks_the_server_nothing(server: Canned, args: tuple[str, ...], says: str) -> None:
    result = sickbay(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert server.asked == []


def test_the_names_of_all_defects_can_be_listed_without_a_server() -> None:
    shown = done("inject", "--defect", "list").stdout
    assert "gpu_off_bus" in shown
    assert {"name", "about"} == set(json.loads(done("inject", "list", "--json").stdout)[0])


# --- safety and access


def test_a_pause_goes_with_its_length_and_its_reason(server: Canned) -> None:
    server.says("POST /v1/pause", {"id": "pause-1"})
    server.says("POST /v1/unpause", [])
    assert done("pause", "--reason", "x", "--for", "2h").stdout == "paused for 2 h 00 m\n"
    assert done("pause", "--reason", "x").stdout == "paused until 'sickbay unpause'\n"
    done("unpause", "--reason", "y")
    assert [one.body for one in server.asked] == [{"reason": "x", "seconds": 7200.0}, {"reason": "x"}, {"reason": "y"}]


def test_a_brake_is_reset_by_its_signature_or_all_are(server: Canned) -> None:
    still: dict[str, Any] = {
        "scope": "pool:cpu",
        "signature": "silence",
        "tripped_at": AT,
        "goes_off": None,
        "nodes": [],
    }
    server.says("POST /v1/brakes/reset", [still], [])
    assert done("brake", "reset", "xid.79", "--reason", "x").stdout == "reset; still on: silence in pool:cpu\n"
    assert done("brake", "reset", "--reason", "x").stdout == "reset; no brake is on\n"
    assert [one.body for one in server.asked] == [{"signature": "xid.79", "reason": "x"}, {"reason": "x"}]


def test_exclusions_are_made_and_taken_back(server: Canned) -> None:
    made = {"id": "exclude-7", "fault": "xid.94", "pool": "*", "node": "*", "until": AT, "by": "ann", "because": "x"}
    server.says("POST /v1/exclusions", made)
    server.says("DELETE /v1/exclusions/exclude-7", [])
    said = done("exclude", "add", "--fault", "xid.94", "--for", "7d", "--reason", "x").stdout
    assert said == "exclude-7: fault xid.94 left alone until 2026-01-01 00:10:00 UTC\n"
    done("exclude", "remove", "exclude-7", "--reason", "fixed")
    assert server.asked[0].body == {"fault": "xid.94", "seconds": 604800.0, "reason": "x"}
    assert server.asked[1].query == {"reason": "fixed"}


def test_a_new_tokens_secret_is_alone_on_standard_output(server: Canned) -> None:
    server.says("POST /v1/tokens", {"name": "ci", "role": "viewer", "token": "s3cret"})
    server.says("DELETE /v1/tokens/ci", {"name": "ci", "revoked": True})
    made = done("token", "create", "ci")
    assert made.stdout == "s3cret\n"
    assert "shown once" in made.stderr
    assert done("token", "revoke", "ci").stdout == "ci is revoked\n"
    assert server.asked[0].body == {"name": "ci", "role": "viewer"}


# --- checks


def _result(name: str, verdict: str) -> dict[str, Any]:
    tests = [{"name": "memory", "verdict": verdict, "seconds": 0.5, "because": "" if verdict == "pass" else "bad row"}]
    return {"node": f"local/{name}", "level": 2, "verdict": verdict, "tests": tests, "because": ""}


def _checks(server: Canned, *results: dict[str, Any], skipped: tuple[str, ...] = ()) -> None:
    away = [{"node": f"local/{name}", "because": "train-1a2b3 works there"} for name in skipped]
    server.says("POST /v1/checks", {"check": "c1", "nodes": [one["node"] for one in results], "skipped": away})
    begun = {"check": "c1", "level": 2, "over": False, "results": []}
    server.says("GET /v1/checks/c1", begun, {**begun, "over": True, "results": list(results)})


def test_a_check_waits_for_its_verdict_and_a_pass_is_exit_0(server: Canned) -> None:
    _checks(server, _result("n0", "pass"))
    result = done("check", "n0", "--level", "2", "--json")
    found = json.loads(result.stdout)
    assert {"node", "level", "verdict", "tests"} <= set(found)
    assert found["verdict"] == "pass"
    assert server.asked[0].body == {"node": "n0", "level": 2}
    assert len(server.of("GET", "/v1/checks/c1")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["fail", "could_not_run"])
def test_anything_but_a_pass_of_all_is_exit_1(server: Canned, verdict: str) -> None:
    _checks(server, _result("n0", "pass"), _result("n1", verdict))
    result = sickbay("check", "--all")
    assert result.exit_code == 1
    assert "memory: bad row" in result.stdout
    assert server.asked[0].body == {"all": True, "level": 1}


@pytest.mark.slow
def test_busy_nodes_are_named_and_do_not_make_a_check_of_all_fail(server: Canned) -> None:
    _checks(server, _result("n0", "pass"), skipped=("n1",))
    result = done("check", "--pool", "gpu", "--json")
    assert [one["node"] for one in json.loads(result.stdout)] == ["local/n0"]
    assert "local/n1 is not checked: train-1a2b3 works there" in result.stderr


def test_a_node_that_nobody_checked_has_not_passed(server: Canned) -> None:
    _checks(server, skipped=("n1",))
    result = sickbay("check", "n1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == "could_not_run"
    assert sickbay("check", "--all").exit_code == 1


@pytest.mark.slow
def test_a_node_without_a_verdict_at_the_end_has_not_passed(server: Canned) -> None:
    _checks(server, _result("n0", "pass"))
    server.says("POST /v1/checks", {"check": "c1", "nodes": ["local/n0", "local/n1"], "skipped": []})
    result = sickbay("check", "--all", "--json")
    assert result.exit_code == 1
    assert {one["node"]: one["verdict"] for one in json.loads(result.stdout)} == {
        "local/n0": "pass",
        "local/n1": "could_not_run",
    }


# --- the whole


def _leaves() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from (((name, inner), command.commands[inner]) for inner in command.commands)
        else:
            yield (name,), command


def test_every_new_command_teaches_with_an_example() -> None:
    old = {"policy", "sim", "demo", "up", "down"}
    for path, command in _leaves():
        if path[0] not in old:
            assert f"sickbay {' '.join(path)}" in (command.help or ""), path


def test_every_list_and_object_can_be_json() -> None:
    without = {("top",), ("logs",), ("completion",), ("up",), ("down",), ("demo",), ("controller",), ("run",)}
    for path, command in _leaves():
        assert path in without or "--json" in {flag for p in command.params for flag in p.opts}, path


def test_help_is_no_wider_than_it_must_be() -> None:
    for path, _ in _leaves():
        for line in sickbay(*path, "--help").stdout.splitlines():
            assert len(line) <= 120, (path, line)


def test_a_list_command_starts_without_the_engine() -> None:
    code = (
        "import sys, sickbay.faces.cli.nodes, sickbay.faces.cli.submit, sickbay.faces.cli.top;"
        "heavy = ('sqlalchemy', 'rich', 'yaml', 'starlette', 'sickbay.engine', 'asyncio');"
        "print([m for m in heavy if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_reader_that_has_had_enough_is_no_traceback(server: Canned) -> None:
    server.says("GET /v1/nodes", [node(f"n{number}") for number in range(5000)])
    ran = subprocess.run(
        ["bash", "-c", f"{SICKBAY} nodes | head -n 1"], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith("node")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_completion(shell: str) -> None:
    script = done("completion", shell).stdout
    assert "_SICKBAY_COMPLETE" in script


def _completed(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"_SICKBAY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    return subprocess.run(
        [SICKBAY], capture_output=True, text=True, check=False, timeout=20, env={**os.environ, **given, **environment}
    )


def test_names_are_completed_from_the_server(server: Canned) -> None:
    server.says("GET /v1/nodes", [node("n0"), node("n1"), node("m0")])
    server.says("GET /v1/jobs", [job(), job("old-1", state="COMPLETE")])
    server.says("GET /v1/incidents", [incident()])
    assert _completed("sickbay node n").stdout.split() == ["plain,n0", "plain,n1"]
    assert _completed("sickbay node local/m").stdout.split() == ["plain,local/m0"]
    assert _completed("sickbay stop ").stdout.split() == ["plain,train-1a2b3"]
    assert _completed("sickbay confirm i").stdout.split() == ["plain,i12"]
    assert _completed("sickbay submit --on n0,n").stdout.split() == ["plain,n0,n0", "plain,n0,n1"]
    assert "plain,incidents" in _completed("sickbay inc").stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_a_completion_without_a_server_is_silent(url: str) -> None:
    ran = _completed("sickbay node n", SICKBAY_URL=url)
    assert (ran.stdout.strip(), ran.stderr) == ("", "")


def test_the_fleet_off_a_terminal_is_one_plain_picture(server: Canned) -> None:
    paused = {"id": "pause-1", "by": "ann", "because": "pause by ann: works"}
    server.says("GET /v1/fleet", fleet(withheld=[paused]))
    shown = done("top").stdout
    for text in ("0000■", "0001✚", "1 of 1 seats out", "train-1a2b3", "xid.79", "REPAIRING", "pause by ann"):
        assert text in shown
    assert "\x1b" not in shown
    assert "…" not in shown
