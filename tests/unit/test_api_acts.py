"""What operators ask for: done once, told in the audit log with who and why, refused where it makes no sense."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.support.api_ward import NODE, QUIET, Clinic, clinic
from tests.support.waiting import until

from sickbay.faces import answers, fleet_answers
from sickbay.model.facts import TokensUsed
from sickbay.model.protocol import AnyOrder, Command, RunCollect, RunInject
from sickbay.ports.breakable import Breakage

pytestmark = pytest.mark.slow


@pytest.fixture
def calls() -> Iterator[Clinic]:
    with clinic(after=1100.0) as made:
        yield made


@pytest.fixture
def healthy() -> Iterator[Clinic]:
    """Nothing is out of service: the budget is whole."""
    with clinic(QUIET, after=300.0) as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[Clinic]:
    """For what is refused: nothing changes."""
    with clinic() as made:
        yield made


def audit(calls: Clinic) -> list[str]:
    return [line["text"] for line in calls.viewer.get("/v1/audit").json()]


def held(calls: Clinic) -> str:
    (incident,) = calls.viewer.get("/v1/incidents").json()
    return str(incident["id"])


def test_a_cordoned_node_leaves_service_and_the_audit_log_says_who_and_why(healthy: Clinic) -> None:
    response = healthy.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "its fan\n is loud", "now": True})
    assert response.status_code == 200, response.text
    msgspec.convert(response.json(), answers.NodeAnswer)
    assert response.json()["incident"] is not None
    assert audit(healthy)[0] == "operator: cordon now: its fan is loud"
    healthy.ward.pass_time(600)
    assert healthy.viewer.get("/v1/nodes/-/train-0007").json()["state"] == "HELD"


def test_uncordon_puts_a_node_back(healthy: Clinic) -> None:
    healthy.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "a look inside", "now": True})
    healthy.ward.pass_time(600)
    response = healthy.operator.post("/v1/nodes/-/train-0007/uncordon", {"reason": "it is well"})
    assert response.status_code == 200, response.text
    healthy.ward.pass_time(600)
    assert healthy.viewer.get("/v1/nodes/-/train-0007").json()["state"] == "READY"


@pytest.mark.parametrize("verb", ["drain", "reset", "reboot"])
def test_every_verb_takes_the_path_of_an_incident(calls: Clinic, verb: str) -> None:
    response = calls.operator.post(f"/v1/nodes/sim/train-0006/{verb}", {"reason": "asked"})
    assert response.status_code == 200, response.text
    incident = calls.viewer.get(f"/v1/incidents/{response.json()['incident']}").json()
    assert incident["fault"]["code"] == f"operator.{verb}"


def test_the_same_key_twice_has_one_effect_and_the_same_answer(calls: Clinic) -> None:
    first = calls.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "once"}, key="k1")
    again = calls.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "once"}, key="k1")
    assert (first.status_code, again.status_code) == (200, 200)
    assert audit(calls).count("operator: cordon: once") == 1


def test_a_repeated_stop_is_answered_like_the_first_though_the_job_is_over_by_then(calls: Clinic) -> None:
    assert calls.operator.post("/v1/jobs/qwen/stop", {"reason": "enough"}, key="s").status_code == 200
    calls.ward.pass_time(600)
    assert calls.viewer.get("/v1/jobs/qwen").json()["state"] == "STOPPED"
    assert calls.operator.post("/v1/jobs/qwen/stop", {"reason": "enough"}, key="s").status_code == 200
    assert calls.operator.post("/v1/jobs/qwen/stop", {"reason": "enough"}).status_code == 409


def test_a_key_that_was_used_for_something_else_is_refused(calls: Clinic) -> None:
    assert calls.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "x"}, key="k").status_code == 200
    response = calls.operator.post("/v1/nodes/sim/train-0006/cordon", {"reason": "x"}, key="k")
    assert response.status_code == 409
    assert calls.viewer.get("/v1/nodes/-/train-0006").json()["incident"] is None


def test_a_stopped_job_says_who_stopped_it_and_why(calls: Clinic) -> None:
    response = calls.operator.post("/v1/jobs/qwen/stop", {"reason": "wrong data"})
    assert response.status_code == 200
    calls.ward.pass_time(600)
    job = calls.viewer.get("/v1/jobs/qwen").json()
    assert (job["state"], job["because"]) == ("STOPPED", "stopped by operator: wrong data")


@pytest.mark.parametrize(("verb", "phase"), [("confirm", "VERIFYING"), ("dismiss", "DISMISSED"), ("hold", "HELD")])
def test_a_held_incident_does_as_it_is_told(calls: Clinic, verb: str, phase: str) -> None:
    incident = held(calls)
    response = calls.operator.post(f"/v1/incidents/{incident}/{verb}", {"reason": "seen by hand"})
    assert response.status_code == 200, response.text
    msgspec.convert(response.json(), answers.IncidentAnswer)
    assert f"operator: {verb}: seen by hand" in audit(calls)
    calls.ward.pass_time(60)
    assert phase in {stage["phase"] for stage in calls.viewer.get(f"/v1/incidents/{incident}").json()["stages"]}


def test_what_is_broken_on_purpose_reaches_the_hardware(calls: Clinic) -> None:
    body = {"xid": 79, "device": 3, "cured_by": "replace"}
    response = calls.operator.post("/v1/nodes/-/train-0000/inject", body)
    assert response.json() == {"node": "sim/train-0000", "done": "broke device 3 of sim/train-0000"}
    assert calls.ward.tinker.broken == [(NODE, Breakage(xid=79, device=3, cured_by="replace"))]


def test_a_pause_withholds_and_unpause_takes_it_back(calls: Clinic) -> None:
    paused = calls.operator.post("/v1/pause", {"reason": "the network is rebuilt", "seconds": 7200})
    assert paused.status_code == 200, paused.text
    assert paused.json()["because"] == "pause by operator: the network is rebuilt"
    assert paused.json()["until"].startswith("2026-01-01T02:18")
    assert calls.viewer.get("/v1/fleet").json()["withheld"] == [paused.json()]
    assert calls.viewer.get("/v1/exclusions").json() == []
    assert calls.operator.post("/v1/unpause", {"reason": "done"}).json() == []
    assert calls.operator.post("/v1/unpause", {"reason": "done"}).status_code == 409
    assert audit(calls)[:2] == ["operator: unpause: done", "operator: pause: the network is rebuilt"]


def test_an_exclusion_is_made_listed_and_taken_back(calls: Clinic) -> None:
    body = {"fault": "xid.63", "pool": "train", "reason": "known"}
    made = calls.operator.post("/v1/exclusions", body)
    assert made.status_code == 201, made.text
    shown = calls.viewer.get("/v1/exclusions").json()
    assert shown == [made.json()]
    msgspec.convert(shown, list[fleet_answers.Withheld])
    ident = made.json()["id"]
    missing = calls.operator.http.delete(f"/v1/exclusions/{ident}0")
    assert (missing.status_code, missing.json()["error"]) == (
        404,
        f"there is no exclusion '{ident}0': did you mean {ident}?",
    )
    gone = calls.operator.http.delete(f"/v1/exclusions/{ident}", params={"reason": "fixed"})
    assert (gone.status_code, gone.json()) == (200, [])
    assert audit(calls)[0] == "operator: include: fixed"


def test_all_brakes_of_a_storm_are_reset_together() -> None:
    with clinic("storm", after=900.0) as calls:
        on = calls.viewer.get("/v1/brakes").json()
        msgspec.convert(on, list[fleet_answers.TrippedBrake])
        assert on
        wrong = calls.operator.post("/v1/brakes/reset", {"signature": "xid.1", "reason": "?"})
        assert wrong.status_code == 409
        assert f"on are {on[0]['scope']} {on[0]['signature']}" in wrong.json()["error"]
        reset = calls.operator.post("/v1/brakes/reset", {"signature": on[0]["signature"], "reason": "it was power"})
        assert (reset.status_code, reset.json()) == (200, [])
        assert sum("brake_reset: it was power" in line for line in audit(calls)) == len(on)
        assert calls.viewer.get("/v1/brakes").json() == []


def test_a_check_of_all_idle_nodes_says_whom_it_skips_and_why(calls: Clinic) -> None:
    begun = calls.operator.post("/v1/checks", {"all": True, "level": 2})
    assert begun.status_code == 202, begun.text
    msgspec.convert(begun.json(), fleet_answers.CheckBegun)
    assert begun.json()["nodes"] == ["sim/train-0005", "sim/train-0006", "sim/train-0007"]
    skipped = {one["node"]: one["because"] for one in begun.json()["skipped"]}
    assert skipped["sim/train-0002"] == "job qwen has it"
    assert skipped["sim/train-0000"].startswith("cordoned by")
    calls.ward.pass_time(1800)
    shown = calls.viewer.get(f"/v1/checks/{begun.json()['check']}").json()
    msgspec.convert(shown, fleet_answers.CheckShown)
    assert shown["over"] is True
    assert [result["verdict"] for result in shown["results"]] == ["pass"] * 3


def test_a_check_of_a_busy_node_is_refused_with_the_reason(calls: Clinic) -> None:
    response = calls.operator.post("/v1/checks", {"node": "train-0002", "level": 1})
    assert response.status_code == 409
    assert response.json()["error"] == "sim/train-0002 cannot be checked now: job qwen has it"


NODE_PATH = "/v1/nodes/sim/train-0007"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (f"{NODE_PATH}/cordon", {}, 400, "a reason is missing"),
        (f"{NODE_PATH}/cordon", {"reason": ""}, 400, "reason"),
        (f"{NODE_PATH}/cordon", {"reason": " \t"}, 400, "a reason is missing"),
        (f"{NODE_PATH}/cordon", {"reason": "x" * 1001}, 400, "reason"),
        (f"{NODE_PATH}/cordon", {"reason": "x", "nwo": True}, 400, "'nwo': did you mean now? It takes reason, now"),
        (f"{NODE_PATH}/cordon", {"reason": "x", "now": 1}, 400, "now"),
        (f"{NODE_PATH}/cordon", {"reason": "a\x00b"}, 400, "NUL"),
        (f"{NODE_PATH}/cordon", [], 400, "the body"),
        (f"{NODE_PATH}/cordon", "x", 400, "the body"),
        (f"{NODE_PATH}/explode", {"reason": "x"}, 404, "there is nothing at"),
        ("/v1/nodes/sim/train-0070/cordon", {"reason": "x"}, 404, "did you mean"),
        (f"{NODE_PATH}/uncordon", {"reason": "x"}, 409, "nothing to uncordon"),
        (f"{NODE_PATH}/inject", {}, 400, "exactly one of xid, line and defect"),
        (f"{NODE_PATH}/inject", {"xid": 0, "line": "x"}, 400, "given: line and xid"),
        (f"{NODE_PATH}/inject", {"xid": -1}, 400, "xid"),
        (f"{NODE_PATH}/inject", {"xid": 79, "cured_by": "prayer"}, 400, "cured_by"),
        ("/v1/jobs/short/stop", {"reason": "x"}, 409, "short is over (COMPLETE)"),
        ("/v1/jobs/shrot/stop", {"reason": "x"}, 404, "did you mean short?"),
        ("/v1/jobs/qwen/stop", {}, 400, "a reason is missing"),
        ("/v1/incidents/nope/hold", {"reason": "x"}, 404, "there is no incident 'nope'"),
        ("/v1/pause", {"reason": "x", "seconds": 0}, 400, "seconds"),
        ("/v1/pause", {"reason": "x", "seconds": 1e300}, 400, "seconds"),
        ("/v1/pause", {"reason": "x", "seconds": "2h"}, 400, "seconds"),
        ("/v1/exclusions", {"reason": "x"}, 400, "say what is excluded"),
        ("/v1/brakes/reset", {"reason": "x"}, 409, "no brake is on: there is nothing to reset"),
        ("/v1/checks", {"level": 2}, 400, "one of node, pool and all"),
        ("/v1/checks", {"level": 2, "all": True, "pool": "train"}, 400, "given: pool, all"),
        ("/v1/checks", {"level": 5, "all": True}, 400, "level"),
        ("/v1/checks", {"level": 2, "pool": "trian"}, 404, "did you mean train?"),
        ("/v1/checks", {"level": 2, "node": "train-0070"}, 404, "did you mean"),
    ],
)
def test_what_makes_no_sense_changes_nothing(lasting: Clinic, path: str, body: Any, status: int, says: str) -> None:
    before = lasting.ward.sim.store.facts(after=0, limit=100_000)[-1].seq
    response = lasting.operator.post(path, body)
    assert response.status_code == status, response.text
    assert says in response.json()["error"]
    after = lasting.ward.sim.store.facts(after=before)
    assert not [fact for fact in after if not isinstance(fact.news, TokensUsed)]


def test_verbs_for_held_incidents_are_refused_for_others(healthy: Clinic) -> None:
    node = healthy.operator.post("/v1/nodes/sim/train-0006/reboot", {"reason": "x", "now": True}).json()
    incident = node["incident"]
    for verb in ("confirm", "escalate"):
        response = healthy.operator.post(f"/v1/incidents/{incident}/{verb}", {"reason": "x"})
        assert response.status_code == 409
        assert "this is for what is HELD: sickbay " in response.json()["error"]
    healthy.ward.pass_time(3600)
    over = healthy.operator.post(f"/v1/incidents/{incident}/hold", {"reason": "x"})
    assert (over.status_code, over.json()["error"]) == (
        409,
        f"{incident} is over (RELEASED): there is nothing to hold",
    )


def test_an_engine_that_is_away_is_503_and_the_order_is_done_when_it_is_back(calls: Clinic) -> None:
    calls.ward.asleep = True
    response = calls.operator.post("/v1/nodes/sim/train-0007/cordon", {"reason": "while you sleep"})
    assert response.status_code == 503
    assert response.json()["error"].startswith("cordon is noted")
    calls.ward.asleep = False
    calls.ward.pass_time(1.0)
    assert "operator: cordon: while you sleep" in audit(calls)  # followed by why it waits


def answering(calls: Clinic, result: str, text: str) -> Callable[[], list[AnyOrder]]:
    """An agent that polls until it is asked something and answers; call what is returned to hear what it was asked."""
    asked: list[AnyOrder] = []

    def run() -> None:
        head = {"proto": 1, "node": NODE, "uid": "u", "instance_id": "i", "boot_id": "b"}
        until(lambda: bool(waiting()))
        (command,) = waiting()
        asked.append(command.order)
        news = {"news": "answered", "command": command.id, "result": result, "text": text}
        item = {"seq": 1, "mono": 1.0, "news": news}
        stamps = {"agent_run": command.id, "first_seq": 1, "mono_now": 1.0, "wall_now": 0.0, "watermark": 1.0}
        reply = calls.agent.post("/v1/agent/report", {**head, **stamps, "items": [item]})
        assert reply.status_code == 200, reply.text

    def waiting() -> list[Command]:
        return [c for c in calls.ward.sim.store.mail(NODE) if isinstance(c.order, RunInject | RunCollect)]

    thread = threading.Thread(target=run)
    thread.start()

    def joined() -> list[AnyOrder]:
        thread.join()
        return asked

    return joined


def test_a_drill_is_written_by_the_nodes_agent_and_audited(calls: Clinic) -> None:
    joined = answering(calls, "done", "written")
    body = {"xid": 73, "log": True, "reason": "fire drill"}
    response = calls.operator.post("/v1/nodes/-/train-0000/inject", body)
    (order,) = joined()
    assert response.status_code == 200, response.text
    assert isinstance(order, RunInject)
    assert "NVRM: Xid (PCI:0000:ff:1f): 73," in order.line
    assert response.json()["done"] == f"wrote: {order.line}"
    assert "operator: inject: fire drill" in audit(calls)


def test_what_the_agent_refuses_is_refused_with_its_words(calls: Clinic) -> None:
    joined = answering(calls, "refused", "this node does not allow it")
    response = calls.operator.post("/v1/nodes/-/train-0000/inject", {"line": "x", "log": True, "reason": "drill"})
    joined()
    assert response.status_code == 409
    assert "this node does not allow it" in response.json()["error"]


def test_a_bundle_is_gathered_and_its_place_is_told(calls: Clinic) -> None:
    joined = answering(calls, "done", "/var/lib/sickbay/bundles/b.tar.gz")
    response = calls.operator.post("/v1/nodes/-/train-0000/collect", {"reason": "for support"})
    assert [type(order) for order in joined()] == [RunCollect]
    assert "b.tar.gz" in response.json()["done"]


def test_a_drill_without_a_reason_asks_nobody(calls: Clinic) -> None:
    response = calls.operator.post("/v1/nodes/-/train-0000/inject", {"xid": 73, "log": True})
    assert response.status_code == 400
    assert "a reason is missing" in response.json()["error"]


def test_a_site_with_real_hardware_refuses_to_break_it(calls: Clinic) -> None:
    calls.ward.desk.breakable = None
    response = calls.operator.post("/v1/nodes/-/train-0000/inject", {"xid": 79})
    assert response.status_code == 409
    assert "is real" in response.json()["error"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"fault": "94"}, "no fault is called '94': write xid.94"),
        ({"fault": "xyd.94"}, "no fault is called 'xyd.94': did you mean "),
        ({"node": "nope"}, "there is no node 'nope'"),
        ({"node": "other-*"}, "there is no node 'other-*'"),
        ({"pool": "nope"}, "there is no pool 'nope'"),
    ],
)
def test_an_exclusion_that_can_never_match_is_refused_with_what_to_write(
    lasting: Clinic, body: dict[str, str], says: str
) -> None:
    response = lasting.operator.post("/v1/exclusions", {**body, "reason": "known"})
    assert response.status_code == 404, response.text
    assert says in response.json()["error"]
    assert lasting.viewer.get("/v1/exclusions").json() == []


@pytest.mark.parametrize(
    "body", [{"fault": "xid.94"}, {"fault": "xid.*", "node": "train-000?"}, {"fault": "xid.999"}, {"pool": "train"}]
)
def test_an_exclusion_that_may_match_is_taken(calls: Clinic, body: dict[str, str]) -> None:
    assert calls.operator.post("/v1/exclusions", {**body, "reason": "known"}).status_code == 201


def test_the_answer_of_an_order_says_what_has_become_of_it_and_it_can_be_asked_for_later(healthy: Clinic) -> None:
    """What was asked for is never answered with the state before it."""
    answer = healthy.operator.post("/v1/nodes/-/train-0007/cordon", {"reason": "a cable"}).json()
    order = answer["order"]
    assert (order["verb"], order["by"], order["verdict"]) == ("cordon", "operator", "under_way")
    assert order["because"] == "QUARANTINED: waiting to see our cordon"
    healthy.ward.pass_time(600)
    later = healthy.viewer.get(f"/v1/orders/{order['id']}").json()
    msgspec.convert(later, answers.OrderAnswer)
    assert later["verdict"] == "done"
    assert "sickbay uncordon sim/train-0007" in later["because"]
    assert healthy.viewer.get("/v1/orders/order-none").status_code == 404


def test_a_stop_is_answered_with_what_became_of_the_job(calls: Clinic) -> None:
    answer = calls.operator.post("/v1/jobs/qwen/stop", {"reason": "enough"}).json()
    assert (answer["state"], answer["order"]["verdict"]) != ("RUNNING", "done")
    calls.ward.pass_time(600)
    assert calls.viewer.get(f"/v1/orders/{answer['order']['id']}").json()["verdict"] == "done"
