"""Every figure can be measured. Nothing here is timed: the numbers of a tiny run mean nothing."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.__main__ import BENCHES, main, page, told
from bench.figure import TINY, Figure, Line, percentile
from bench.flood import BATCH, load
from bench.resumes import STAGES
from bench.rig import Bench, node_id, open_policy, store_of, xid
from bench.scanner import FAULTY, HARMLESS, beside, log

from sickbay.model.facts import Observed
from sickbay.model.fleet import AgentState, Ledger, Node

pytestmark = pytest.mark.slow

ON_REAL_PROCESSES = ("resumes", "lines", "reports", "agent", "checkpoint_sizes")
POSITIVE = re.compile(r"(?=[\d.,]*[1-9])\d[\d,]*(\.\d+)?(e[+-]\d+)?")


@pytest.mark.parametrize("name", [name for name in BENCHES if name not in {"takeover", *ON_REAL_PROCESSES}])
def test_a_tiny_run_of_each_figure_gives_a_line_for_all_that_it_promises(name: str) -> None:
    figure = BENCHES[name](TINY)
    assert figure.title
    assert figure.lines
    assert all(line.value for line in figure.lines)


@pytest.mark.parametrize("name", ON_REAL_PROCESSES)
def test_figures_on_real_processes_come_out_and_are_positive(name: str) -> None:
    figure = BENCHES[name](TINY)
    assert figure.title
    assert figure.lines
    assert [line for line in figure.lines if POSITIVE.match(line.value) is None] == []
    if name == "resumes":
        promised = {f"{case}: {stage}" for case in ("a warm spare", "no spare") for stage in STAGES}
        assert promised <= {line.what for line in figure.lines}


def test_a_successor_takes_over_or_the_figure_says_why_it_was_skipped() -> None:
    figure = BENCHES["takeover"](TINY)
    assert [line.what for line in figure.lines] == ["skipped"] or any("commits" in line.what for line in figure.lines)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_fleet_that_is_measured_was_learned_by_the_engine_and_its_agents_are_heard(kind: str) -> None:
    with store_of(kind) as store:
        Bench.over(store).populate(5)
        rows = store.load([f"node:{node_id(number)}" for number in range(5)] + ["ledger:bench/train"])
        ledger = rows["ledger:bench/train"].row
        assert isinstance(ledger, Ledger)
        assert (ledger.seats, ledger.out) == (5, 0)
        nodes = [row.row for key, row in rows.items() if key.startswith("node:")]
        assert all(isinstance(node, Node) and node.agent is AgentState.HEARD and node.claimable for node in nodes)


def test_a_fleet_at_rest_has_nothing_due() -> None:
    with store_of("memory") as store:
        bench = Bench.over(store)
        bench.populate(5)
        assert bench.engine.round() == 0


def test_a_fault_in_the_measured_fleet_is_quarantined_and_noise_is_not() -> None:
    with store_of("memory") as store:
        bench = Bench.over(store)
        bench.populate(3)
        bench.learn([xid(0, 79, "a", at=0.0), xid(1, 43, "b", at=0.0), xid(1, 45, "c", at=0.0)])
        incidents = store.load(store.keys("incident"))
        assert [row.row.node for row in incidents.values()] == [node_id(0)]


def test_the_load_has_batches_of_one_size_and_each_node_falls_sick_once() -> None:
    batches = load(20)
    sick = []
    for _ in range(90):
        facts, node = next(batches)
        assert len(facts) == BATCH
        told_sick = [f.news.node for f in facts if isinstance(f.news, Observed) and f.news.fields.get("number") == 79]
        assert told_sick == ([] if node is None else [node])
        sick += told_sick
    assert len(sick) == len(set(sick)) == 20


def test_the_log_that_is_scanned_is_the_same_each_time_and_all_ways_find_its_faults() -> None:
    text = log(30_000)
    assert text == log(30_000)
    found = beside(text + "".join(f"Mar  4 11:00:00 node-0 {line}\n" for line in FAULTY).replace("%d", "7").replace(
        "%x", "1b").encode())  # fmt: skip
    assert len(found.ours.found) >= len(FAULTY)
    assert len(HARMLESS) > 30


def test_nothing_holds_the_measured_quarantines_back() -> None:
    policy = open_policy()
    assert policy.brakes == ()
    assert policy.limits[0].out(1) == 1


def test_a_missed_goal_shows_on_the_page_and_in_the_terminal() -> None:
    figure = Figure(title="T", about="A.", lines=(Line("slow", "9 s", "< 1 s", met=False),))
    assert "| slow | 9 s | < 1 s | **no** |" in page([figure], "a machine")
    assert "[< 1 s: no]" in told(figure)


def test_a_wrong_name_is_refused_with_the_names_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    assert "quiet" in capsys.readouterr().err


def test_the_page_is_only_written_from_a_full_run() -> None:
    with pytest.raises(SystemExit):
        main(["--quick", "--write"])


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
