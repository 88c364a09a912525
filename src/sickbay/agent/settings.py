"""The agent's settings: a YAML file, the environment, and flags, the later winning over the earlier.

Read by `sickbay agent`, which hands them to the agent's own process as JSON: the agent itself loads no YAML reader.
"""

import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sickbay.agent.setting_values import (
    ALLOWED,
    HOST,
    SelfFence,
    read_allow,
    read_count,
    read_fence,
    read_host_root,
    read_metrics,
    read_node,
    read_order,
    read_path,
    read_paths,
    read_readable,
    read_sources,
    read_text,
    read_url,
    read_yes_or_no,
)
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

CONFIG = Path("/etc/sickbay/agent.yaml")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
DMI = Path("/sys/class/dmi/id")
MACHINE_ID = Path("/etc/machine-id")
RESET = ("nvidia-smi", "--gpu-reset")


class AgentSettings(Noun):
    url: str
    node: str
    instance_id: str
    token: str = ""
    token_file: str = ""
    join_token_file: str = ""
    ca: str = ""
    state: str = "/var/lib/sickbay"
    host_root: str = HOST
    boot_id_file: str = BOOT_ID
    kmsg: str = "/dev/kmsg"
    sources: tuple[str, ...] = ("auto",)
    trust_logs: bool = False
    gpus: int | None = None
    allow: tuple[str, ...] = ("reset", "check")
    reset_command: tuple[str, ...] = RESET
    reboot_command: tuple[str, ...] = ()
    self_fence: SelfFence | None = None
    metrics: float = 5.0
    dcgm_url: str = ""
    mounts: tuple[str, ...] = ()
    cloudwatch: str = ""
    ranks: str = "/run/sickbay"

    @property
    def contained(self) -> bool:
        """In a container: the host's tree is not our own."""
        return self.host_root != HOST

    def on_host(self, path: str) -> Path:
        """Where a full path of the host is from here."""
        return on_host(self.host_root, path)


def on_host(root: str, path: str) -> Path:
    return Path(root, path.lstrip("/"))


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
    root = given.get("host_root", HOST)
    if "boot_id_file" not in given:
        values["boot_id_file"] = str(on_host(root, BOOT_ID))
    if "node" not in given:
        values["node"] = f"default/{host_name(root).partition('.')[0]}"
    if "instance_id" not in given:
        own = instance_id(on_host(root, str(DMI)), on_host(root, str(MACHINE_ID)))
        values["instance_id"] = own or ("here" if alone else "")  # a single look is told to nobody
        if not values["instance_id"]:
            mistakes.append("instance_id is not set and this machine has none: write a name that no other machine has")
    return values


def host_name(root: str = HOST) -> str:
    """The machine's: a container has a name of its own."""
    if root != HOST:
        with suppress(OSError):
            if name := on_host(root, "/etc/hostname").read_text(encoding="ascii", errors="replace").strip():
                return name
    return socket.gethostname()


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


