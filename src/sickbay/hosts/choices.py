"""Persisted options of `sickbay up`: a policy, an address, a certificate chosen once stay until another is given.

A restart must not change what is done to the nodes. So the policy is kept twice: as it was named, and as it was read,
for the day on which its file is gone or broken.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.diff import to_yaml
from sickbay.policy.load import digest, is_file_name, load_policy
from sickbay.wire.files import replace_file

FILE = "choices.json"
COPY = "policy-in-force.yaml"
NONE = "none"  # given in the place of a file: go on without one


class UpChoices(Noun):
    """Paths are absolute."""

    policy: str = "default"  # a shipped name, or a file
    policy_digest: str = ""  # of what was in force; empty: never started
    host: str = "127.0.0.1"
    port: int = 8080
    cert: str = ""
    key: str = ""
    knowledge: str = ""
    notifiers: str = ""


class ChosenPolicy(NamedTuple):
    policy: Policy
    remark: str = ""  # what is not as it was, in one line


def remembered(state: Path) -> UpChoices:
    """Raises BadInput for a file that cannot be read: to guess would be to act by other rules."""
    file = state / FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=UpChoices)
    except (FileNotFoundError, NotADirectoryError):
        return UpChoices()
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(
            f"{file} cannot be read ({error}): it says what was chosen before; remove it and give --policy, --port, "
            "--host, --cert and --key anew"
        ) from None


def chosen(before: UpChoices, **given: str | int | None) -> UpChoices:
    """What was given, and what was chosen before where nothing was."""
    said = {name: value for name, value in given.items() if value is not None}
    for name in ("cert", "key", "knowledge", "notifiers"):
        if name in said:
            said[name] = "" if said[name] == NONE else str(Path(str(said[name])).absolute())
    if is_file_name(str(said.get("policy", ""))):
        said["policy"] = str(Path(str(said["policy"])).absolute())
    return replace(before, **said)


def policy_of(
    state: Path, before: UpChoices, choices: UpChoices, notifiers: Collection[str], *, given: bool
) -> ChosenPolicy:
    """The policy that is to be in force. One that was given must be good; one that was chosen before goes on as it was
    when its file is gone or broken. Raises BadInput.
    """
    if given or not before.policy_digest:
        return ChosenPolicy(load_policy(choices.policy, notifiers))
    what = "policy file" if is_file_name(choices.policy) else "policy"
    try:
        policy = load_policy(choices.policy, notifiers)
    except BadInput as error:
        gone = is_file_name(choices.policy) and not Path(choices.policy).exists()
        why = f"{what} {choices.policy} is gone" if gone else f"{what} {choices.policy} cannot be used ({error})"
        return ChosenPolicy(
            _copy_of(state, why, notifiers),
            f"{why}: going on with what was in force before ({before.policy_digest}), kept in {state / COPY}; "
            "give another with --policy",
        )
    if (now := digest(policy)) != before.policy_digest:
        return ChosenPolicy(
            policy,
            f"{what} {choices.policy} has changed since the last start ({before.policy_digest} → {now}): "
            "what it says now is in force",
        )
    return ChosenPolicy(policy)


def _copy_of(state: Path, why: str, notifiers: Collection[str]) -> Policy:
    try:
        return load_policy(state / COPY, notifiers)
    except BadInput as error:
        raise BadInput(f"{why}, and so is the copy of what was in force ({error}): say which with --policy") from None


def keep(state: Path, choices: UpChoices, policy: Policy) -> None:
    """Before anything is done by this policy. The copy first: the digest says of what it is one."""
    replace_file(state / COPY, to_yaml(policy).encode())
    replace_file(state / FILE, msgspec.json.encode(replace(choices, policy_digest=digest(policy))))


def as_before(choices: UpChoices, given: set[str]) -> str:
    """What is so only because it was chosen before, in one line; empty: nothing."""
    usual = UpChoices()

    def said() -> Iterator[str]:
        for name in ("port", "host", "cert", "key", "policy", "knowledge", "notifiers"):
            value = getattr(choices, name)
            if name not in given and value != getattr(usual, name):
                yield f"{name} {value}"

    line = ", ".join(said())
    return f"as before: {line}" if line else ""


def words_of(policy: Policy) -> str:
    """The policy in force, as `sickbay up` says it."""
    only = ", which recommends and touches no node" if policy.hands_off else ""
    return f"policy {policy.name} ({digest(policy)}){only}"
