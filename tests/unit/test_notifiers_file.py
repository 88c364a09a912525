"""The file of notifiers: every mistake is one line with its place and what to write; secrets are never told."""

from pathlib import Path

import pytest

from sickbay.hosts.channels import read_notifiers
from sickbay.model.errors import BadInput
from sickbay.policy.load import load_policy, named_notifiers, refuse_unconfigured

WORD = "a-secret-5f1c"
WEBHOOK = "notifiers:\n  oncall: {kind: webhook, url: 'https://h/x', secret_file: s}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "s").write_text(f"{WORD}\n")
    (tmp_path / "s").chmod(0o600)
    (tmp_path / "open").write_text(WORD)
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "empty").touch(0o600)
    return tmp_path


def written(place: Path, text: str) -> Path:
    path = place / "n.yaml"
    path.write_text(text)
    return path


def refused(place: Path, text: str) -> str:
    with pytest.raises(BadInput) as error:
        read_notifiers(written(place, text))
    said = str(error.value)
    assert "\n" not in said
    assert WORD not in said
    return said.removeprefix(f"{place}/")


def test_paths_are_seen_from_the_file_and_settings_have_defaults(place: Path) -> None:
    found = read_notifiers(written(place, WEBHOOK + "console: https://c\n"))
    assert found.names == ("log", "oncall")
    assert getattr(found.notifiers["oncall"], "secret_file") == str(place / "s")  # noqa: B009
    assert found.traits["oncall"].most == 20
    assert not found.traits["oncall"].closings
    assert found.links.console == "https://c"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notifers: {}\n", "n.yaml:1:1: unknown key 'notifers': did you mean 'notifiers'?"),
        ("console: https://c\n", "'notifiers' is missing"),
        ("notifiers: [a]\n", "expected 'name: {kind: …}' lines"),
        ("notifiers: {log: {kind: slack}}\n", "'log' is always there"),
        ("notifiers: {'a b': {kind: slack}}\n", "'a b' is no name"),
        ("notifiers: {a: {url: x}}\n", "notifiers.a: 'kind' is missing: write one of command, mail"),
        ("notifiers: {a: {kind: webhok}}\n", "unknown kind 'webhok': did you mean 'webhook'?"),
        ("notifiers: {a: {kind: webhook, url: 'https://h'}}\n", "'secret_file' is missing: add 'secret_file: …'"),
        (WEBHOOK.replace("url:", "ulr:"), "unknown key 'ulr': did you mean 'url'?"),
        (WEBHOOK.replace("https", "ftp"), "notifiers.oncall.url: must begin with https://"),
        (WEBHOOK.replace("h/x", "u:pw@h/x"), "notifiers.oncall.url: has a user or a password in it"),
        (WEBHOOK.replace("h/x", "h/ x"), "notifiers.oncall.url: is not a URL"),
        (WEBHOOK.replace("h/x", "h:99999/"), "notifiers.oncall.url: is not a URL"),
        (WEBHOOK.replace("https://h/x", "https:///x"), "names no host"),
        (WEBHOOK.replace("h/x", "h/x#y"), "has a fragment"),
        (WEBHOOK.replace("secret_file: s", "secret_file: none"), "cannot be read (No such file or directory)"),
        (WEBHOOK.replace("secret_file: s", "secret_file: open"), "can be read by others (mode 0644): chmod 600 it"),
        (WEBHOOK.replace("secret_file: s", "secret_file: empty"), "is empty"),
        (WEBHOOK.replace("secret_file: s", "secret_file: ."), "is not a file"),
        (WEBHOOK.replace("secret_file: s", "secret_file: s, ca_file: no.pem"), "ca_file: "),
        (WEBHOOK.replace("secret_file: s", "secret_file: s, most: -1"), "n.yaml:2:63: notifiers.oncall.most: must"),
        (WEBHOOK.replace("secret_file: s", "secret_file: s, timeout: 8"), "expected a duration"),
        (WEBHOOK.replace("secret_file: s", "secret_file: s, timeout: 10m"), "must be more than nothing and at most 5m"),
        (WEBHOOK + "  oncall: {kind: slack, url_file: s}\n", "'oncall' is given twice"),
        ("notifiers: {a: {kind: command, argv: []}}\n", "argv: names no program"),
        ("notifiers: {m: {kind: mail, host: h, sender: nobody, to: [a@b]}}\n", "'nobody' is no address"),
        ("notifiers: {m: {kind: mail, host: h, sender: a@b, to: []}}\n", "to: is empty"),
        ("notifiers: {m: {kind: mail, host: h, sender: a@b, to: [a@b], user: u}}\n", "go together"),
        (
            "notifiers: {m: {kind: mail, host: h, sender: a@b, to: [a@b], user: u, password_file: s, security: none}}",
            "none would send the password in clear",
        ),
        ("notifiers: {m: {kind: mail, host: h, sender: a@b, to: [a@b], security: ssl}}\n", "unknown value 'ssl'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(place: Path, text: str, said: str) -> None:
    assert said in refused(place, text)


def test_a_policy_that_names_an_unknown_channel_is_refused_with_its_line(place: Path) -> None:
    policy = place / "p.yaml"
    policy.write_text("extends: default\nnotify:\n  - {events: [held], to: [oncal], next: [chat]}\n")
    assert named_notifiers(load_policy(policy)) == ("oncal", "chat")
    with pytest.raises(BadInput, match=r"p.yaml:3:\d+: notify\[0\].to\[0\]: unknown notifier 'oncal': did you mean"):
        load_policy(policy, ("log", "oncall"))
    with pytest.raises(BadInput, match=r"notify\[0\].next\[0\]: unknown notifier 'chat'"):
        load_policy(policy, ("oncal",))
    load_policy(policy, ("oncal", "chat"))
    with pytest.raises(BadInput, match="policy p: notify"):
        refuse_unconfigured(load_policy(policy), ())


def test_a_secret_that_went_missing_since_keeps_no_controller_from_starting(place: Path) -> None:
    path = written(place, WEBHOOK)
    (place / "s").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        read_notifiers(path)
    assert read_notifiers(path, known=True).names == ("log", "oncall")