SETTINGS: dict[str, Setting] = {
    "url": Setting("The controller's address.", "none: an agent that guesses would report to a stranger", read_url,
                   "SICKBAY_URL"),
    "ca": Setting("A file with the certificate to trust there.", "none: the system's own are trusted", read_readable,
                  "SICKBAY_CA"),
    "token": Setting("The credential of this node.", "none: a secret is better in a file of its own", read_text,
                     "SICKBAY_TOKEN"),
    "token_file": Setting("A file with the credential; read again when it is refused.",
                          "none; with systemd: LoadCredential=token", read_path, "SICKBAY_TOKEN_FILE"),
    "join_token_file": Setting("A file with a join token of the node's cluster, for which it gets its own token.",
                               "none; it is the same for all nodes of a cluster, so an image or a DaemonSet can carry "
                               "it", read_path, "SICKBAY_JOIN_TOKEN_FILE"),
    "node": Setting("This node, as cluster/name.", "default/<host name>: the name that clusters know it by", read_node,
                    "SICKBAY_NODE"),
    "instance_id": Setting("What no other machine is called.",
                           "the EC2 instance id, else the board's id, else the machine id: a lemon's history follows "
                           "the hardware, not the host name", read_text, "SICKBAY_INSTANCE_ID"),
    "host_root": Setting("Below which directory this machine's /proc, /sys, /etc, /dev and /var/log are.",
                         "/: the agent runs on the machine itself. In a container: where the host's / is mounted, so "
                         "that processes, mounts, logs and ids are the machine's and not the container's",
                         read_host_root, "SICKBAY_HOST_ROOT"),
    "kmsg": Setting("The kernel's ring.",
                    "/dev/kmsg, as it is mounted here: it is a device, and no path below a container's host root "
                    "may be opened as one", read_readable, "SICKBAY_KMSG"),
    "boot_id_file": Setting("The file that names this boot.",
                            "the kernel's own; another where several nodes share one kernel, and the cluster's daemon "
                            "reads it too", read_readable, "SICKBAY_BOOT_ID_FILE"),
    "state": Setting("Where it keeps what is not reported yet.",
                     "/var/lib/sickbay: it must outlive a reboot", read_path, "SICKBAY_STATE"),
    "sources": Setting("Where the kernel's lines are read: auto, kmsg, journal, paths of text files.",
                       "auto: /dev/kmsg, or the journal where that may not be read, and those of /var/log/messages, "
                       "syslog, kern.log that are there", read_sources, "SICKBAY_SOURCES"),
    "trust_logs": Setting("Whether lines count that any program may have written: in text files, or through /dev/kmsg.",
                          "false: any user can write them (`logger -t kernel`), so they are shown as unconfirmed until "
                          "the kernel's own ring, the journal or NVML tells the same; true where drills are written so",
                          read_yes_or_no, "SICKBAY_TRUST_LOGS"),
    "gpus": Setting("How many GPUs this node must have.",
                    "none: as many as were there at first; a number finds one that was missing from the start",
                    read_count, "SICKBAY_GPUS"),
    "allow": Setting(f"What the controller may have done here: {', '.join(ALLOWED)}.",
                     "reset, check: they disturb nobody on a drained node. A reboot is often the cluster's business, "
                     "and an injected line is for drills", read_allow, "SICKBAY_ALLOW"),
    "reset_command": Setting("What resets GPUs, a list of words; -i and their numbers are put behind it.",
                             "[nvidia-smi, --gpu-reset]: the driver's own tool; another where that is on the host only",
                             read_order, "SICKBAY_RESET_COMMAND"),
    "reboot_command": Setting("What reboots this machine, a list of words.",
                              "[systemctl, reboot], else [shutdown, -r, now]; another in a container, whose own "
                              "systemctl reaches no machine", read_order, "SICKBAY_REBOOT_COMMAND"),
    "self_fence": Setting("What to do when neither controller nor cluster is heard: {after, command, undo, probe}.",
                          "off: a network that fails must not stop training", read_fence),
    "metrics": Setting("Seconds between two measurements, or off.", "5s: what charts show for the last hour",
                       read_metrics, "SICKBAY_METRICS"),
    "dcgm_url": Setting("A dcgm-exporter page to read.", "none: NVML is read itself", read_url, "SICKBAY_DCGM_URL"),
    "mounts": Setting("File systems that must answer.", "none: those of a network are found in the machine's table",
                      read_paths, "SICKBAY_MOUNTS"),
    "cloudwatch": Setting("Where measurements go for CloudWatch: tcp://127.0.0.1:25888 or a file.",
                          "none: the controller keeps them", read_text, "SICKBAY_CLOUDWATCH"),
    "ranks": Setting("Where `sickbay run` and this agent know of each other.",
                     "/run/sickbay: it is gone after a reboot, as the ranks are; containers mount it from the host",
                     read_path, "SICKBAY_RANKS"),
}  # fmt: skip


def printable(settings: AgentSettings) -> dict[str, Any]:
    """For people: no secret."""
    shown: dict[str, Any] = msgspec.to_builtins(settings)
    if shown.get("token"):
        shown["token"] = "(set)"  # noqa: S105 - that is the point
    return {name: shown.get(name) for name in SETTINGS}
