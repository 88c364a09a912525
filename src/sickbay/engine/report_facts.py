"""What an agent's report says, as facts: dated, signed with its node and incarnation, numbered without gaps."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec.structs import replace

from sickbay.engine.view import moment
from sickbay.model.checkup import Verdict
from sickbay.model.errors import BadInput
from sickbay.model.facts import (
    AGENT_ANSWERED,
    AnyNews,
    CallResult,
    Checked,
    Fact,
    Inventory,
    Looked,
    Observed,
    Outcome,
    ResetDone,
)
from sickbay.model.protocol import (
    PROTO,
    Answered,
    Command,
    CommandResult,
    Item,
    Measured,
    Report,
    RunCheck,
    RunCollect,
    RunInject,
    RunReboot,
    RunReset,
    command_id,
    fact_id,
)

OLDEST = 366 * 86_400.0  # seconds: an agent's clock that says more is wrong, and some such moments have no date


def facts_of(report: Report, asked: Mapping[str, Command], received: float) -> Iterator[Fact]:
    """`asked`: the commands that wait for this agent, by id; what an answer means depends on what was asked."""
    open_still = dict(asked)
    for item in report.items:
        at = happened(received, report, item)
        if isinstance(item.news, Measured) or (report.ended and isinstance(item.news, Inventory)):
            continue  # what a machine had in it under a boot that has ended says nothing of now
        if isinstance(item.news, Answered):
            # The first answer counts: an agent that died over its answer may add that it does not know.
            command = open_still.pop(item.news.command, None)
            news = _meaning_of(item.news, command, report) if command is not None else _late_refusal(item.news, report)
            if news is not None:
                yield Fact(id=_storable(f"answered/{item.news.command}"), at=at, news=news)
        else:
            yield Fact(id=_storable(fact_id(report, item)), at=at, news=_signed(item, report))


def _storable(ident: str) -> str:
    """A NUL fits into no column of text in PostgreSQL, which could not be told from a store that is away."""
    if "\0" in ident:
        raise BadInput("an id may not contain the character NUL: agent_run, stream, source or command does")
    return ident


def refuse_unknown(proto: int) -> None:
    if proto != PROTO:
        raise BadInput(f"protocol {proto} is not spoken here: install an agent that speaks protocol {PROTO}")


def happened(received: float, report: Report, item: Item) -> datetime:
    return moment(received - min(OLDEST, max(0.0, report.mono_now - item.mono)))


def last_seq(report: Report) -> int:
    """The last seq of a report whose items have no gaps."""
    for seq, item in enumerate(report.items, start=report.first_seq):
        if item.seq != seq:
            raise BadInput(f"item {item.seq} follows where {seq} must: send the items in order, none left out")
    return report.first_seq + len(report.items) - 1


def _signed(item: Item, report: Report) -> AnyNews:
    """An agent speaks for its own node and incarnation only."""
    news = item.news
    assert not isinstance(news, Answered | Measured)
    if isinstance(news, Observed):
        return replace(news, node=report.node, incarnation=report.incarnation, ended=news.ended or report.ended)
    if isinstance(news, Checked | Inventory | Looked | ResetDone):
        return replace(news, node=report.node, incarnation=report.incarnation)
    return replace(news, node=report.node)


def _late_refusal(answer: Answered, report: Report) -> Outcome | None:
    """A refusal of what was struck after the agent had it: nothing came of it, and whoever waits for its end knows."""
    key = answer.command.removesuffix(command_id("", report.node))
    if answer.result is not CommandResult.REFUSED or key == answer.command:
        return None
    text = answer.text or "the agent refused it"
    return Outcome(key=key, result=CallResult.REJECTED, sends=0, text=text, node=report.node)


def _meaning_of(answer: Answered, command: Command, report: Report) -> AnyNews | None:
    """What an answer means that brings no result of its own: a refusal, or the words of one who was asked something."""
    match command.order:
        case RunInject() | RunCollect() as order:
            word = "inject" if isinstance(order, RunInject) else "collect"
            fields: dict[str, str | int] = {"result": answer.result}
            return Observed(node=report.node, kind=AGENT_ANSWERED, fields=fields, text=f"{word}: {answer.text}")
        case _ if answer.result is CommandResult.DONE:
            return None
        case RunReboot() if answer.result is not CommandResult.REFUSED:
            return None  # it may yet come: its proof is another boot, and the rung's own deadline waits for that
        case RunReset(key=key) | RunReboot(key=key):
            text = answer.text or f"the agent says {answer.result}"
            return Outcome(key=key, result=CallResult.REJECTED, sends=0, text=text, node=report.node)
        case RunCheck(check=check, level=level):
            because = answer.text or f"the agent says {answer.result}"
            return Checked(
                check=check, node=report.node, verdict=Verdict.COULD_NOT_RUN, incarnation=report.incarnation,
                level=level, because=because,
            )  # fmt: skip
        case _:
            return None
