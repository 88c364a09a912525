"""A job that makes no sense is refused in one line that says what to write."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from sickbay.brain.submission import NATIVE_MOST, SPEC_MOST, as_started, refusal, too_large
from sickbay.model.fleet import Device, JobId, Node, NodeId
from sickbay.model.job import Job, JobSpec, LogRule
from sickbay.policy.load import load_policy

GOOD = JobSpec(name="train", cluster="c", pool="p", nodes=4)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"cluster": "elsewhere"}, "there is no cluster 'elsewhere': write one of c, d"),
        ({"nodes": 0}, "a job has at least 1 node, not 0"),
        ({"nodes": -3}, "a job has at least 1 node, not -3"),
        ({"min_nodes": 5}, "min_nodes is 5: write 1 to 4, the number of its nodes, or leave it out"),
        ({"min_nodes": -1}, "min_nodes is -1"),
        ({"on": (NodeId("c/a"),), "min_nodes": 2}, "min_nodes is 2: write 1 to 1"),
        ({"on": (NodeId("d/a"),)}, "d/a is not a node of c: name nodes as c/<name>"),
        ({"on": (NodeId("c/a"), NodeId("c/a"))}, "on: a node is named twice"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1"),
        ({"ranks_per_node": 0}, "ranks_per_node is 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"precheck": 5}, "precheck is 5: a check has level 1 to 4; 0 is none"),
        ({"stall_after": -1.0}, "stall_after is -1 s"),
        ({"name": "a b"}, "name 'a b' cannot be used"),
        ({"command": ("",)}, "the command is empty"),
        ({"image": "a b"}, "image 'a b' is no name of an image: write REGISTRY/NAME:TAG"),
        ({"image": "a\n"}, "image 'a\\n' is no name of an image"),
        ({"native": {"spec": "x" * NATIVE_MOST}}, "native has 32011 bytes, at most 32000 fit"),
        ({"checkpoint": "here"}, "checkpoint 'here' must be an absolute path"),
        ({"env": {"SICKBAY_JOB_ID": "x"}}, "env: SICKBAY_JOB_ID is set by Sickbay itself"),
        ({"env": {"A": "x" * SPEC_MOST}}, "the job's description has 100"),
        (
            {"log_rules": (LogRule(name="step", pattern="(", starts_within=1.0),)},
            "log rule step: the pattern is",
        ),
        (
            {"log_rules": (LogRule(name="step", pattern="x"),)},
            "log rule step asks for nothing: say",
        ),
        (
            {"log_rules": (LogRule(name="s", pattern="x", recurs_within=0.0),)},
            "log rule s: recurs_within is 0 s",
        ),
    ],
)
def test_nonsense_is_refused_in_one_line(changes: dict[str, object], line: str) -> None:
    found = refusal(replace(GOOD, **changes), {"c", "d"})
    assert found.startswith(line)
    assert "\n" not in found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"min_nodes": 4},
        {"image": "ghcr.io/lab/train@sha256:00", "native": {"spec": {"a": [1, None, True, "x"]}}},
        {"min_nodes": 1, "max_restarts": 0, "precheck": 0, "stall_after": 0.0},
        {"on": (NodeId("c/a"), NodeId("c/b")), "nodes": 1},
        {"log_rules": (LogRule(name="step", pattern=r"step \\d+", starts_within=60.0, recurs_within=5.0),)},
    ],
)
def test_what_can_be_run_is_not_refused(changes: dict[str, object]) -> None:
    assert refusal(replace(GOOD, **changes), {"c"}) == ""


def test_more_than_a_pool_has_is_refused_in_one_line() -> None:
    boards = [(Device(index=0), Device(index=1)), (Device(index=0),)]
    pool = [Node(id=NodeId(f"c/n{n}"), cluster="c", pool="c/p", devices=devices) for n, devices in enumerate(boards)]
    assert too_large(GOOD, pool) == "4 nodes are asked for, but pool c/p has 2: ask for fewer"
    assert too_large(replace(GOOD, nodes=1, gpus_per_node=2), pool) == ""
    assert too_large(replace(GOOD, nodes=2, gpus_per_node=2), pool).startswith(
        "gpus_per_node 2 is more than there are: 2 nodes have 1 each"
    )


@pytest.mark.parametrize(("asked", "started"), [(None, 900.0), (0.0, 0.0), (5.0, 5.0)])
def test_the_policy_says_when_a_job_that_leaves_it_open_hangs(asked: float | None, started: float) -> None:
    job = Job(id=JobId("j"), spec=replace(GOOD, stall_after=asked), submitted_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert as_started(job, load_policy("default")).stall_after == started
