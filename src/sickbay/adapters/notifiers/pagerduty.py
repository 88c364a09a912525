"""PagerDuty: Events API v2. One alert for each incident (dedup_key), resolved when the incident closes."""

from typing import Any
from urllib.parse import urlsplit

import msgspec

from sickbay.adapters.notifiers.message import NoticeLinks, NoticeMessage, message_of
from sickbay.adapters.notifiers.settings import NotifierSettings, heard, secret_of
from sickbay.model.intent import Notify
from sickbay.model.notice import CLOSED, TEST
from sickbay.wire.posting import header_text, post

SUMMARY = 1024  # characters that the API takes


class PagerDutySettings(NotifierSettings, kw_only=True):
    routing_key_file: str  # the integration key of a service
    url: str = "https://events.pagerduty.com/v2/enqueue"  # the EU has its own: https://events.eu.pagerduty.com/…
    ca_file: str = ""

    @property
    def closings(self) -> bool:
        return True


class PagerDutyNotifier:
    def __init__(self, settings: PagerDutySettings, links: NoticeLinks) -> None:
        self._settings = settings
        self._links = links

    def tell(self, notice: Notify, *, key: str) -> str:
        message = message_of(notice, key, self._links)
        routing_key = secret_of(self._settings.routing_key_file)
        said = self._enqueue(_event(message, routing_key), key, routing_key)
        if notice.event == TEST:  # a test is over at once: nobody has to close it by hand
            said = self._enqueue(_resolved(message, routing_key), key, routing_key)
        return said

    def _enqueue(self, event: dict[str, Any], key: str, routing_key: str) -> str:
        settings = self._settings
        headers = {"Content-Type": "application/json", "Idempotency-Key": header_text(key)}
        within = settings.timeout.total_seconds() / 2  # a test needs two
        posted = post(settings.url, msgspec.json.encode(event), headers, within=within, ca_file=settings.ca_file)
        return heard(urlsplit(settings.url).hostname or "", posted, routing_key)


def _event(message: NoticeMessage, routing_key: str) -> dict[str, Any]:
    if message.event == CLOSED:
        return _resolved(message, routing_key)
    links = [
        {"href": link, "text": text}
        for link, text in ((message.runbook, "runbook"), (message.console, "console"))
        if link.startswith(("http://", "https://"))
    ]
    return {
        "routing_key": routing_key,
        "event_action": "trigger",
        "dedup_key": dedup_key(message),
        "client": "sickbay",
        "links": links,
        "payload": {
            "summary": message.text[:SUMMARY],
            "source": message.node or message.pool or message.subject,
            "severity": str(message.severity),
            "timestamp": message.at or None,
            "component": message.fault,
            "group": message.pool,
            "class": message.event,
            "custom_details": msgspec.to_builtins(message),
        },
    }


def _resolved(message: NoticeMessage, routing_key: str) -> dict[str, Any]:
    return {"routing_key": routing_key, "event_action": "resolve", "dedup_key": dedup_key(message)}


def dedup_key(message: NoticeMessage) -> str:
    """One alert for each incident, with its reminders. What is about no incident is told by itself."""
    if message.incident:
        return f"sickbay/{message.node}/{message.incident}"[:255]
    return f"sickbay/{message.key}"[:255]
