"""sickbay submit: a training job that shall finish."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import count, hint, say
from sickbay.faces.cli.job_name import free_name, name_of
from sickbay.faces.cli.names import complete_nodes, seconds
from sickbay.faces.cli.show import as_json, clean, leave, print_json
from sickbay.faces.cli.stages import OVER, ProgressLine, why
from sickbay.model.errors import BadInput
from sickbay.wire.env_files import check_here

if TYPE_CHECKING:
    from sickbay.faces.cli.client import Client

LOOK_EVERY = 5.0  # seconds, if no event says that something changed
AT_MOST_EVERY = 0.2
PRECHECKS = {"none": 0, "1": 1, "2": 2, "3": 3, "4": 4}


@click.command("submit", context_settings={"allow_interspersed_args": False})
@click.option("--name", metavar="X", help="What the job is called; its id begins with it. Else the script's name.")
@click.option("--nodes", metavar="N", type=click.IntRange(min=1), help="On so many nodes, whichever are fit; else one.")
@click.option("--on", metavar="NODE,…", help="On these nodes and no others.", shell_complete=complete_nodes)
@click.option("--gpus-per-node", metavar="G", type=click.IntRange(min=1), help="So many on each node; else all.")
@click.option("--min-nodes", metavar="M", type=click.IntRange(min=1), help="Restart on fewer, down to so many.")
@click.option("--ranks-per-node", metavar="R", type=click.IntRange(min=1), help="Processes on each node; else one.")
@click.option("--checkpoint", metavar="DIR", help="The directory that all its attempts share.")
@click.option("--max-restarts", metavar="K", type=click.IntRange(min=0), help="Else as the policy says.")
@click.option("--precheck", type=click.Choice(list(PRECHECKS)), help="Level of the check before each start.")
@click.option("--cluster", metavar="C", help="The cluster that it runs on, where there are several.")
@click.option("--pool", metavar="P", help="The pool whose nodes it may use.")
@click.option("--env", metavar="K=V", multiple=True, help="An environment variable; K alone passes yours on. Repeat.")
@click.option(
    "--env-file", metavar="FILE", multiple=True, help="Secrets: K=V lines that each node reads at the start. Repeat."
)
@click.option("--cwd", metavar="DIR", help="Where the command starts; else this directory.")
@click.option("--stall-after", metavar="TIME", help="Hung after so long without a heartbeat, such as 10m; none: never.")
@click.option(
    "--start-within", metavar="TIME", help="Hung unless its first heartbeat comes so soon, such as 1h; none: never."
)
@click.option(
    "--log-rule", metavar="RULE", multiple=True,
    help="Hung unless a line appears: 'NAME=REGEX;start=5m;every=1m'. Repeat it.",
)  # fmt: skip
@click.option("--anew", is_flag=True, help="Begin at step 0, beside what is in the checkpoint directory.")
@click.option("--adopt", is_flag=True, help="Go on from what is in that directory, whichever job saved it.")
@click.option("--priority", metavar="N", type=click.IntRange(-100, 100), help="Higher ones run first; else 0.")
@click.option(
    "--time-limit", metavar="TIME", help="Stopped when it has run so long, such as 2h; may let it run sooner."
)
@click.option("--grow", is_flag=True, help="With --min-nodes: restarted on more as soon as there are more.")
@click.option(
    "--storage", metavar="DIR", multiple=True, help="Shared: each node must reach it before each start. Repeat."
)
@click.option("--image", metavar="IMAGE", help="The container image of its ranks, where the cluster runs images.")
@click.option("--native", metavar="FILE", help="YAML or JSON, merged over the object that the cluster makes of it.")
@click.option("--wait", is_flag=True, help="Stay until it is over: exit 0 COMPLETE, 1 FAILED or STOPPED.")
@as_json
@click.argument("command", metavar="-- CMD …", nargs=-1, type=click.UNPROCESSED)
def submit(command: tuple[str, ...], wait: bool, as_json: bool, **options: Any) -> None:
    """Submit a training job. It is restarted on healthy nodes until it completes, or its limits are reached.

    CMD is started once for each rank, without a shell, and sees MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE,
    LOCAL_RANK, NODE_RANK, SICKBAY_JOB_ID, SICKBAY_ATTEMPT and SICKBAY_CHECKPOINT_DIR.

    It has PATH, VIRTUAL_ENV, CONDA_PREFIX, LD_LIBRARY_PATH and PYTHONPATH of your shell, what you give it with --env
    and --env-file, and nothing else but a small base of its node: HOME, USER, LANG, TMPDIR and the like.

    \b
    sickbay submit -- python train.py                          (called train, on one node)
    sickbay submit --name first --nodes 2 -- python train.py
    sickbay submit --name big --nodes 4 --min-nodes 3 --checkpoint ckpt --wait -- python train.py --lr 3e-4
    sickbay submit --name sweep --priority -10 --time-limit 2h -- python eval.py
    sickbay submit --name run --nodes 2 --log-rule 'loss=loss: [0-9.]+;start=5m;every=1m' -- torchrun train.py
    sickbay submit --name secret --env-file ~/wandb.env -- python train.py
    """
    asked = request(command, **options)
    client = connect()
    if asked["name"] is None:
        asked["name"] = free_name(name_of(command), {job["name"] for job in client.pages("/v1/jobs")})
    job = client.post("/v1/jobs", asked)
    chosen = chosen_for(asked, name=options["name"], nodes=options["nodes"])
    if wait:
        stay(client, job, chosen, as_json=as_json)
        return
    size = len(asked["on"]) if asked["on"] else asked["nodes"]
    answer(job, count(size, "node"), chosen, anew=options["anew"], as_json=as_json)


def chosen_for(asked: dict[str, Any], *, name: str | None, nodes: int | None) -> str:
    """What was not said, and what it is then; empty: all was said."""
    called = ("--name", f"called {asked['name']}") if name is None else None
    size = ("--nodes", "on 1 node") if nodes is None and not asked["on"] else None
    unsaid = [each for each in (called, size) if each is not None]
    if not unsaid:
        return ""
    options, words = zip(*unsaid, strict=True)
    return f"  {', '.join(words)}: {' and '.join(options)} {'say' if len(options) > 1 else 'says'} otherwise"


def answer(job: dict[str, Any], size: str = "", chosen: str = "", *, anew: bool, as_json: bool) -> None:
    """What became of it, and where it takes up."""
    if as_json:
        print_json(job)
        return
    where = f"{size}, " if size else ""
    why = f": {job['because']}" if job["state"] == "FAILED" else ""
    click.echo(f"{job['id']} submitted: {where}{job['state']}{clean(why)}")
    if chosen:
        click.echo(chosen)
    if job["continues"]:
        begins = "begins anew, beside what is saved of" if anew else "goes on from the checkpoints of"
        click.echo(f"  {begins} {job['continues']}")
    hint(f"its output: sickbay logs {job['id']} --follow", f"its story: sickbay explain {job['id']}")


def stay(client: "Client", job: dict[str, Any], chosen: str = "", *, as_json: bool) -> None:
    """Until it is over."""
    say(f"{job['id']} submitted{f', goes on from {of}' if (of := job['continues']) else ''}")
    if chosen:
        say(chosen)
    try:
        job = until_over(client, job)
    except KeyboardInterrupt:
        say(
            f"\n{job['id']} goes on without you: 'sickbay job {job['id']}' shows it, 'sickbay stop {job['id']}' ends it"
        )
        raise
    if as_json:
        print_json(job)
    else:
        click.echo(f"{job['id']} {job['state']}{clean(f': {said}') if (said := why(job)) else ''}")
    leave(0 if job["state"] == "COMPLETE" else 1)


# --- what is asked for


def request(
    command: tuple[str, ...],
    *,
    name: str | None,
    nodes: int | None,
    min_nodes: int | None,
    on: str | None,
    precheck: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    cwd: str | None,
    checkpoint: str | None,
    stall_after: str | None,
    start_within: str | None,
    log_rule: tuple[str, ...],
    time_limit: str | None,
    grow: bool,
    anew: bool,
    adopt: bool,
    native: str | None,
    storage: tuple[str, ...],
    **same: Any,
) -> dict[str, Any]:
    """The body of POST /v1/jobs; the server knows the defaults of what is None, but for the name."""
    if not command:
        raise BadInput("the command is missing: write it after --, such as -- python train.py")
    _refuse_slips(command, cwd, checkpoint, storage)
    if nodes is not None and on is not None:
        raise BadInput("--nodes and --on contradict each other: write --nodes N, or --on NODE,NODE, one of them")
    if min_nodes is not None and nodes is None and on is None:
        raise BadInput("--min-nodes says with how few it goes on: write --nodes N as well, with how many it begins")
    where = Path(cwd or Path.cwd()).absolute()
    named = [one.strip() for one in on.split(",")] if on is not None else None
    if named is not None and not all(named):
        raise BadInput(f"--on {on!r} has a name that is empty: write NODE,NODE without spaces")
    return {
        **same,
        "name": name,
        "nodes": 1 if nodes is None and on is None else nodes,
        "min_nodes": min_nodes,
        "on": named,
        "precheck": PRECHECKS[precheck] if precheck is not None else None,
        "command": list(command),
        "env": {**_of_this_shell(), **dict(map(_variable, env))} or None,
        "env_files": _env_files(where, env_file) or None,
        "cwd": str(where),
        "checkpoint": os.path.normpath(where / checkpoint) if checkpoint else None,
        "stall_after": _limit("--stall-after", stall_after),
        "start_within": _limit("--start-within", start_within),
        "time_limit": seconds("--time-limit", time_limit),
        "grow": grow or None,
        "anew": anew or None,
        "adopt": adopt or None,
        "log_rules": [log_rule_of(text) for text in log_rule] or None,
        "storage": [os.path.normpath(where / Path(one).expanduser()) for one in storage] or None,
        "native": native_of(native) if native else None,
    }


def _refuse_slips(command: tuple[str, ...], cwd: str | None, checkpoint: str | None, storage: tuple[str, ...]) -> None:
    """What a shell makes of quotes too many and of variables that are not set. Raises BadInput."""
    given = (("--cwd", cwd), ("--checkpoint", checkpoint), *(("--storage", one) for one in storage))
    for option, path in given:
        if path in {"", "--"}:
            raise BadInput(f"{option} {path!r} is no directory: write {option} DIR (is a variable not set?)")
    if len(command) == 1 and len(command[0].split()) > 1 and not Path(command[0]).exists():
        raise BadInput(f"{command[0]!r} is one word, and no shell splits it: leave out the quotes around the command")


def _limit(option: str, text: str | None) -> float | None:
    return 0.0 if text in {"none", "never", "0"} else seconds(option, text)


# How a shell finds programs and libraries, so that `python` is the same one there as here: an activated environment,
# a loaded module. Nothing else of a shell goes along.
PASSED_ON = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONPATH")


def _of_this_shell() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def _env_files(where: Path, files: tuple[str, ...]) -> list[str]:
    paths = [Path(os.path.normpath(where / Path(file).expanduser())) for file in files]
    for path in paths:
        if unseen := check_here(path):
            say(unseen)
    return [str(path) for path in paths]


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name:
        raise BadInput(f"--env {text!r} has no name: write --env NAME=VALUE")
    if equals:
        return name, value
    if name not in os.environ:
        raise BadInput(f"--env {name}: it is not set here: write --env {name}=VALUE")
    return name, os.environ[name]


def native_of(path: str) -> dict[str, Any]:
    """The cluster's own object, from a file. Raises BadInput with the place of the mistake."""
    from sickbay.knowledge.yaml_places import YamlReader, compose_mapping, read_text

    text = read_text(Path(path).expanduser(), path, "write --native FILE, a YAML or JSON file that is there")
    return dict(YamlReader(path).plain(compose_mapping(text, path)))


