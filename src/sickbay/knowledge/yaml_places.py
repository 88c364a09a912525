"""The one YAML reader: text → plain data of a noun's shape, with the place (file, line, column) of every value.

YAML is read by the 1.2 core rules: `on` is a word, not a boolean, and 22:00 is a text, not 1320. Anchors and tags are
refused: these files are read by people, and an alias inside an alias is how a small file becomes a large one.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml
from msgspec import inspect as mi

from sickbay.model.durations import HOW, parse_duration
from sickbay.model.errors import BadInput, NoSuchFile

KeyPath = tuple[str | int, ...]
LARGEST = 1_000_000  # characters; the longest policy we know of has 20,000
_TAG = "tag:yaml.org,2002:"


class YamlPlace(NamedTuple):
    where: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.where}:{self.line}:{self.column}"


Places = dict[KeyPath, YamlPlace]


def show_path(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "the file"


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "anchors (&) and aliases (*) are not used here"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


for _name, _regex, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?[0-9]+\.[0-9]*", "-+0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"^(?:{_regex})$"), list(_first))

_HINTS = {
    "cannot start any token": "indent with spaces, not tabs; quote text that begins with a special character",
    "mapping values are not allowed": "check the indentation, and quote text that contains ': '",
    "could not find expected ':'": "write 'key: value'",
    "another document": "keep one document in one file, without a second '---'",
    "anchors": "write the value out; quote text that begins with & or *, such as '*'",
    "expected alphabetic or numeric": "quote text that begins with & or *, such as '*'",
    "expected <block end>": "line up the keys that belong together",
}


def read_text(path: Path, where: str, instead: str) -> str:
    """The file's text. Raises BadInput; `instead`: what to give where there is no such file."""
    try:
        with path.open("rb") as file:
            raw = file.read(4 * LARGEST + 1)  # bounded: a device has no end
    except FileNotFoundError:
        raise NoSuchFile(f"{where}: no such file: {instead}") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise NoSuchFile(f"{where}: cannot be read ({said}): give a .yaml file") from None
    if len(raw) > 4 * LARGEST:
        raise _too_large(where)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{where}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}): save the file as UTF-8") from None


def _too_large(where: str) -> BadInput:
    return BadInput(f"{where}:1: more than {LARGEST} characters: this is none of our files")


def compose_mapping(text: str, where: str) -> yaml.MappingNode:
    """The file's mapping. Raises BadInput, also where there is nothing in it."""
    node = compose(text, where)
    if node is None:
        raise BadInput(f"{where}:1: the file is empty: write 'extends: default' and what you want to change")
    if not isinstance(node, yaml.MappingNode):
        raise BadInput(f"{_place(node, where)}: expected 'key: value' lines at the top, got {_shown(node)}")
    return node


def compose(text: str, where: str) -> yaml.Node | None:
    """None: there is nothing in it. Raises BadInput."""
    if len(text) > LARGEST:
        raise _too_large(where)
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = YamlPlace(where, mark.line + 1, mark.column + 1) if mark else YamlPlace(where, 1, 1)
        problem = " ".join((error.problem or error.context or "unreadable").split())
        if "'\\t'" in problem:
            problem = "a tab is used to indent"
        hint = next((h for said, h in _HINTS.items() if said in problem), "check indentation and quotes on this line")
        if problem.startswith("a tab"):
            hint = "indent with spaces"
        raise BadInput(f"{place}: not valid YAML, {problem}: {hint}") from None
    except yaml.reader.ReaderError as error:
        at = text[: error.position]
        place = YamlPlace(where, at.count("\n") + 1, error.position - (at.rfind("\n") + 1) + 1)
        character = error.character if isinstance(error.character, int) else ord(error.character)
        raise BadInput(f"{place}: the character U+{character:04X} is not allowed: remove it") from None
    except RecursionError:
        raise BadInput(f"{where}:1: nested too deeply: six levels are enough") from None
    return node


