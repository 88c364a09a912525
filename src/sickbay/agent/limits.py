"""Validation of what a controller says: every number is clamped, every command is taken or refused by name.

A controller may be newer, broken, or no controller at all but what stands before one. What it says must neither end a
thread nor make the agent silent, loud or large.
"""

from typing import Any

import msgspec

from sickbay.agent.plain import plain
from sickbay.model.checkup import STORAGE_MOST
from sickbay.model.noun import Noun
from sickbay.model.protocol import (
    Command,
    Reply,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
    RunSave,
)

# Seconds, least and most. Anything beyond is taken for the nearest of the two; what is no number is nonsense.
SECONDS: dict[str, tuple[float, float]] = {
    "report_every": (0.2, 60.0),  # a node that says nothing for longer looks dead
    "poll_for": (0.0, 60.0),  # a connection that dies unseen must not keep commands away for longer
    "expires_after": (0.0, 86_400.0),
    "settle": (0.0, 5.0),  # a look has ten seconds
}
COMMANDS = 100  # of one answer; those beyond are delivered again
ID = 500  # characters
WORDS = 2000  # characters of a text, as long as any that the agent itself says
REPEATED = frozenset({"check", "look", "save", "key"})  # by these an answer is known
DEVICES = 64
DEVICE = 1023
LEVEL = 9


class Nonsense(Exception):  # noqa: N818 - a state, not a mistake
    """The answer is not a controller's."""


class Unread(Noun):
    """A command that is not understood, and why."""

    id: str
    why: str


class UsableReply(Reply):
    """A reply that may be acted on."""

    unread: tuple[Unread, ...] = ()


class _Raw(Noun):
    """`ack` has no default: it is what tells a controller from whoever else answers in JSON."""

    ack: int
    commands: tuple[msgspec.Raw, ...] = ()
    report_every: float = 5.0
    poll_for: float = 20.0


class _Named(Noun):
    id: str


def read_reply(data: bytes) -> UsableReply:
    """Raises Nonsense."""
    try:
        raw = msgspec.json.decode(data, type=_Raw)
        commands: list[Command] = []
        unread: list[Unread] = []
        for one in raw.commands[:COMMANDS]:
            found = _command(bytes(one))
            if isinstance(found, Command):
                commands.append(found)
            elif found is not None:
                unread.append(found)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        more = "; older controllers do not say it: upgrade the controller first" if "missing required" in why else ""
        raise Nonsense(f"{why}{more}") from None
    return UsableReply(
        ack=raw.ack, commands=tuple(commands), unread=tuple(unread),
        report_every=within("report_every", raw.report_every), poll_for=within("poll_for", raw.poll_for),
    )  # fmt: skip


def _command(data: bytes) -> Command | Unread | None:
    """None: it has not even a name under which it could be refused."""
    try:
        command = msgspec.json.decode(data, type=Command)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"this agent does not understand it: {error}"
    else:
        why = wrong(command)
        if not why:
            return _tidy(command)
    try:
        name = msgspec.json.decode(data, type=_Named).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return Unread(id=name, why=" ".join(why.split())[:500]) if _is_name(name) else None


def _is_name(text: str) -> bool:
    """What an answer can repeat: its control characters would be taken out, and it would answer nothing."""
    return 0 < len(text) <= ID and text == plain(text)


def _is_path(text: str) -> bool:
    return text.startswith("/") and len(text) <= WORDS and "\0" not in text


def within(name: str, value: float) -> float:
    """The nearest value that is allowed; the least for what is no number at all."""
    least, most = SECONDS[name]
    return min(value, most) if value >= least else least


def wrong(command: Command) -> str:
    """What cannot be meant, by name; empty: nothing."""
    if not _is_name(command.id):
        return f"id: it must have 1 to {ID} characters, and no control characters"
    order = command.order
    match order:
        case RunReset(devices=devices) if len(devices) > DEVICES or len(set(devices)) < len(devices):
            return f"devices: at most {DEVICES} can be named, each once"
        case RunReset(devices=devices) if any(not 0 <= device <= DEVICE for device in devices):
            return f"devices: {devices} are no GPUs: an index is 0 to {DEVICE}"
        case RunCheck(level=level) if not 0 <= level <= LEVEL:
            return f"level: {level} is none: it must be 0 to {LEVEL}"
        case RunCheck(storage=paths) if len(paths) > STORAGE_MOST or not all(map(_is_path, paths)):
            return f"storage: it must be at most {STORAGE_MOST} absolute paths"
    for name, text in _texts(order).items():
        if len(text) > WORDS:
            return f"{name}: it has {len(text)} characters, and {WORDS} is the most"
        if name in REPEATED and text != plain(text):
            return f"{name}: it has control characters, with which it cannot be answered"
    return ""


def _texts(order: Any) -> dict[str, str]:
    match order:
        case RunCheck(check=check, profile=profile):
            return {"check": check, "profile": profile}
        case RunLook(look=look, stacks_of=job):
            return {"look": look, "stacks_of": job or ""}
        case RunSave(save=save, job=job):
            return {"save": save, "job": job}
        case RunReset(key=key) | RunCollect(key=key):
            return {"key": key}
        case RunReboot(key=key, reason=reason):
            return {"key": key, "reason": reason}
        case RunInject(key=key, line=line):
            return {"key": key, "line": line}
        case _:
            return {}


def _tidy(command: Command) -> Command:
    order = command.order
    if isinstance(order, RunLook):
        order = msgspec.structs.replace(order, settle=within("settle", order.settle))
    left = within("expires_after", command.expires_after)
    return msgspec.structs.replace(command, order=order, expires_after=left)
