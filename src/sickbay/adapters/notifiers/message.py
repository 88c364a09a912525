"""The notice as machines read it: one JSON object of a documented version, the same through every channel."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sickbay.model.intent import Notify
from sickbay.model.notice import NoticeSeverity, kind_of_notice
from sickbay.model.noun import Noun
from sickbay.model.rows import kind_of

VERSION: Literal[1] = 1

COMMANDS = {
    "incident": "sickbay explain {name}",
    "job": "sickbay explain {name}",
    "node": "sickbay explain {name}",
    "brake": "sickbay brake list",
    "channel": "sickbay notices",
}


class NoticeLinks(Noun):
    """Where people find more: pages of their own site, where there are any."""

    runbooks: str = "docs/runbooks"
    console: str = ""


class NoticeMessage(Noun, omit_defaults=False):
    """Version 1. Within it fields are only ever added; one that is not about anything is an empty text."""

    version: Annotated[Literal[1], Meta(description="of this format")]
    key: Annotated[str, Meta(description="stable: the same in every sending; drop what you have had")]
    event: Annotated[str, Meta(description="held, job_failed, brake …: docs/runbooks lists them")]
    severity: Annotated[NoticeSeverity, Meta(description="how urgent it is")]
    waits: Annotated[bool, Meta(description="something stands still until a person acts")]
    at: Annotated[
        str, Meta(description="when it was decided: ISO 8601, UTC", extra_json_schema={"format": "date-time"})
    ]
    text: Annotated[str, Meta(description="one line for people")]
    subject: Annotated[str, Meta(description="what it is about: incident:…, job:…, node:…, brake:…, channel:…")]
    pool: Annotated[str, Meta(description="<cluster>/<pool>")]
    node: Annotated[str, Meta(description="<cluster>/<name>")]
    job: str
    incident: str
    fault: Annotated[str, Meta(description="the incident's fault code, such as xid.79")]
    command: Annotated[str, Meta(description="to paste: what tells more")]
    runbook: Annotated[str, Meta(description="the page that says what to do")]
    console: Annotated[str, Meta(description="the console's address, where one is configured")]


def message_of(notice: Notify, key: str, links: NoticeLinks) -> NoticeMessage:
    kind, name = kind_of(notice.subject), notice.about
    at = notice.at.isoformat(timespec="milliseconds").replace("+00:00", "Z") if notice.at is not None else ""
    return NoticeMessage(
        version=VERSION,
        key=key,
        event=notice.event,
        severity=notice.severity,
        waits=kind_of_notice(notice.event).waits,
        at=at,
        text=notice.text,
        subject=notice.subject,
        pool=notice.pool,
        node=notice.node,
        job=notice.job,
        incident=notice.incident,
        fault=notice.fault,
        command=COMMANDS.get(kind, "sickbay incidents --open").format(name=name),
        runbook=f"{links.runbooks.rstrip('/')}/{notice.event}.md",
        console=links.console,
    )


def encoded(message: NoticeMessage) -> bytes:
    return msgspec.json.encode(message)
