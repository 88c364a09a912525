"""The agent's settings: a YAML file, the environment, and flags, the later winning over the earlier.

Read by `sickbay agent`, which hands them to the agent's own process as JSON: the agent itself loads no YAML reader.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from sickbay.model.durations import parse_duration
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

CONFIG = Path("/etc/sickbay/agent.yaml")
DMI = Path("/sys/class/dmi/id")
MACHINE_ID = Path("/etc/machine-id")
ALLOWED = ("reset", "reboot", "inject", "check")
LEAST_FENCE = 300.0  # seconds: a controller that is upgraded is away for minutes, and that is no reason to fence


class SelfFence(Noun):
    """What a node does that hears neither its controller nor its cluster."""

    after: float  # seconds
    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()  # exit 0: the cluster still knows this node
    probe_url: str = ""  # any answer below 500: the cluster can be reached


class AgentSettings(Noun):
    url: str
    node: str
    instance_id: str
    token: str = ""
    token_file: str = ""
    join_token_file: str = ""
    ca: str = ""
    state: str = "/var/lib/sickbay"
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    sources: tuple[str, ...] = ("auto",)
    trust_logs: bool = False
    gpus: int | None = None
    allow: tuple[str, ...] = ("reset", "check")
    self_fence: SelfFence | None = None
    metrics: float = 5.0
    dcgm_url: str = ""
    mounts: tuple[str, ...] = ()
    cloudwatch: str = ""


class Setting(NamedTuple):
    """One setting: what it is, why its default is what it is, and how what a person wrote becomes a value."""

    about: str
    default: str
    read: Callable[[Any], Any]
    variable: str = ""


def load(
    path: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    alone: bool = False,
) -> AgentSettings:
    """Raises BadInput with one line for each mistake. `alone`: for a single look, which needs no controller."""
    given: dict[str, Any] = {}
    mistakes: list[str] = []
    for where, some in (*_file(path, mistakes), ("", _environment(environment)), ("", dict(flags))):
        for name, value in some.items():
            _take(given, name, value, where, mistakes)
    values = {**_defaults(mistakes, given, alone=alone), **given}
    if not values.get("url") and not alone and not any("url: " in mistake for mistake in mistakes):
        mistakes.append("url is not set: write where the controller is, for example url: https://sickbay.example:8080")
    if values.get("join_token_file") and (values.get("token") or values.get("token_file")):
        mistakes.append("join_token_file is set, and a token of this node's own too: leave one of the two out")
    if mistakes:
        raise BadInput("; ".join(mistakes))
    return msgspec.convert({"url": "", **values}, AgentSettings, from_attributes=True)


def _file(path: Path | None, mistakes: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each setting with its place. The usual file may be missing; one that was named must be there."""
    from sickbay.knowledge.yaml_places import YamlReader, compose, read_text  # here: the agent itself reads no YAML

    chosen = path or CONFIG
    if path is None and not chosen.exists():
        return []
    reader = YamlReader(str(chosen))
    try:
        node = compose(
            read_text(chosen, str(chosen), "write the agent's YAML file, or leave --config out"), str(chosen)
        )
        found = (reader.plain(node) if node is not None else None) or {}
    except BadInput as error:
        mistakes.append(str(error))
        return []
    if not isinstance(found, dict):
        mistakes.append(f"{chosen} must hold settings, each as `name: value`")
        return []
    return [(f"{reader.places[name,]}: ", {name: value}) for name, value in found.items()]


def _environment(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: environment[setting.variable]
        for name, setting in SETTINGS.items()
        if setting.variable and environment.get(setting.variable)
    }


def _take(given: dict[str, Any], name: str, value: Any, where: str, mistakes: list[str]) -> None:
    import difflib

    setting = SETTINGS.get(name)
    if setting is None:
        close = difflib.get_close_matches(name, SETTINGS, n=1)
        guess = f"did you mean {close[0]}?" if close else f"known: {', '.join(SETTINGS)}"
        mistakes.append(f"{where}there is no setting {name!r}: {guess}")
        return
    if value is None:
        return
    try:
        given[name] = setting.read(value)
    except ValueError as error:
        mistakes.append(f"{where}{name}: {error}")


