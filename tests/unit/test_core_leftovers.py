"""What an agent finds in its machine, and how much of it is kept."""

from datetime import UTC, datetime

from tests.unit.test_reception import ME, NODE, Door, HandClock, report

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.agent.probes.inventory import Stock
from sickbay.brain.identity import devices_found
from sickbay.engine.door import DEVICES, SERIAL, cut
from sickbay.faces.api.report_queue import ReportQueue
from sickbay.faces.api.route import ApiRequest, AppState
from sickbay.hosts.backend import Backend
from sickbay.hosts.changes import Changes
from sickbay.hosts.joining import Joining
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.facts import Inventory
from sickbay.model.fleet import Device, JobId, NodeId
from sickbay.model.job import Job, JobSpec
from sickbay.model.parts import INLINE, stored
from sickbay.model.rows import Unit
from sickbay.policy.load import load_policy

BOARD = tuple(Device(index=n, serial=f"s{n}") for n in range(4))


def test_an_agent_tells_its_inventory_once_and_again_only_when_it_changes() -> None:
    has = [Inventory(devices=())]
    stock = Stock(NODE, lambda: has[-1])
    assert stock.look(1.0) == ()  # nothing has been read yet
    has.append(Inventory(devices=BOARD))
    (told,) = stock.look(2.0)
    assert told.news == Inventory(devices=BOARD, node=NODE)
    assert stock.look(3.0) == ()
    has.append(Inventory(devices=(Device(index=0, serial="new"), *BOARD[1:])))
    assert len(stock.look(4.0)) == 1
    assert stock.look(5.0) == ()


def test_an_inventory_is_signed_with_the_incarnation_of_who_tells_it() -> None:
    door = Door()
    door.reception.receive(report(Inventory(devices=BOARD)))
    (fact,) = door.facts()
    assert fact.news == Inventory(devices=BOARD, node=NODE, incarnation=ME)


def test_an_inventory_of_a_boot_that_has_ended_is_not_even_a_fact() -> None:
    door = Door()
    reply = door.reception.receive(report(Inventory(devices=BOARD), ended=True))
    assert (reply.ack, list(door.facts())) == (1, [])


def test_an_inventory_is_cut_at_the_door() -> None:
    door = Door()
    door.reception.receive(report(Inventory(devices=tuple(Device(index=n, serial="x" * 5000) for n in range(999)))))
    (fact,) = map(cut, door.facts())
    assert isinstance(fact.news, Inventory)
    assert len(fact.news.devices) == DEVICES
    assert {len(device.serial) for device in fact.news.devices} == {SERIAL}


def test_a_device_that_its_agent_does_not_find_does_not_make_the_machine_smaller() -> None:
    assert devices_found(BOARD, BOARD[:3]) == BOARD


def test_a_device_that_has_moved_is_in_one_place() -> None:
    after = devices_found(BOARD, (Device(index=0, serial="s3"),))
    assert after == (Device(index=0, serial="s3"), *BOARD[1:3], Device(index=3))


def test_a_device_without_a_serial_keeps_the_one_that_is_known() -> None:
    assert devices_found(BOARD, tuple(Device(index=n) for n in range(4))) == BOARD
    assert devices_found((), BOARD) == BOARD


def test_a_job_of_many_nodes_is_shown_with_all_of_them() -> None:
    store, now = MemoryStore(), datetime(2026, 1, 1, tzinfo=UTC)
    nodes = [NodeId(f"c/n{number:04d}") for number in range(2 * INLINE)]
    spec = JobSpec(name="wide", cluster="c", pool="p", nodes=len(nodes), command=("train",))
    job = Job(id=JobId("wide"), spec=spec, submitted_at=now, claim=dict.fromkeys(nodes, ()))
    lease = store.lease("test", 60.0)
    assert lease is not None
    store.commit(stored(Unit(writes={"job:wide": job}), lambda _: None, now), lease.epoch)
    desk = Backend(store, load_policy("default"), {}, {}, HandClock(), lambda: None, Changes())
    shared = AppState(desk, Wakeup(), Wakeup(), Joining(desk), ReportQueue(desk.receive_all).store)
    (listed,) = ApiRequest(shared=shared, path={}, key="").all_of(Job, "job")
    assert listed.claim.keys() == set(nodes)
    found = desk._job(JobId("wide"))
    assert found is not None
    assert found.claim.keys() == set(nodes)
