"""The event log in plain words: lines of several subjects in one order, each with what it is (seen, decided, done)."""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from sickbay.model.intent import IntentState
from sickbay.model.noun import Noun
from sickbay.model.rows import Line, kind_of


class What(StrEnum):
    HAPPENED = "happened"  # the truth of a simulated world, whoever knows of it
    SEEN = "seen"
    DECIDED = "decided"
    DONE = "done"


class StoryAnswer(Noun):
    """One line as it is shown."""

    at: datetime
    what: What
    about: str  # the row key that it is mainly about
    text: str
    event: str = ""


def weave(stories: Mapping[str, Sequence[Line]]) -> list[Line]:
    """All lines once, in the order of their times; each subject's own order is kept, also within one moment."""
    left = {subject: deque(lines) for subject, lines in stories.items() if lines}
    unseen = {subject: Counter(lines) for subject, lines in left.items()}  # so that long stories are not searched
    heads = [(lines[0].at, subject) for subject, lines in left.items()]
    heapq.heapify(heads)
    woven: list[Line] = []

    def take(line: Line) -> None:
        named = [subject for subject in dict.fromkeys(line.subjects) if subject in left and unseen[subject][line]]
        mine = [left[subject] for subject in named]
        for lines in mine:
            while lines[0] != line:  # what came before it under another of its subjects comes first
                take(lines[0])
        for subject in named:
            left[subject].popleft()
            unseen[subject][line] -= 1
        woven.append(line)

    while heads:
        at, subject = heapq.heappop(heads)
        lines = left[subject]
        if lines and lines[0].at <= at:
            take(lines[0])
        if lines:
            heapq.heappush(heads, (lines[0].at, subject))
    return woven


_DONE = frozenset({"effect", "told", "release", "repaired", "replaced", "complete", "stopped", "filled"})
_DECIDED = frozenset(
    {
        "intent", "call", "deferred", "notify", "notice_lost", "watch", "raise", "quarantine", "drain", "empty",
        "repair", "verify", "fail", "hold", "escalate", "dismiss", "claim", "unclaim", "stop", "requeue",
    }
)  # fmt: skip

_ACTS = {
    "Quarantine": "cordons the node",
    "Drain": "drains the node",
    "AskToSave": "asks the job to save",
    "Repair(restart_service)": "restarts the agent",
    "Repair(reset_gpu)": "resets the GPU",
    "Repair(reboot)": "reboots the node",
    "Repair(replace)": "replaces the machine",
    "Verify": "has its nodes checked",
    "Release": "takes our cordon back",
    "Look": "has its nodes looked at",
    "Fence": "fences what cannot be reached",
    "StopJob": "stops its ranks",
    "StartJob": "starts its ranks",
    "RerunJob": "asks its controller to run it again",
}
_SEEN = {
    "Quarantine": "our cordon is seen",
    "Drain": "the drain is done",
    "Repair": "the repair is seen",
    "Verify": "the check has answered",
    "Release": "our cordon is seen gone",
    "Look": "the look is done",
    "Fence": "they are fenced",
    "StopJob": "all its ranks are gone",
    "StartJob": "all its ranks are seen",
    "RerunJob": "it runs again",
}
_CALLED = {
    "Quarantine": "our cordon",
    "Drain": "the drain",
    "Repair": "the repair",
    "Verify": "the check",
    "Release": "taking our cordon back",
    "Look": "the look",
    "Fence": "the fence",
    "StopJob": "the stop",
    "StartJob": "the start",
    "RerunJob": "the restart by its controller",
    "AskToSave": "the request to save",
}
_NOT = {
    IntentState.REJECTED.value: "was refused",
    IntentState.EXPIRED.value: "did not show within its time, and was given up",
}


def tell(lines: Sequence[Line]) -> list[StoryAnswer]:
    """In plain words. A reason that was just given for the same subject is not given again."""
    told: list[StoryAnswer] = []
    reasons: dict[str, str] = {}
    for line in lines:
        about = line.subjects[0] if line.subjects else ""
        head, _, rest = line.text.partition(": ")
        text = _plain(line, head, rest)
        if rest and reasons.get(about) == rest and text.endswith(rest):
            text = text.removesuffix(rest).rstrip(": ")
        reasons[about] = rest
        told.append(StoryAnswer(at=line.at, what=_what(line), about=about, text=text, event=line.event))
    return told


def _plain(line: Line, head: str, rest: str) -> str:
    if line.event == "intent" and head in _ACTS:
        # A check or a look is of one node where an incident asks for it.
        act = _ACTS[head] if kind_of(line.subjects[0]) == "job" else _ACTS[head].replace("its nodes", "the node")
        return f"{act}: {rest}"
    if line.event == "effect" and head in _SEEN:
        state, more, silent = rest.partition(": ")
        ended = f"{_CALLED.get(head, head)} {_NOT.get(state, state)}{more}{silent}"
        return _SEEN[head] if rest == IntentState.SEEN else ended
    return line.text


def _what(line: Line) -> What:
    if line.event in _DONE:
        return What.DONE
    return What.DECIDED if line.event in _DECIDED else What.SEEN


def short(key: str) -> str:
    """A subject as people say it: incident:i23 → i23, node:sim/train-0000 → train-0000."""
    return key.partition(":")[2].rpartition("/")[2]
