"""The controller's config file: YAML → nouns, or one line with the place and what to write instead."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from msgspec import inspect as mi
from msgspec.structs import fields, replace

from sickbay.adapters.notifiers.message import NoticeLinks
from sickbay.hosts.channels import LINKS, NotifierFile, notifiers_in
from sickbay.hosts.config import AgentsConfig, ClusterConfig, ControllerConfig, Listen
from sickbay.hosts.state import LOOPBACK
from sickbay.knowledge.yaml_places import KeyPath, YamlReader, compose, converted, read_text, unknown
from sickbay.model.errors import BadInput, NoSuchFile
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.load import is_file_name, load_policy
from sickbay.wire.secret_files import wrong_secret
from sickbay.wiring import AGENT, cluster_kind, cluster_kinds, machine_kinds

MOST_CLUSTERS = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@|[?&](?:ssl)?password=", re.IGNORECASE)
_SQLITE = "sqlite:///"
_EXAMPLE = "clusters: {train: {kind: local}}"
_TEXTS = ("state", "store", "store_password_file", "policy", "knowledge")


class _Part(NamedTuple):
    """One value of the file: its key's node, its own, and the path to it."""

    key: yaml.Node
    value: yaml.Node
    path: KeyPath

    def parts(self) -> dict[str, "_Part"]:
        pairs = self.value.value if isinstance(self.value, yaml.MappingNode) else []
        return {str(key.value): _Part(key, value, (*self.path, str(key.value))) for key, value in pairs}


def read_config(path: Path, *, known: bool = False) -> ControllerConfig:
    """Raises BadInput. `known`: it was used before: a notifier's secret that is away now keeps nobody from going on."""
    where = str(path)
    text = read_text(path, where, f"give a .yaml file with '{_EXAMPLE}'")
    root = compose(text, where)
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(f"{where}:1: expected 'key: value' lines: write at least '{_EXAMPLE}'")
    return _ConfigReader(path, known=known).read(root)


def read_policy(config: ControllerConfig) -> Policy:
    """The policy that the file names. Raises BadInput: the policy's own mistake has the place in its own file."""
    try:
        return load_policy(config.policy, config.notifiers.names)
    except NoSuchFile as error:
        raise config.wrong(("policy",), error) from None


