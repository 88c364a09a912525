"""Checks, looks and resets as commands that wait for agents."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sickbay.adapters.checks.agents import AgentChecks
from sickbay.adapters.machines.agents import AgentMachines
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.model.errors import EffectError, Rejected, StoreUnavailable, StoreUnknown, Transient, Unknown
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.protocol import Command, RunCheck, RunLook, RunReset

N1, N2 = NodeId("c/n1"), NodeId("c/n2")
ME = Incarnation(uid="u", instance_id="i", boot_id="b")


def test_a_check_posts_one_command_for_each_node_and_wakes_the_polls() -> None:
    store, woken = MemoryStore(), list[str]()
    checks = AgentChecks(store, lambda: woken.append("!"), lambda: 1000.0)
    for _ in range(2):  # sending it twice is sending it once
        checks.start("k", {N1: ME, N2: None}, level=2, profile="quick")
    assert woken == ["!", "!"]
    (first,), (second,) = store.mail(N1), store.mail(N2)
    assert (first.id, first.expect, second.id, second.expect) == ("k/c/n1", ME, "k/c/n2", None)
    assert first.order == RunCheck(check="k", level=2, profile="quick")
    assert first.posted_at.timestamp() == 1000.0


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4, 9])
def test_a_check_of_any_level_has_time_to_begin_and_a_look_little(level: int) -> None:
    store = MemoryStore()
    checks = AgentChecks(store)
    checks.start("k", {N1: None}, level=level, profile="")
    checks.look("l", (N1,), stacks_of=JobId("j"))
    check, look = store.mail(N1)
    assert check.expires_after >= 60.0
    assert look.expires_after <= 20.0
    assert look.order == RunLook(look="l", stacks_of=JobId("j"))


def test_a_reset_is_a_command_to_the_incarnation_that_is_meant() -> None:
    store, woken = MemoryStore(), list[str]()
    AgentMachines(store, lambda: woken.append("!")).reset(N1, (0, 3), key="k", expect=ME)
    (command,) = store.mail(N1)
    assert (command.order, command.expect, woken) == (RunReset(key="k", devices=(0, 3)), ME, ["!"])


def test_an_agent_can_reset_and_nothing_else() -> None:
    machines = AgentMachines(MemoryStore())
    assert machines.capabilities == {Capability.RESET_GPU}
    assert not machines.blind
    calls: list[Callable[[], Any]] = [
        lambda: machines.reboot(N1, key="k", expect=ME),
        lambda: machines.replace(N1, key="k", expect=ME),
        lambda: machines.restart_service(N1, key="k", expect=ME),
        lambda: machines.fence(N1, key="k", expect=None),
    ]
    for call in calls:
        with pytest.raises(Rejected, match="configure a channel"):
            call()


class Broken(MemoryStore):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def post(self, commands: Sequence[Command]) -> None:  # noqa: ARG002 - the port's
        raise self._error


@pytest.mark.parametrize(
    ("error", "means"), [(StoreUnavailable("x"), Transient), (StoreUnknown("x"), Unknown)]
)  # fmt: skip
def test_says_whether_a_command_may_have_been_posted(error: Exception, means: type[EffectError]) -> None:
    with pytest.raises(means):
        AgentChecks(Broken(error)).start("k", {N1: None}, level=1, profile="")
    with pytest.raises(means):
        AgentMachines(Broken(error)).reset(N1, (), key="k", expect=ME)
