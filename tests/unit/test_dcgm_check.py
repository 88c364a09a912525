"""`dcgmi diag` as a check: pass, fail with the GPU, or could not run; nothing in between."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
from tests.support.agent_rig import left_by
from tests.unit.test_dcgm_documents import sample

from sickbay.agent.checks import CouldNotRun, examine
from sickbay.agent.checks.dcgm import dcgm_tests, judged
from sickbay.agent.dcgmi import Ran, Run, run_dcgmi
from sickbay.model.checkup import Verdict

pytestmark = pytest.mark.slow


def program(folder: Path, text: str, code: int = 0, before: str = "") -> partial[Ran]:
    (folder / "said").write_text(text)
    path = folder / "dcgmi"
    path.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\n{before}\ncat {folder}/said\nexit {code}\n')
    path.chmod(0o755)
    return partial(run_dcgmi, program=str(path))


def check(run: Run, level: int = 2, seconds: float = 10.0) -> tuple[str, str]:
    verdict, because, _ = examine(dcgm_tests(run), level, time.monotonic() + seconds)
    return verdict, because


def test_a_healthy_node_passes(tmp_path: Path) -> None:
    assert check(program(tmp_path, sample("diag4_pass.json"))) == (Verdict.PASS, "")
    assert (tmp_path / "calls").read_text() == "diag -r 2 -j\n"


def test_each_level_is_a_test_of_its_own() -> None:
    assert [(test.name, test.level) for test in dcgm_tests()] == [("dcgm_2", 2), ("dcgm_3", 3), ("dcgm_4", 4)]


def test_a_failed_test_fails_the_check_and_names_the_gpu(tmp_path: Path) -> None:
    verdict, because = check(program(tmp_path, sample("diag4.json"), code=226))
    assert verdict == Verdict.FAIL
    assert "dcgm.memory_failed on GPU 1" in because
    assert "xid on GPU 0" in because


def test_a_text_instead_of_json_is_understood_too(tmp_path: Path) -> None:
    assert "gpu.remap_failed on GPU 1" in check(program(tmp_path, sample("diag4_fail.txt"), code=1))[1]
    assert judged(sample("diag3_pass.txt"), 0) == ""


def all_skipped() -> str:
    value = json.loads(sample("diag4_pass.json"))
    for group in value["DCGM Diagnostic"]["test_categories"][1:]:
        for test in group["tests"]:
            test["test_summary"]["status"] = "Skip"
            for result in test["results"]:
                result["status"] = "Skip"
    return json.dumps(value)


def with_warning(text: str, number: int) -> str:
    value = json.loads(sample("diag4_pass.json"))
    test = value["DCGM Diagnostic"]["test_categories"][1]["tests"][0]
    test["test_summary"]["status"] = "Fail"
    test["results"][0].update(status="Fail", warnings=[{"warning": text, "error_id": number, "error_category": 6}])
    return json.dumps(value)


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (all_skipped(), 0, "skipped"),
        ("", 0, "no result"),
        ("{", 0, "no result"),
        ('{"DCGM Diagnostic": {}}', 0, "no result"),
        ("Error: unable to establish a connection to the specified host: localhost\n", 255, "unable to establish"),
        ("GPU 0's MIG configuration is incompatible with the diagnostic because it prevents access", 1, "MIG"),
        ('{"DCGM Diagnostic": {"runtime_error": "Error: Diagnostic could not be run"}}', 1, "could not be run"),
        (
            with_warning("Error using CUDA API 'all CUDA-capable devices are busy or unavailable' for GPU 0", 51),
            1,
            "busy",
        ),
        (with_warning("Couldn't allocate at least 75.0% of GPU memory on GPU 0", 56), 1, "allocate"),
        (sample("diag4_pass.json"), 3, "code 3"),
        ("Segmentation fault", 139, "no result"),
    ],
)
def test_what_could_not_run_never_passes_and_never_fails(tmp_path: Path, text: str, code: int, why: str) -> None:
    verdict, because = check(program(tmp_path, text, code))
    assert verdict == Verdict.COULD_NOT_RUN
    assert why in because


def test_a_setting_of_the_software_is_no_fault_of_the_hardware() -> None:
    value = json.loads(sample("diag4_pass.json"))
    test = value["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    test["test_summary"]["status"] = "Fail"
    warning = {
        "warning": "Persistence Mode: Persistence mode for GPU 0 is disabled.",
        "error_id": 29,
        "error_category": 8,
    }
    test["results"][0].update(status="Fail", warnings=[warning])
    assert judged(json.dumps(value), 226) == ""


def test_without_dcgm_it_could_not_run(tmp_path: Path) -> None:
    verdict, because = check(partial(run_dcgmi, program=str(tmp_path / "none")))
    assert verdict == Verdict.COULD_NOT_RUN
    assert "not installed" in because


def test_a_diagnostic_that_hangs_is_ended_politely_and_could_not_run(tmp_path: Path) -> None:
    run = program(
        tmp_path, "", before=f"trap 'echo stopped > {tmp_path}/end; exit 1' TERM\nwhile true; do sleep 0.05; done"
    )
    verdict, because = check(run, seconds=0.5)
    assert verdict == Verdict.COULD_NOT_RUN
    assert "did not end" in because
    assert (tmp_path / "end").exists()  # dcgmi had its chance to stop the test that it began
    assert not left_by(tmp_path)


def test_a_diagnostic_of_which_only_software_was_tested_proves_nothing() -> None:
    value = json.loads(sample("diag4_pass.json"))
    value["DCGM Diagnostic"]["test_categories"] = value["DCGM Diagnostic"]["test_categories"][:1]
    with pytest.raises(CouldNotRun, match="no result of a test of the hardware"):
        judged(json.dumps(value), 0)
