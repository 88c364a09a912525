"""Time: decisions never see a clock ahead of the rows, and no read, however slow or long, makes anything run out."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.scenario.test_acts import Channel
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without

from sickbay.engine import ingest, lead, plan_jobs
from sickbay.engine.ingest import Ingest, Watcher
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import moment
from sickbay.faces.explain import explain
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import Transient, Unknown
from sickbay.model.facts import AnyNews, Fact, JobSeen, Mark, NodeSeen, Observed
from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState, Notify
from sickbay.model.job import End, EndReason, JobState, RankState
from sickbay.ports.cluster import Deltas, Lost
from sickbay.sim.context import ClusterRules
from sickbay.sim.host import InlineExecutor
from sickbay.sim.simulation import CLUSTER, POOL

NOISE = "some.unknown"


def clock(w: Ward, source: str = CLUSTER) -> WatchedClock:
    row = w.sim.store.load([f"clock:{source}"])[f"clock:{source}"].row
    assert isinstance(row, WatchedClock)
    return row


def intent(w: Ward, key: str) -> Intent:
    row = w.sim.store.load([f"intent:{key}"])[f"intent:{key}"].row
    assert isinstance(row, Intent)
    return row


def noise(w: Ward, stem: str, how_many: int) -> list[Fact]:
    at = moment(w.sim.clock.wall())
    return [Fact(id=f"{stem}/{n}", at=at, news=Observed(node=w.nodes[1], kind=NOISE)) for n in range(how_many)]


class Deputy:
    """The leader is gone; another replica takes what agents say, and the cluster is read, but nobody plans."""

    def __init__(self, w: Ward) -> None:
        self._w = w
        w.sim.hosts[0].crash(down_for=1000 * HOUR)
        self.ingest = Ingest(w.sim.store, w.sim.clock, period=30.0)
        self._watcher = Watcher(w.sim.store, w.sim.hands.sites[CLUSTER].cluster, w.sim.clock)

    def serve(self, seconds: float) -> None:
        for _ in range(int(seconds / 5)):
            self._w.run(5)
            self.ingest.take([], dict(self._w.world.voices))
            self._watcher.read()

    def successor(self) -> Engine:
        sim = self._w.sim
        return Engine(sim.store, sim.hands, sim.rules, InlineExecutor(), sim.clock, Setup(holder="new", strict=True))


def rounds(warm: Engine, cold: Callable[[], Engine] | None, how_many: int) -> None:
    """So many rounds of one engine, or, cold, of a new one each time."""
    for _ in range(how_many):
        engine = warm if cold is None else cold()
        engine.lead()
        engine.round()


# --- a backlog


@pytest.mark.parametrize("cold", [False, True])
def test_a_successor_does_not_judge_before_it_has_learned_what_is_stored(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """The proof of a reboot is stored behind many other facts, and its deadline has passed meanwhile."""
    monkeypatch.setattr(lead, "FACTS", 20)
    monkeypatch.setattr(lead, "PAGES", 2)
    w = ward(nodes=4, strict=False)
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    seen_by = intent(w, w.incident(node).intent).seen_by
    assert seen_by is not None
    deputy = Deputy(w)
    w.run(5)
    deputy.ingest.take(noise(w, "noise", 300))
    while clock(w).reading <= seen_by.at + 20:
        deputy.serve(60)
    engine = deputy.successor()
    for _ in range(12):  # 480 facts
        rounds(engine, deputy.successor if cold else None, 1)
        assert w.rungs(node) == ["reboot"], "it gave up a reboot whose proof it had not read yet"
    assert w.phase(node) == Phase.VERIFYING


@pytest.mark.parametrize("cold", [False, True])
def test_a_flood_that_never_ends_does_not_keep_deadlines_from_passing(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    monkeypatch.setattr(lead, "FACTS", 20)
    monkeypatch.setattr(lead, "PAGES", 2)
    w = ward(nodes=4, strict=False)
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.REPAIRING)
    seen_by = intent(w, w.incident(node).intent).seen_by
    assert seen_by is not None
    deputy = Deputy(w)
    w.run(60)  # the lease of the leader that is gone runs out
    deputy.ingest.take(noise(w, "flood", 200))
    last = clock(w).last or 0.0
    w.sim.store.append([], [Mark(source=CLUSTER, at=last + n, period=10.0) for n in range(10, 1500, 10)])
    engine = deputy.successor()
    for n in range(20):  # as many come as are learned
        mark = Mark(source=CLUSTER, at=last + 1500 + 5 * n, period=10.0)
        w.sim.store.append(noise(w, f"flood{n}", 40), [mark])
        rounds(engine, deputy.successor if cold else None, 1)
    assert w.rungs(node) != ["reboot"], "its deadline has passed, and everything up to then was read"


def test_a_deadline_that_is_set_amid_a_backlog_does_not_pass_when_the_backlog_is_learned(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "FACTS", 20)
    monkeypatch.setattr(lead, "PAGES", 2)
    w = ward(nodes=4, strict=False)
    node = w.nodes[0]
    w.run(600)
    deputy = Deputy(w)
    fields: dict[str, str | int] = {"number": 79, "device": 0}
    xid = Observed(node=node, kind="xid", fields=fields, incarnation=w.node(node).incarnation)
    deputy.ingest.take([Fact(id="xid", at=moment(w.sim.clock.wall()), news=xid)])
    deputy.serve(60)
    deputy.ingest.take(noise(w, "noise", 300))
    deputy.serve(5)
    rounds(deputy.successor(), None, 1)
    quarantine = intent(w, w.incident(node).intent)
    assert quarantine.seen_by is not None
    assert quarantine.seen_by.at > clock(w).reading


# --- long and slow reads


def test_slices_of_a_long_read_do_not_move_the_clock(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes minutes to tell all of a large fleet; what was asked for meanwhile cannot have shown itself in it."""
    w = ward(nodes=80, strict=False, limits=False)
    w.run(60)
    monkeypatch.setattr(ingest, "SLICE", 1)
    cluster = w.sim.hands.sites[CLUSTER].cluster
    read, lost = cluster.watch, [True]

    def watch(cursor: str | None) -> Deltas | Lost:
        return Lost() if lost and lost.pop() else read(cursor)

    monkeypatch.setattr(cluster, "watch", watch)
    sick = w.nodes[7]
    for seat in w.world.seats.values():
        if seat.id != sick:
            seat.unmanaged = 1
            w.world.ground.show(seat)
    w.run(6)
    before = clock(w)
    w.sick(sick, "xid.79", Remedy.REBOOT)
    w.run(300)
    assert clock(w) == before, "amid the slices"
    w.run(200)
    after = clock(w)
    assert after.as_of > before.as_of + 400
    assert w.happened("cordon", sick)
    assert Phase.HELD not in w.phases(sick)
    w.reaches(sick, Phase.RELEASED, 2 * HOUR)


