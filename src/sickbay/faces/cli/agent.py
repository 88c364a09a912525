"""sickbay agent: watch this machine."""

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from sickbay.agent.settings import CONFIG, SETTINGS, AgentSettings, load, printable
from sickbay.faces.cli.show import as_json, clean, print_json
from sickbay.model.errors import BadInput
from sickbay.model.facts import Observed

WRONG = 1
CONTROLLERS_OWN = ("sickbay.db", "controller.lock", "choices.json")


@click.command("agent")
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help=f"The settings; else {CONFIG}.")
@click.option("--url", metavar="URL", help="The controller's address.")
@click.option("--node", metavar="CLUSTER/NAME", help="This node; else default/<host name>.")
@click.option("--token-file", metavar="FILE", help="A file with this node's token.")
@click.option("--state", metavar="DIR", help="Where it keeps what is not reported yet; else /var/lib/sickbay.")
@click.option("--set", "more", metavar="NAME=VALUE", multiple=True, help="Any other setting; see --print-settings.")
@click.option(
    "--once",
    is_flag=True,
    help="Look at everything once, print what is wrong; exit 1 if something is, or could not be seen.",
)
@click.option("--print-settings", is_flag=True, help="Print all settings with what they mean, and exit.")
@as_json
def agent(
    config: Path | None,
    url: str | None,
    node: str | None,
    token_file: str | None,
    state: str | None,
    more: tuple[str, ...],
    once: bool,
    print_settings: bool,
    as_json: bool,
) -> None:
    """Watch this machine: kernel log, GPUs, the machine itself. Report to the controller and carry out its commands.

    Settings come from the file, then the environment (SICKBAY_URL, SICKBAY_TOKEN, SICKBAY_NODE …), then flags; the
    later win. It reads /dev/kmsg, so run it as root or with CAP_SYSLOG. It opens no port.

    \b
    sickbay agent --once                           what is wrong here? no controller needed
    sickbay agent --url https://sickbay:8080 --node train/gpu-7 --set join_token_file=/etc/sickbay/join
    sickbay agent --print-settings                 every setting, its value, and why its default is what it is
    systemctl enable --now sickbay-agent           as a service, with a watchdog
    """
    flags: dict[str, Any] = {"url": url, "node": node, "token_file": token_file, "state": state}
    for pair in more:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"--set {pair}: write --set NAME=VALUE, for example --set gpus=8")
        flags[name.strip()] = value
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load(config, os.environ, given, alone=once or print_settings)
    if print_settings:
        _print(settings, as_json=as_json)
    elif once:
        sys.exit(_once(settings, as_json=as_json))
    else:
        _become(settings)


def _print(settings: AgentSettings, *, as_json: bool) -> None:
    values = printable(settings)
    if as_json:
        print_json(values)
        return
    for name, setting in SETTINGS.items():
        variable = f" ({setting.variable})" if setting.variable else ""
        click.echo(f"# {setting.about}{variable}\n# Default {setting.default}.")
        value = values[name]
        shown = "# not set" if value is None or value in ("", []) else clean(msgspec.json.encode(value).decode())
        click.echo(f"{name}: {shown}\n" if value not in (None, "", []) else f"# {name}:\n")


def _once(settings: AgentSettings, *, as_json: bool) -> int:
    from sickbay.agent.node import look_once
    from sickbay.knowledge.load import load_tables
    from sickbay.model.fault import Remedy
    from sickbay.signs.classify import classify

    tables = load_tables()
    rows: list[dict[str, Any]] = []
    wrong = False
    for item in look_once(settings):
        if not isinstance(item.news, Observed):
            continue
        fault = classify(item.news, tables)
        wrong = wrong or item.news.kind == "probe.failed"  # what could not be looked at is not well
        row = {"code": item.news.kind, "count": item.news.count, "device": item.news.fields.get("device"),
               "text": item.news.text, "unconfirmed": item.news.unconfirmed}  # fmt: skip
        if fault is not None:
            wrong = wrong or (fault.remedy not in {Remedy.NONE, Remedy.WATCH} and not item.news.unconfirmed)
            row |= {
                "code": fault.code, "class": fault.monitor_class, "component": fault.component,
                "severity": fault.severity.value, "remedy": fault.remedy.value, "because": fault.because,
            }  # fmt: skip
        rows.append(row)
    if as_json:
        print_json(rows)
    else:
        _table(rows)
    return WRONG if wrong else 0


def _table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("nothing is wrong with what could be looked at")
        return
    for row in rows:
        times = f" ×{row['count']}" if row["count"] > 1 else ""
        where = "" if row["device"] is None else f" GPU {row['device']}"
        meant = f"{row['severity']}, {row['remedy']}" if "severity" in row else ""
        if row["unconfirmed"]:
            meant = "unconfirmed: any program could have written it"
        click.echo(f"{click.style(row['code'], bold=True)}{where}{times}  {meant}".rstrip())
        if row.get("because"):
            click.echo(f"    {clean(row['because'])}")
        if row["text"]:
            click.echo(f"    {clean(row['text'])[:200]}")


def _refuse_controllers_state(state: Path) -> None:
    """SICKBAY_STATE means one directory for an agent and another for a controller: in one shell they would share it."""
    if any((state / name).exists() for name in CONTROLLERS_OWN):
        raise BadInput(
            f"state: {state} is that of a controller ('sickbay up'): give the agent a directory of its own with "
            "--state DIR, or unset SICKBAY_STATE"
        )


def _become(settings: AgentSettings) -> None:
    """The agent takes this process' place: nothing that reads settings stays in memory, and systemd keeps the pid."""
    _refuse_controllers_state(Path(settings.state))
    if not (settings.token or settings.token_file or settings.join_token_file):
        click.echo("agent: no token is set: the controller will refuse reports unless it asks for none", err=True)
    descriptor = os.memfd_create("settings", 0)  # inherited, and in no environment or command line
    os.set_inheritable(descriptor, True)
    os.write(descriptor, msgspec.json.encode(settings))
    os.lseek(descriptor, 0, os.SEEK_SET)
    environment = {name: value for name, value in os.environ.items() if name != "SICKBAY_TOKEN"}
    # Each thread would get a heap of its own, and the agent's threads hardly ever run at the same time.
    environment.setdefault("MALLOC_ARENA_MAX", "1")
    words = [sys.executable, "-m", "sickbay.agent", "--settings", str(descriptor)]
    sys.stdout.flush()
    os.execve(sys.executable, words, environment)  # noqa: S606 - ourselves
