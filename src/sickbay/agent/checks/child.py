"""A check's subprocess: without the agent's limit of memory, and the first to go where memory is short."""

import contextlib
import resource
from collections.abc import Mapping, Sequence

from sickbay.wire.commands import Child, ChildEnd


def start_child(argv: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
    child = Child(argv, env)
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (most, most))
    path = f"/proc/{child.pid}/oom_score_adj"
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("500")
    return child


def run_tool(argv: Sequence[str], until: float) -> ChildEnd:
    return start_child(argv).finish(until)