def test_a_slice_that_could_not_be_stored_is_read_again(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "SLICE", 1)
    w = ward(nodes=6)
    w.run(30)
    w.world.seats[w.nodes[3]].unmanaged = 1
    w.world.ground.show(w.world.seats[w.nodes[3]])
    w.sim.store.append([], [Mark(source=CLUSTER, at=0.0, period=5.0, cursor="of another run")])
    points = w.sim.points
    w.sim.fates.update(dict.fromkeys(range(points + 1, points + 2), "unavailable"))
    w.run(120)
    assert w.node(w.nodes[3]).unmanaged == 1


def test_what_is_in_doubt_is_not_sent_again_because_its_seat_was_read_further_than_its_cluster(ward: OpenWard) -> None:
    """Slices bring rows that are newer than the clock: that is no read newer than the end of the call."""
    w = ward(nodes=12, limits=False, cluster=ClusterRules(id=CLUSTER, slice_size=1))
    sick = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage(f"machines:{CLUSTER}", now, now + 600.0, hangs=True)
    w.sick(sick, "xid.79", Remedy.REBOOT)
    w.reaches(sick, Phase.REPAIRING, HOUR)
    for amount in range(1, 9):
        for seat in w.world.seats.values():
            seat.domain = f"rack-{amount}"
            w.world.ground.show(seat)
        w.world.ground.views[CLUSTER].cut()
        w.run(60)
    assert intent(w, w.incident(sick).intent).sends < 600 / 20


def test_a_job_that_is_known_to_have_vanished_is_not_looked_for_in_list_after_list(ward: OpenWard) -> None:
    """Else a cluster that is read in slices is never read on, and its clock stands still."""
    cluster = cluster_without("fence", "reboot", "replace", slice_size=1, read_takes=20.0)
    w = ward(nodes=12, limits=False, cluster=cluster)
    jobs = [w.running(name, nodes=1, steps=10**6) for name in ("one", "two", "three")]
    for job in jobs:
        w.world.lose_node(next(iter(w.job(job).claim)), zombie=True)
    for job in jobs:
        w.until(lambda job=job: w.job(job).state is JobState.STOPPING, HOUR)  # type: ignore[misc]
        w.world.forget_job(job)
    w.run(600)
    before = clock(w)
    w.run(600)
    assert [w.job(job).state for job in jobs] == [JobState.STOPPING] * 3
    assert clock(w).reading > before.reading + 500


