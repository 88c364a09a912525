"""Attempts of the local cluster: how ranks are laid out, and what becomes of them."""

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from sickbay.brain.endings import ending_of
from sickbay.clusters.local.attempts import Attempts, GangRecord, NodePart, Over, environment, free_port, lay_out
from sickbay.clusters.local.files import LocalSeat, Rank, RankPlan, Status
from sickbay.clusters.local.outcomes import Evidence, judge
from sickbay.clusters.local.prune import prune
from sickbay.clusters.local.rack import Rack
from sickbay.clusters.local.ring import ChangeRing
from sickbay.clusters.local.seat_state import SeatState
from sickbay.model.errors import Rejected
from sickbay.model.facts import NodeVanished
from sickbay.model.fleet import Device, JobId, NodeId
from sickbay.model.job import EndReason, JobSpec, RankState

JOB = JobId("train-1")
A, B = NodeId("local/a"), NodeId("local/b")
NOW = 1_800_000_000.0


def spec(**more: object) -> JobSpec:
    return replace(JobSpec(name="j", cluster="local", pool="train", nodes=2, command=("true",)), **more)


def seat(name: str) -> LocalSeat:
    return LocalSeat(name=name, cluster="local", pool="train", gpus=4, instance_id=f"i-{name}", boot_id=f"boot-{name}")


def holders(gpus: int = 4) -> dict[NodeId, tuple[LocalSeat, tuple[Device, ...]]]:
    devices = tuple(Device(index=index) for index in range(gpus))
    return {A: (seat("a"), devices), B: (seat("b"), devices)}


class TestLayout:
    def test_ranks_follow_the_order_of_the_nodes_and_share_their_devices_evenly(self) -> None:
        parts = lay_out(JOB, spec(ranks_per_node=2), {B: (), A: ()}, holders())
        assert [(part.node, part.node_rank) for part in parts] == [(B, 0), (A, 1)]
        assert [[(plan.rank, plan.local_rank, plan.devices) for plan in part.ranks] for part in parts] == [
            [(0, 0, (0, 1)), (1, 1, (2, 3))],
            [(2, 0, (0, 1)), (3, 1, (2, 3))],
        ]

    def test_the_devices_that_were_chosen_are_used_and_no_others(self) -> None:
        (part,) = lay_out(JOB, spec(), {A: (3, 1)}, holders())
        assert part.devices == (1, 3)
        assert part.ranks[0].devices == (1, 3)

    def test_without_a_choice_it_takes_as_many_as_the_job_asks_for(self) -> None:
        (part,) = lay_out(JOB, spec(gpus_per_node=2), {A: ()}, holders())
        assert part.devices == (0, 1)

    def test_a_node_without_gpus_runs_any_number_of_ranks(self) -> None:
        (part,) = lay_out(JOB, spec(ranks_per_node=3), {A: ()}, holders(gpus=0))
        assert [plan.devices for plan in part.ranks] == [(), (), ()]

    @pytest.mark.parametrize(
        ("more", "chosen", "why"),
        [
            ({"ranks_per_node": 3}, (), "4 GPUs of local/a cannot be divided evenly among 3 ranks"),
            ({"ranks_per_node": 0}, (), "must be 1 or more"),
            ({}, (7,), "has no GPU 7"),
        ],
    )
    def test_what_cannot_be_laid_out_is_refused_with_the_reason(
        self, more: dict[str, object], chosen: tuple[int, ...], why: str
    ) -> None:
        with pytest.raises(Rejected, match=why):
            lay_out(JOB, spec(**more), {A: chosen}, holders())

    def test_what_we_say_wins_over_what_the_job_brings_along(self) -> None:
        mine = spec(env={"WORLD_SIZE": "99", "SEED": "7"})
        env = environment(JOB, 3, mine, size=4, port=20_001, checkpoint=Path("/c"))
        assert (env["WORLD_SIZE"], env["SEED"], env["SICKBAY_ATTEMPT"]) == ("4", "7", "3")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["SICKBAY_CHECKPOINT_DIR"]) == ("127.0.0.1", "20001", "/c")

    def test_a_port_is_free_and_promised_to_nobody(self) -> None:
        ports = {free_port(()) for _ in range(20)}
        assert free_port(ports) not in ports
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", free_port(ports)))


