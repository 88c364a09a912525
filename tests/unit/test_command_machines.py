"""Machines of kind `command`, with real little programs that succeed, refuse, fail, hang and are killed."""

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.waiting import until

from sickbay.adapters.machines.channels import Channels, SentThrough
from sickbay.adapters.machines.command import CommandMachines, CommandMachineSettings
from sickbay.adapters.machines.pools import PooledMachines, holder_in, pool_in
from sickbay.model.errors import EffectError, Rejected, StoreUnavailable, Transient, Unknown
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.model.rows import Rows

NODE = NodeId("train/gpu-7")
HERE = Incarnation(instance_id="i-1", boot_id="b-1")
DONE = "echo $@ >> {log}; echo cycled"
HANGS = "echo $@ >> {log}; exec sleep 600"


class Yard:
    """A directory of programs that write down how they were called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.holder: Incarnation | None = HERE

    def program(self, name: str, text: str) -> str:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{text.replace('{log}', str(self.log))}\n")
        path.chmod(0o755)
        return str(path)

    def machines(self, *, within: float = 20.0, **commands: tuple[str, ...]) -> CommandMachines:
        settings = CommandMachineSettings(kind="command", within=timedelta(seconds=within))
        return CommandMachines(replace(settings, **commands), lambda _: self.holder)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


def reboot(machines: CommandMachines, expect: Incarnation = HERE) -> str:
    return machines.reboot(NODE, key="i7.2", expect=expect).said


def test_a_command_gets_words_and_no_shell_reads_them(yard: Yard) -> None:
    said = ("{name}", "{node}", "{instance_id}", "{key}", "$HOME; touch x", "a{name}b")
    machines = yard.machines(reboot=(yard.program("power", 'printf "%s\\n" "$@" >> {log}; echo cycled'), *said))
    assert reboot(machines) == "cycled"
    assert yard.calls == ["gpu-7", "train/gpu-7", "i-1", "i7.2", "$HOME; touch x", "agpu-7b"]


def test_it_sees_little_of_the_controllers_environment(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_TOKEN", "a-secret")
    machines = yard.machines(reboot=(yard.program("power", "env >> {log}"),))
    reboot(machines)
    assert "PATH=" in "\n".join(yard.calls)
    assert "a-secret" not in "\n".join(yard.calls)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("echo no such node >&2; exit 1", Rejected, "ended with 1: no such node"),
        ("exit 2", Rejected, "ended with 2: it said nothing"),
        ("echo busy; exit 75", Transient, "ended with 75: busy"),
        ("echo line cut; exit 74", Unknown, "ended with 74: line cut"),
        ("kill -9 $$", Unknown, "ended with -9"),
    ],
)
def test_an_exit_code_says_what_became_of_it(yard: Yard, text: str, error: type[EffectError], said: str) -> None:
    machines = yard.machines(reboot=(yard.program("power", text),))
    with pytest.raises(error) as raised:
        reboot(machines)
    assert type(raised.value) is error
    assert said in str(raised.value)


def test_one_that_hangs_is_ended_and_nobody_knows_what_it_did(yard: Yard) -> None:
    machines = yard.machines(reboot=(yard.program("power", HANGS), "{name}"), within=0.3)
    with pytest.raises(Unknown, match="was ended after 0 s: it had said nothing"):
        reboot(machines)
    assert yard.calls == ["gpu-7"]


def test_a_program_that_is_not_there_was_certainly_not_run(yard: Yard) -> None:
    with pytest.raises(Rejected, match="no such program"):
        reboot(yard.machines(reboot=(str(yard.root / "none"),)))
    (yard.root / "data").write_text("x")
    with pytest.raises(Rejected, match="may not be run"):
        reboot(yard.machines(reboot=(str(yard.root / "data"),)))


def test_what_is_meant_for_another_holder_is_not_run(yard: Yard) -> None:
    machines = yard.machines(reboot=(yard.program("power", DONE),), replace=(yard.program("swap", DONE),))
    for other in (replace(HERE, boot_id="b-2"), replace(HERE, instance_id="i-2", boot_id="")):
        with pytest.raises(Rejected, match="held by another"):
            reboot(machines, other)
        with pytest.raises(Rejected, match="held by another"):
            machines.replace(NODE, key="k", expect=other)
    assert yard.calls == []
    reboot(machines, Incarnation(instance_id="i-1"))  # a field that is not known refuses nothing
    assert len(yard.calls) == 1


def test_a_machine_that_nobody_knows_is_no_empty_word(yard: Yard) -> None:
    """`power off ''` may mean all of them."""
    swap = yard.program("swap", DONE)
    machines = yard.machines(replace=(swap, "--id={instance_id}"), fence=(swap, "{instance_id}"))
    yard.holder = None
    with pytest.raises(Rejected, match=r"told the \{instance_id\} of train/gpu-7, which nobody knows"):
        machines.replace(NODE, key="k", expect=Incarnation(boot_id="b-1"))
    with pytest.raises(Rejected, match="which nobody knows"):
        machines.fence(NODE, key="k", expect=None)
    assert yard.calls == []
    yard.holder = HERE
    machines.replace(NODE, key="k", expect=Incarnation(boot_id="b-1"))
    assert yard.calls == ["--id=i-1"]


def test_a_name_that_no_program_can_be_told_was_certainly_not_run(yard: Yard) -> None:
    machines = yard.machines(reboot=(yard.program("power", DONE), "{name}"))
    with pytest.raises(Rejected, match="cannot be told of"):
        machines.reboot(NodeId("train/gpu\0"), key="k", expect=HERE)


def test_at_most_one_command_runs_for_a_node(yard: Yard) -> None:
    go = yard.root / "go"
    machines = yard.machines(
        reboot=(yard.program("power", f"echo begun >> {{log}}; until [ -e {go} ]; do sleep 0.01; done"),)
    )
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(reboot(machines)))
    thread.start()
    until(lambda: yard.calls, what="the first one runs")
    with pytest.raises(Transient, match="an earlier command for it still runs"):
        reboot(machines)
    go.touch()
    thread.join(20)
    assert yard.calls == ["begun"]
    assert reboot(machines) == ""


def test_only_a_command_that_is_given_the_key_promises_one_effect(yard: Yard) -> None:
    machines = yard.machines(reboot=("p", "{name}"), replace=("p", "{name}", "--once={key}"), fence=("p",))
    assert machines.blind == {"reboot"}
    assert machines.capabilities == {Capability.REBOOT, Capability.REPLACE, Capability.FENCE}
    assert Channels({"bmc": machines}).blind == {"reboot"}
    with pytest.raises(Rejected, match="no command is configured to restart_service"):
        machines.restart_service(NODE, key="k", expect=HERE)
    with pytest.raises(Rejected, match="reset by its agent"):
        machines.reset(NODE, (0,), key="k", expect=HERE)


def test_an_act_in_doubt_stays_with_its_channel_whatever_the_policy_says_by_now(yard: Yard) -> None:
    bmc = yard.machines(reboot=(yard.program("bmc", "echo bmc >> {log}; exit $(cat {log}.code)"), "{key}"))
    other = yard.machines(reboot=(yard.program("other", "echo other >> {log}"), "{key}"))
    sent = SentThrough()
    before = Channels({"bmc": bmc, "other": other}, sent=sent)
    after = Channels({"bmc": bmc, "other": other}, {Remedy.REBOOT: "other"}, sent)
    code = yard.root / "log.code"

    def reboots(channels: Channels, key: str, code_of_bmc: int) -> None:
        code.write_text(str(code_of_bmc))
        channels.reboot(NODE, key=key, expect=HERE)

    with pytest.raises(Unknown):
        reboots(before, "doubt", 74)
    with pytest.raises(Transient):
        reboots(after, "doubt", 75)  # of this call alone it is known that it did nothing
    reboots(after, "doubt", 0)
    assert yard.calls == ["bmc"] * 3
    with pytest.raises(Transient):
        reboots(before, "not-now", 75)
    reboots(after, "not-now", 0)
    reboots(after, "new", 0)
    assert yard.calls == ["bmc"] * 4 + ["other"] * 2


class Power:
    """A machine's power as a file: `off` switches it off after so many looks."""

    def __init__(self, yard: Yard, *, off: str = "touch {log}.off", is_off: str = "test -e {log}.off") -> None:
        self.yard = yard
        log = "echo off >> {log}; "
        self.machines = yard.machines(
            fence=(yard.program("off", log + off), "{name}"),
            fenced=(yard.program("is-off", is_off), "{name}"),
        )

    def fence(self, expect: Incarnation | None = HERE) -> str:
        accepted = self.machines.fence(NODE, key="f1", expect=expect)
        assert accepted.done
        return accepted.said


