"""The end of a log → why, and whether to run it again."""

from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cases import one_by_one

from sickbay.brain.blame import diagnosis_of
from sickbay.knowledge.load import load_tables
from sickbay.model.job import End, EndReason
from sickbay.model.tables import Diagnosis, DiagnosisRule
from sickbay.signs.training_log import judge

# The first text that hypothesis draws in a process takes seconds on a busy machine; that says nothing about us.
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
RULES = load_tables().diagnosis


def diagnose(tail: str, rules: tuple[DiagnosisRule, ...], exit_codes: Collection[int] = ()) -> Diagnosis | None:
    """As the engine does: the log is judged when it comes, and what follows is decided by that and the exit codes."""
    codes = {f"n{number}": code for number, code in enumerate(exit_codes)}
    end = End(reason=EndReason.FAILED, at=NOW, exit_codes=codes, tail=tail, findings=judge(tail, rules))
    return diagnosis_of(end)


LINES = [
    ("sickbay: env file /home/ann/wandb.env: No such file or directory", "env_file", False),
    ("sickbay: env file /home/ann/wandb.env: No such file or directory", "env_file", False),
    ("ModuleNotFoundError: No module named 'flash_attn'", "import_error", False),
    ("[rank3]: ImportError: libcudnn.so.9: cannot open shared object file", "import_error", False),
    ("SyntaxError: invalid syntax", "syntax_error", False),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", "cuda_oom", False),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "cuda_oom", False),
    ("step 120 loss: nan", "nan_loss", False),
    ("{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}", "nan_loss", False),
    ("loss=tensor(nan, device='cuda:0')", "nan_loss", False),
    ("FloatingPointError: Loss is NaN, stopping training", "nan_loss", False),
    ("OSError: [Errno 28] No space left on device", "disk_full", False),
    ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permission_denied", False),
    ("bash: ./train.sh: Permission denied", "command_failed", False),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'x.yaml'", "file_missing", False),
    ("bash: line 1: torchrun: command not found", "command_failed", False),
    ("TypeError: forward() missing 1 required positional argument: 'x'", "python_error", False),
    ("Memory cgroup out of memory: Killed process 812 (python3)", "host_oom", False),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_error", True),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_access", True),
    ("[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)", "nccl_timeout", True),
    ("DistBackendError: NCCL error: remote process exited, ncclRemoteError", "network_unreachable", True),
    ("traceback : Signal 9 (SIGKILL) received by PID 812", "killed", True),
    ("Killed", "killed", True),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "gpu_lost", True),
    ("RuntimeError: a worker was killed by insufficient shared memory (shm)", "shm_full", False),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous_timeout", True),
    ("Segmentation fault (core dumped)", "crashed", True),
    ("Fatal Python error: Aborted", "crashed", True),
    ("terminate called after throwing an instance of 'c10::Error'", "crashed", True),
    ("  exitcode  : -11 (pid: 812)", "crashed", True),
    ("  exitcode  : -9 (pid: 812)", "killed", True),
    ("/bin/bash: line 1:  4242 Killed                  python train.py", "killed", True),
    ("[rank1]: MemoryError", "python_oom", False),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 64.0 GiB for an array", "python_oom", False),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate", "python_oom", False),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17 GiB.", "cuda_oom", False),
    ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "nan_loss", False),
    ("RuntimeError: No CUDA GPUs are available", "gpu_lost", True),
    ("NCCL error in: x.cpp:1970, remote process exited or there was a network error", "network_unreachable", True),
    ("RuntimeError: [tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:3721", "network_unreachable", True),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink_error", True),
    ("HW Exception by GPU node-2 (Agent handle: 0x55d) reason :GPU Hang", "gpu_hang", True),
    ("[ND 4][NC 0] execution of model failed, NRT_EXEC_HW_ERR_HBM_UE", "neuron_hw_error", True),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet i", "fabric_not_ready", True),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch", True),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check", "driver_missing", True),
    ("CUDA driver version is insufficient for CUDA runtime version", "driver_too_old", False),
    ("slurmstepd: error: pyxis: child 1234 failed with error code: 1", "container_failed", True),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "wrong_build", False),
    ("RuntimeError: CUDA error: invalid device ordinal", "gpu_count", True),
    ("train.py: error: unrecognized arguments: --lerning-rate 3e-4", "bad_arguments", False),
    ("OSError: [Errno 116] Stale file handle: '/fsx/ckpt'", "storage_error", True),
    ("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL", "object_store_error", True),
    ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "credentials", False),
    ("huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to loca", "download_failed", True),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "name_resolution", True),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding ce", "checkpoint_unreadable", False),
    ("sickbay.train.errors.Unreadable: cannot read /ckpt: Input/output error; nobody", "checkpoint_refused", False),
    ("sickbay.train.errors.AlreadyBegun: rank 3 of attempt 2 has begun already in", "checkpoint_place_taken", True),
    ("sickbay.train.errors.NotOurs: /ckpt holds checkpoints of job a", "checkpoint_not_taken", False),
    ("sickbay.train.errors.NoSuchStep: job b cannot go on from step 15 in", "checkpoint_not_taken", False),
    ("RuntimeError: Error(s) in loading state_dict for GPT:", "model_mismatch", False),
    ("OSError: [Errno 24] Too many open files", "too_many_files", False),
    ("RuntimeError: can't start new thread", "too_many_threads", False),
    ("errno: 98 - Address already in use", "port_in_use", True),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 1351", "kernel_resources", False),
    ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "compile_error", False),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x768 and 512x10)", "shape_mismatch", False),
    ("RuntimeError: CUDA error: device-side assert triggered", "device_assert", False),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx", "gpu_library_failed", True),
    ("n1:55:88 [0] NCCL WARN NET/IB : Got completion from peer x with status=12 vendor err 129", "ib_error", True),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running c", "collective_mismatch", False),
    ("slurmstepd: error: *** JOB 812 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", "preempted", True),
    ("slurmstepd: error: *** JOB 812 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "time_limit", True),
    ("srun: error: Node failure on n7", "node_failed", True),
    ("INTERNAL: The following tasks are unhealthy (stopped sending heartbeats):", "peer_lost", True),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 88 got signal: 15", "terminated", True),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "rank_failed", True),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda_oom", False),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting ru", "nan_loss", False),
    ("train_loss=nan, lr=3e-4", "nan_loss", False),
    ("[1,3]<stderr>:ModuleNotFoundError: No module named 'apex'", "import_error", False),
    ("(RayTrainWorker pid=812, ip=10.0.0.1) torch.OutOfMemoryError: CUDA out of memory. Tried", "cuda_oom", False),
    ("Execute failed: nrt_execute: status=1004, error message", "neuron_exec_failed", True),
    ("[2024-01-01 10:00:00,000] [ERROR] [launch.py:3] ['python'] exits with return code = -9", "killed", True),
    ("['python', 'a.py'] exits with return code = -11", "crashed", True),
    ("what():  cudaEventQuery failed: an illegal memory access was encountered", "illegal_access", True),
    ("Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks", "peer_lost", True),
    ("XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Conn", "rendezvous_timeout", True),
    ("3: [rank3]: PermissionError: [Errno 13] Permission denied: '/data'", "permission_denied", False),
    ("2026-01-01T00:00:00.1Z stderr F [rank0]: FileNotFoundError: [Errno 2] No such file", "file_missing", False),
]  # fmt: skip