class SlowCluster:
    """Each read takes a while."""

    def __init__(self, w: Ward, takes: float) -> None:
        self._inner = w.sim.hands.sites[CLUSTER].cluster
        self._scheduler = w.sim.scheduler
        self.takes = takes

    id = CLUSTER
    period = 5.0

    def watch(self, cursor: str | None) -> Deltas | Lost:
        found = self._inner.watch(cursor)
        self._scheduler.now += self.takes
        return found

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.mark.parametrize("takes", [4.0, 6.0, 45.0])
def test_a_cluster_that_answers_slowly_is_heard_all_the_same(ward: OpenWard, takes: float) -> None:
    w = ward(nodes=4, strict=False)
    watcher = Watcher(w.sim.store, SlowCluster(w, takes), w.sim.clock)  # type: ignore[arg-type]
    watcher.read()
    before, began = clock(w), w.sim.scheduler.now
    for _ in range(50):
        w.sim.scheduler.now += 5.0
        watcher.read()
    assert clock(w).reading - before.reading == pytest.approx(w.sim.scheduler.now - began, rel=0.1)


# --- a clock that stands still


def cluster_out(w: Ward, seconds: float) -> None:
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + seconds)


@pytest.mark.slow
def test_a_cluster_that_cannot_be_read_for_long_is_told_once_and_reminded_of(ward: OpenWard) -> None:
    w = ward(nodes=4, strict=False)
    reminder = w.sim.policy.pace.held_reminder.total_seconds()
    w.run(60)
    cluster_out(w, 1.5 * reminder)
    w.run(500)
    assert w.told("unheard") == []
    w.run(800)
    assert len(w.told("unheard")) == 1
    assert "cluster sim cannot be read" in w.told("unheard")[0]
    assert w.sim.hosts[0]._engine.unheard == {CLUSTER: w.told("unheard")[0]}
    w.run(reminder - 1500)
    assert len(w.told("unheard")) == 1
    w.run(1500)
    assert len(w.told("unheard")) == 2
    w.run(reminder)
    assert w.sim.hosts[0]._engine.unheard == {}
    assert "heard again" in "".join(line.text for line in w.sim.store.story("standstill:sim"))
    assert len(w.told("unheard")) == 2


