"""From which boot a piece of news is: one table for the one function that tells it."""

import pytest
from msgspec.structs import replace

from sickbay.brain.identity import NewsAge, age_of
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, Node, NodeId

SEAT = NodeId("sim/a")
NOW = Incarnation(uid="u", instance_id="i", boot_id="b2")
NODE = Node(id=SEAT, cluster="sim", pool="sim/gpu", incarnation=NOW, registered=NOW, ended_boots=("b0", "b1"))
UNNAMED = replace(NODE, registered=None)  # its cluster cannot tell machines apart
VACANT = replace(NODE, incarnation=None)
KILLED = replace(NODE, boot_ended_by_us=True)


def agent(boot: str, instance: str = "i") -> Incarnation:
    return Incarnation(instance_id=instance, boot_id=boot)


LIVE, SPOOLED, LAST = {"ended": False}, {"ended": True}, {"last_words": True}


@pytest.mark.parametrize(
    ("node", "who", "how", "age"),
    [
        # a boot that goes on, as far as its agent knows
        (NODE, agent("b2"), LIVE, NewsAge.PRESENT),
        (NODE, None, LIVE, NewsAge.PRESENT),  # a cluster's word: it does not say
        (VACANT, None, LIVE, NewsAge.PRESENT),
        (NODE, agent("b3"), LIVE, NewsAge.NEWER),
        (NODE, agent("b1"), LIVE, NewsAge.ENDED),
        (NODE, agent("b0"), LIVE, NewsAge.ENDED),
        (NODE, agent("b3", "other"), LIVE, NewsAge.UNKNOWN_HOLDER),
        (UNNAMED, agent("b3", "other"), LIVE, NewsAge.SUCCESSOR),
        (VACANT, agent("b3"), LIVE, NewsAge.SUCCESSOR),
        (None, agent("b3"), LIVE, NewsAge.UNKNOWN_HOLDER),
        (None, None, LIVE, NewsAge.UNKNOWN_HOLDER),
        # read from the journal or the spool of a boot that has ended
        (NODE, agent("b2"), LAST, NewsAge.LAST_WORDS),  # its next boot is not known yet
        (NODE, agent("b1"), LAST, NewsAge.LAST_WORDS),  # it is
        (NODE, agent("b0"), LAST, NewsAge.ENDED),  # not the last boot
        (KILLED, agent("b1"), LAST, NewsAge.ENDED),  # our own repair ended it
        (NODE, agent("b9", "other"), LAST, NewsAge.ENDED),
        (NODE, None, LAST, NewsAge.ENDED),
        (None, agent("b1"), LAST, NewsAge.ENDED),
        (NODE, agent("b2"), SPOOLED, NewsAge.ENDED),  # said while it ran: no last words
        (NODE, agent("b1"), SPOOLED, NewsAge.ENDED),
        (None, None, SPOOLED, NewsAge.ENDED),
    ],
)
def test_from_which_boot_it_is(node: Node | None, who: Incarnation | None, how: dict[str, bool], age: NewsAge) -> None:
    news = Observed(
        node=SEAT, kind="xid", incarnation=who, ended=how.get("ended", False), last_words=how.get("last_words", False)
    )
    assert age_of(node, news) is age
