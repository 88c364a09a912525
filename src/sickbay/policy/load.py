"""Policies: from a shipped name or a YAML file to the frozen noun, or to one line that says what to write instead."""

import hashlib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect as mi

from sickbay.knowledge.yaml_places import (
    Places,
    YamlPlace,
    YamlReader,
    compose_mapping,
    converted,
    nearest,
    read_text,
    show_path,
    unknown,
)
from sickbay.model.errors import BadInput, NoSuchFile
from sickbay.model.notice import LOG
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.refusals import Refusal, refusals, unconfigured

_EXTENDS = "extends"
_OWN = frozenset({"name", "about"})  # who a policy is, is not inherited
_DEEPEST = 5


def shipped() -> tuple[str, ...]:
    """The names that need no file."""
    return tuple(sorted(shipped_files()))


def load_policy(path_or_name: str | Path, notifiers: Collection[str] | None = None) -> Policy:
    """A bare name is a shipped policy; a Path, or text with a slash or ending in .yaml, is a file. Raises BadInput.

    `notifiers`: those that are configured; a rule that names another is refused. None: not known here.
    """
    policy, places = _load(path_or_name, Path(), 0)
    refusal = None if notifiers is None else next(unconfigured(policy, notifiers), None)
    if refusal is not None:
        raise BadInput(_refused(refusal, str(path_or_name), places))
    return policy


def refuse_unconfigured(policy: Policy, notifiers: Collection[str]) -> None:
    """The same for a policy whose file is not at hand. Raises BadInput."""
    refusal = next(unconfigured(policy, notifiers), None)
    if refusal is not None:
        raise BadInput(f"policy {policy.name}: {show_path(refusal.path)}: {refusal.text}")


def named_notifiers(policy: Policy) -> tuple[str, ...]:
    """Channels that must be configured where the policy is used."""
    names = (name for rule in policy.notify for name in (*rule.to, *rule.next))
    return tuple(name for name in dict.fromkeys(names) if name != LOG)


def parse_policy(text: str, where: str) -> Policy:
    """The policy that `text` says; `where` names it in errors. Raises BadInput."""
    return _parse(text, where, Path(where).parent, 0)[0]


def digest(policy: Policy) -> str:
    """Names a policy's content: the same for the same rules however they were written down."""
    return hashlib.sha256(msgspec.json.encode(_canonical(policy), order="sorted")).hexdigest()[:12]


def _canonical(value: Any) -> Any:
    """Without what equals its default: msgspec itself leaves out only the default object, not one that is equal."""
    if isinstance(value, Noun):
        said = {field.name: (getattr(value, field.name), default_of(field)) for field in msgspec.structs.fields(value)}
        return {name: _canonical(given) for name, (given, default) in said.items() if given != default}
    return [_canonical(item) for item in value] if isinstance(value, tuple) else value


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """What a setting is when it is left out; NODEFAULT if it must be given."""
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def shipped_files() -> dict[str, Path]:
    root = Path(str(files("sickbay.policy"))) / "shipped"
    found = [*root.glob("*.yaml"), *(root / "profiles").glob("*.yaml")]
    return {path.stem: path for path in found if not path.stem.endswith(".golden")}


def is_file_name(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml"))


def _load(path_or_name: str | Path, beside: Path, depth: int) -> tuple[Policy, Places]:
    if isinstance(path_or_name, Path) or is_file_name(path_or_name):
        path, where = beside / path_or_name, str(path_or_name)
    else:
        found = shipped_files()
        if path_or_name not in found:
            hint = f"; for the file write ./{path_or_name}" if (beside / path_or_name).is_file() else ""
            raise NoSuchFile(f"{unknown('policy', path_or_name, found)}{hint or ', or a path to a .yaml file'}")
        return _shipped_policy(path_or_name)
    text = read_text(path, where, f"give a .yaml file, or one of {', '.join(shipped())}")
    return _parse(text, where, path.parent, depth)


@cache
def _shipped_policy(name: str) -> tuple[Policy, Places]:
    """Read once: it changes only with the program, and whoever simulates asks for it for every run."""
    path, where = shipped_files()[name], f"{name}.yaml"
    return _parse(path.read_text(encoding="utf-8"), where, path.parent, 0)


def _parse(text: str, where: str, beside: Path, depth: int) -> tuple[Policy, Places]:
    root = compose_mapping(text, where)
    base, base_places = _extended(root, where, beside, depth)
    reader = YamlReader(where)
    kind = mi.type_info(Policy)
    data = reader.read(root, kind, ())
    own: Policy = converted(data, Policy, reader.places)
    if not data.get("name"):
        own = msgspec.structs.replace(own, name=Path(where).stem)
    if base is None:
        policy, places = own, reader.places
    else:
        kept = {name: getattr(own, name) for name in data.keys() | _OWN}
        policy = msgspec.structs.replace(base, **kept)
        inherited = {path: place for path, place in base_places.items() if path and path[0] not in kept}
        places = {**inherited, **reader.places}
    refusal = next(refusals(policy), None)
    if refusal is not None:
        raise BadInput(_refused(refusal, where, places))
    return policy, places


def _extended(root: yaml.MappingNode, where: str, beside: Path, depth: int) -> tuple[Policy | None, Places]:
    """The policy that this one begins from; its line is taken out of the mapping."""
    lines = [pair for pair in root.value if pair[0].value == _EXTENDS]
    if not lines:
        return None, {}
    root.value = [pair for pair in root.value if pair[0].value != _EXTENDS]
    reader = YamlReader(where)
    key, value = lines[-1]
    if len(lines) > 1:
        raise reader.fail(key, (), "'extends' is given twice: keep one of them")
    name = reader.read(value, mi.StrType(), (_EXTENDS,))
    if depth >= _DEEPEST:
        raise reader.fail(key, (), f"more than {_DEEPEST} policies extend one another, or they go in a circle")
    try:
        return _load(name, beside, depth + 1)
    except NoSuchFile as error:  # an error inside the other file names that file itself
        raise reader.fail(value, (_EXTENDS,), str(error)) from None


def _refused(refusal: Refusal, where: str, places: Places) -> str:
    place, other = nearest(places, refusal.path), ""
    if refusal.other is not None:
        second: YamlPlace = nearest(places, refusal.other)
        other = f"line {second.line}" if second.where == place.where else f"{second.where}:{second.line}"
    said = f"{place}: {show_path(refusal.path)}: {refusal.text.replace('{other}', other)}"
    return said if place.where == where else f"{where} → {said}"
