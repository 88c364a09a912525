"""A controller's config file: every mistake is one line with its place and what to write instead."""

import dataclasses
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import fields, replace

from sickbay import wiring
from sickbay.adapters.machines.command import CommandMachineSettings
from sickbay.clusters.local.settings import LocalSettings
from sickbay.faces.cli.main import main
from sickbay.hosts.config import ClusterConfig, ControllerConfig, Listen
from sickbay.hosts.config_file import read_config, read_policy
from sickbay.model.errors import BadInput, StoreError
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability
from sickbay.policy.load import load_policy
from sickbay.wiring import ClusterGround, FleetCluster, FleetGround, cluster_kind, fleet_of, open_store

EXAMPLE = Path(__file__).parents[2] / "deploy" / "controller.yaml"
WORD = "a-secret-77aa"
LOCAL = "clusters:\n  a: {kind: local}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, mode in (("secret", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(f"{WORD}\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


def read(place: Path, text: str) -> ControllerConfig:
    path = place / "c.yaml"
    path.write_text(text)
    return read_config(path)


def refused(place: Path, text: str) -> str:
    with pytest.raises(BadInput) as error:
        read_policy(read(place, text))
    said = str(error.value)
    assert "\n" not in said
    assert WORD not in said
    return said.removeprefix(f"{place}/")


def test_one_cluster_is_enough_and_all_else_has_a_default(place: Path) -> None:
    config = read(place, LOCAL)
    assert config.store_url == "sqlite:////var/lib/sickbay/sickbay.db"
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8080)
    assert config.clusters["a"].settings == LocalSettings()
    assert config.home("a") == Path("/var/lib/sickbay/clusters/a")
    assert read_policy(config).name == "default"


def test_paths_are_seen_from_the_file(place: Path) -> None:
    assert read(place, LOCAL + "store: sqlite:///x.db\n").store_url == f"sqlite:///{place}/x.db"
    said = "state: here\npolicy: ./p.yaml\nknowledge: k.csv\nstore: postgresql://s@db/s\nstore_password_file: secret\n"
    config = read(place, LOCAL + said + "notifiers: {on: {kind: webhook, url: 'https://h/x', secret_file: secret}}\n")
    assert (config.state, config.policy, config.knowledge) == (place / "here", str(place / "p.yaml"), place / "k.csv")
    assert config.store_password_file == str(place / "secret")
    assert getattr(config.notifiers.notifiers["on"], "secret_file") == str(place / "secret")  # noqa: B009
    assert config.shares_store


