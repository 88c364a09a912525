"""What a training job does with its time."""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from sickbay.model.facts import JobSeen
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import End, JobSpec, RankState
from sickbay.model.noun import Noun
from sickbay.sim.schedule import Ticket

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 88, in <module>\n    main()\n'
    '  File "train.py", line 61, in main\n    loss = step(batch[key])\n'
    "KeyError: 'labels'"
)
NCCL_TAIL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


class OnDeath(StrEnum):
    FAIL = "fail"  # the others notice at once
    HANG = "hang"  # the others wait for the collective's time-out


class Programme(Noun):
    """How a job trains, and how it behaves when a rank dies. Times in seconds."""

    steps: int = 1_000_000
    rate: float = 1.0  # steps in a second
    checkpoint_every: int = 1000
    load: float = 60.0
    tell_every: float = 21_600.0  # sparse: a year of them is simulated
    on_death: OnDeath = OnDeath.FAIL
    give_up: float | None = 600.0  # when hanging ranks fail by themselves; None: never
    hang_notice: float = 300.0  # silence of the heartbeat that counts as hung
    tail_late: float = 0.0  # the cluster shows what was written last so long after the end
    codes_untold: bool = False  # the cluster knows no exit codes of ranks
    fenced: bool = False  # it uses checkpoints that no older attempt can commit to, and says so
    listens: bool = False  # it can be asked to save
    save_takes: float | None = 5.0  # when asked; None: it never comes to its end
    crashes_at: int | None = None  # a bug in the script: this step always ends it


@dataclass(slots=True)
class Tally:
    """Where a job's time went: work that was kept, and what was lost to each cause (work done again, time idle)."""

    useful: float = 0.0
    lost: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def share(self) -> float:
        """Effective training time."""
        whole = self.useful + sum(self.lost.values())
        return self.useful / whole if whole else 1.0


@dataclass(slots=True, eq=False)
class SimAttempt:
    """One run of a job, as it truly is, and the cluster's view of its ranks."""

    job: JobId
    number: int
    key: str
    nodes: dict[NodeId, tuple[int, ...]]
    native: bool = False
    missing: tuple[NodeId, ...] = ()  # of a gang that was started in part
    waiting: bool = False  # the cluster's scheduler has no place for it yet
    allocated: bool = False  # that scheduler chose its nodes: it says so at once, as Slurm does, before a rank runs
    avoid: tuple[NodeId, ...] = ()
    alive: dict[NodeId, None] = field(default_factory=dict)  # ordered, so that one seed gives one history
    ranks: dict[NodeId, RankState] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    resumed_from: int = 0
    training_since: float | None = None
    launched_at: float = 0.0
    halted_at: float | None = None
    cause: str = ""
    stop_told: bool = False
    told_step: bool = False
    saved: int = 0  # because it was asked to
    asked: dict[str, int] = field(default_factory=dict)  # the step at which each ask reached it
    answered: str = ""
    tail: str = ""
    tail_from: float = 0.0
    end: End | None = None
    tickets: list[Ticket] = field(default_factory=list)  # of its progress

    @property
    def id(self) -> str:
        return f"{self.job}#{self.number}"

    @property
    def over(self) -> bool:
        """Nothing of it runs or will run, in truth."""
        return self.end is not None and not self.alive

    def cancel(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()
        self.tickets.clear()


@dataclass(slots=True, eq=False)
class SimJob:
    id: JobId
    spec: JobSpec
    programme: Programme
    adopted: bool = False
    native_delay: float | None = None  # its own controller restarts it after so long; None: it does not
    native_after_stop: bool = False
    attempts: dict[int, SimAttempt] = field(default_factory=dict)
    checkpoint: int = 0
    idle_since: float | None = None
    idle_cause: str = "queued"
    complete: bool = False
    cancelled: bool = False
    purged: bool = False  # the cluster has forgotten it, whatever still runs where nobody looks
    tally: Tally = field(default_factory=Tally)

    @property
    def last(self) -> SimAttempt | None:
        return self.attempts[max(self.attempts)] if self.attempts else None

    def step(self, attempt: SimAttempt, now: float) -> int:
        """How far this attempt has come."""
        if attempt.training_since is None:
            return attempt.resumed_from
        until = now if attempt.halted_at is None else attempt.halted_at
        gained = int((until - attempt.training_since) * self.programme.rate + 1e-6)
        return min(attempt.resumed_from + gained, self.programme.steps)

    def _promised(self, attempt: SimAttempt) -> dict[NodeId, RankState]:
        over = attempt.end is not None or attempt.halted_at is not None
        return dict.fromkeys(attempt.nodes, RankState.GONE if over else RankState.RUNNING) if attempt.allocated else {}

    def _end_shown(self, attempt: SimAttempt, as_of: float) -> End | None:
        late = attempt.end is not None and as_of < attempt.tail_from
        return replace(attempt.end, tail="") if attempt.end is not None and late else attempt.end

    def seen(self, attempt: SimAttempt, as_of: float) -> JobSeen:
        return JobSeen(
            job=self.id,
            attempt=attempt.number,
            as_of=as_of,
            ranks={**self._promised(attempt), **attempt.ranks},
            end=self._end_shown(attempt, as_of),
            native=attempt.native,
            spec=self.spec if self.adopted else None,
            cluster=self.spec.cluster,
        )
