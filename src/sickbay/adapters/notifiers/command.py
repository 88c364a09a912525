"""Command: a program of the site's own, the notice's JSON on its standard input, bounded in time."""

import os
from collections.abc import Iterator

from sickbay.adapters.notifiers.message import NoticeLinks, encoded, message_of
from sickbay.adapters.notifiers.settings import SAID, NotifierSettings
from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.intent import Notify
from sickbay.model.mistakes import SettingsMistake
from sickbay.wire.commands import run_bounded
from sickbay.wire.secret_files import redacted

TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # of our environment


class CommandSettings(NotifierSettings, kw_only=True):
    argv: tuple[str, ...]

    def mistakes(self) -> Iterator[SettingsMistake]:
        yield from super().mistakes()
        if not self.argv or not self.argv[0]:
            yield SettingsMistake(
                "argv", "names no program: write [/usr/local/bin/page, --to, oncall]; no shell reads it"
            )


class CommandNotifier:
    def __init__(self, settings: CommandSettings, links: NoticeLinks) -> None:
        self._settings = settings
        self._links = links

    def tell(self, notice: Notify, *, key: str) -> str:
        settings = self._settings
        env = {name: os.environ[name] for name in PASSED if name in os.environ} | {"SICKBAY_NOTICE_KEY": key}
        body = encoded(message_of(notice, key, self._links))
        try:
            end = run_bounded(settings.argv, settings.timeout.total_seconds(), env=env, stdin=body)
        except FileNotFoundError:
            raise Rejected(f"{settings.argv[0]}: no such program") from None
        except PermissionError:
            raise Rejected(f"{settings.argv[0]} may not be run") from None
        except OSError as error:
            raise Transient(f"{settings.argv[0]} could not be started: {error.strerror}") from None
        last = redacted(end.last)[:SAID]
        if end.code is None:
            raise Unknown(f"{settings.argv[0]} was ended after {end.seconds:.0f} s: {last or 'it had said nothing'}")
        if end.code == 0:
            return last
        text = f"{settings.argv[0]} ended with {end.code}: {last or 'it said nothing'}"
        raise (Transient if end.code == TRY_AGAIN else Rejected)(text)