def test_channels_are_for_all_pools_or_for_each(place: Path) -> None:
    machines = "machines:\n  bmc: {kind: command, reboot: [power, cycle, '{name}'], within: 20s}\n"
    config = read(
        place,
        machines + "clusters:\n  a: {kind: local, machines: [local, bmc]}\n"
        "  b: {kind: local, machines: {h200: [agent, bmc], '*': [agent]}, settings: {nodes: 2}}\n",
    )
    assert config.clusters["a"].machines == {"*": ("local", "bmc")}
    assert config.clusters["b"].machines == {"h200": ("agent", "bmc"), "*": ("agent",)}
    assert isinstance(config.machines["bmc"], CommandMachineSettings)
    assert config.clusters["b"].settings == LocalSettings(nodes=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "c.yaml:1: expected 'key: value' lines: write at least 'clusters: {train: {kind: local}}'"),
        ("- a\n", "c.yaml:1: expected 'key: value' lines"),
        ("state: /s\n", "c.yaml:1: 'clusters' is missing: add 'clusters: {train: {kind: local}}'"),
        ("clusters: {}\n", "c.yaml:1:1: there is no cluster in it"),
        ("clusters: [a]\n", "c.yaml:1:11: clusters: expected 'key: value' lines"),
        ("clusters:\n  a: local\n", "c.yaml:2:6: clusters.a: expected 'key: value' lines"),
        ("clusters:\n  a: {}\n", "c.yaml:2:6: clusters.a: 'kind' is missing: write one of local"),
        ("clusters:\n  a: {kind: slrum}\n", "c.yaml:2:13: clusters.a.kind: unknown kind 'slrum':"),
        ("clusters:\n  a/b: {kind: local}\n", "c.yaml:2:3: clusters: 'a/b' is no name"),
        (LOCAL + LOCAL, "c.yaml:3:1: 'clusters' is given twice (first on line 1): keep one of them"),
        (LOCAL + "  a: {kind: local}\n", "c.yaml:3:3: clusters: 'a' is given twice (first on line 2)"),
        ("clusters:\n  a: {kind: local, frist: check}\n", "2:20: clusters.a: unknown key 'frist': did you mean"),
        ("clusters:\n  a: {kind: local, first: chek}\n", "2:27: clusters.a.first: unknown value 'chek': did you"),
        ("clusters:\n  a: {kind: local, adopt: some}\n", "clusters.a.adopt: unknown value 'some'"),
        ("clusters:\n  a: {kind: local, settings: {node: 3}}\n", "2:31: clusters.a.settings: unknown key 'node'"),
        ("clusters:\n  a: {kind: local, settings: {nodes: many}}\n", "a.settings.nodes: expected a whole number"),
        ("clusters:\n  a: {kind: local, select: gpu}\n", "clusters.a.select: expected 'key: value' lines"),
        ("clusters:\n  a: {kind: local, machines: agent}\n", "clusters.a.machines: write [agent, bmc], or by pool"),
        ("clusters:\n  a: {kind: local, machines: [agnet]}\n", "2:31: clusters.a.machines: unknown channel 'agnet'"),
        ("clusters:\n  a: {kind: local, machines: {h: [bmc]}}\n", "c.yaml:2:35: clusters.a.machines: unknown channel"),
        (LOCAL + "lissen: {}\n", "c.yaml:3:1: unknown key 'lissen': did you mean 'listen'?"),
        (LOCAL + "listen: {prt: 1}\n", "c.yaml:3:10: listen: unknown key 'prt': did you mean 'port'?"),
        (LOCAL + "listen: {port: 99999}\n", "c.yaml:3:9: listen: port 99999 cannot be: write 1 to 65535"),
        (LOCAL + "listen: {cert: x}\n", "c.yaml:3:1: listen: 'cert' and 'key' go together"),
        (LOCAL + "listen: {host: 0.0.0.0}\n", "c.yaml:3:1: listen: host 0.0.0.0 can be reached from other machines"),
        (LOCAL + "state: 7\n", "c.yaml:3:8: state: expected text (put it in quotes), got the number 7"),
        (LOCAL + "store: mysql://db\n", "c.yaml:3:8: store: write postgresql://user@host/database, or leave it out"),
        (LOCAL + f"store: postgresql://u:{WORD}@db/s\n", "store: a password does not stand here: put it into a file"),
        (LOCAL + f"store: postgresql://db/s?password={WORD}\n", "store: a password does not stand here"),
        (LOCAL + f"store: postgresql://u:{WORD}/x@db/s\n", "c.yaml:3:8: store: write postgresql://user@host/database"),
        (LOCAL + "store: postgresql://db:port/s\n", "c.yaml:3:8: store: write postgresql://user@host/database"),
        (LOCAL + "store: 'sqlite://'\n", "c.yaml:3:8: store: write postgresql://user@host/database, or leave it out"),
        (LOCAL + "state: ''\n", "c.yaml:3:8: state: it is empty: write a path, or leave the key out"),
        (LOCAL + 'state: "a\\0b"\n', "c.yaml:3:8: state: the character U+0000 is not allowed"),
        (LOCAL + 'policy: "a\\ud800.yaml"\n', "c.yaml:3:9: policy: the character U+D800 is not allowed"),
        (LOCAL + "agents: {join: {a: {token_file: ''}}}\n", "agents.join.a.token_file: it is empty"),
        (LOCAL + "machines: {local: {kind: command, reboot: [p]}}\n", "machines: 'local' comes with cluster a"),
        (LOCAL + "policy: /dev/zero\n", "/dev/zero:1: more than 1000000 characters"),
        (LOCAL + "store_password_file: secret\n", "c.yaml:3:1: 'store_password_file' is for PostgreSQL"),
        (LOCAL + "store: postgresql://u@d/s\nstore_password_file: open\n", "c.yaml:4:22: store_password_file: "),
        (LOCAL + "policy: defautl\n", "c.yaml:3:9: policy: unknown policy 'defautl': did you mean 'default'?"),
        (LOCAL + "policy: ./none.yaml\n", "c.yaml:3:9: "),
        (LOCAL + "machines: {m: {kind: comand}}\n", "machines.m.kind: unknown kind 'comand': did you mean 'command'?"),
        (LOCAL + "machines: {agent: {kind: agent}}\n", "c.yaml:3:12: 'agent' is always there"),
        (LOCAL + "machines: {m: {kind: command}}\n", "machines.m.kind: it does nothing: write at least one of"),
        (LOCAL + "machines: {m: {kind: command, reboot: 'power cycle'}}\n", "machines.m.reboot: expected a list"),
        (LOCAL + "machines: {m: {kind: command, reboot: [p, '{nod}']}}\n", "m.reboot: unknown placeholder {nod}"),
        (LOCAL + "machines: {m: {kind: command, reboot: ['']}}\n", "machines.m.reboot: names no program"),
        (LOCAL + "machines: {m: {kind: command, reboot: [p], fenced: [q]}}\n", "machines.m.fenced: without 'fence'"),
        (LOCAL + "machines: {m: {kind: command, reboot: [p], within: 2h}}\n", "machines.m.within: must be more than"),
        (LOCAL + "notifiers: {n: {kind: slak}}\n", "unknown kind 'slak': did you mean 'slack'?"),
        (LOCAL + "agents: {join: {b: {token_file: secret}}}\n", "c.yaml:3:17: agents.join: unknown cluster 'b'"),
        (LOCAL + "agents: {join: {a: {token_file: open}}}\n", "agents.join.a.token_file: "),
        (LOCAL + "agents: {join: {a: {token: x}}}\n", "agents.join.a: unknown key 'token': did you mean 'token_file'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(place: Path, text: str, said: str) -> None:
    assert said in refused(place, text)


def test_the_example_that_is_handed_out_is_right(tmp_path: Path) -> None:
    """Its secrets and certificates are elsewhere here; all else is read as it stands."""
    text = EXAMPLE.read_text()
    for name in ("/etc/sickbay/db-password", "/etc/sickbay/oncall-secret", "/etc/sickbay/join/lab"):
        assert name in text
        secret = tmp_path / Path(name).name
        secret.write_text(WORD)
        secret.chmod(0o600)
        text = text.replace(name, str(secret))
    config = read(tmp_path, text)
    assert read_policy(config).name == "default"
    assert set(config.clusters) == set(config.agents.join)


def test_a_check_of_the_file_finds_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(LOCAL + "listen: {cert: /nope.crt, key: /nope.key}\n")
    result = CliRunner().invoke(main, ["controller", "--check", "--config", str(file)])
    assert result.exit_code == 2
    assert "c.yaml:3:9: listen: there is no file /nope.crt: give the certificate" in result.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no\.yaml: no such file: give a \.yaml file with 'clusters: "):
        read_config(tmp_path / "no.yaml")


def test_a_policys_own_mistake_has_the_place_in_its_own_file(place: Path) -> None:
    (place / "p.yaml").write_text("extends: default\nlimit: []\n")
    assert "p.yaml:2:1: unknown key 'limit': did you mean 'limits'?" in refused(place, LOCAL + "policy: ./p.yaml\n")


def test_what_has_changed_is_named_and_the_policy_is_none_of_it(place: Path) -> None:
    before = read(place, LOCAL)
    assert before.differs(read(place, "# moved\n" + LOCAL + "policy: recommend\n")) == ()
    after = read(place, LOCAL + "  b: {kind: local}\nlisten: {port: 8081}\n")
    assert before.differs(after) == ("clusters", "listen")


def test_every_setting_is_explained() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "controller.md").read_text()
    names = [f"listen.{each.name}" for each in fields(Listen)]
    names += [each.name for each in fields(ClusterConfig) if each.name != "home"]
    names += [
        each.name for each in dataclasses.fields(ControllerConfig) if each.name not in {"metrics", "file", "places"}
    ]
    missing = [name for name in names if f"`{name}`" not in page and f"`{name}." not in page]
    missing += [each.name for each in fields(CommandMachineSettings) if f"    {each.name}: " not in page]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise RuntimeError('no driver')", "cannot be loaded (RuntimeError: no driver): install it anew"),
        ("KIND = 7", "is no sickbay.wiring.ClusterKind"),
        ("from sickbay.wiring import ClusterKind as K\nKIND = K(dict, print)", "is no sickbay.wiring.ClusterKind"),
        ("OTHER = 7", "cannot be loaded (AttributeError: "),
    ],
)
def test_a_kind_of_another_package_that_is_broken_is_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    distribution = place / "theirs-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(
        "[sickbay.clusters]\ntheirs = their_kind:KIND\nlocal = their_kind:KIND\n"
    )
    (place / "their_kind.py").write_text(module)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "their_kind", raising=False)
    wiring._registered.cache_clear()
    try:
        assert said in refused(place, "clusters:\n  a: {kind: theirs}\n")
        assert ", theirs" in refused(place, "clusters:\n  a: {kind: other}\n")
        assert read(place, LOCAL).clusters["a"].settings == LocalSettings()  # ours stays ours
    finally:
        wiring._registered.cache_clear()


