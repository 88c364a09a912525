"""The fabric manager's log and its lines in the journal."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one
from tests.support.thorough import examples
from tests.unit.test_dcgm_documents import read, sample

from sickbay.knowledge.load import load_tables
from sickbay.model.sign import Sign
from sickbay.signs.readers.fabric_manager import FabricManager, rules

STAMP = "[Nov 16 2026 08:00:00] [ERROR] [tid 841] "
FATAL = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
MISMATCH = ("fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120. "
            "Please update with matching NVIDIA driver package.")  # fmt: skip
NOTHING = ("request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do "
           "[NV_WARN_NOTHING_TO_DO]")  # fmt: skip


def kinds(*lines: str) -> list[str]:
    return [sign.kind for sign in read(FabricManager(), lines)]


def test_a_healthy_start_says_nothing() -> None:
    assert not read(FabricManager(), sample("fabricmanager_ok.log").splitlines())


def test_a_switch_error_is_an_sxid_with_the_managers_own_severity() -> None:
    (fatal,) = read(FabricManager(), [STAMP + FATAL])
    assert fatal == Sign(
        kind="sxid", text=STAMP + FATAL, line=1,
        fields={"number": 20034, "severity": "fatal", "pci": "00000000:86:00.0", "switch": 3, "port": 33},
    )  # fmt: skip
    (other,) = read(FabricManager(), [STAMP + FATAL.replace("fatal error 20034", "non-fatal error 12028")])
    assert (other.fields["number"], other.fields["severity"]) == (12028, "nonfatal")


@one_by_one(
    "prefix",
    [
        STAMP,
        "[Jul  9 2024 18:14:07] [ERROR] [tid 12727] ",
        "[Sep 08 2025 23:21:50] [ERROR] ",
        "Nov 16 08:00:00 node1 nv-fabricmanager[104230]: ",
        "2026-11-16T08:00:00.123456+00:00 node1 nv-fabricmanager[104230]: ",
        "11月 15 14:15:47 leon nv-fabricmanager[4177]: ",
        "nv-fabricmanager[1929729]: ",
        "Nov 16 08:00:00 node1 nvidia-fabricmanager-start.sh[4756]: ",
    ],
)
@one_by_one(
    ("message", "kind"),
    [
        (FATAL, "sxid"),
        (MISMATCH, "fabric_manager.mismatch"),
        (MISMATCH.replace("don't", "doesn't"), "fabric_manager.mismatch"),
        (NOTHING, "fabric_manager.no_switch"),
        ("detected number of NVSwitches don't match with any supported system topology, aborting fabric manager",
         "fabric_manager.switch_missing"),
        ("failed to configure all the available GPUs or NVSwitches", "fabric_manager.failed"),
        ("failed to find the GPU handle 5410063385821516767 in the multicast team request setup 6130285411925746235.",
         "fabric_manager.multicast"),
    ],
)  # fmt: skip
def test_a_message_is_known_behind_every_prefix(prefix: str, message: str, kind: str) -> None:
    assert kinds(prefix + message) == [kind]


def test_a_cause_and_the_end_of_the_service_are_one_trouble() -> None:
    assert kinds(
        "Nov 16 08:00:00 n1 systemd[1]: Starting NVIDIA fabric manager service...",
        f"Nov 16 08:00:00 n1 nv-fabricmanager[104230]: {MISMATCH}",
        "Nov 16 08:00:00 n1 systemd[1]: nvidia-fabricmanager.service: Control process exited, status=1/FAILURE",
        "Nov 16 08:00:00 n1 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
        "Nov 16 08:00:00 n1 systemd[1]: Failed to start NVIDIA fabric manager service.",
    ) == ["fabric_manager.mismatch"]


def test_a_machine_without_switches_has_one_harmless_finding() -> None:
    assert kinds(
        "Sep 18 03:19:01 u1 nvidia-fabricmanager-start.sh[4753]: Detected Pre-NVL5 system",
        f"Sep 18 03:19:01 u1 nvidia-fabricmanager-start.sh[4756]: {NOTHING}",
        'Sep 18 03:19:01 u1 nvidia-fabricmanager-start.sh[4753]: "/usr/bin/nv-fabricmanager -c x" failed! Exit code: 1',
        "Sep 18 03:19:01 u1 systemd[1]: nvidia-fabricmanager.service: Control process exited, status=1/FAILURE",
        "Sep 18 03:19:01 u1 systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.",
    ) == ["fabric_manager.no_switch"]
    assert not load_tables().faults["fabric_manager.no_switch"].remedy.disrupts


def test_a_service_that_ends_without_a_word_is_down_once() -> None:
    assert kinds(
        "Nov 16 08:00:00 n1 systemd[1]: nvidia-fabricmanager.service: Main process exited, code=killed, status=9/KILL",
        "Nov 16 08:00:00 n1 systemd[1]: nvidia-fabricmanager.service: Failed with result 'signal'.",
    ) == ["fabric_manager.down"]


def test_other_services_and_other_peoples_words_are_not_its_own() -> None:
    assert not kinds(
        "Nov 16 08:00:00 n1 systemd[1]: nginx.service: Failed with result 'exit-code'.",
        "Nov 16 08:00:00 n1 python[12]: detected NVSwitch fatal error 20034 on fid 0",
        "the log says: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0",
        '\tinput: "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034",',
        "[Nov 16 2026 08:00:00] [INFO] [tid 841] failed to configure would be an error",
        "[2026-11-16 08:00:00] [ERROR] [tid 12] Connection to the data base failed",
    )


def test_every_code_has_a_meaning() -> None:
    assert {row.code for row in rules()} - {""} <= set(load_tables().faults)


WORDS = st.text(max_size=80)
LINES = st.one_of(WORDS, WORDS.map(lambda text: STAMP + text), WORDS.map(lambda text: f"x nv-fabricmanager[1]: {text}"))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LINES, max_size=20))
def test_no_line_makes_it_fail(lines: list[str]) -> None:
    read(FabricManager(), lines)


def test_a_monstrous_line_is_passed_over_quickly() -> None:
    import time

    began = time.monotonic()
    monsters = (
        "nv-fabricmanager " * 200_000,
        STAMP + "NVSwitch " * 400,
        "a " * 2000 + "nv-fabricmanager[1]: x",
        " " * 4000 + "nvlsm",
    )
    for line in monsters:
        read(FabricManager(), [line] * 20)
    assert time.monotonic() - began < 3
