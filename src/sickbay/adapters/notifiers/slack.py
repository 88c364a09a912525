"""Slack: an incoming webhook. Its URL is the secret, so it stands in a file."""

from urllib.parse import urlsplit

import msgspec

from sickbay.adapters.notifiers.message import NoticeLinks, NoticeMessage, message_of
from sickbay.adapters.notifiers.settings import NotifierSettings, heard, secret_of
from sickbay.model.errors import Rejected
from sickbay.model.intent import Notify
from sickbay.model.notice import NoticeSeverity
from sickbay.wire.posting import header_text, post, wrong_url

_SIGNS = {
    NoticeSeverity.INFO: ":information_source:",
    NoticeSeverity.WARNING: ":warning:",
    NoticeSeverity.ERROR: ":x:",
    NoticeSeverity.CRITICAL: ":rotating_light:",
}
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class SlackSettings(NotifierSettings, kw_only=True):
    url_file: str  # the incoming webhook's URL, which is its secret
    ca_file: str = ""


class SlackNotifier:
    def __init__(self, settings: SlackSettings, links: NoticeLinks) -> None:
        self._settings = settings
        self._links = links

    def tell(self, notice: Notify, *, key: str) -> str:
        settings = self._settings
        url = secret_of(settings.url_file)
        if wrong := wrong_url(url):
            raise Rejected(f"what stands in {settings.url_file} {wrong}")
        body = msgspec.json.encode({"text": slack_text(message_of(notice, key, self._links))})
        headers = {"Content-Type": "application/json", "Idempotency-Key": header_text(key)}
        posted = post(url, body, headers, within=settings.timeout.total_seconds(), ca_file=settings.ca_file)
        parts = urlsplit(url)
        pieces = [piece for piece in parts.path.split("/") if len(piece) > 7]
        return heard(parts.hostname or "", posted, url, parts.path, parts.query, *pieces)


def slack_text(message: NoticeMessage) -> str:
    """mrkdwn. What comes from the cluster is escaped: a log line mentions nobody and links nowhere."""
    more = " · ".join(one for one in (f"`{message.command}`", message.runbook, message.console) if one)
    text = message.text.translate(_ESCAPED)
    return f"{_SIGNS[message.severity]} *{message.event}* {text}\n{more}"
