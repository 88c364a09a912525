"""The contract of the Mirror port, for every adapter.

class TestMyMirror(MirrorContract):
    @pytest.fixture
    def rig(self):
        return MyRig()
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import pytest

from sickbay.model.errors import EffectError, Gone, Rejected
from sickbay.model.fault import Remedy, Severity
from sickbay.model.fleet import IncidentId, JobId, NodeId
from sickbay.model.incident import IncidentKind, Phase
from sickbay.model.job import JobState
from sickbay.model.shown import SHOWN_TEXT, AnyShown, JobShown, NodeShown, ShownLine
from sickbay.ports.mirror import Mirror

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class MirrorRig(Protocol):
    """What the suite needs around a mirror: two nodes and two jobs that it can show, and a look at the far side."""

    def mirror(self) -> Mirror:
        """Another one over the same far side, as another process would make it."""
        ...

    def nodes(self) -> Sequence[NodeId]: ...

    def jobs(self) -> Sequence[JobId]: ...

    def seen(self, subject: str) -> object:
        """What the far side shows of a subject, in any form that can be compared; None: nothing of ours."""
        ...

    def others_write(self) -> None:
        """Somebody keeps something of his own where we show, with the far side's own means."""
        ...

    def others_have(self) -> bool:
        """Whether that is there, as he wrote it."""
        ...

    def break_far_side(self) -> None:
        """From now on it can neither be read nor written."""
        ...


def well(node: NodeId) -> NodeShown:
    return NodeShown(node=node, pool="c/train", state="READY")


def ill(node: NodeId, phase: Phase = Phase.REPAIRING, because: str = "Xid 79") -> NodeShown:
    return NodeShown(
        node=node,
        pool="c/train",
        state="OUT",
        since=AT,
        because=because,
        schedulable=False,
        incident=IncidentId("i1"),
        kind=IncidentKind.FAULT,
        phase=phase,
        fault="xid.79",
        component="pcie",
        severity=Severity.FATAL,
        remedy=Remedy.REBOOT,
        rung=Remedy.REBOOT,
    )


def runs(job: JobId, step: int | None = 7, *lines: str) -> JobShown:
    told = tuple(ShownLine(at=AT, text=line) for line in lines)
    return JobShown(job=job, name="llama", state=JobState.RUNNING, attempt=1, step=step, lines=told)


class MirrorContract:
    """Whole values, idempotent, and nobody else's."""

    def test_what_is_shown_is_seen(self, rig: MirrorRig) -> None:
        (node, other), (job, _) = rig.nodes()[:2], rig.jobs()[:2]
        mirror = rig.mirror()
        for value in (ill(node), well(other), runs(job)):
            mirror.show(value)
        seen = [rig.seen(f"node:{node}"), rig.seen(f"node:{other}"), rig.seen(f"job:{job}")]
        assert None not in seen
        assert seen[0] != seen[1]

    @pytest.mark.parametrize("again", [1, 3])
    def test_showing_it_again_changes_nothing(self, rig: MirrorRig, again: int) -> None:
        node, job = rig.nodes()[0], rig.jobs()[0]
        values: list[AnyShown] = [ill(node), runs(job, 7, "RUNNING: all ranks were seen")]
        for value in values:
            rig.mirror().show(value)
        once = [rig.seen(value.subject) for value in values]
        for value in values * again:
            rig.mirror().show(value)
        assert [rig.seen(value.subject) for value in values] == once

    def test_a_value_takes_the_place_of_all_that_was_shown_before(self, rig: MirrorRig) -> None:
        node, other = rig.nodes()[:2]
        mirror = rig.mirror()
        mirror.show(well(node))
        fresh = rig.seen(f"node:{node}")
        for phase in (Phase.QUARANTINED, Phase.REPAIRING, Phase.HELD):
            mirror.show(ill(node, phase))
            assert rig.seen(f"node:{node}") != fresh
        mirror.show(well(node))
        assert rig.seen(f"node:{node}") == fresh
        assert rig.seen(f"node:{other}") is None, "it was never shown"

    def test_who_comes_after_knows_what_is_shown(self, rig: MirrorRig) -> None:
        (node, _), (job, other) = rig.nodes()[:2], rig.jobs()[:2]
        rig.mirror().show(ill(node))
        rig.mirror().show(runs(job))
        rig.mirror().show(runs(other))
        assert sorted(rig.mirror().shown()) == sorted([f"node:{node}", f"job:{job}", f"job:{other}"])

    def test_what_is_removed_is_not_shown(self, rig: MirrorRig) -> None:
        node, job = rig.nodes()[0], rig.jobs()[0]
        rig.mirror().show(ill(node))
        rig.mirror().show(runs(job))
        for _ in range(2):
            rig.mirror().remove(f"node:{node}")
        assert rig.seen(f"node:{node}") is None
        assert list(rig.mirror().shown()) == [f"job:{job}"]
        rig.mirror().show(well(node))
        assert rig.seen(f"node:{node}") is not None

    def test_of_what_was_never_shown_there_is_nothing_to_remove(self, rig: MirrorRig) -> None:
        rig.mirror().remove(f"job:{rig.jobs()[0]}")
        assert list(rig.mirror().shown()) == []

    def test_what_others_keep_there_is_let_alone(self, rig: MirrorRig) -> None:
        node, job = rig.nodes()[0], rig.jobs()[0]
        rig.others_write()
        mirror = rig.mirror()
        mirror.show(ill(node))
        mirror.show(runs(job))
        assert rig.others_have()
        assert sorted(mirror.shown()) == sorted([f"node:{node}", f"job:{job}"])
        mirror.remove(f"node:{node}")
        mirror.remove(f"job:{job}")
        assert rig.others_have()

    def test_long_and_odd_words_do_no_harm(self, rig: MirrorRig) -> None:
        node, job = rig.nodes()[0], rig.jobs()[0]
        odd = 'a "quoted" 50 % \\ line,\nand=another; $(rm -rf /) ünïcode ' + "x" * SHOWN_TEXT
        rig.mirror().show(ill(node, because=odd[:SHOWN_TEXT]))
        rig.mirror().show(runs(job, None, *[odd[:SHOWN_TEXT]] * 3))
        assert rig.seen(f"node:{node}") is not None
        assert rig.seen(f"job:{job}") is not None

    def test_a_far_side_that_is_away_is_told_in_the_words_of_the_port(self, rig: MirrorRig) -> None:
        node = rig.nodes()[0]
        mirror = rig.mirror()
        mirror.show(well(node))
        rig.break_far_side()
        for call in (
            lambda: mirror.show(ill(node)),
            lambda: mirror.remove(f"node:{node}"),
            lambda: list(mirror.shown()),
        ):
            with pytest.raises(EffectError) as caught:
                call()
            assert not isinstance(caught.value, Rejected | Gone), "it would not be tried again"
