"""The Notifier port's contract, for every adapter, against real servers and programs."""

import base64
import stat
from collections.abc import Iterator
from datetime import timedelta
from email import message_from_string
from pathlib import Path

import msgspec
import pytest
from tests.support.far_sides import HTTP_MOODS, SMTP_MOODS, FarHttp, FarSmtp, serving

from sickbay.adapters.notifiers.command import CommandNotifier, CommandSettings
from sickbay.adapters.notifiers.log import LogNotifier
from sickbay.adapters.notifiers.mail import MailNotifier, MailSecurity, MailSettings
from sickbay.adapters.notifiers.message import NoticeLinks
from sickbay.adapters.notifiers.pagerduty import PagerDutyNotifier, PagerDutySettings
from sickbay.adapters.notifiers.slack import SlackNotifier, SlackSettings
from sickbay.adapters.notifiers.webhook import WebhookNotifier, WebhookSettings
from sickbay.ports.notifier import Notifier
from sickbay.testing.notifier_contract import FarMood, NotifierContract

pytestmark = pytest.mark.slow

SECRET, TOKEN = "hmac-secret-5f1c", "bearer-token-9a77"
SOON = timedelta(seconds=0.5)
LINKS = NoticeLinks()


def secret(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return str(path)


class HttpSide:
    moods = HTTP_MOODS

    def __init__(self, server: FarHttp, notifier: Notifier, secrets: tuple[str, ...]) -> None:
        self.server, self.notifier, self.secrets = server, notifier, secrets

    @property
    def taken(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self.server.taken]

    def be(self, mood: FarMood) -> None:
        self.server.be(mood)


@pytest.fixture
def http() -> Iterator[FarHttp]:
    server = FarHttp()
    with serving(server):
        yield server


class TestWebhook(NotifierContract):
    @pytest.fixture
    def far(self, http: FarHttp, tmp_path: Path) -> HttpSide:
        settings = WebhookSettings(
            kind="webhook", url=f"{http.url}/hook", timeout=SOON, secret_file=secret(tmp_path, "s", SECRET),
            token_file=secret(tmp_path, "t", TOKEN),
        )  # fmt: skip
        return HttpSide(http, WebhookNotifier(settings, LINKS), (SECRET, TOKEN))


class TestSlack(NotifierContract):
    @pytest.fixture
    def far(self, http: FarHttp, tmp_path: Path) -> HttpSide:
        url_file = secret(tmp_path, "u", f"{http.url}/services/T0000/B00000000/verysecretpiece")
        settings = SlackSettings(kind="slack", url_file=url_file, timeout=SOON)
        return HttpSide(http, SlackNotifier(settings, LINKS), ("verysecretpiece", "B00000000"))


class TestPagerDuty(NotifierContract):
    @pytest.fixture
    def far(self, http: FarHttp, tmp_path: Path) -> HttpSide:
        key_file = secret(tmp_path, "k", SECRET)
        settings = PagerDutySettings(
            kind="pagerduty", url=f"{http.url}/v2/enqueue", routing_key_file=key_file, timeout=2 * SOON
        )
        return HttpSide(http, PagerDutyNotifier(settings, LINKS), (SECRET,))


class SmtpSide:
    moods = SMTP_MOODS
    secrets = (SECRET, base64.b64encode(f"\0u\0{SECRET}".encode()).decode())

    def __init__(self, server: FarSmtp, notifier: Notifier) -> None:
        self.server, self.notifier = server, notifier

    @property
    def taken(self) -> list[str]:
        return [message_from_string(mail.text)["Message-ID"] for mail in self.server.taken]

    def be(self, mood: FarMood) -> None:
        self.server.be(mood)


class TestMail(NotifierContract):
    @pytest.fixture
    def far(self, tmp_path: Path) -> Iterator[SmtpSide]:
        server = FarSmtp()
        settings = MailSettings(
            kind="mail", host="127.0.0.1", port=server.port, security=MailSecurity.NONE, sender="s@example.org",
            to=("a@example.org", "b@example.org"), user="u", password_file=secret(tmp_path, "p", SECRET), timeout=SOON,
        )  # fmt: skip
        with serving(server):
            yield SmtpSide(server, MailNotifier(settings, LINKS))


PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
case $(cat mood) in
    takes) cat >> taken; echo >> taken; echo done ;;
    refuses) cat; exit 1 ;;
    busy) cat; exit 75 ;;
    cut_before) kill -9 $$ ;;
    hangs) sleep 30 ;;
    drips) while :; do echo x; sleep 0.05; done ;;
    floods) yes ;;
esac
"""


class CommandSide:
    moods = frozenset(FarMood) - {FarMood.AWAY, FarMood.CUT_BEFORE, FarMood.CUT_AFTER}
    secrets = ()

    def __init__(self, place: Path) -> None:
        self._place = place
        program = place / "page"
        program.write_text(PROGRAM)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.be(FarMood.TAKES)
        self.notifier = CommandNotifier(CommandSettings(kind="command", argv=(str(program),), timeout=SOON), LINKS)

    @property
    def taken(self) -> list[str]:
        file = self._place / "taken"
        return [msgspec.json.decode(line)["key"] for line in file.read_bytes().splitlines()] if file.exists() else []

    def be(self, mood: FarMood) -> None:
        (self._place / "mood").write_text(mood)


class TestCommand(NotifierContract):
    @pytest.fixture
    def far(self, tmp_path: Path) -> CommandSide:
        return CommandSide(tmp_path)


class LogSide:
    moods = frozenset({FarMood.TAKES})
    secrets = ()
    notifier = LogNotifier()

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def taken(self) -> list[str]:
        return [getattr(record, "notice", "") for record in self._caplog.records if record.name == "sickbay.notify"]

    def be(self, mood: FarMood) -> None:
        del mood


class TestLog(NotifierContract):
    @pytest.fixture
    def far(self, caplog: pytest.LogCaptureFixture) -> LogSide:
        return LogSide(caplog)
