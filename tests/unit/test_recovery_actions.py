"""What the driver wants done with a GPU: every number and every wording of it has its remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.gpu import GpuReading
from sickbay.signs.classify import classify
from sickbay.signs.gpu_state import signs_of
from sickbay.signs.nvidia import advice_of
from sickbay.signs.recovery_action import ACTIONS, action_in, action_of

TABLES = load_tables()
# nvmlDeviceGpuRecoveryAction_t of driver 615, and the remedy that NVIDIA's own description amounts to.
NVML = {
    "NVML_GPU_RECOVERY_ACTION_NONE": (0, Remedy.NONE),
    "NVML_GPU_RECOVERY_ACTION_GPU_RESET": (1, Remedy.RESET_GPU),
    "NVML_GPU_RECOVERY_ACTION_NODE_REBOOT": (2, Remedy.REBOOT),
    "NVML_GPU_RECOVERY_ACTION_DRAIN_P2P": (3, Remedy.RESTART_JOB),
    "NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET": (4, Remedy.RESET_GPU),
    "NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN": (5, Remedy.WATCH),
    "NVML_GPU_RECOVERY_ACTION_BUS_RESET": (6, Remedy.RESET_GPU),
    "NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT": (7, Remedy.REBOOT),
}


def remedy_of(words: str) -> Remedy | None:
    """What happens with a GPU whose reading shows this wish."""
    signs = signs_of(GpuReading(index=0, name="NVIDIA H200", recovery_action=words))
    if not signs:
        return Remedy.NONE
    (sign,) = signs
    fault = classify(Observed(node=NodeId("c/n"), kind=sign.kind, fields=sign.fields), TABLES)
    return None if fault is None else fault.remedy


@pytest.mark.parametrize(("name", "number", "remedy"), [(name, *what) for name, what in NVML.items()])
def test_every_action_that_nvml_knows_has_its_remedy(name: str, number: int, remedy: Remedy) -> None:
    action = action_of(number)
    assert action is not None
    assert action.remedy is remedy
    assert action_in(name) is action
    for words in (*action.words, *(words.upper() for words in action.words), f"[{action.words[0]}]"):
        assert remedy_of(words) is remedy, words


def test_no_action_is_left_out() -> None:
    assert [action.number for action in ACTIONS] == list(range(len(NVML)))
    assert action_of(len(NVML)) is None
    assert action_of(-1) is None


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.words[0])
def test_the_kernels_log_and_a_reading_agree_on_what_is_to_be_done(action: object) -> None:
    assert isinstance(action, type(ACTIONS[0]))
    for words in action.words:
        text = f"GPU recovery action changed from 0x0 (None) to 0x{action.number:x} ({words})"
        assert advice_of(text) is action.remedy is remedy_of(words)
    assert advice_of(f"GPU recovery action changed from 0x0 (None) to 0x{action.number:x}") is action.remedy


@pytest.mark.parametrize("words", ["Exorcism", "unknown (99)", "Cold Reboot", "8"])
def test_an_action_that_nobody_knows_is_an_error_for_people_and_disrupts_nothing(words: str) -> None:
    assert remedy_of(words) is Remedy.WATCH
    assert TABLES.faults["gpu.recovery_unknown"].severity == "error"
    assert advice_of(f"GPU recovery action changed from 0x0 (None) to 0x63 ({words})") is None


@pytest.mark.parametrize("words", ["", "N/A", "[N/A]", "None", "Not Supported", "[Not Supported]"])
def test_a_driver_that_wants_nothing_is_no_sign(words: str) -> None:
    assert remedy_of(words) is Remedy.NONE


@given(st.text())
def test_no_wording_breaks_the_judge(words: str) -> None:
    assert remedy_of(words) is not None
