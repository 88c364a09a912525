"""sickbay policy show | lint | diff."""

from pathlib import Path

import click

from sickbay.faces.cli.client import connect
from sickbay.faces.cli.names import QUICK
from sickbay.faces.cli.show import as_json, leave, print_json
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Capability
from sickbay.policy.diff import diff, effective, in_words, to_yaml
from sickbay.policy.lint import lint
from sickbay.policy.load import digest, load_policy, named_notifiers, shipped


@click.group("policy", epilog=f"Shipped policies: {', '.join(shipped())}.")
def policy() -> None:
    """Show, check and compare policies (shipped names or YAML files)."""


@policy.command("show")
@click.argument("name", metavar="[NAME|FILE]", default="default")
@as_json
def show(name: str, as_json: bool) -> None:
    """Print the policy in effect, every default filled in. Durations are seconds with --json."""
    loaded = load_policy(name)
    if as_json:
        print_json({**effective(loaded, seconds=True), "digest": digest(loaded)})
        return
    click.echo(f"# {loaded.name}, digest {digest(loaded)}")
    click.echo(to_yaml(loaded), nl=False)


@policy.command("lint")
@click.argument("name", metavar="[NAME|FILE]", default="default")
@click.option("--strict", is_flag=True, help="Exit 1 if there is a warning.")
@click.option(
    "--can",
    type=click.Choice([str(capability) for capability in Capability]),
    metavar="WORD",
    multiple=True,
    help=f"What the cluster can do; repeat it. Without it this is not judged. One of {', '.join(Capability)}.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1),
    metavar="N",
    help="How large a pool is; without it the running controller is asked, if there is one.",
)
@click.option(
    "--notifiers", metavar="FILE", type=click.Path(path_type=Path),
    help="The file of notifiers that it is to be used with: a channel that is not in it makes it unusable.",
)  # fmt: skip
@as_json
def lint_command(
    name: str, strict: bool, can: tuple[str, ...], nodes: int | None, notifiers: Path | None, as_json: bool
) -> None:
    """Say what in a policy is doubtful. Exit 0 fine, 1 warnings with --strict, 2 not usable.

    \b
    sickbay policy lint ./mine.yaml --nodes 8
    sickbay policy lint ./mine.yaml --notifiers ./notifiers.yaml
    """
    loaded = load_policy(name, _notifiers(notifiers))
    needs = list(named_notifiers(loaded))
    sizes = {"*": nodes} if nodes is not None else _pools_there()
    warnings = lint(loaded, frozenset(map(Capability, can)) if can else None, sizes)
    if as_json:
        print_json({"policy": loaded.name, "digest": digest(loaded), "warnings": warnings, "notifiers": needs})
    else:
        for line in warnings:
            click.echo(f"warning: {line}")
        if needs and notifiers is None:
            there = "are these notifiers" if len(needs) > 1 else "is this notifier"
            click.echo(f"needs: a controller refuses it unless there {there}: {', '.join(needs)} (--notifiers FILE)")
        click.echo(f"{loaded.name}: {len(warnings) or 'no'} warning{'' if len(warnings) == 1 else 's'}")
    if warnings and strict:
        leave(1)


def _pools_there() -> dict[str, int]:
    """Sizes of the pools of the running controller; none where none answers at once: a file is judged without one."""
    try:
        fleet = connect(QUICK).get("/v1/fleet")
        return {str(budget["pool"]): int(budget["size"]) for budget in fleet["budgets"]}
    except (BadInput, click.ClickException, KeyError, TypeError, ValueError):
        return {}


def _notifiers(file: Path | None) -> tuple[str, ...] | None:
    """The names that the file has; None: nobody said which."""
    if file is None:
        return None
    from sickbay.hosts.channels import read_notifiers

    return read_notifiers(file).names


@policy.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@as_json
def diff_command(a: str, b: str, as_json: bool) -> None:
    """Say what differs between two policies. Exit 0 the same, 1 they differ."""
    left, right = load_policy(a), load_policy(b)
    changes = diff(left, right, seconds=as_json)
    if as_json:
        print_json([change._asdict() for change in changes])
    else:
        names = (left.name, right.name) if left.name != right.name else (a, b)
        for change in changes:
            click.echo(in_words(change, *names))
        if not changes:
            click.echo(f"{a} and {b} do the same")
    if changes:
        leave(1)
