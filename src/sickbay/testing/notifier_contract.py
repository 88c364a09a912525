"""The contract of the Notifier port as a suite, for every adapter, also for those written elsewhere.

    class TestMyNotifier(NotifierContract):
        @pytest.fixture
        def far(self, tmp_path):
            with a_real_server_of_mine() as server:
                yield MyFarSide(server)

The far side is a real one on this machine (a server, a program) that can be told how to behave, and remembers what it
took. It must echo in what it answers as much of what it was sent as it can: a secret may come back, and go nowhere.
"""

import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

import pytest

from sickbay.model.errors import EffectError, Rejected, Transient, Unknown
from sickbay.model.fleet import IncidentId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.notice import NoticeSeverity
from sickbay.ports.notifier import Notifier

AT = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)
NOTICE = Notify(
    event="held",
    subject="incident:i12",
    text="c/n1: xid.79 is held: the ladder's end",
    severity=NoticeSeverity.CRITICAL,
    node=NodeId("c/n1"),
    incident=IncidentId("i12"),
    fault="xid.79",
    pool="c/p",
    at=AT,
)
HOSTILE = (
    "a\r\nBcc: everybody@example.org\r\n.\r\n<!channel> <https://evil.example|here> \x1b]52;c;aaaa\x07 \x00 é 漢 "
    + "x" * 5000
)


class FarMood(StrEnum):
    """How the far side behaves from now on."""

    TAKES = "takes"
    REFUSES = "refuses"  # for good: trying again unchanged is pointless
    BUSY = "busy"  # later, perhaps
    AWAY = "away"  # nobody listens
    CUT_BEFORE = "cut_before"  # the connection ends before it has taken the notice
    CUT_AFTER = "cut_after"  # and after it has, before it says so
    HANGS = "hangs"  # it has the connection, and says nothing
    DRIPS = "drips"  # a byte now and then, so that no read of it ever times out
    FLOODS = "floods"  # an answer without end


class FarSide(Protocol):
    """The other end of the notifier that is tested."""

    @property
    def notifier(self) -> Notifier: ...

    @property
    def moods(self) -> frozenset[FarMood]:
        """Those that this kind of far side can have."""

    @property
    def secrets(self) -> tuple[str, ...]: ...

    @property
    def taken(self) -> list[str]:
        """What names each notice that it took, in order: a double has the name of the first."""

    def be(self, mood: FarMood) -> None: ...


class NotifierContract:
    """What every notifier promises. The fixture `far` gives a far side that takes everything, to each test."""

    def test_what_was_taken_is_taken_once(self, far: FarSide) -> None:
        said = far.notifier.tell(NOTICE, key="i12.tell.held:1.x")
        assert isinstance(said, str)
        assert len(far.taken) == 1

    def test_a_second_sending_has_the_name_of_the_first(self, far: FarSide) -> None:
        for _ in range(2):
            far.notifier.tell(NOTICE, key="i12.tell.held:1.x")
        assert len(far.taken) == 2
        assert len(set(far.taken)) == 1

    def test_another_notice_has_another_name(self, far: FarSide) -> None:
        for key in ("i12.tell.held:1.x", "i12.tell.held:2.x"):
            far.notifier.tell(NOTICE, key=key)
        assert len(set(far.taken)) == 2

    def test_whatever_a_text_says_it_is_one_notice(self, far: FarSide) -> None:
        from msgspec.structs import replace

        far.notifier.tell(replace(NOTICE, text=HOSTILE), key="k")
        assert len(far.taken) == 1

    def test_a_refusal_is_no_reason_to_try_again(self, far: FarSide) -> None:
        _be(far, FarMood.REFUSES)
        with pytest.raises(Rejected):
            far.notifier.tell(NOTICE, key="k")
        assert far.taken == []

    @pytest.mark.parametrize("mood", [FarMood.BUSY, FarMood.AWAY])
    def test_who_is_busy_or_away_is_tried_again(self, far: FarSide, mood: FarMood) -> None:
        _be(far, mood)
        with pytest.raises(Transient):
            far.notifier.tell(NOTICE, key="k")
        assert far.taken == []
        far.be(FarMood.TAKES)
        far.notifier.tell(NOTICE, key="k")
        assert len(far.taken) == 1

    def test_cut_before_it_was_taken_it_is_sent_again(self, far: FarSide) -> None:
        _be(far, FarMood.CUT_BEFORE)
        with pytest.raises((Transient, Unknown)):
            far.notifier.tell(NOTICE, key="k")
        assert far.taken == []

    def test_cut_after_it_was_taken_nobody_claims_that_it_was_not(self, far: FarSide) -> None:
        _be(far, FarMood.CUT_AFTER)
        with pytest.raises(Unknown):
            far.notifier.tell(NOTICE, key="k")
        far.be(FarMood.TAKES)
        far.notifier.tell(NOTICE, key="k")
        assert len(far.taken) == 2
        assert len(set(far.taken)) == 1

    @pytest.mark.parametrize("mood", [FarMood.HANGS, FarMood.DRIPS])
    def test_who_never_ends_is_left(self, far: FarSide, mood: FarMood) -> None:
        _be(far, mood)
        with pytest.raises((Transient, Unknown)):
            far.notifier.tell(NOTICE, key="k")

    def test_an_answer_without_end_is_not_read_to_its_end(self, far: FarSide) -> None:
        _be(far, FarMood.FLOODS)
        try:
            said = far.notifier.tell(NOTICE, key="k")
        except EffectError as error:
            said = str(error)
        assert len(said) < 1000

    @pytest.mark.parametrize("mood", list(FarMood))
    def test_no_secret_is_in_what_it_says(self, far: FarSide, mood: FarMood, caplog: pytest.LogCaptureFixture) -> None:
        if mood is not FarMood.TAKES:
            _be(far, mood)
        said = ""
        with caplog.at_level(logging.DEBUG):
            try:
                said = far.notifier.tell(NOTICE, key="k")
            except EffectError as error:
                said = f"{error} {error.__cause__!r}"
        assert [secret for secret in far.secrets if secret in said + caplog.text] == []
        assert said.isprintable(), "it goes into the story and to terminals"


def _be(far: FarSide, mood: FarMood) -> None:
    if mood not in far.moods:
        pytest.skip(f"this far side is never {mood}")
    far.be(mood)