def gang(**more: object) -> GangRecord:
    parts = lay_out(JOB, spec(), {A: (), B: ()}, holders())
    begun = GangRecord(key="k", job=JOB, attempt=1, spec=spec(), parts=parts, port=20_000, env={}, began_at=NOW - 60)
    return replace(begun, **more)


def rank(
    part: NodePart, code: int | None = None, *, at: float = NOW - 5, stopped: bool = False, tail: str = ""
) -> Rank:
    """Without a code it runs."""
    running = Rank(job=JOB, attempt=1, rank=part.ranks[0].rank, boot_id=part.boot_id)
    if code is None:
        return running
    return replace(running, state=RankState.GONE, exit_code=code, ended_at=at, stopped=stopped, tail=tail)


def sight(name: str, *ranks: Rank, alive: bool = True, boot: str = "") -> SeatState:
    there = replace(seat(name), boot_id=boot or f"boot-{name}")
    status = Status(boot_id=f"boot-{name}", instance_id=f"i-{name}", pid=1, mono=0.0, ready=True, ranks=ranks)
    return SeatState(seat=there, pid=1 if alive else None, status=status, fresh=True, came_up=True)


def evidence(a: SeatState, b: SeatState, *, pending: tuple[NodeId, ...] = (), haunted: bool = False) -> Evidence:
    return Evidence(
        sights={"a": a, "b": b}, pending=frozenset(pending), haunted=lambda _attempt, _part: haunted, now=NOW
    )


FIRST, SECOND = gang().parts


