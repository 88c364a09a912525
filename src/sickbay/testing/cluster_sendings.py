"""Fault injection on the wire: a mutation is cut before and after every far call that it makes, then repeated."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from sickbay.model.errors import EffectError, Rejected, Transient, Unknown
from sickbay.ports.cluster import Accepted
from sickbay.testing.cluster_rig import ClusterRig, Moment

# How a call is sent: what happens to the first sending, before it is repeated under the same key.
SENDINGS = ("twice", "cut before", "cut after")

Call = Callable[[], Accepted]
Send = Callable[[Call], None]


def send_twice(call: Call) -> None:
    """The second may be refused because the first has changed what is there."""
    call()
    with suppress(Rejected):
        call()


def play(rig: ClusterRig, how: str, scene: Callable[[Send], None]) -> None:
    """Plays a scene, which sends one call, for each way in which it can go wrong.

    A clean run counts the calls on the wire; then the scene is played anew for each of them, cut there. Names change
    with every `clean`, so a scene asks for its names itself.
    """
    if how == "twice":
        scene(send_twice)
        return
    moment = cast("Moment", how.removeprefix("cut "))
    calls = 0

    def counted(call: Call) -> None:
        nonlocal calls
        rig.far_calls.begin()
        call()
        calls = rig.far_calls.count()

    scene(counted)
    assert calls, "the rig has seen no call on the wire"
    for number in range(1, calls + 1):
        rig.clean()
        try:
            scene(partial(_send_cut, rig, number, moment, number == calls))
        except (AssertionError, EffectError, pytest.fail.Exception) as error:
            error.add_note(f"the call was cut {moment} far call {number} of {calls}")
            raise


def _send_cut(rig: ClusterRig, number: int, moment: Moment, last: bool, call: Call) -> None:
    rig.far_calls.cut(number, moment)
    # An adapter may do without a call that was cut: then it was accepted.
    errors = (Unknown,) if last and moment == "after" else (Transient, Unknown)
    with suppress(*errors):
        call()
    rig.far_calls.begin()
    with suppress(Rejected):
        call()
