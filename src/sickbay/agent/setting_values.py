"""Readers of the agent's settings, one value each: what a person wrote → what is meant, or ValueError."""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sickbay.model.durations import parse_duration
from sickbay.model.noun import Noun

ALLOWED = ("reset", "reboot", "inject", "check")
LEAST_FENCE = 300.0  # seconds: a controller that is upgraded is away for minutes, and that is no reason to fence
HOST = "/"  # where the host's own tree is, unless the agent is in a container


class SelfFence(Noun):
    """What a node does that hears neither its controller nor its cluster."""

    after: float  # seconds
    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()  # exit 0: the cluster still knows this node
    probe_url: str = ""  # any answer below 500: the cluster can be reached


def read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is no text: write a text that is not empty")
    return value.strip()


def read_url(value: Any) -> str:
    text = read_text(value)
    with suppress(ValueError):  # of a port that is none
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return text.rstrip("/")
    raise ValueError(f"{text!r} is no address: write http://HOST:PORT or https://HOST:PORT")


def read_node(value: Any) -> str:
    text = read_text(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{text!r} is no node: write cluster/name, for example train/{socket.gethostname()}")
    return text


def read_path(value: Any) -> str:
    text = read_text(value)
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no full path: write one that begins with /")
    return text


def read_readable(value: Any) -> str:
    text = read_path(value)
    if not os.access(text, os.R_OK):
        raise ValueError(f"{text} is not there or may not be read")
    return text


def read_host_root(value: Any) -> str:
    text = read_path(value).rstrip("/") or HOST
    if not Path(text, "proc/self").exists():
        raise ValueError(f"{text} has no /proc of this machine below it: mount the host's / there, with all below it")
    return text


def read_yes_or_no(value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError(f"{value!r} is neither: write true or false")
    return words[value.lower()]


def read_count(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number <= 1024:
        raise ValueError(f"{value!r} is no number of GPUs: write a whole number, 0 for none")
    return number


def read_seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return parse_duration(read_text(value)).total_seconds()


def read_metrics(value: Any) -> float:
    seconds = 0.0 if value is False or value == "off" else read_seconds(value)
    if seconds and not 1 <= seconds <= 3600:
        raise ValueError(f"{value!r}: write off, or 1s to 1h")
    return seconds


def read_words(value: Any) -> tuple[str, ...]:
    """A list of words, or one text with commas, as the environment has it."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{value!r} is no list: write [one, other]")
    return tuple(part.strip() for part in parts if part.strip())


def read_allow(value: Any) -> tuple[str, ...]:
    words = () if value == "none" else read_words(value)
    for word in words:
        if word not in ALLOWED:
            raise ValueError(f"{word!r} cannot be allowed: write some of {', '.join(ALLOWED)}, or none")
    return words


def read_sources(value: Any) -> tuple[str, ...]:
    words = read_words(value)
    for word in words:
        if word not in {"auto", "kmsg", "journal"} and not word.startswith("/"):
            raise ValueError(f"{word!r} is no source: write auto, kmsg, journal, or the full path of a text file")
    if not words:
        raise ValueError("no source is left: write auto, kmsg, journal, or the full path of a text file")
    return words


def read_paths(value: Any) -> tuple[str, ...]:
    return tuple(read_path(word) for word in read_words(value))


def read_command(value: Any, name: str) -> tuple[str, ...]:
    """A list of words; a text would need a shell, which nobody gets here. The environment has the list as JSON."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(value)
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
        raise ValueError(f"{name} must be a list of words, for example [systemctl, stop, slurmd]")
    return tuple(value)


def read_order(value: Any) -> tuple[str, ...]:
    return read_command(value, "it")


def read_fence(value: Any) -> SelfFence | None:
    if value is False or value == "off":
        return None
    if not isinstance(value, dict) or "after" not in value:
        raise ValueError("write {after: 30m, command: [systemctl, stop, slurmd], undo: …, probe: …}, or off")
    unknown = set(value) - {"after", "command", "undo", "probe", "probe_url"}
    if unknown:
        raise ValueError(f"it has no {min(unknown)}: known are after, command, undo, probe, probe_url")
    after = read_seconds(value["after"])
    if after < LEAST_FENCE:
        raise ValueError(f"after: {value['after']} is too soon: write 5m or more, as a controller may be upgraded")
    if not value.get("probe") and not value.get("probe_url"):
        raise ValueError("say how to ask the cluster: write probe: [scontrol, ping] or probe_url: https://HOST/healthz")
    words = {name: read_command(value[name], name) for name in ("command", "undo", "probe") if value.get(name)}
    address = read_url(value["probe_url"]) if value.get("probe_url") else ""
    return SelfFence(after=after, probe_url=address, **words)