class TestVerdict:
    def test_a_gang_that_runs_is_running_and_has_no_end(self) -> None:
        after, states = judge(gang(), evidence(sight("a", rank(FIRST)), sight("b", rank(SECOND))))
        assert states == {A: "running", B: "running"}
        assert after == gang()

    def test_a_part_that_was_never_asked_is_not_listed(self) -> None:
        after, states = judge(gang(), evidence(sight("a", rank(FIRST)), sight("b")))
        assert states == {A: "running"}
        assert after.end is None

    def test_an_order_that_lies_before_a_living_node_counts_as_running(self) -> None:
        _, states = judge(gang(), evidence(sight("a", rank(FIRST)), sight("b"), pending=(B,)))
        assert states == {A: "running", B: "running"}

    def test_it_completes_only_when_every_rank_ended_with_0(self) -> None:
        one, states = judge(gang(), evidence(sight("a", rank(FIRST, 0)), sight("b", rank(SECOND))))
        assert (one.end, states[A]) == (None, "gone")
        both, _ = judge(one, evidence(sight("a"), sight("b", rank(SECOND, 0, at=NOW - 1))))
        assert both.end.reason is EndReason.COMPLETED
        assert both.end.at.timestamp() == NOW - 1
        assert both.closed_at == NOW

    def test_one_rank_that_ends_badly_ends_the_attempt_at_once(self) -> None:
        bad = rank(FIRST, 1, tail="Traceback")
        after, states = judge(gang(), evidence(sight("a", bad), sight("b", rank(SECOND))))
        assert after.end.reason is EndReason.FAILED
        assert (after.end.exit_codes, after.end.tail) == ({A: 1}, "Traceback")
        assert after.end.at.timestamp() == NOW - 5
        assert states == {A: "gone", B: "running"}
        assert after.closed_at is None

    def test_one_bad_rank_among_several_of_a_node_ends_the_attempt_while_the_others_run(self) -> None:
        parts = lay_out(JOB, spec(ranks_per_node=2), {A: ()}, holders())
        bad, good = (replace(rank(parts[0], 1), rank=0), replace(rank(parts[0]), rank=1))
        after, states = judge(gang(parts=parts), evidence(sight("a", bad, good), sight("b")))
        assert after.end.reason is EndReason.FAILED
        assert states == {A: "running"}

    def test_the_tail_is_that_of_the_rank_that_failed_first(self) -> None:
        first, second = rank(FIRST, 1, at=NOW - 1, tail="NCCL error"), rank(SECOND, -9, at=NOW - 3, tail="CUDA error")
        after, _ = judge(gang(), evidence(sight("a", first), sight("b", second)))
        assert after.end.tail == "CUDA error"
        assert after.end.exit_codes == {A: 1, B: -9}

    def test_an_end_stays_as_it_was_first_seen(self) -> None:
        once, _ = judge(gang(), evidence(sight("a", rank(FIRST, 1)), sight("b", rank(SECOND))))
        again, _ = judge(once, evidence(sight("a", alive=False), sight("b", alive=False)))
        assert again.end == once.end
        assert again.closed_at == NOW

    def test_what_is_gone_stays_gone_when_its_node_has_forgotten_it(self) -> None:
        once, _ = judge(gang(), evidence(sight("a", rank(FIRST, 0)), sight("b", rank(SECOND))))
        _, states = judge(once, evidence(sight("a"), sight("b", rank(SECOND))))
        assert states == {A: "gone", B: "running"}

    @pytest.mark.parametrize("ended", [sight("b", rank(SECOND), alive=False), sight("b", boot="the next")])
    def test_a_node_whose_boot_ended_takes_its_ranks_along(self, ended: SeatState) -> None:
        after, states = judge(gang(), evidence(sight("a", rank(FIRST)), ended))
        assert states == {A: "running", B: "gone"}
        assert after.end.reason is EndReason.NODE_LOST
        assert after.end.exit_codes == {}
        said = "" if after.end is None else ending_of(after.end)
        assert said == f"{B} was lost, with rank 1", "which node, and which rank, is what people ask"

    def test_ranks_that_outlive_their_node_are_not_called_gone(self) -> None:
        lost = evidence(sight("a", rank(FIRST)), sight("b", rank(SECOND), alive=False), haunted=True)
        after, states = judge(gang(), lost)
        assert states == {A: "running", B: "running"}
        assert after.end is None

    def test_a_rank_that_had_ended_before_its_node_was_lost_is_judged_by_its_exit_code(self) -> None:
        after, _ = judge(gang(), evidence(sight("a", rank(FIRST, 0)), sight("b", rank(SECOND, 3), alive=False)))
        assert after.end.reason is EndReason.FAILED
        well, _ = judge(gang(), evidence(sight("a", rank(FIRST, 0)), sight("b", rank(SECOND, 0), alive=False)))
        assert well.end.reason is EndReason.COMPLETED

    def test_a_node_that_was_shut_down_is_lost_though_its_ranks_were_stopped_politely(self) -> None:
        polite = sight("b", rank(SECOND, 0, stopped=True), alive=False)
        after, _ = judge(gang(), evidence(sight("a", rank(FIRST)), polite))
        assert after.end.reason is EndReason.NODE_LOST

    def test_an_attempt_that_we_stopped_neither_completed_nor_blames_anybody(self) -> None:
        a, b = sight("a", rank(FIRST, -15, stopped=True)), sight("b", rank(SECOND, 0, stopped=True))
        after, states = judge(gang(stop="s"), evidence(a, b))
        assert after.end.reason is EndReason.FAILED
        assert after.end.exit_codes == {}
        assert states == {A: "gone", B: "gone"}

    def test_an_attempt_that_ended_well_before_our_stop_came_is_complete(self) -> None:
        after, _ = judge(gang(stop="s"), evidence(sight("a", rank(FIRST, 0)), sight("b", rank(SECOND, 0))))
        assert after.end.reason is EndReason.COMPLETED

    def test_a_stop_ends_a_gang_of_which_a_part_was_never_asked(self) -> None:
        after, states = judge(gang(stop="s"), evidence(sight("a", rank(FIRST, -15, stopped=True)), sight("b")))
        assert states == {A: "gone", B: "gone"}
        assert after.end.reason is EndReason.FAILED
        assert after.closed_at == NOW

    def test_a_rank_of_which_nobody_knows_how_it_ended_did_not_end_well(self) -> None:
        nobody = replace(rank(FIRST, 0), exit_code=None)
        after, states = judge(gang(), evidence(sight("a", nobody), sight("b", rank(SECOND))))
        assert after.end.reason is EndReason.UNKNOWN
        assert states == {A: "gone", B: "running"}


