"""Configuration of a controller (config file): what `sickbay controller --config FILE` runs, as nouns.

`hosts/config_file.py` reads one from YAML; `sickbay up` makes one of a single local cluster. Every path is absolute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sickbay.hosts.channels import NotifierFile
from sickbay.hosts.state import CLUSTERS, DATABASE
from sickbay.knowledge.yaml_places import KeyPath, Places, nearest, show_path
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

STATE = "/var/lib/sickbay"


class Listen(Noun, forbid_unknown_fields=True):
    """Where the API is served. Beyond this machine only with TLS."""

    host: str = "127.0.0.1"
    port: int = 8080
    cert: str = ""
    key: str = ""


class ClusterConfig(Noun, forbid_unknown_fields=True):
    """One cluster. `settings` is of the kind's own type; `home`: its directory, empty: below the state's clusters."""

    kind: str
    select: dict[str, Any] = {}
    pool: str = ""
    first: Literal["trust", "check"] = "trust"
    adopt: Literal["none", "comment", "requeue", "all"] = "none"
    machines: dict[str, tuple[str, ...]] = {}
    settings: Any = None
    home: str = ""


class JoinConfig(Noun, forbid_unknown_fields=True):
    """The token with which agents of one cluster may join."""

    token_file: str


class AgentsConfig(Noun, forbid_unknown_fields=True):
    join: dict[str, JoinConfig] = {}  # by cluster


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """All of one controller. `policy` is a shipped name, or a file."""

    clusters: Mapping[str, ClusterConfig]
    state: Path = Path(STATE)
    listen: Listen = field(default_factory=Listen)
    store: str = ""  # a URL; empty: SQLite below the state
    store_password_file: str = ""
    policy: str = "default"
    knowledge: Path | None = None
    machines: Mapping[str, Any] = field(default_factory=dict)  # settings of each channel's own kind
    notifiers: NotifierFile = field(default_factory=NotifierFile)
    agents: AgentsConfig = field(default_factory=AgentsConfig)
    metrics: Path | None = None  # None: below the state
    file: Path | None = None
    places: Places = field(default_factory=dict, compare=False)

    @property
    def shares_store(self) -> bool:
        """Whether other replicas may work on the same store."""
        return bool(self.store) and not self.store.startswith("sqlite:")

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.state / DATABASE}"

    def home(self, cluster: str) -> Path:
        said = self.clusters[cluster].home
        return Path(said) if said else self.state / CLUSTERS / cluster

    def wrong(self, path: KeyPath, error: BadInput) -> BadInput:
        """A mistake that only shows when the part of this place is built, with the place."""
        if self.file is None:
            return error
        return BadInput(f"{nearest(self.places, path)}: {show_path(path)}: {error}")

    def differs(self, other: "ControllerConfig") -> tuple[str, ...]:
        """The parts that are not the same in another, by the words of the file; the policy is none of them."""
        ignored = {"policy", "places", "file"}
        names = [each.name for each in fields(self) if each.name not in ignored]
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))