def test_reports_that_do_not_reach_us_are_told(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.run(60)
    w.world.go_deaf(2 * HOUR)
    w.run(1400)
    assert [text.split(";")[0] for text in w.told("unheard")] == ["no report reaches us"]


@pytest.mark.parametrize(
    "answer", [Transient("connection reset"), Unknown("no answer in time")], ids=["refused", "lost"]
)
@pytest.mark.parametrize("all_of_it", [False, True], ids=["agents", "agents and clusters"])
def test_a_notice_that_did_not_get_through_is_sent_again_though_nobody_is_heard(
    ward: OpenWard, answer: Exception, all_of_it: bool
) -> None:
    w = ward(nodes=4)
    w.run(60)
    notifier = Channel(w.sim.hands.notifiers["log"], "tell", lambda n: answer if n == 1 else None)
    w.world.go_deaf(4 * HOUR)
    if all_of_it:
        cluster_out(w, 4 * HOUR)
    w.run(2 * HOUR)
    assert len(w.told("unheard")) == 1
    assert notifier.calls == 2


def test_a_notice_that_was_on_its_way_when_its_sender_died_is_sent_again_though_nobody_is_heard(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.run(60)

    def dies(calls: int) -> Exception | None:
        if calls == 1:
            w.sim.hosts[0].crash()
        return None

    notifier = Channel(w.sim.hands.notifiers["log"], "tell", dies)
    w.world.go_deaf(4 * HOUR)
    w.run(2 * HOUR)
    assert notifier.calls == 2
    (told,) = [row for row in w.sim._all("intent") if isinstance(row, Intent) and isinstance(row.act, Notify)]
    assert told.state is IntentState.SEEN


def test_what_is_set_aside_is_tried_again_though_nobody_is_heard(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = ward(nodes=4, forgiving=True)
    job = w.running(steps=10**6)
    w.world.go_deaf(4 * HOUR)
    monkeypatch.setattr(plan_jobs, "resume", refuses)
    w.order("stop", job)
    w.run(30)
    assert w.told("set_aside")
    monkeypatch.undo()
    w.until(lambda: w.state(job) == JobState.STOPPED, HOUR)


def refuses(*_: object) -> None:
    raise ValueError("it cannot be planned")


@pytest.mark.slow
def test_a_person_is_told_when_nothing_at_all_is_heard(ward: OpenWard) -> None:
    """No clock moves then, so no deadline can tell: the engine's own time does."""
    w = ward(nodes=4, strict=False)
    reminder = w.sim.policy.pace.held_reminder.total_seconds()
    w.run(60)
    cluster_out(w, 1.5 * reminder)
    w.world.go_deaf(1.5 * reminder)
    w.run(500)
    assert w.told("unheard") == []
    w.run(300)
    assert [text.split(":")[0] for text in w.told("unheard")] == ["neither a report nor any cluster reaches us"]
    assert set(w.sim.hosts[0]._engine.unheard) == {"ingest", CLUSTER}
    w.run(reminder)
    assert len(w.told("unheard")) == 2
    w.run(reminder)
    assert len(w.told("unheard")) == 2
    assert w.sim.hosts[0]._engine.unheard == {}


def test_our_own_absence_is_nobodys_standstill(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.run(60)
    w.sim.hosts[0].crash(2 * HOUR)
    w.run(3 * HOUR)
    assert w.told("unheard") == []


def test_a_cluster_whose_reads_take_too_long_is_told_and_explained(ward: OpenWard) -> None:
    """It answers every time, so no read fails; but each answer is old when it comes, and nothing can run out."""
    w = ward(nodes=4, strict=False)
    node = w.nodes[0]
    w.order("pause", "")
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.run(60)
    host = w.sim.hosts[0]
    store, begun = w.sim.store, [0.0]

    def watch(cluster: str) -> None:  # each read takes ten minutes: it is asked for again when it has been answered
        del cluster
        now = w.sim.scheduler.now
        if now - begun[0] >= 600.0:
            began, begun[0] = begun[0], now
            if began:
                mark = Mark(source=CLUSTER, at=w.sim.clock.wall(), period=5.0, took=now - began, as_of=began)
                store.append([], [mark])
            host.wake()

    host.watch = watch  # type: ignore[method-assign]
    w.run(2 * HOUR)
    assert len(w.told("unheard")) == 1
    assert "takes too long (600 s, due every 5 s)" in w.told("unheard")[0]
    waits = explain(store, node).waits_for
    assert waits is not None
    assert any("has answered too slowly (600 s)" in note for note in waits.notes)


# --- reads that are older than what is known


def told(w: Ward, deputy: Deputy, news: AnyNews) -> None:
    """The cluster says so, and an engine learns it."""
    w.sim.store.append([Fact(id=f"late/{w.sim.scheduler.now}", at=moment(w.sim.clock.wall()), news=news)])
    w.sim.scheduler.now += 1.0
    rounds(deputy.successor(), None, 1)


def test_an_older_read_of_a_node_changes_nothing(ward: OpenWard) -> None:
    w = ward(nodes=2, strict=False)
    w.run(120)
    deputy = Deputy(w)
    deputy.serve(60)
    before = w.node(w.nodes[0])
    assert before.incarnation is not None
    older, holder = before.as_of - 1.0, before.incarnation
    told(w, deputy, NodeSeen(node=before.id, cluster=CLUSTER, pool=POOL, as_of=older, incarnation=holder, ready=False))
    assert w.node(w.nodes[0]) == before


def test_an_older_read_of_a_job_changes_nothing(ward: OpenWard) -> None:
    w = ward(nodes=2, strict=False)
    job = w.running()
    deputy = Deputy(w)
    deputy.serve(60)
    before = w.job(job)
    end = End(reason=EndReason.FAILED, at=moment(w.sim.clock.wall()))
    told(w, deputy, JobSeen(job=job, attempt=1, as_of=before.ranks_as_of - 1.0, ranks=before.ranks, end=end))
    assert w.job(job) == before


def test_a_rank_that_is_gone_is_not_brought_back_by_a_read_that_lags(ward: OpenWard) -> None:
    """The node's new boot is the proof; the cluster's list of ranks may take a while to follow."""
    w = ward(nodes=2, strict=False)
    job = w.running()
    deputy = Deputy(w)
    deputy.serve(60)
    seat = w.node(w.nodes[0])
    assert seat.incarnation is not None
    now = replace(seat.incarnation, boot_id="a new one")
    told(w, deputy, NodeSeen(node=seat.id, cluster=CLUSTER, pool=POOL, as_of=seat.as_of + 1.0, incarnation=now))
    known = w.job(job)
    assert known.ranks[seat.id] == RankState.GONE
    told(
        w,
        deputy,
        JobSeen(job=job, attempt=1, as_of=known.ranks_as_of + 1.0, ranks=dict.fromkeys(known.ranks, RankState.RUNNING)),
    )
    assert w.job(job).ranks[seat.id] == RankState.GONE