_LIMIT = re.compile(r"\A(?P<rest>.*);(?P<which>start|every)=(?P<time>[^;]*)\Z", re.DOTALL)


def log_rule_of(text: str) -> dict[str, Any]:
    """NAME=REGEX[;start=TIME][;every=TIME]; the limits are read from the end, for a pattern may have anything in it."""
    how = "write --log-rule 'NAME=REGEX;start=5m;every=1m'"
    name, equals, rest = text.partition("=")
    limits: dict[str, float | None] = {}
    while (found := _LIMIT.match(rest)) is not None and found["which"] not in limits:
        limits[found["which"]] = seconds(f"--log-rule {name}, {found['which']}", found["time"])
        rest = found["rest"]
    if not equals or not name or not rest:
        raise BadInput(f"--log-rule {text!r} is not a rule: {how}")
    if not limits:
        raise BadInput(f"--log-rule {name} has no limit, so it would never say anything: {how}")
    return {"name": name, "pattern": rest, "starts_within": limits.get("start"), "recurs_within": limits.get("every")}


# --- waiting


def until_over(client: "Client", job: dict[str, Any]) -> dict[str, Any]:
    """Tells on standard error what happens meanwhile. Raises Unreachable when the controller stays away."""
    import time

    from sickbay.faces.cli.watch import ReconnectPatience, about, watching

    progress = ProgressLine(say)
    patience = ReconnectPatience(say)
    progress.show(job)
    ident = segment(job["id"])
    with watching(client, about("job", job["id"])) as watch:
        while job["state"] not in OVER:
            watch.wait(LOOK_EVERY if watch.heard else 1.0)
            time.sleep(AT_MOST_EVERY)  # a burst of changes is one look
            job = patience.ask(lambda: client.get(f"/v1/jobs/{ident}"), 1.0)
            progress.show(job)
    return job