def _defaults(mistakes: list[str], given: Mapping[str, Any], *, alone: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if "node" not in given:
        values["node"] = f"default/{socket.gethostname().partition('.')[0]}"
    if "instance_id" not in given:
        values["instance_id"] = instance_id() or ("here" if alone else "")  # a single look is told to nobody
        if not values["instance_id"]:
            mistakes.append("instance_id is not set and this machine has none: write a name that no other machine has")
    return values


def instance_id(dmi: Path = DMI, machine_id: Path = MACHINE_ID) -> str:
    """The EC2 instance id, else the board's own id, else the installation's; empty: there is none."""
    for path, pattern in (
        (dmi / "board_asset_tag", r"(i-[0-9a-f]{8,32})"),
        (dmi / "product_uuid", r"((?!0{8}|f{8}|03000200)[0-9a-f]{8}-[0-9a-f-]{27})"),
        (machine_id, r"([0-9a-f]{32})"),
    ):
        try:
            found = re.fullmatch(pattern, path.read_text(encoding="ascii", errors="replace").strip().lower())
        except OSError:
            continue
        if found:
            return found[1]
    return ""


# --- one value each: what a person wrote → what is meant, or ValueError with what to write instead


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is no text: write a text that is not empty")
    return value.strip()


def _url(value: Any) -> str:
    text = _text(value)
    with suppress(ValueError):  # of a port that is none
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return text.rstrip("/")
    raise ValueError(f"{text!r} is no address: write http://HOST:PORT or https://HOST:PORT")


def _node(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", text):
        raise ValueError(f"{text!r} is no node: write cluster/name, for example train/{socket.gethostname()}")
    return text


def _path(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/"):
        raise ValueError(f"{text!r} is no full path: write one that begins with /")
    return text


def _readable(value: Any) -> str:
    text = _path(value)
    if not os.access(text, os.R_OK):
        raise ValueError(f"{text} is not there or may not be read")
    return text


def _yes_or_no(value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError(f"{value!r} is neither: write true or false")
    return words[value.lower()]


def _count(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number <= 1024:
        raise ValueError(f"{value!r} is no number of GPUs: write a whole number, 0 for none")
    return number


def _seconds(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return parse_duration(_text(value)).total_seconds()


def _metrics(value: Any) -> float:
    seconds = 0.0 if value is False or value == "off" else _seconds(value)
    if seconds and not 1 <= seconds <= 3600:
        raise ValueError(f"{value!r}: write off, or 1s to 1h")
    return seconds


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, or one text with commas, as the environment has it."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{value!r} is no list: write [one, other]")
    return tuple(part.strip() for part in parts if part.strip())


def _allow(value: Any) -> tuple[str, ...]:
    words = () if value == "none" else _words(value)
    for word in words:
        if word not in ALLOWED:
            raise ValueError(f"{word!r} cannot be allowed: write some of {', '.join(ALLOWED)}, or none")
    return words


def _sources(value: Any) -> tuple[str, ...]:
    words = _words(value)
    for word in words:
        if word not in {"auto", "kmsg", "journal"} and not word.startswith("/"):
            raise ValueError(f"{word!r} is no source: write auto, kmsg, journal, or the full path of a text file")
    if not words:
        raise ValueError("no source is left: write auto, kmsg, journal, or the full path of a text file")
    return words


def _paths(value: Any) -> tuple[str, ...]:
    return tuple(_path(word) for word in _words(value))


def _command(value: Any, name: str) -> tuple[str, ...]:
    """A list of words; a text would need a shell, which nobody gets here."""
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{name} must be a list of words, for example [systemctl, stop, slurmd]")
    return tuple(value)


def _fence(value: Any) -> SelfFence | None:
    if value is False or value == "off":
        return None
    if not isinstance(value, dict) or "after" not in value:
        raise ValueError("write {after: 30m, command: [systemctl, stop, slurmd], undo: …, probe: …}, or off")
    unknown = set(value) - {"after", "command", "undo", "probe", "probe_url"}
    if unknown:
        raise ValueError(f"it has no {min(unknown)}: known are after, command, undo, probe, probe_url")
    after = _seconds(value["after"])
    if after < LEAST_FENCE:
        raise ValueError(f"after: {value['after']} is too soon: write 5m or more, as a controller may be upgraded")
    if not value.get("probe") and not value.get("probe_url"):
        raise ValueError("say how to ask the cluster: write probe: [scontrol, ping] or probe_url: https://HOST/healthz")
    words = {name: _command(value[name], name) for name in ("command", "undo", "probe") if value.get(name)}
    address = _url(value["probe_url"]) if value.get("probe_url") else ""
    return SelfFence(after=after, probe_url=address, **words)


SETTINGS: dict[str, Setting] = {
    "url": Setting("The controller's address.", "none: an agent that guesses would report to a stranger", _url,
                   "SICKBAY_URL"),
    "ca": Setting("A file with the certificate to trust there.", "none: the system's own are trusted", _readable,
                  "SICKBAY_CA"),
    "token": Setting("The credential of this node.", "none: a secret is better in a file of its own", _text,
                     "SICKBAY_TOKEN"),
    "token_file": Setting("A file with the credential; read again when it is refused.",
                          "none; with systemd: LoadCredential=token", _path, "SICKBAY_TOKEN_FILE"),
    "join_token_file": Setting("A file with a join token of the node's cluster, for which it gets its own token.",
                               "none; it is the same for all nodes of a cluster, so an image or a DaemonSet can carry "
                               "it", _path, "SICKBAY_JOIN_TOKEN_FILE"),
    "node": Setting("This node, as cluster/name.", "default/<host name>: the name that clusters know it by", _node,
                    "SICKBAY_NODE"),
    "instance_id": Setting("What no other machine is called.",
                           "the EC2 instance id, else the board's id, else the machine id: a lemon's history follows "
                           "the hardware, not the host name", _text, "SICKBAY_INSTANCE_ID"),
    "boot_id_file": Setting("The file that names this boot.",
                            "the kernel's own; another where several nodes share one kernel, and the cluster's daemon "
                            "reads it too", _readable, "SICKBAY_BOOT_ID_FILE"),
    "state": Setting("Where it keeps what is not reported yet.",
                     "/var/lib/sickbay: it must outlive a reboot", _path, "SICKBAY_STATE"),
    "sources": Setting("Where the kernel's lines are read: auto, kmsg, journal, paths of text files.",
                       "auto: /dev/kmsg, or the journal where that may not be read, and those of /var/log/messages, "
                       "syslog, kern.log that are there", _sources, "SICKBAY_SOURCES"),
    "trust_logs": Setting("Whether lines count that any program may have written: in text files, or through /dev/kmsg.",
                          "false: any user can write them (`logger -t kernel`), so they are shown as unconfirmed until "
                          "the kernel's own ring, the journal or NVML tells the same; true where drills are written so",
                          _yes_or_no, "SICKBAY_TRUST_LOGS"),
    "gpus": Setting("How many GPUs this node must have.",
                    "none: as many as were there at first; a number finds one that was missing from the start", _count,
                    "SICKBAY_GPUS"),
    "allow": Setting(f"What the controller may have done here: {', '.join(ALLOWED)}.",
                     "reset, check: they disturb nobody on a drained node. A reboot is often the cluster's business, "
                     "and an injected line is for drills", _allow, "SICKBAY_ALLOW"),
    "self_fence": Setting("What to do when neither controller nor cluster is heard: {after, command, undo, probe}.",
                          "off: a network that fails must not stop training", _fence),
    "metrics": Setting("Seconds between two measurements, or off.", "5s: what charts show for the last hour", _metrics,
                       "SICKBAY_METRICS"),
    "dcgm_url": Setting("A dcgm-exporter page to read.", "none: NVML is read itself", _url, "SICKBAY_DCGM_URL"),
    "mounts": Setting("File systems that must answer.", "none: those of a network are found in /proc/mounts",
                      _paths, "SICKBAY_MOUNTS"),
    "cloudwatch": Setting("Where measurements go for CloudWatch: tcp://127.0.0.1:25888 or a file.",
                          "none: the controller keeps them", _text, "SICKBAY_CLOUDWATCH"),
}  # fmt: skip


def printable(settings: AgentSettings) -> dict[str, Any]:
    """For people: no secret."""
    shown: dict[str, Any] = msgspec.to_builtins(settings)
    if shown.get("token"):
        shown["token"] = "(set)"  # noqa: S105 - that is the point
    return {name: shown.get(name) for name in SETTINGS}