@one_by_one(("line", "name", "restart"), LINES)
def test_a_line_names_its_cause_and_whether_to_run_again(line: str, name: str, restart: bool) -> None:
    found = diagnose(f"epoch 1\n  {line}\n", RULES)
    assert found is not None
    assert (found.name, found.restart, found.line) == (name, restart, line.strip())
    assert found.because


def test_every_rule_is_tried_by_some_line_here() -> None:
    assert {rule.name for rule in RULES} == {name for _, name, _ in LINES}


@pytest.mark.parametrize(
    "line",
    [
        "step 120 loss: 2.31",
        "loss: 1.0 nanoseconds per token: 5",
        "WARNING: ImportError was caught, falling back to the slow path",
        "except ImportError:",
        "using NCCL version 2.27",
        "n1:812:900 [0] NCCL INFO Timeout 22",
        "NCCL_TIMEOUT is set to 600",
        "finance dataset loaded",
        "information loss: influence of the sampler is small",
        "loss scale: 65536.0",
        "[INFO] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "Warning: the default device ordinal is 0",
        "eta: 0:12:59  loss 2.31  nanograms 4",
        "",
    ],
)
def test_an_ordinary_line_says_nothing(line: str) -> None:
    assert diagnose(line, RULES) is None


def test_the_cause_beats_its_consequences_though_they_come_first_and_are_many() -> None:
    tail = "\n".join(
        [
            *["[Rank 1] Watchdog caught collective operation timeout: WorkNCCL"] * 50,
            "[rank0]: ModuleNotFoundError: No module named 'apex'",
            "Signal 9 (SIGKILL) received by PID 812",
        ]
    )
    found = diagnose(tail, RULES)
    assert found is not None
    assert (found.name, found.restart) == ("import_error", False)


