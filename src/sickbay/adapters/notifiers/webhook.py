"""Webhook: a signed POST of the notice's JSON (HMAC-SHA256 over time and body, Idempotency-Key)."""

import hashlib
import hmac
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import sickbay
from sickbay.adapters.notifiers.message import NoticeLinks, encoded, message_of
from sickbay.adapters.notifiers.settings import NotifierSettings, heard, secret_of
from sickbay.model.errors import Transient
from sickbay.model.intent import Notify
from sickbay.model.mistakes import SettingsMistake
from sickbay.wire.posting import fits_a_header, header_text, post
from sickbay.wire.secret_files import read_secret, wrong_secret

NOT_ONE_LINE = "is not one line of ASCII: write one token, as it is sent"
AGENT = f"sickbay/{sickbay.__version__}"


class WebhookSettings(NotifierSettings, kw_only=True):
    url: str
    secret_file: str  # one secret a line: while it is rotated both sign
    token_file: str = ""  # sent as "Authorization: Bearer …", for a far side that wants one
    ca_file: str = ""  # certificates to trust, of a site's own authority
    closing: bool = False  # told, too, when an incident that it was told of is over

    def missing(self) -> Iterator[SettingsMistake]:
        yield from super().missing()
        if self.token_file and not wrong_secret(self.token_file) and not fits_a_header(read_secret(self.token_file)):
            yield SettingsMistake("token_file", f"{self.token_file} {NOT_ONE_LINE}")

    @property
    def closings(self) -> bool:
        return self.closing


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What the far side computes itself and compares."""
    return "v1=" + hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _token(path: str) -> str:
    """Several lines are two secrets while they are rotated, but one header takes one."""
    token = secret_of(path)
    if not fits_a_header(token):
        raise Transient(f"{path}: {NOT_ONE_LINE}")
    return token


class WebhookNotifier:
    def __init__(self, settings: WebhookSettings, links: NoticeLinks) -> None:
        self._settings = settings
        self._links = links

    def tell(self, notice: Notify, *, key: str) -> str:
        settings = self._settings
        secrets = secret_of(settings.secret_file).split()
        body, timestamp = encoded(message_of(notice, key, self._links)), str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": AGENT,
            "Idempotency-Key": header_text(key),
            "Sickbay-Timestamp": timestamp,
            "Sickbay-Signature": ",".join(signature(secret, timestamp, body) for secret in secrets),
        }
        if settings.token_file:
            secrets.append(_token(settings.token_file))
            headers["Authorization"] = f"Bearer {secrets[-1]}"
        posted = post(settings.url, body, headers, within=settings.timeout.total_seconds(), ca_file=settings.ca_file)
        return heard(urlsplit(settings.url).hostname or "", posted, *secrets)