class TestRetention:
    def _ended(self, number: int, closed_at: float) -> GangRecord:
        over = {A: Over(), B: Over()}
        return gang(attempt=number, began_at=NOW + number, over=over, closed_at=closed_at)

    def test_attempts_that_ended_are_forgotten_when_old_and_many_newer_ones_are_there(self, tmp_path: Path) -> None:
        room = Rack(tmp_path)
        room.create("local", 1, 1, "train")
        attempts = Attempts(tmp_path)
        for number in range(80):
            attempts.save(self._ended(number, 1.0 if number < 40 else 4e9), durable=False)
        attempts.save(gang(attempt=99, began_at=0.0), durable=False)  # it runs since long ago
        prune(room, attempts)
        left = [each.attempt for each in attempts.all()]
        assert left == [99, *range(30, 80)]

    @pytest.mark.slow
    def test_outputs_and_kernel_logs_do_not_grow_without_bound(self, tmp_path: Path) -> None:
        room = Rack(tmp_path)
        room.create("local", 1, 1, "train")
        instance = tmp_path / "seats/node-0/instances" / room.seat("node-0").instance_id
        for number in range(300):
            (instance / f"ranks/job.{number}.0").mkdir(parents=True)
            (instance / f"boots/{number}").mkdir(parents=True)
            (tmp_path / f"seats/node-0/repairs/{number}.json").write_text("{}")
        Attempts(tmp_path).save(gang(job=JobId("job"), attempt=0))
        prune(room, Attempts(tmp_path))
        assert len(list((instance / "ranks").iterdir())) <= 31
        assert (instance / "ranks/job.0.0").exists()
        assert len(list((instance / "boots").iterdir())) <= 21
        assert len(list((tmp_path / "seats/node-0/repairs").iterdir())) <= 100

    def test_a_job_whose_name_is_a_path_is_refused(self, tmp_path: Path) -> None:
        for name in ("../x", "a/b", ".hidden", ""):
            with pytest.raises(Rejected):
                Attempts(tmp_path).get(JobId(name), 1)


class TestRing:
    def _news(self, number: int) -> NodeVanished:
        return NodeVanished(node=NodeId(f"local/{number}"), as_of=0.0)

    def test_a_cursor_of_another_run_or_too_far_back_is_lost(self) -> None:
        ring = ChangeRing(keep=3)
        first = ring.cursor
        for number in range(4):
            ring.add(self._news(number))
        assert ring.since(first) is None
        assert ChangeRing(keep=3).since(first) is None
        assert ring.since("") is None
        assert ring.since(f"{first}9") is None
        assert ring.since(ring.cursor) == []

    def test_only_the_last_word_on_a_subject_is_told(self) -> None:
        ring = ChangeRing()
        first = ring.cursor
        for number in (1, 2, 1):
            ring.add(self._news(number))
        assert ring.since(first) == [self._news(2), self._news(1)]


def test_a_plan_has_as_many_ranks_as_the_job_asks_for() -> None:
    assert FIRST.ranks == (RankPlan(rank=0, local_rank=0, devices=(0, 1, 2, 3)),)
