"""sickbay sim: named scenarios, files, soaks."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sickbay.faces.cli.main import main
from sickbay.model.errors import BadInput
from sickbay.sim.invariants import Broken, Invariants
from sickbay.sim.scenario_file import load_scenario, parse_scenario
from sickbay.sim.soak import soak_all

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_a_run_says_where_the_time_went_and_how_long_each_stage_took() -> None:
    out = sickbay("sim", "standard").stdout
    for title in (
        "Time lost by cause",
        "From the first symptom to the first new step",
        "Incidents, time in each phase",
        "effective training time",
        "Notifications",
    ):
        assert title in out


def test_the_json_of_a_run_has_stable_keys() -> None:
    told = json.loads(sickbay("sim", "standard", "--json").stdout)
    assert set(told) == {
        "scenario", "seed", "policy", "nodes", "seconds", "effective_training_time", "lost_by_cause",
        "incident_stages", "incidents", "interruption_stages", "training_again", "incidents_by_phase",
        "intakes_by_phase", "notifications", "jobs", "broken", "repeat", "story",
    }  # fmt: skip
    assert told["broken"] is None
    assert told["incidents_by_phase"] == {"RELEASED": 1}
    assert set(told["training_again"]) == {"count", "median", "p90"}
    assert told["lost_by_cause"]["xid.79"] > 0


def test_options_change_the_run() -> None:
    told = json.loads(
        sickbay("sim", "standard", "--nodes", "6", "--policy", "hyperpod", "--cold", "--engines", "2", "--json").stdout
    )
    assert (told["nodes"], told["policy"]) == (6, "hyperpod")
    assert told["repeat"] == "sickbay sim standard --seed 0 --nodes 6 --policy hyperpod --cold --engines 2"


def test_a_fleet_is_as_large_and_as_long_as_asked() -> None:
    told = json.loads(sickbay("sim", "fleet", "--nodes", "70", "--days", "0.25", "--json").stdout)
    assert told["nodes"] == 70
    assert 21_600 <= told["seconds"] < 22_000
    assert {job["id"] for job in told["jobs"]} == {"large", "middle", "small"}


@pytest.mark.slow
def test_a_broken_invariant_is_one_line_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Invariants) -> None:
        del self
        raise Broken("two seats are out by our hand")

    monkeypatch.setattr(Invariants, "at_rest", broken)
    result = sickbay("sim", "standard", "--seed", "3")
    assert result.exit_code == 1
    assert result.stderr == ("broken: two seats are out by our hand; repeat it with: sickbay sim standard --seed 3\n")
    soaked = sickbay("sim", "soak", "--from", "8", "--runs", "1")
    assert soaked.exit_code == 1
    assert "repeat it with: sickbay sim soak --from 8 --runs 1" in soaked.stdout


def test_a_soak_goes_on_after_a_run_that_broke_and_ends_with_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int) -> None:
        if seed != 9:
            raise Broken(f"broken by {seed}")

    monkeypatch.setattr("sickbay.sim.soak.random_run", run)
    result = sickbay("sim", "soak", "--from", "8", "--runs", "3", "--jobs", "1")
    assert result.stdout.splitlines() == [
        "seed 8: Broken: broken by 8; repeat it with: sickbay sim soak --from 8 --runs 1",
        "seed 10: Broken: broken by 10; repeat it with: sickbay sim soak --from 10 --runs 1",
        "3 runs from seed 8: 2 broke an invariant: seeds 8, 10",
    ]
    assert result.exit_code == 1


def test_a_soak_that_is_interrupted_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int) -> None:
        if seed == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sickbay.sim.soak.random_run", run)
    result = sickbay("sim", "soak", "--runs", "5", "--jobs", "1")
    assert result.stderr == "interrupted after 2 of 5 runs\n"
    assert result.stdout == "2 runs from seed 0: none broke an invariant\n"
    assert result.exit_code == 1, "what was asked for was not done"


@pytest.mark.slow
def test_a_soak_over_several_processes_runs_every_seed_once() -> None:
    assert sorted(run.seed for run in soak_all(40, 5, jobs=2)) == [40, 41, 42, 43, 44]


@pytest.mark.slow
def test_a_soak_without_trouble_is_exit_0() -> None:
    result = sickbay("sim", "soak", "--runs", "3", "--from", "20", "--jobs", "1", "--json")
    assert json.loads(result.stdout) == {"runs": 3, "from": 20, "failed": []}
    assert result.exit_code == 0


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_runs_to_its_end(file: Path) -> None:
    result = sickbay("sim", str(file), "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert {job["state"] for job in told["jobs"]} == {"COMPLETE"}
    assert set(told["incidents_by_phase"]) == {"RELEASED"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f.yaml:1: the file is empty"),
        ("# only this\n", "f.yaml:1: the file is empty"),
        ("- a\n", "f.yaml:1:1: expected 'key: value' lines"),
        ("nods: 3", "f.yaml:1:1: unknown key 'nods': did you mean 'nodes'?"),
        ("nodes: many", "f.yaml:1:8: nodes: expected a whole number"),
        ("nodes: 0", "f.yaml:1:8: nodes: 0 nodes: write 1 to"),
        ("for: 3", "for: expected a duration"),
        ("policy: default\npolicy: default", "given twice"),
        ("timeline: soon", "timeline: expected a list"),
        ("timeline:\n- {at: 1m}", "f.yaml:2:3: timeline[0]: 'do' is missing"),
        ("timeline:\n- {at: 1m, do: strik}", "f.yaml:2:16: timeline[0].do: unknown value 'strik': did you mean"),
        ("timeline:\n- {at: 1m, do: strike, node: train-0001}", "'code' is missing"),
        ("timeline:\n- {at: 1m, do: strike, code: xid.79}", "say where, with 'node: …' or 'job: …'"),
        ("timeline:\n- {at: 1m, do: strike, node: train-0004, code: xid.79}", "write train-0000 to train-0003"),
        ("timeline:\n- {at: 1m, do: strike, node: train-0000, code: xyz}", "unknown fault 'xyz': write xid.<number>"),
        ("timeline:\n- {at: 1m, do: strike, node: train-0000, code: xid.79, device: 8}", "write 0 to 7"),
        ("timeline:\n- {at: 1m, do: hang_job, job: tran}\njobs:\n- {name: train}", "did you mean 'train'?"),
        ("timeline:\n- {at: 1m, do: crash_engine, engine: 1}", "there is no engine 1"),
        ("jobs:\n- {name: a}\n- {name: a}", "two jobs are called 'a'"),
        ("jobs:\n- {name: a, nodes: 5}", "5 nodes of 4: write 1 to 4"),
        ("jobs:\n- {name: a, native_restart: 10s}", "add 'submitted_to: cluster'"),
    ],
)  # fmt: skip
def test_a_bad_scenario_is_refused_at_its_place_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_scenario(text, "f.yaml")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_scenarios_policy_file_is_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: default\nname: mine\n")
    (tmp_path / "run.yaml").write_text("policy: ./mine.yaml\njobs:\n- {name: train, steps: 60}\n")
    told = json.loads(sickbay("sim", str(tmp_path / "run.yaml"), "--json").stdout)
    assert told["policy"] == "mine"


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"about: caf\xe9\n")
    with pytest.raises(BadInput, match="save the file as UTF-8"):
        load_scenario(file)
