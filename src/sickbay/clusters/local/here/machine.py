"""Identity and inventory of this machine: name, ids of machine and boot, GPUs, and what its agent may do here."""

import os
import re
import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sickbay.agent.node import may_read, sources_for
from sickbay.agent.nvml.trouble import CannotRead
from sickbay.agent.nvml.watched import Nvml
from sickbay.agent.places import Places
from sickbay.agent.runtime import machine_boot
from sickbay.agent.settings import AgentSettings, host_name, load
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Device, Incarnation, NodeId
from sickbay.model.gpu import GpuReading

LOOK = 20.0  # seconds in which the driver says which GPUs there are
NAMELESS = "here"  # what `load` calls a machine without any id
NO_SETTINGS = Path(os.devnull)


class ThisMachine(NamedTuple):
    name: str
    settings: AgentSettings
    boot_id: str
    devices: tuple[Device, ...] | None  # None: there are some, and nobody can say which
    models: tuple[str, ...] = ()
    trouble: str = ""  # why they could not be read

    @property
    def incarnation(self) -> Incarnation:
        instance = self.settings.instance_id
        return Incarnation(uid=instance, instance_id=instance, boot_id=self.boot_id)

    @property
    def inner_instance(self) -> str:
        """As a directory's name: an id may have signs that none can have."""
        return f"i-{sha256(self.settings.instance_id.encode()).hexdigest()[:16]}"


def this_machine(root: Path, settings_file: Path | None, *, allow_reboot: bool) -> ThisMachine:
    """`settings_file`: of its agent, where it is there. Raises BadInput."""
    settings = agent_settings(root, settings_file, allow_reboot=allow_reboot)
    boot_id = machine_boot(Path(settings.boot_id_file))
    if not boot_id:
        raise BadInput(f"--here: {settings.boot_id_file} does not say which boot this is: --here needs Linux")
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", host_name(settings.host_root).partition(".")[0]) or "here"
    devices, models, trouble = gpus_of(settings)
    return ThisMachine(name, settings, boot_id, devices, models, trouble)


def agent_settings(root: Path, file: Path | None, *, allow_reboot: bool) -> AgentSettings:
    """What the file says, but for what is ours to say: whom to report to, and whether it may reboot."""
    path = file if file is not None and file.exists() else NO_SETTINGS
    # Not from the environment: SICKBAY_STATE, SICKBAY_URL and SICKBAY_TOKEN of this shell are the controller's.
    flags: Mapping[str, Any] = {"state": str(root / "agent")}
    found = load(path, {}, flags, alone=True)
    allow = tuple(word for word in found.allow if word != "reboot") + (("reboot",) if allow_reboot else ())
    instance = found.instance_id if found.instance_id != NAMELESS else _own_id(root)
    return AgentSettings(**{**_fields(found), "allow": allow, "instance_id": instance, "token": "", "token_file": ""})


def _fields(settings: AgentSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def _own_id(root: Path) -> str:
    """Of a machine that has none, as many a container: one of our own, that stays."""
    file = root / "instance-id"
    if not file.exists():
        root.mkdir(parents=True, exist_ok=True)
        file.write_text(f"here-{os.urandom(8).hex()}\n", encoding="ascii")
    return file.read_text(encoding="ascii").strip()


def gpus_of(settings: AgentSettings) -> tuple[tuple[Device, ...] | None, tuple[str, ...], str]:
    """What the driver lists, asked once; what the settings say, where they do. None: it has some that cannot be read.

    The agent goes on to look: one that is missing later is a fault, and no machine with fewer GPUs.
    """
    found: list[GpuReading] = []
    trouble = ""
    nvml = Nvml()
    try:
        found = nvml.read(LOOK)
    except CannotRead as error:
        trouble = str(error)
    finally:
        nvml.close()
    by_index = {one.index: one for one in found if one.index is not None}
    models = tuple(dict.fromkeys(one.name for one in by_index.values() if one.name))
    if settings.gpus is not None:
        known = ((index, by_index.get(index)) for index in range(settings.gpus))
        return tuple(Device(index=i, serial=_serial(one)) for i, one in known), models, trouble
    if trouble and on_the_bus(settings):
        return None, (), trouble
    return tuple(Device(index=i, serial=_serial(one)) for i, one in sorted(by_index.items())), models, ""


def _serial(one: GpuReading | None) -> str:
    return (one.serial or one.uuid) if one is not None else ""


def on_the_bus(settings: AgentSettings) -> int:
    from sickbay.agent.checks.gpus import gpus_here

    return gpus_here(settings.on_host("/sys"), settings.on_host("/dev"))


def promises(machine: ThisMachine, node: NodeId) -> tuple[str, ...]:
    """What is watched and repaired here and what is not, in the words that the person who started it reads."""
    settings = machine.settings
    gpus = "no GPU" if not machine.devices else f"{len(machine.devices)} GPUs" if len(machine.devices) > 1 else "1 GPU"
    if machine.devices is None:
        gpus = f"GPUs that cannot be read now ({machine.trouble})"
    models = f" ({', '.join(machine.models)})" if machine.models and machine.devices else ""
    return (
        f"this machine is {node}: {gpus}{models}, boot {machine.boot_id[:8]}",
        f"it watches {_sources(machine, node)}",
        f"it restarts jobs{_reset(machine)}",
        _reboot(settings),
    )


def _sources(machine: ThisMachine, node: NodeId) -> str:
    settings = machine.settings
    named = [one.name for one in sources_for(settings, Places(Path(settings.state)), node, machine.boot_id)]
    words = {"devkmsg": settings.kmsg, "journal": "the journal"}
    told = ", ".join(words.get(name, name.removeprefix("text:")) for name in named)
    if "devkmsg" in named and not may_read(Path(settings.kmsg)):
        return f"{told}, which may not be read: run it as root, or an Xid is not seen"
    if not settings.trust_logs and all(name.startswith("text:") for name in named):
        return f"{told}; lines there are shown and lead to nothing (trust_logs)"
    return told


def _reset(machine: ThisMachine) -> str:
    command = machine.settings.reset_command[0]
    if machine.devices == ():
        return ""
    if "reset" not in machine.settings.allow:
        return "; it resets no GPU (allow)"
    if shutil.which(command) is None:
        return f"; it cannot reset a GPU: there is no {command}"
    if os.geteuid() != 0 and command == "nvidia-smi":
        return "; it cannot reset a GPU: only root may"
    return ", and resets a GPU when nobody else's process has it open"


def _reboot(settings: AgentSettings) -> str:
    if "reboot" in settings.allow:
        return "it reboots this machine when a fault asks for that; it never replaces it"
    return "it never reboots or replaces this machine: what asks for that is HELD for you (or: --allow-reboot)"
