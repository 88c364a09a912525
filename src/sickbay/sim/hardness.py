"""How hard the world of a random run is: named kinds of trouble, each with a stream of chance of its own.

A trouble that is switched on or off changes nothing else about a run, so that a defect can be pinned to what it needs.
"""

from collections.abc import Collection
from enum import StrEnum
from random import Random


class Trouble(StrEnum):
    """What a kind world does not have."""

    CLUSTERS = "clusters"  # several clusters and pools; a name in two clusters, a pool name in two
    MOVES = "moves"  # a node changes its pool
    TELLS = "tells"  # clusters that know only a part of an incarnation: uid, instance, boot
    MIXED_POOLS = "mixed_pools"  # a job runs on nodes of another pool than the one it names
    LONG_NAMES = "long_names"  # as the cloud gives them
    LARGE = "large"  # a fleet and a gang that press the limits of rows and units
    MANY_JOBS = "many_jobs"  # sixty small jobs on one node
    SLOW_READS = "slow_reads"  # a read takes longer than its period; each cluster lags in its own way
    RELISTS = "relists"  # cursors are lost; the whole is compared in small slices
    HALF_OUT = "half_out"  # a cluster takes no writes while it can be read, or the reverse
    BARE_SEATS = "bare_seats"  # seats come back without our cordon: replaced, deleted, under the same name or another
    REGISTERED_ANEW = "registered_anew"  # so does the same machine under the same boot: a new object
    FORGOTTEN = "forgotten"  # a person deletes the object of a node that is cut off, and its ranks go on
    LATE_REPORTS = "late_reports"  # hours late: of boots long ended
    EARLY_WORDS = "early_words"  # a newcomer is sick, and says so before the cluster says that it is there
    ODD_VALUES = "odd_values"  # whatever the protocol admits
    OTHERS_JOBS = "others_jobs"  # adopted ones, with native controllers that hold and that do not
    VANISHED_JOBS = "vanished_jobs"  # a cluster forgets a job without a word
    BUDGETS = "budgets"  # unmanaged work that cannot be evicted at first
    ORDERS = "orders"  # people who ask twice in one batch, and in the middle of things
    SAVES = "saves"  # jobs that save when asked to, at once, slowly or never; planned stops, and what comes amid
    WITHHOLDING = "withholding"  # pause, exclude, windows, recommend, brakes that are reset, at any moment
    LONG_ENDS = "long_ends"  # announced ends of absurd length
    STORMS = "storms"  # one signature on many nodes at once
    SKEW = "skew"  # two replicas whose wall clocks differ
    NO_NOTIFIER = "no_notifier"  # nobody can be told for an hour
    NO_AGENTS = "no_agents"  # some nodes have none
    ODD_REPORTS = "odd_reports"  # reports with any item, number and text that the agents' protocol admits
    POISON = "poison"  # a row cannot be read back for a while; the engine runs as in production
    EQUAL_NAMES = "equal_names"  # two replicas whose operator gave them one name
    QUEUE = "queue"  # priorities, time limits, jobs that grow, and more of them than there are nodes
    FIRST_CONNECTION = "first_connection"  # to a cluster where others' jobs run and nodes idle


# Not met by default. These cost seconds a run:
COSTLY = frozenset({Trouble.LARGE, Trouble.MANY_JOBS})
# These still find what the engine has to learn; `random_run(seed, hard=…)` meets them all the same:
UNMET = frozenset(
    {
        Trouble.POISON,  # an agent's first word that could not be learned is not asked for again
        Trouble.REGISTERED_ANEW,  # counts as a person who took our cordon away
        Trouble.HALF_OUT,  # with others in one run a pool at its limit may wait for ever
        Trouble.BARE_SEATS,  # a seat that was deleted and returns has forgotten its ended boots
        Trouble.EARLY_WORDS,
        Trouble.ORDERS,
        Trouble.WITHHOLDING,
        Trouble.STORMS,
    }
)
LANDED = frozenset(Trouble) - COSTLY - UNMET


class Dice:
    """Chance for one run: a stream for what every run has, and one for each trouble."""

    def __init__(self, seed: int, hard: Collection[Trouble], *, surely: bool = False) -> None:
        """`surely`: the run meets each of these; else each with its own share."""
        self.seed = seed
        self._surely = surely
        self.main = Random(seed)
        self._hard = frozenset(hard)
        self._streams: dict[Trouble, Random] = {}
        self._met: dict[Trouble, bool] = {}

    def of(self, trouble: Trouble) -> Random:
        if trouble not in self._streams:
            self._streams[trouble] = Random(f"{self.seed}/{trouble}")
        return self._streams[trouble]

    def meets(self, trouble: Trouble, share: float = 0.3) -> bool:
        """Whether this run has that trouble: decided once."""
        if trouble not in self._met:
            drawn = self.of(trouble).random() < share
            self._met[trouble] = (drawn or self._surely) and trouble in self._hard
        return self._met[trouble]

    @property
    def met(self) -> list[str]:
        return [str(trouble) for trouble, met in self._met.items() if met]