def test_the_stores_password_is_in_no_error() -> None:
    with pytest.raises(StoreError) as error:
        open_store("postgresql://u@127.0.0.1:1/none", password=WORD)
    assert "u@127.0.0.1:1" in str(error.value) or "u:***@127.0.0.1:1" in str(error.value)
    assert WORD not in str(error.value)


def test_what_a_pool_can_do_is_what_its_channels_do_and_a_policy_may_name_no_other(tmp_path: Path) -> None:
    store, policy = open_store("memory:"), load_policy("default")

    def nobody() -> None:
        pass

    settings = LocalSettings(nodes=1)
    wired = cluster_kind("local").build(ClusterGround("a", tmp_path / "a", store, policy, nobody, settings))
    ground = FleetGround(store, policy, nobody, metrics=tmp_path / "metrics")
    rules = fleet_of({"a": FleetCluster(wired, {"h200": ("agent",), "*": ("local", "agent")})}, ground).rules
    assert Capability.REBOOT not in rules.can_in("a", "a/h200")
    assert Capability.REBOOT in rules.can_in("a", "a/other")
    elsewhere = replace(policy, channels={Remedy.REBOOT: "bmc"})
    with pytest.raises(BadInput, match="reboot is to go to 'bmc', which cluster a does not have; it has local, agent"):
        fleet_of({"a": FleetCluster(wired)}, ground._replace(policy=elsewhere))
