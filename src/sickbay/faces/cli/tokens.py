"""sickbay token create | list | revoke."""

from operator import itemgetter
from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, field, say, show_list, show_one
from sickbay.faces.cli.names import complete_node
from sickbay.faces.cli.show import as_json
from sickbay.model.errors import BadInput


@click.group("token")
def token() -> None:
    """Credentials: a viewer may look, an operator may act, an agent may report for its own node.

    \b
    sickbay token create alice --role operator
    sickbay token list
    sickbay token revoke alice
    """


@token.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(("viewer", "operator", "agent")), default="viewer", show_default="viewer")
@click.option("--node", metavar="NODE", help="An agent's: the node that it reports for.", shell_complete=complete_node)
@as_json
def create(name: str, role: str, node: str | None, as_json: bool) -> None:
    """Make a token. Its secret is printed here once, alone on standard output, and stored nowhere.

    \b
    sickbay token create alice --role operator
    export SICKBAY_TOKEN=$(sickbay token create ci --role viewer)
    """
    if (role == "agent") != (node is not None):
        raise BadInput("an agent's token is for one node, and only such a one: write --role agent --node NODE")
    found = connect().post("/v1/tokens", {"name": name, "role": role, "node": node})
    show_one(found, _print_secret, as_json=as_json)


def _print_secret(token: dict[str, Any]) -> None:
    role = token["role"]
    say(f"{token['name']} is {'an' if role[0] in 'ao' else 'a'} {role}. This is shown once; use it as SICKBAY_TOKEN:")
    click.echo(token["token"])


@token.command("list")
@as_json
def list_tokens(as_json: bool) -> None:
    """Who has a token, and since when. Secrets are not known here.

    \b
    sickbay token list
    """
    since = Column("since", lambda token: ago(token["issued_at"]), right=True)
    head = [field("name"), field("role"), field("node"), Column("given by", itemgetter("by")), since]
    empty = "no tokens: sickbay token create NAME --role viewer"
    show_list(connect().get("/v1/tokens"), head, empty=empty, as_json=as_json)


@token.command("revoke")
@click.argument("name")
@as_json
def revoke(name: str, as_json: bool) -> None:
    """Take a token back: it is refused from now on.

    \b
    sickbay token revoke alice
    """
    found = connect().delete(f"/v1/tokens/{segment(name)}")
    show_one(found, lambda _: click.echo(f"{name} is revoked"), as_json=as_json)