def test_a_fence_is_looked_up_first_and_proven_after(yard: Yard) -> None:
    power = Power(yard)
    power.fence()
    assert "says that it is off" in power.fence()
    assert yard.calls == ["off"]


def test_a_fence_that_does_not_hold_yet_is_asked_again(yard: Yard) -> None:
    power = Power(yard, off="true")
    with pytest.raises(Transient, match="says: not off yet"):
        power.fence()
    (yard.root / "log.off").touch()
    power.fence()
    assert yard.calls == ["off"]


def test_who_cannot_tell_is_taken_for_neither_answer(yard: Yard) -> None:
    power = Power(yard, is_off="echo no route; exit 255")
    with pytest.raises(Transient, match="cannot tell whether train/gpu-7 is off"):
        power.fence()
    assert yard.calls == []


def test_without_a_look_up_the_fences_own_good_end_is_the_proof(yard: Yard) -> None:
    machines = yard.machines(fence=(yard.program("off", DONE), "{name}"))
    assert machines.fence(NODE, key="f1", expect=HERE).done
    assert yard.calls == ["gpu-7"]


def test_a_late_fence_never_hits_the_next_holder(yard: Yard) -> None:
    power = Power(yard)
    yard.holder = replace(HERE, boot_id="b-2")
    assert "it has booted since" in power.fence()
    yard.holder = Incarnation(instance_id="i-2", boot_id="b-3")
    with pytest.raises(Rejected, match="held by another machine"):
        power.fence()
    assert yard.calls == []
    mixed = yard.machines(
        fence=(yard.program("off", DONE), "{instance_id}"), fenced=(yard.program("is", "true"), "{name}")
    )
    with pytest.raises(Rejected, match="held by another machine"):  # it would be told of the next holder
        mixed.fence(NODE, key="f1", expect=HERE)
    by_instance = yard.machines(fence=(yard.program("off-id", DONE), "{instance_id}"))
    assert by_instance.fence(NODE, key="f1", expect=HERE).done
    assert yard.calls == ["i-1"]