class _ConfigReader:
    def __init__(self, path: Path, *, known: bool) -> None:
        self._path = path
        self._beside = path.absolute().parent
        self._known = known
        self._reader = YamlReader(str(path))

    def read(self, root: yaml.MappingNode) -> ControllerConfig:
        reader = self._reader
        reader.plain(root)  # a key that is given twice, tags; and the place of everything
        top = _Part(root, root, ())
        found: dict[str, Any] = {}
        takes: dict[str, Callable[[_Part], Any]] = {
            "listen": self._listen, "clusters": self._clusters, "machines": self._machines,
            "notifiers": self._notifiers, "agents": self._agents, **dict.fromkeys(_TEXTS, self._text),
            **dict.fromkeys(LINKS, self._text),
        }  # fmt: skip
        for name, part in top.parts().items():
            if name not in takes:
                raise reader.fail(part.key, (), unknown("key", name, takes))
            found[name] = takes[name](part)
        if "clusters" not in found:
            raise BadInput(f"{reader.where}:1: 'clusters' is missing: add '{_EXAMPLE}'")
        links = {name: found.pop(name) for name in LINKS if name in found}
        notifiers = NotifierFile(found.pop("notifiers", {}), converted(links, NoticeLinks, reader.places))
        parts = top.parts()
        self._fit(found, parts)
        found |= {name: Path(found[name]) for name in ("state", "knowledge") if name in found}
        return ControllerConfig(**found, notifiers=notifiers, file=self._path.absolute(), places=reader.places)

    # --- one section each
    def _text(self, part: _Part) -> str:
        text = str(self._reader.read(part.value, mi.StrType(), part.path))
        match part.path[-1]:
            case "policy" if not is_file_name(text):
                return text
            case "store":
                return self._store(part, text)
            case "state" | "knowledge" | "policy":
                return self._given_path(part, text)
            case "store_password_file":
                return self._secret(part, text)
            case _:
                return text

    def _store(self, part: _Part, text: str) -> str:
        if _PASSWORD.search(text):
            raise self._reader.fail(
                part.value, part.path, "a password does not stand here: put it into a file, and name that in "
                "'store_password_file'",
            )  # fmt: skip
        file = text.removeprefix(_SQLITE)
        if file not in {text, "", ":memory:"}:
            return _SQLITE + self._absolute(file)
        if not _is_server(text):
            raise self._reader.fail(
                part.value, part.path, "write postgresql://user@host/database, or leave it out for SQLite below 'state'"
            )
        return text

    def _listen(self, part: _Part) -> Listen:
        listen: Listen = self._noun(part, Listen)
        listen = replace(listen, **{name: self._absolute(getattr(listen, name)) for name in ("cert", "key")})
        if bool(listen.cert) is not bool(listen.key):
            raise self._reader.fail(part.key, part.path, "'cert' and 'key' go together: give both files")
        if not 0 <= listen.port <= 65_535:
            raise self._reader.fail(
                part.value, part.path, f"port {listen.port} cannot be: write 1 to 65535, or 0 for any that is free"
            )
        if listen.host not in LOOPBACK and not listen.cert:
            raise self._reader.fail(
                part.key, part.path, f"host {listen.host} can be reached from other machines, where tokens would not "
                "stay secret: give 'cert' and 'key', or use 127.0.0.1",
            )  # fmt: skip
        return listen

    def _notifiers(self, part: _Part) -> Mapping[str, Any]:
        return notifiers_in(self._reader, part.value, self._path, known=self._known)

    def _agents(self, part: _Part) -> AgentsConfig:
        agents: AgentsConfig = self._noun(part, AgentsConfig)
        parts = part.parts()["join"].parts() if agents.join else {}
        return AgentsConfig(
            join={
                name: replace(one, token_file=self._secret(parts[name].parts()["token_file"], one.token_file))
                for name, one in agents.join.items()
            }
        )

    def _machines(self, part: _Part) -> dict[str, Any]:
        return {name: self._machine(name, one) for name, one in self._named(part).items()}

    def _machine(self, name: str, part: _Part) -> Any:
        kinds = machine_kinds()
        if name == AGENT:
            raise self._reader.fail(part.key, (), f"{AGENT!r} is always there: give this channel another name")
        kind = self._kind(part, tuple(kinds))
        settings = self._noun(part, kinds[kind].settings)
        for mistake in settings.mistakes():
            at = (*part.path, mistake.field)
            raise BadInput(f"{self._reader.places.get(at, self._reader.places[part.path])}: "
                           f"{'.'.join(map(str, at))}: {mistake.text}")  # fmt: skip
        return settings

    def _clusters(self, part: _Part) -> dict[str, ClusterConfig]:
        found = self._named(part)
        if not found:
            raise self._reader.fail(part.key, (), f"there is no cluster in it: write '{_EXAMPLE}'")
        if len(found) > MOST_CLUSTERS:
            raise self._reader.fail(part.key, (), f"more than {MOST_CLUSTERS}: run several controllers")
        return {name: self._cluster(one) for name, one in found.items()}

    def _cluster(self, part: _Part) -> ClusterConfig:
        known = [each.name for each in fields(ClusterConfig) if each.name != "home"]
        parts = part.parts()
        for name, one in parts.items():
            if name not in known:
                raise self._reader.fail(one.key, part.path, unknown("key", name, known))
        kind_name = self._kind(part, cluster_kinds())
        try:
            kind = cluster_kind(kind_name)
        except BadInput as error:
            raise self._reader.fail(parts["kind"].value, parts["kind"].path, str(error)) from None
        plain: dict[str, mi.Type] = {
            each.encode_name: each.type
            for each in mi.type_info(ClusterConfig).fields  # type: ignore[attr-defined]
        }
        given = {
            name: self._reader.read(one.value, plain[name], one.path)
            for name, one in parts.items()
            if name in {"kind", "pool", "first", "adopt"}
        }
        if "select" in parts:
            given["select"] = self._mapping(parts["select"])
        if "machines" in parts:
            given["machines"] = self._channels(parts["machines"])
        settings = self._noun(parts["settings"], kind.settings) if "settings" in parts else self._usual(kind, part)
        cluster: ClusterConfig = converted(given, ClusterConfig, self._reader.places)
        return replace(cluster, settings=settings)

    def _usual(self, kind: Any, part: _Part) -> Noun:
        """The kind's settings where none are given."""
        for each in fields(kind.settings):
            if each.required:
                raise self._reader.fail(
                    part.value, part.path, f"'settings' is missing: add 'settings: {{{each.name}: …}}'"
                )
        usual: Noun = kind.settings()
        return usual

    def _channels(self, part: _Part) -> dict[str, tuple[str, ...]]:
        """Names in order, for every pool or by a glob of pools."""
        names = mi.VarTupleType(mi.StrType())
        if isinstance(part.value, yaml.SequenceNode):
            return {"*": tuple(self._reader.read(part.value, names, part.path))}
        if not isinstance(part.value, yaml.MappingNode):
            raise self._reader.fail(
                part.value, part.path, "write [agent, bmc], or by pool: {h200: [agent, bmc], '*': [agent]}"
            )
        return {glob: tuple(self._reader.read(one.value, names, one.path)) for glob, one in part.parts().items()}

    # --- what fits what
    def _fit(self, found: Mapping[str, Any], parts: Mapping[str, _Part]) -> None:
        clusters, machines = found["clusters"], found.get("machines", {})
        sections = parts["clusters"].parts()
        for name, cluster in clusters.items():
            kind = cluster_kind(cluster.kind)
            for taken in set(machines).intersection(kind.channels):
                one = parts["machines"].parts()[taken]
                raise self._reader.fail(
                    one.key, ("machines",), f"{taken!r} comes with cluster {name}: give this channel another name"
                )
            for glob, channels in cluster.machines.items():
                known = (AGENT, *machines, *kind.channels)
                for number, channel in enumerate(channels):
                    if channel not in known:
                        at = self._place_of(sections[name].path, glob, number)
                        raise BadInput(f"{at}: clusters.{name}.machines: {unknown('channel', channel, known)}")
        for name in found["agents"].join if "agents" in found else ():
            if name not in clusters:
                one = parts["agents"].parts()["join"].parts()[name]
                raise self._reader.fail(one.key, ("agents", "join"), unknown("cluster", name, clusters))
        password = found.get("store_password_file")
        if password and not found.get("store", "").startswith("postgresql:"):
            one = parts["store_password_file"]
            raise self._reader.fail(one.key, (), "'store_password_file' is for PostgreSQL: add 'store: postgresql://…'")

    def _place_of(self, path: KeyPath, glob: str, number: int) -> object:
        places = self._reader.places
        by_pool = (*path, "machines", glob, number)
        return places.get(by_pool) or places.get((*path, "machines", number)) or places[path]

    # --- values
    def _named(self, part: _Part) -> dict[str, _Part]:
        self._mapping(part)
        found = part.parts()
        for name, one in found.items():
            if not _NAME.fullmatch(name):
                raise self._reader.fail(
                    one.key, part.path, f"{name!r} is no name: write letters, digits, _ . - (a letter or digit first)"
                )
            self._mapping(one)
        return found

    def _mapping(self, part: _Part) -> dict[str, Any]:
        if not isinstance(part.value, yaml.MappingNode):
            raise self._reader.fail(part.value, part.path, "expected 'key: value' lines")
        plain: dict[str, Any] = self._reader.plain(part.value, part.path)
        return plain

    def _kind(self, part: _Part, kinds: tuple[str, ...]) -> str:
        said = part.parts().get("kind")
        if said is None:
            raise self._reader.fail(part.value, part.path, f"'kind' is missing: write one of {', '.join(kinds)}")
        kind = str(self._reader.read(said.value, mi.StrType(), said.path))
        if kind not in kinds:
            raise self._reader.fail(said.value, said.path, unknown("kind", kind, kinds))
        return kind

    def _noun(self, part: _Part, kind: type[Noun]) -> Any:
        """With every path in it made absolute: they are written as seen from this file."""
        noun = converted(self._reader.read(part.value, mi.type_info(kind), part.path), kind, self._reader.places)
        paths = [each.name for each in fields(noun) if each.name.endswith("_file") and getattr(noun, each.name)]
        return replace(noun, **{name: self._absolute(getattr(noun, name)) for name in paths})

    def _given_path(self, part: _Part, text: str) -> str:
        if not text:
            raise self._reader.fail(part.value, part.path, "it is empty: write a path, or leave the key out")
        return self._absolute(text)

    def _absolute(self, text: str) -> str:
        return str((self._beside / text).absolute()) if text else ""

    def _secret(self, part: _Part, text: str) -> str:
        path = self._given_path(part, text)
        if wrong := wrong_secret(path):
            raise self._reader.fail(part.value, part.path, f"{path} {wrong}")
        return path


def _is_server(url: str) -> bool:
    """Whether it names PostgreSQL on a host and a port that can be."""
    try:
        found = urlsplit(url)
        return url.startswith("postgresql://") and found.port != 0
    except ValueError:
        return False