def test_noise_of_a_set_up_script_never_keeps_a_job_from_running_again() -> None:
    found = diagnose("setup.sh: line 3: module: command not found\nSignal 9 (SIGKILL) received by PID 812", RULES)
    assert found is not None
    assert (found.name, found.restart) == ("killed", True)


def test_of_two_causes_the_earlier_wins() -> None:
    oom, disk = "torch.OutOfMemoryError: CUDA out of memory.", "OSError: [Errno 28] No space left on device"
    first, second = diagnose(f"{oom}\n{disk}", RULES), diagnose(f"{disk}\n{oom}", RULES)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("cuda_oom", "disk_full")


def test_without_rules_nothing_is_known() -> None:
    assert diagnose("Killed", ()) is None


@pytest.mark.parametrize(
    ("code", "name"),
    [(-9, "SIGKILL"), (-11, "SIGSEGV"), (-6, "SIGABRT"), (137, "SIGKILL"), (139, "SIGSEGV"), (-7, "SIGBUS")],
)
def test_a_signal_is_named_where_the_log_says_nothing(code: int, name: str) -> None:
    found = diagnose("step 10\nstep 11\n", RULES, [code])
    assert found is not None
    assert found.because.startswith(f"killed by {name}: ")
    assert found.restart


def test_of_several_signals_the_one_that_says_more_is_told() -> None:
    found = diagnose("", RULES, {-15, -11})
    assert found is not None
    assert "SIGSEGV" in found.because


@pytest.mark.parametrize("codes", [(), (1,), (2,), (127,), (255,), (-64,)])
def test_an_exit_code_that_is_no_signal_says_nothing(codes: tuple[int, ...]) -> None:
    assert diagnose("step 10", RULES, codes) is None


TRACE = """step 11
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
  File "train.py", line 61, in main
    loss = step(batch[key])
                ~~~~~^^^^^
KeyError: 'labels'
"""


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (TRACE, "KeyError: 'labels'"),
        (TRACE.replace("KeyError: 'labels'", "mylib.errors.Stop"), "mylib.errors.Stop"),
        ("\n".join(f"[rank0]: {line}" for line in TRACE.splitlines()), "[rank0]: KeyError: 'labels'"),
        (TRACE + TRACE.replace("KeyError: 'labels'", "ValueError: because of it"), "KeyError: 'labels'"),
        ("    loss = step(batch)\nAssertionError: shapes differ\n", "AssertionError: shapes differ"),
        ("AssertionError\n", "AssertionError"),
    ],
)
def test_an_error_that_no_rule_knows_is_told_in_its_own_words_and_may_restart(tail: str, line: str) -> None:
    found = diagnose(tail, RULES, [1])
    assert found is not None
    assert (found.line, found.restart) == (line, True)
    assert found.because == "the program raised an error"


def test_a_rule_beats_the_exception_that_came_first() -> None:
    found = diagnose(f"{TRACE}\nOSError: [Errno 28] No space left on device", RULES, [1])
    assert found is not None
    assert found.name == "disk_full"


@pytest.mark.parametrize(
    ("code", "told"), [(-9, "SIGKILL"), (139, "SIGSEGV"), (-6, "a peer"), (-15, "a peer"), (1, "a peer")]
)
def test_a_rank_that_was_struck_is_why_its_peers_could_not_reach_it(code: int, told: str) -> None:
    found = diagnose("RuntimeError: Connection closed by peer", RULES, [1, code])
    assert found is not None
    assert told in found.because


def test_an_error_that_was_caught_is_not_what_a_signal_ended() -> None:
    found = diagnose(f"{TRACE}the batch was skipped\nstep 12\n", RULES, [-9])
    assert found is not None
    assert "SIGKILL" in found.because


@PATIENT
@given(st.text())
def test_no_log_makes_it_raise(tail: str) -> None:
    found = diagnose(tail, RULES, [1])
    assert found is None or found.line
