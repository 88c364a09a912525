"""Projections of rows for a cluster's own tools: what a mirror shows of a node or a job. Nobody decides from them."""

from datetime import datetime
from typing import Literal

from sickbay.model.fault import Remedy, Severity
from sickbay.model.fleet import Incarnation, IncidentId, JobId, NodeId, pool_word
from sickbay.model.incident import IncidentKind, Phase
from sickbay.model.job import JobState
from sickbay.model.noun import Noun

NodeState = Literal["READY", "UNKNOWN", "SUSPECT", "OUT", "LOST", "HELD", "INTAKE"]

SHOWN_LINES = 3  # of a job's story, the newest
SHOWN_NODES = 64  # names of a job's nodes; a comment or an annotation has no room for a gang of thousands
SHOWN_TEXT = 500  # characters of a reason or a line


class NodeShown(Noun, tag_field="shows", tag="node"):
    """A node as people see it. Fields of its incident are empty while none is open."""

    node: NodeId
    pool: str
    state: NodeState
    since: datetime | None = None  # it entered its incident's phase; None: no incident is open
    because: str = ""
    incarnation: Incarnation | None = None  # whom it is about: a machine that came since is another's
    schedulable: bool = True  # nobody has cordoned it, and its cluster calls it ready
    jobs: tuple[JobId, ...] = ()  # that hold it
    incident: IncidentId | None = None
    kind: IncidentKind | None = None
    phase: Phase | None = None
    fault: str = ""  # its code, such as xid.79
    component: str = ""
    severity: Severity | None = None
    remedy: Remedy = Remedy.NONE  # what its fault asks for
    rung: Remedy | None = None  # the repair that is under way, or was tried last

    @property
    def subject(self) -> str:
        return f"node:{self.node}"

    @property
    def pool_word(self) -> str:
        return pool_word(self.pool)


class ShownLine(Noun):
    """One line of a job's story. Its time and text name it: what makes an event of each makes it once."""

    at: datetime
    text: str
    event: str = ""


class JobShown(Noun, tag_field="shows", tag="job"):
    """A job as people see it, with the newest lines of its story, oldest first."""

    job: JobId
    name: str
    state: JobState
    attempt: int = 0
    nodes: tuple[NodeId, ...] = ()  # the first SHOWN_NODES, by name
    size: int = 0  # how many there are
    step: int | None = None
    restarts: int = 0
    because: str = ""
    lines: tuple[ShownLine, ...] = ()

    @property
    def subject(self) -> str:
        return f"job:{self.job}"


AnyShown = NodeShown | JobShown
