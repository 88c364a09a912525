"""A job that makes no sense is refused in one line that says what to write."""

import pytest
from msgspec.structs import replace

from sickbay.brain.submission import refusal
from sickbay.model.fleet import NodeId
from sickbay.model.job import JobSpec, LogRule

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
        ({"on": (NodeId("c/a"), NodeId("c/a"))}, "one node is named twice"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1"),
        ({"ranks_per_node": 0}, "ranks_per_node is 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"precheck": 5}, "precheck is 5: a check has level 1 to 4; 0 is none"),
        ({"stall_after": -1.0}, "stall_after is -1 s"),
        ({"log_rules": (LogRule(name="step", pattern="(", starts_within=1.0),)}, "the pattern of the log rule 'step'"),
        ({"log_rules": (LogRule(name="step", pattern="x"),)}, "the log rule 'step' asks for nothing"),
        (
            {"log_rules": (LogRule(name="s", pattern="x", recurs_within=0.0),)},
            "recurs_within of the log rule 's' is 0 s",
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
        {"min_nodes": 1, "max_restarts": 0, "precheck": 0, "stall_after": 0.0},
        {"on": (NodeId("c/a"), NodeId("c/b")), "nodes": 1},
        {"log_rules": (LogRule(name="step", pattern=r"step \\d+", starts_within=60.0, recurs_within=5.0),)},
    ],
)
def test_what_can_be_run_is_not_refused(changes: dict[str, object]) -> None:
    assert refusal(replace(GOOD, **changes), {"c"}) == ""
