"""The file of notifiers: YAML → settings of each kind, or one line with the place and what to write instead."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from msgspec import inspect as mi

from sickbay.adapters.notifiers.message import NoticeLinks
from sickbay.adapters.notifiers.settings import NotifierSettings
from sickbay.knowledge.yaml_places import YamlReader, compose_mapping, converted, read_text, unknown
from sickbay.model.errors import BadInput
from sickbay.model.notice import LOG, ChannelTraits
from sickbay.wiring import notifier_kinds

MOST_NOTIFIERS = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
LINKS = ("runbooks", "console")


@dataclass(frozen=True, slots=True)
class NotifierFile:
    """What a site has configured. Nothing: the log alone."""

    notifiers: Mapping[str, NotifierSettings] = field(default_factory=dict)
    links: NoticeLinks = field(default_factory=NoticeLinks)

    @property
    def names(self) -> tuple[str, ...]:
        return (LOG, *self.notifiers)

    @property
    def traits(self) -> dict[str, ChannelTraits]:
        return {
            name: ChannelTraits(most=one.most, within=one.per, closings=one.closings)
            for name, one in self.notifiers.items()
        }


def read_notifiers(path: Path | None, *, known: bool = False) -> NotifierFile:
    """Raises BadInput. Secrets are looked at here, so that a file that is missing is said before it is needed.

    `known`: they were used before. Then a secret that is away now keeps no controller from starting: its channel fails,
    which is told through the others.
    """
    if path is None:
        return NotifierFile()
    where = str(path)
    root = compose_mapping(read_text(path, where, "give a .yaml file with 'notifiers:'"), where)
    reader = YamlReader(where)
    links: dict[str, str] = {}
    found: dict[str, NotifierSettings] = {}
    for key, value in root.value:
        if key.value == "notifiers":
            found = notifiers_in(reader, value, path, known=known)
        elif key.value in LINKS:
            links[key.value] = reader.read(value, mi.StrType(), (key.value,))
        else:
            raise reader.fail(key, (), unknown("key", str(key.value), ("notifiers", *LINKS)))
    if "notifiers" not in [key.value for key, _ in root.value]:
        raise BadInput(f"{where}:1: 'notifiers' is missing: add 'notifiers: {{oncall: {{kind: …}}}}'")
    return NotifierFile(found, converted(links, NoticeLinks, reader.places))


def notifiers_in(reader: YamlReader, node: yaml.Node, path: Path, *, known: bool) -> dict[str, NotifierSettings]:
    """The section 'notifiers' of a file at `path`. Raises BadInput."""
    if not isinstance(node, yaml.MappingNode):
        raise reader.fail(node, ("notifiers",), "expected 'name: {kind: …}' lines")
    if len(node.value) > MOST_NOTIFIERS:
        raise reader.fail(node, ("notifiers",), f"more than {MOST_NOTIFIERS}: one list or room reaches many people")
    reader.plain(node, ("notifiers",))  # a name that is given twice, tags
    return {str(key.value): _notifier(reader, key, value, path, known=known) for key, value in node.value}


def _notifier(reader: YamlReader, key: yaml.Node, node: yaml.Node, path: Path, *, known: bool) -> NotifierSettings:
    name, at = str(key.value), ("notifiers", str(key.value))
    if not _NAME.fullmatch(name):
        raise reader.fail(key, (), f"{name!r} is no name: write letters, digits, _ . - (a letter or digit first)")
    if name == LOG:
        raise reader.fail(key, (), "'log' is always there, and is the controller's own: give yours another name")
    if not isinstance(node, yaml.MappingNode):
        raise reader.fail(node, at, "expected 'kind: …' and its settings")
    kinds = notifier_kinds()
    said = next((value for one, value in node.value if one.value == "kind"), None)
    if said is None:
        raise reader.fail(node, at, f"'kind' is missing: write one of {', '.join(sorted(kinds))}")
    kind = reader.read(said, mi.StrType(), (*at, "kind"))
    if kind not in kinds:
        raise reader.fail(said, (*at, "kind"), unknown("kind", kind, sorted(kinds)))
    own = YamlReader(reader.where)
    settings: NotifierSettings = converted(
        own.read(node, mi.type_info(kinds[kind].settings), at), kinds[kind].settings, own.places
    )
    settings = settings.located(path.absolute().parent)
    for mistake in (*settings.mistakes(), *(() if known else settings.missing())):
        place = own.places.get((*at, mistake.field), own.places[at])
        raise BadInput(f"{place}: notifiers.{name}.{mistake.field}: {mistake.text}")
    return settings
