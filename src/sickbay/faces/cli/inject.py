"""sickbay inject NODE: break a device on purpose, to see what happens."""

from typing import Any

import click

from sickbay.faces.cli.client import connect, node_path
from sickbay.faces.cli.columns import field, hint, show_list, show_one
from sickbay.faces.cli.names import complete_node, reason_option, reasoned
from sickbay.faces.cli.show import as_json, clean
from sickbay.model.errors import BadInput

CURES = ("reset", "reboot", "replace", "nothing")


@click.command("inject")
@click.argument("node", metavar="NODE", required=False, shell_complete=complete_node)
@click.option("--xid", metavar="N", type=click.IntRange(0, 65535), help="The defect that shows as this NVIDIA Xid.")
@click.option("--line", metavar="TEXT", help="One line in the node's kernel log, and no more.")
@click.option("--defect", metavar="NAME", help="A defect by its name; 'list' shows the names.")
@click.option("--device", metavar="D", type=click.IntRange(min=0), help="Which GPU; else the first.")
@click.option("--cured-by", type=click.Choice(CURES), help="What heals it; else what heals it by nature.")
@click.option("--log", is_flag=True, help="Have the node's agent write the line, dated now, into the log it watches.")
@click.option("--yes", is_flag=True, help="With --log: do not ask before it is written.")
@reason_option
@as_json
def inject(
    node: str | None,
    xid: int | None,
    line: str | None,
    defect: str | None,
    device: int | None,
    cured_by: str | None,
    log: bool,
    yes: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Break a virtual device of the local cluster. What follows is real: ranks die, the right repair heals it.

    On a real node nothing is broken: with --log its agent writes the line into the system log, and everything takes it
    for true, up to a replacement if the policy says so. It asks first, and the audit log keeps who and why.

    \b
    sickbay inject node-0 --xid 79
    sickbay inject node-1 --defect list
    sickbay inject node-0 --xid 48 --device 1 --cured-by replace
    sickbay inject node-0 --line "NVRM: Xid (PCI:0000:18:00): 13, Graphics Exception"
    sickbay inject gpu-17 --xid 73 --log --reason "fire drill"
    """
    if defect == "list" or (defect is None and node == "list"):
        _list(as_json=as_json)
        return
    if node is None:
        raise BadInput("which node? write sickbay inject NODE --xid 79; 'sickbay nodes' shows them")
    if sum(what is not None for what in (xid, line, defect)) != 1:
        raise BadInput("say what breaks: write --xid N, --line TEXT or --defect NAME, one of them")
    if line is not None and (cured_by is not None or device is not None):
        raise BadInput("--line only writes a line, nothing breaks: leave --device and --cured-by out")
    if log:
        _ask_first(node, xid, reason, sure=yes, breaks=defect is not None or cured_by is not None or device is not None)
    elif yes:
        raise BadInput("--yes belongs to --log: add it, or leave it out")
    body = {"xid": xid, "line": line, "defect": defect, "device": device, "cured_by": cured_by}
    body |= {"log": True} if log else {}
    body |= {"reason": reason} if reason else {}
    found = connect().post(f"{node_path(node)}/inject", body)
    show_one(found, _print_done, as_json=as_json)


def _print_done(found: dict[str, Any]) -> None:
    click.echo(f"{found['node']}: {clean(found['done'])}")
    hint(f"watch it: sickbay explain {found['node']}", "or live: sickbay top")


def _ask_first(node: str, xid: int | None, why: str, *, sure: bool, breaks: bool) -> None:
    """Raises BadInput where it cannot be done, and ends the program where the person thinks again."""
    if breaks:
        raise BadInput("--log only writes a line, nothing breaks: leave --defect, --device and --cured-by out")
    reasoned(why, "fire drill")
    if not sure:
        what = "this line" if xid is None else f"an Xid {xid}"
        click.confirm(f"{node} will be treated as if {what} were true: repaired, perhaps replaced. Write it?",
                      abort=True, err=True)  # fmt: skip


def _list(*, as_json: bool) -> None:
    from sickbay.wiring import local_defects

    found = [{"name": name, "about": about} for name, about in local_defects().items()]
    show_list(found, [field("name"), field("about")], empty="nothing can be broken here", as_json=as_json)