def test_each_pool_has_its_own_channels(yard: Yard) -> None:
    racks: Callable[[NodeId], str] = {NODE: "train/h200", NodeId("train/old"): "train/a100"}.__getitem__
    bmc = yard.machines(reboot=(yard.program("power", DONE), "{name}"))
    pools = PooledMachines({"h200": Channels({"bmc": bmc}), "a100": Channels({})}, racks)
    assert pools.capabilities == {Capability.REBOOT}
    pools.reboot(NODE, key="k", expect=HERE)
    with pytest.raises(Rejected, match="nothing here can do reboot"):
        pools.reboot(NodeId("train/old"), key="k", expect=HERE)
    assert yard.calls == ["gpu-7"]
    with pytest.raises(Rejected, match=r"nothing repairs the nodes of pool other/p: add it, or '\*', to 'machines'"):
        PooledMachines({"h200": Channels({})}, lambda _: "other/p").reboot(NODE, key="k", expect=HERE)


def test_who_holds_a_seat_is_not_guessed_where_the_store_cannot_be_read() -> None:
    class Away:
        def load(self, _: object) -> Rows:
            raise StoreUnavailable("the store is away")

    away: Any = Away()
    for read in (holder_in(away), pool_in(away)):
        with pytest.raises(Transient, match="the store is away"):
            read(NODE)
