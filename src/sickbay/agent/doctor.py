"""Preflight checks of one node's agent (`sickbay doctor --agent`): settings, controller, token, kernel log, GPUs,
programs, directories. It reports nothing and changes nothing. The agent itself does not load this.
"""

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from sickbay.agent.http1 import Answer, BadHttp, Connection
from sickbay.agent.join import JOIN, KEPT, kept_token, secret_in
from sickbay.agent.node import may_read
from sickbay.agent.node_orders import REBOOT
from sickbay.agent.nvml.pci import nvidia_gpus
from sickbay.agent.probes.journal import available
from sickbay.agent.ranks.directory import OPEN_TO_ALL, ranks_dir
from sickbay.agent.settings import AgentSettings, load
from sickbay.agent.transport import CONNECT_TAKES, POLL, own_words
from sickbay.model.errors import BadInput
from sickbay.model.finding import Finding, missing, ok, warning

ANSWERS_WITHIN = 10.0
LONGEST = 1 << 16
NO_PROTOCOL = 0  # a poll that every controller refuses, after it has looked at the token


def agent_findings(path: Path | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        settings = load(path, environment, {})
    except BadInput as error:
        for line in str(error).split("; "):
            yield missing("settings", line, "correct it in /etc/sickbay/agent.yaml or in the environment")
        return
    yield ok("settings", f"this is {settings.node}, instance {settings.instance_id}, of {settings.url}")
    yield private_directory(Path(settings.state), "the agent", "run it as the agent's user, or as root")
    yield from _credential(settings)
    yield from _kernel_log(settings)
    yield from _gpus(settings)
    yield from _commands(settings)
    yield from _ranks(Path(settings.ranks))


def private_directory(state: Path, maker: str, way_out: str) -> Finding:
    """Of agent and controller alike: it can be made or written, and nobody else may enter it."""
    there = nearest(state)
    if not there.is_dir():
        return missing("state", f"{there} is no directory", "write another 'state'")
    if not os.access(there, os.W_OK | os.X_OK):
        return missing("state", f"{there} may not be written by this user", way_out)
    if there != state:
        return ok("state", f"{state} is not there yet: {maker} makes it")
    if state.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning("state", f"{state} can be entered by others: there are secrets in it", f"chmod 700 {state}")
    return ok("state", f"{state} is there, private, and can be written")


def nearest(path: Path) -> Path:
    """Itself, or the nearest directory above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())


# --- the controller, and what opens it


def _credential(settings: AgentSettings) -> Iterator[Finding]:
    try:
        secret, what, path, body = _shown(settings)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        file = settings.join_token_file or settings.token_file
        yield missing("token", f"{file} cannot be read ({why})", "put the secret there, readable for the agent only")
        return
    if not secret:
        yield missing("token", "there is none", "write join_token_file or token_file (see docs/agent.md)")
    yield from _open_to_others(settings)
    try:
        answer = _asked(settings, path, secret, body)
    except (OSError, BadHttp, ValueError) as error:
        yield missing("url", f"{settings.url} cannot be reached: {error}", "correct url, or start the controller")
        return
    said = own_words(answer.body)
    if not said:
        yield missing("url", f"{settings.url} answers {answer.status}, and not as a controller does", "correct url")
        return
    yield ok("url", f"{settings.url} is a controller")
    if secret:
        yield _judged(answer.status, said, what, settings)


def _shown(settings: AgentSettings) -> tuple[str, str, str, object]:
    """The secret that the agent would show; whose it is; and a request with it that comes to nothing."""
    cluster = settings.node.partition("/")[0]
    poll = {"proto": NO_PROTOCOL, "node": settings.node, "instance_id": settings.instance_id, "boot_id": ""}
    if settings.join_token_file:
        kept = kept_token(Path(settings.state))
        if kept is not None and kept.is_of(settings.node, settings.instance_id):
            return kept.token, f"this node's own ({KEPT} in the state directory)", POLL, poll
        secret = secret_in(Path(settings.join_token_file))
        nobody = {"cluster": cluster, "name": "", "instance_id": settings.instance_id}
        return secret, f"the join token in {settings.join_token_file}", JOIN, nobody
    if settings.token_file:
        secret = secret_in(Path(settings.token_file))
        return secret, f"the one in {settings.token_file}", POLL, poll
    return settings.token, "the one in the settings", POLL, poll


def _asked(settings: AgentSettings, path: str, secret: str, body: object) -> Answer:
    connection = Connection(settings.url, CONNECT_TAKES, settings.ca)
    try:
        return connection.post(path, json.dumps(body).encode(), secret, ANSWERS_WITHIN, LONGEST)
    finally:
        connection.close()


def _judged(status: int, said: str, what: str, settings: AgentSettings) -> Finding:
    cluster = settings.node.partition("/")[0]
    if status == 400:  # let in: it is our nonsense that is refused
        return ok("token", f"{what} is good")
    if status in {401, 403}:
        again = "the agent joins anew" if settings.join_token_file and KEPT in what else ""
        another = f"ask an admin: sickbay token create NAME --role join --cluster {cluster}"
        return missing("token", f"{what} is refused: {said}", again or another)
    if status in {404, 405}:
        return missing("url", f"it answers {status}: {said}", "correct url, or update the controller")
    return warning("token", f"whether {what} is good cannot be told now: {said}", "ask again in a moment")


def _open_to_others(settings: AgentSettings) -> Iterator[Finding]:
    for file in filter(None, (settings.join_token_file, settings.token_file)):
        with suppress(OSError):
            if Path(file).stat().st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                yield warning("token", f"{file} can be read by others on this machine", f"chmod 600 {file}")


# --- what it looks at, and what it may do


def _kernel_log(settings: AgentSettings) -> Iterator[Finding]:
    ring, journal = may_read(Path(settings.kmsg)), available()
    if "kmsg" in settings.sources and not ring:
        yield missing("kernel log", f"{settings.kmsg} may not be read", "run the agent as root, or with CAP_SYSLOG")
    elif "journal" in settings.sources and not journal:
        yield missing("kernel log", "the journal cannot be read: there is no journalctl", "write sources: [auto]")
    elif {"kmsg", "auto"} & set(settings.sources) and ring:
        yield ok("kernel log", f"{settings.kmsg} can be read")
    elif {"journal", "auto"} & set(settings.sources) and journal:
        yield ok("kernel log", "the journal can be read")
    elif not settings.trust_logs:
        yield missing(
            "kernel log", "neither the kernel's ring nor the journal can be read: faults in text logs are shown, and "
            "lead to nothing", "run the agent as root, or with CAP_SYSLOG",
        )  # fmt: skip
    for source in settings.sources:
        if source.startswith("/") and not may_read(Path(source)):
            yield missing("kernel log", f"{source} may not be read", "correct sources, or run the agent as root")
        elif source.startswith("/"):
            counts = "counts" if settings.trust_logs else "counts only with a witness (trust_logs is false)"
            yield ok("kernel log", f"{source} can be read; what it says {counts}")


def _gpus(settings: AgentSettings) -> Iterator[Finding]:
    there = nvidia_gpus(settings.on_host("/sys"))
    wanted = settings.gpus
    if wanted is not None and len(there) != wanted:
        yield missing(
            "gpus",
            f"{len(there)} NVIDIA GPUs are on the bus, and gpus says {wanted}",
            "look at the machine, or correct gpus",
        )
    elif not there:
        yield ok("gpus", "no NVIDIA GPU is on the bus")
        return
    else:
        yield ok("gpus", f"{len(there)} NVIDIA GPUs are on the bus")
    install = "pip install 'sickbay[nvidia]'"
    if find_spec("pynvml") is not None:
        yield ok("nvml", "its library for Python is here")
    elif there and shutil.which("nvidia-smi") is None:
        yield missing("nvml", "neither NVML nor nvidia-smi is here: GPUs are not watched", install)
    elif there:
        yield warning("nvml", "is not here: nvidia-smi is asked, and Xid events come late", install)


def _commands(settings: AgentSettings) -> Iterator[Finding]:
    if "reset" in settings.allow and nvidia_gpus(settings.on_host("/sys")):
        yield _program("reset", settings.reset_command)
    if "reboot" in settings.allow:
        choices = (settings.reboot_command,) if settings.reboot_command else REBOOT
        found = next((words for words in choices if shutil.which(words[0])), choices[0])
        yield _program("reboot", found)
    else:
        yield ok("commands", "a reboot is not allowed here: it is for the cluster, or for a channel of the controller")


def _program(what: str, words: tuple[str, ...]) -> Finding:
    if shutil.which(words[0]):
        return ok("commands", f"{what}: {' '.join(words)}")
    return missing(
        "commands",
        f"{what} is allowed, and there is no {words[0]} here",
        f"write {what}_command, or take it out of allow",
    )


def _ranks(base: Path) -> Iterator[Finding]:
    there = nearest(base)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield missing(
            "ranks", f"{there} may not be written: ranks under 'sickbay run' are not watched", "run it as root"
        )
    elif there != base:
        yield ok("ranks", f"{base} is not there yet: the agent makes it")
    elif (ranks := ranks_dir(base)).exists() and ranks.stat().st_mode & 0o7777 != OPEN_TO_ALL:
        yield warning("ranks", f"{ranks} is not open to all users", f"chmod 1777 {ranks}")
    else:
        yield ok("ranks", f"{base} is there")
