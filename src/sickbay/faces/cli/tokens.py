"""sickbay token create | list | revoke."""

from datetime import datetime
from operator import itemgetter
from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, clock, field, say, show_list, show_one
from sickbay.faces.cli.names import complete_node, reason_option, seconds
from sickbay.faces.cli.show import as_json, clean
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Role

SHORTEST = 60.0  # seconds


@click.group("token")
def token() -> None:
    """Credentials: a viewer may look, a submitter may run jobs of their own, an operator may act on all nodes and jobs,
    an admin may give out tokens too, an agent may report for its own node. With a join token the agents of a cluster
    get theirs by themselves.

    \b
    sickbay token create alice --role operator
    sickbay token create bob --role submitter --for 30d
    sickbay token list
    sickbay token revoke alice
    """


@token.command("create")
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in Role]), default=Role.VIEWER.value, show_default="viewer"
)
@click.option("--node", metavar="NODE", help="An agent's: the node that it reports for.", shell_complete=complete_node)
@click.option("--cluster", metavar="CLUSTER", help="A join token's: the cluster whose agents may use it.")
@click.option("--for", "length", metavar="TIME", help="It expires after so long, such as 30d; else never.")
@reason_option
@as_json
def create(
    name: str, role: str, node: str | None, cluster: str | None, length: str | None, reason: str, as_json: bool
) -> None:
    """Make a token. Its secret is printed here once, alone on standard output, and stored nowhere.

    The name stands for a person or a program: jobs belong to it, and the audit log shows it. Whoever gets a new token
    under the old name keeps their jobs.

    \b
    sickbay token create alice --role operator
    sickbay token create bob --role submitter --for 30d
    sickbay token create n1 --role agent --node node-1
    sickbay token create train-nodes --role join --cluster train --for 90d
    export SICKBAY_TOKEN=$(sickbay token create ci --role viewer)
    """
    if (role == Role.AGENT) != (node is not None):
        raise BadInput("an agent's token is for one node, and only such a one: write --role agent --node NODE")
    if (role == Role.JOIN) != (cluster is not None):
        raise BadInput("a join token is for one cluster, and only such a one: write --role join --cluster CLUSTER")
    span = seconds("--for", length)
    if span is not None and span < SHORTEST:
        raise BadInput(f"--for: a token lasts a minute at least, and {length} is less: write --for 1m, or longer")
    body = {"name": name, "role": role, "node": node, "cluster": cluster, "seconds": span, "reason": reason or None}
    show_one(connect().post("/v1/tokens", body), _print_secret, as_json=as_json)


def _print_secret(token: dict[str, Any]) -> None:
    role, until = token["role"], clock(token.get("expires_at"))
    where = f" of {token['node']}" if token.get("node") else ""
    use = "use it as SICKBAY_TOKEN"
    if token.get("cluster"):
        where, use = f" token of {token['cluster']}", "put it into the file that agents have as join_token_file"
    said = f"{token['name']} is {'an' if role[0] in 'ao' else 'a'} {role}{where}{f' until {until}' if until else ''}"
    say(f"{said}. This is shown once; {use}:")
    click.echo(token["token"])


@token.command("list")
@as_json
def list_tokens(as_json: bool) -> None:
    """Who has a token, since when, until when, and when it was last used. Secrets are not known here.

    \b
    sickbay token list
    """
    head = [
        field("name"),
        field("role"),
        Column("for", lambda token: token["node"] or token.get("cluster") or ""),
        Column("given by", itemgetter("by"), cut=True),
        Column("since", lambda token: ago(token["issued_at"]), right=True),
        Column("expires", _expires),
        Column("last used", lambda token: ago(token.get("used_at")) or "never", right=True),
    ]
    empty = "no tokens: sickbay token create NAME --role viewer"
    show_list(connect().get("/v1/tokens"), head, empty=empty, as_json=as_json)


def _expires(token: dict[str, Any]) -> str:
    if token.get("expired"):
        return "expired"
    at = token.get("expires_at")
    return f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M}" if at else "never"


@token.command("revoke")
@click.argument("name")
@reason_option
@as_json
def revoke(name: str, reason: str, as_json: bool) -> None:
    """Take a token back: it is refused from now on, and its secret never opens anything again.

    \b
    sickbay token revoke alice
    sickbay token revoke "agent of local/node-3" --reason "its disk was sold"
    """
    if not name.strip():
        raise BadInput("whose token? 'sickbay token list' shows the names")
    found = connect().delete(f"/v1/tokens/{segment(name)}", reason=reason or None)
    show_one(found, lambda _: click.echo(f"{clean(name)} is revoked"), as_json=as_json)
