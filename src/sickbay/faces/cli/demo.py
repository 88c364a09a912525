"""sickbay demo: one fault, from its first symptom to the next training step, as plain text."""

import heapq
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.show import as_json, heading, leave, print_json, print_story, quiet, seed_option, span, table

if TYPE_CHECKING:
    from sickbay.faces.story import Told
    from sickbay.model.incident import Incident
    from sickbay.model.job import Job
    from sickbay.sim.simulation import Simulation

JOB = "train"
MEANINGS = {
    "detected": "the first symptom",
    "stopped": "all ranks gone",
    "diagnosed": "its nodes looked at, the cause named",
    "placed": "nodes claimed for the next attempt",
    "gated": "those nodes passed their check",
    "started": "all ranks seen running",
    "first_step": "the first new training step",
}


@click.command("demo")
@seed_option
@click.option("--keep", metavar="FILE", help="Keep the store as a SQLite file, for 'sickbay explain --store FILE'.")
@as_json
def demo(seed: int, keep: str | None, as_json: bool) -> None:
    """One fault from its first symptom to the next training step.

    Four simulated nodes, a job on two of them; then a GPU falls off the bus (Xid 79), and only a reboot cures that.
    The engine is the real one; the time is virtual. Exits 0 only if the node was released, the job completed, and no
    invariant broke.
    """
    from sickbay.faces.cli.keep import keep as keep_file
    from sickbay.faces.cli.keep import refuse_existing
    from sickbay.sim.invariants import Broken
    from sickbay.sim.scenarios import named, perform, stage

    quiet()
    refuse_existing(keep)
    scenario = named("standard")
    sim = stage(scenario, seed)
    broken = ""
    try:
        perform(sim, scenario, seed)
    except Broken as error:
        broken = str(error)
    incidents, job = sim.incidents(), sim.jobs()[0]
    healed = not broken and job.state == "COMPLETE" and [i.phase.value for i in incidents] == ["RELEASED"]
    if keep is not None:
        keep_file(sim.store, keep)
    if as_json:
        print_json(_json(sim, incidents, job, healed=healed, broken=broken))
    else:
        _print(sim, incidents, job, seed=seed, broken=broken, keep=keep)
    leave(0 if healed else 1)


def story_of(sim: "Simulation", subjects: list[str]) -> "list[Told]":
    from sickbay.faces.story import tell, weave

    return tell(weave({subject: sim.store.story(subject) for subject in subjects}))


def _whole_story(sim: "Simulation", incidents: "list[Incident]", job: "Job") -> "list[Told]":
    """What the engine told, with what truly happened in the world put where it belongs."""
    subjects = [f"node:{node}" for node in dict.fromkeys(i.node for i in incidents)]
    subjects += [f"incident:{incident.id}" for incident in incidents]
    told = story_of(sim, [*subjects, f"job:{job.id}"])
    return list(heapq.merge(_happened(sim), told, key=lambda line: line.at))


def _happened(sim: "Simulation") -> "list[Told]":
    from sickbay.faces.story import Told, What

    words = {
        "defect": ("node", "a GPU breaks: {0}"),
        "cured": ("node", "what was broken is cured by {0}"),
        "halt": ("job", "training stops: {0}"),
        "train": ("job", "training begins at step {0}"),
    }
    found = []
    for event in sim.world.chronicle.events:
        if event.what not in words or (event.what == "halt" and event.detail == "complete"):
            continue
        kind, text = words[event.what]
        about = f"{kind}:{event.subject.partition('#')[0]}"
        at = sim.world.ground.stamp(event.at)
        found.append(Told(at=at, what=What.HAPPENED, about=about, text=text.format(event.detail)))
    return found


def _print(
    sim: "Simulation", incidents: "list[Incident]", job: "Job", *, seed: int, broken: str, keep: str | None
) -> None:
    from sickbay.faces.explain import STAGES
    from sickbay.sim.report import incident_seconds, training_again
    from sickbay.sim.schedule import EPOCH

    click.echo(
        f"4 nodes, job {JOB!r} on 2 of them, seed {seed}; virtual time from the start. 'happened' is the truth of"
    )
    click.echo("the simulated world; 'seen', 'decided' and 'done' are what the engine knew and did.")
    click.echo()
    print_story(_whole_story(sim, incidents, job), EPOCH)
    for interruption in job.interruptions:
        heading(f"The job's interruption (attempt {interruption.attempt}: {interruption.cause})")
        rows, before = [], None
        for name in STAGES:
            at = interruption.stages.get(name)
            if at is not None:
                took = span((at - before).total_seconds()) if before is not None else ""
                rows.append((name, took, MEANINGS[name]))
                before = at
        _stages(rows)
    for incident in incidents:
        heading(f"The node's incident ({incident.id}, {incident.node}, {incident.fault.code})")
        table(("phase", "took"), [(phase, span(took)) for phase, took in incident_seconds(incident).items()])
    again = [seconds for i in job.interruptions if (seconds := training_again(i)) is not None]
    click.echo()
    for seconds in again:
        click.echo(click.style(f"training again after {seconds:.0f} s", bold=True, fg="green"))
    for incident in incidents:
        whole = (incident.closed_at - incident.opened_at).total_seconds() if incident.closed_at else None
        click.echo(f"{incident.node}: {incident.phase} after {span(whole)}; job {job.id}: {job.state}")
    if broken:
        click.echo(f"an invariant broke: {broken}; repeat it with: sickbay demo --seed {seed}", err=True)
    if keep is not None:
        click.echo(f"kept in {keep}: try sickbay explain {JOB} --store {keep}")


def _stages(rows: list[tuple[str, str, str]]) -> None:
    for name, took, meaning in rows:
        click.echo(f"  {name:<10}  {took:>9}  {click.style(meaning, dim=True)}")


def _json(sim: "Simulation", incidents: "list[Incident]", job: "Job", *, healed: bool, broken: str) -> dict[str, Any]:
    from sickbay.faces.archive import Archive
    from sickbay.faces.explain import incident_json, iso, job_json
    from sickbay.sim.report import training_again

    archive = Archive(sim.store)
    again = [seconds for i in job.interruptions if (seconds := training_again(i)) is not None]
    return {
        "seed": sim.seed,
        "healed": healed,
        "broken": broken or None,
        "training_again_after": round(again[0], 3) if again else None,
        "job": job_json(archive, job),
        "incidents": [incident_json(archive, incident) for incident in incidents],
        "story": [
            {"at": iso(t.at), "what": t.what.value, "about": t.about, "text": t.text}
            for t in _whole_story(sim, incidents, job)
        ],
    }