class YamlReader:
    """Reads nodes by the types of the nouns, and keeps the place of everything it has read."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.places: Places = {}

    def fail(self, node: yaml.Node, path: KeyPath, text: str) -> BadInput:
        at = f"{show_path(path)}: " if path else ""
        return BadInput(f"{_place(node, self.where)}: {at}{text}")

    def read(self, node: yaml.Node, kind: mi.Type, path: KeyPath) -> Any:
        self.places.setdefault(path, _place(node, self.where))
        match kind:
            case mi.StructType():
                return self._struct(node, kind, path)
            case mi.VarTupleType():
                if not isinstance(node, yaml.SequenceNode):
                    raise self.fail(node, path, f"expected a list, got {_shown(node)}: {_as_list(node)}")
                return [self.read(item, kind.item_type, (*path, n)) for n, item in enumerate(node.value)]
            case mi.DictType():
                pairs = self._pairs(node, path)
                for key, (key_node, _) in pairs.items():
                    self.read(key_node, kind.key_type, (*path, key))
                return {key: self.read(value, kind.value_type, (*path, key)) for key, (_, value) in pairs.items()}
            case mi.UnionType():
                return self._union(node, kind, path)
            case mi.Metadata():
                return self.read(node, kind.type, path)
            case _:
                return self._scalar(node, kind, path)

    def plain(self, node: yaml.Node, path: KeyPath = ()) -> Any:
        """Without a shape: mappings, lists, and scalars as the core rules have them."""
        self.places.setdefault(path, _place(node, self.where))
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, (*path, n)) for n, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            pairs = self._pairs(node, path)
            return {key: self.plain(value, (*path, key)) for key, (_, value) in pairs.items()}
        kind = _PLAIN.get(node.tag.removeprefix(_TAG))
        if kind is None:
            raise self.fail(node, path, f"tags such as {node.tag} are not used here: write the plain value")
        return None if isinstance(kind, mi.NoneType) else self._scalar(node, kind, path)

    def _pairs(self, node: yaml.Node, path: KeyPath) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, path, f"expected 'key: value' lines, got {_shown(node)}")
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fail(key, path, f"expected a word before ':', got {_shown(key)}; quote it if it is a text")
            if key.value in pairs:
                first = _place(pairs[key.value][0], self.where).line
                raise self.fail(key, path, f"{key.value!r} is given twice (first on line {first}): keep one of them")
            pairs[key.value] = (key, value)
        return pairs

    def _struct(self, node: yaml.Node, kind: mi.StructType, path: KeyPath) -> dict[str, Any]:
        fields = {field.encode_name: field for field in kind.fields}
        pairs, data = self._pairs(node, path), {}
        for name, (key, value) in pairs.items():
            if name not in fields:
                raise self.fail(key, path, unknown("key", name, fields))
            data[name] = self.read(value, fields[name].type, (*path, name))
            self.places[*path, name] = _place(key, self.where)
        for name, field in fields.items():
            if field.required and name not in data:
                raise self.fail(node, path, f"{name!r} is missing: add '{name}: …'")
        return data

    def _union(self, node: yaml.Node, kind: mi.UnionType, path: KeyPath) -> Any:
        kinds = {type(one): one for one in kind.types}
        if mi.NoneType in kinds and isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null":
            return None
        sequence = isinstance(node, yaml.SequenceNode)
        fitting = [one for one in kind.types if isinstance(one, mi.VarTupleType) == sequence]
        rest = [one for one in fitting or kind.types if not isinstance(one, mi.NoneType)]
        return self.read(node, rest[0], path)

    def _scalar(self, node: yaml.Node, kind: mi.Type, path: KeyPath) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, path, f"expected {_wanted(kind)}, got {_shown(node)}")
        tag, text = node.tag.removeprefix(_TAG), node.value
        if tag not in _PLAIN:
            raise self.fail(node, path, f"tags such as {node.tag} are not used here: write the plain value")
        match kind:
            case mi.BoolType() if tag == "bool":
                return text.lower() == "true"
            case mi.IntType() if tag == "int" and len(text) < 16:
                return int(text)
            case mi.FloatType() if tag in {"int", "float"} and len(text) < 32:
                return float(text)
            case mi.TimeDeltaType() if tag == "str":
                try:
                    return parse_duration(text)
                except ValueError as error:
                    raise self.fail(node, path, str(error)) from None
            case mi.EnumType() | mi.LiteralType():
                words = [str(one) for one in (kind.cls if isinstance(kind, mi.EnumType) else kind.values)]
                if text not in words:
                    raise self.fail(node, path, unknown("value", text, words))
                return text
            case mi.StrType() | mi.DateTimeType() if tag == "str":
                if bad := _UNUSABLE.search(text):
                    raise self.fail(node, path, f"the character U+{ord(bad[0]):04X} is not allowed: remove it")
                return text
            case _:
                raise self.fail(node, path, f"expected {_wanted(kind)}, got {_shown(node)}")


_PLAIN = {
    "str": mi.StrType(),
    "int": mi.IntType(),
    "float": mi.FloatType(),
    "bool": mi.BoolType(),
    "null": mi.NoneType(),
}


# What an escape can bring in, and no file, program or address can have.
_UNUSABLE = re.compile("[\0\ud800-\udfff]")


def _place(node: yaml.Node, where: str) -> YamlPlace:
    return YamlPlace(where, node.start_mark.line + 1, node.start_mark.column + 1)


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a block of 'key: value' lines"
    kind = {"int": "the number ", "float": "the number ", "null": "nothing"}.get(node.tag.removeprefix(_TAG), "")
    if kind == "nothing":
        return kind
    text = repr(node.value if len(node.value) < 40 else node.value[:37] + "…")
    return f"{kind}{text[1:-1] if kind else text}"


def _as_list(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        empty = node.tag == f"{_TAG}null"
        return "write [] for none" if empty else f"write [{' '.join(node.value.split())[:40]}]"
    return "put '- ' before each item"


def _wanted(kind: mi.Type) -> str:
    match kind:
        case mi.BoolType():
            return "true or false"
        case mi.IntType():
            return "a whole number"
        case mi.FloatType():
            return "a number"
        case mi.TimeDeltaType():
            return f"a duration ({HOW})"
        case mi.DateTimeType():
            return "a time such as 2030-01-31T12:00:00Z"
        case mi.StrType():
            return "text (put it in quotes)"
        case mi.EnumType():
            return "one of " + ", ".join(kind.cls)
        case mi.LiteralType():
            return "one of " + ", ".join(str(value) for value in kind.values)
        case _:
            return "a value"


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """unknown key 'deadlin': did you mean 'deadline'? (known: …)."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    guess = f" did you mean {close[0]!r}?" if close else ""
    shown = word if len(word) < 60 else word[:57] + "…"
    return f"unknown {what} {shown!r}:{guess} known: {', '.join(known)}"


_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)


def converted(data: Any, kind: Any, places: Places) -> Any:
    """The noun. What the reader let through and msgspec refuses is reported at its place, too."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        said = _AT.match(str(error))
        parts = re.findall(r"\.(\w+)|\[(\d+)\]", said["path"] or "") if said else []
        path: KeyPath = tuple(name or int(index) for name, index in parts)
        what = said["what"] if said else str(error)
        at = f"{show_path(path)}: " if path else ""
        raise BadInput(f"{nearest(places, path)}: {at}{what.strip().lower()}{_instead(what)}") from None


def _instead(what: str) -> str:
    return ": write a time such as 2030-01-31T12:00:00Z" if "datetime" in what else ""


def nearest(places: Places, path: Sequence[str | int]) -> YamlPlace:
    """The place of the value, or of what it would stand in."""
    path = tuple(path)
    while path and path not in places:
        path = path[:-1]
    return places.get(path, YamlPlace("policy", 1, 1))
