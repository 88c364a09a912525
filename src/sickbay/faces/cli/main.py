"""sickbay: the command line. Each command is imported when it is called, so that --help is quick."""

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import click

from sickbay import __version__
from sickbay.model.errors import BadInput, StoreUnavailable, StoreUnknown, UnusableStore

DONE, NO, WRONG_USE, CANNOT_REACH, INTERRUPTED = 0, 1, 2, 3, 130
CONFLICT = 409  # HTTP's word for an order that the server refuses as things stand


HERE, JOBS, NODES, SAFETY, TRY = "On this machine", "Jobs", "Nodes", "Safety and access", "Policy and simulation"


class CommandPlace(NamedTuple):
    module: str  # of this folder; the command has its own name there
    about: str
    section: str = HERE


COMMANDS = {
    "demo": CommandPlace("demo", "One fault from its first symptom to the next training step."),
    "up": CommandPlace("up", "A controller and a small cluster on this machine."),
    "down": CommandPlace("up", "End them, and everything that runs there."),
    "controller": CommandPlace("controller", "A controller of any number of clusters, from a file."),
    "backup": CommandPlace("backup", "Copy the store while the controller works with it."),
    "top": CommandPlace("top", "The fleet, live; q ends it."),
    "diagnose": CommandPlace("diagnose", "Name what is wrong in a log or a paste."),
    "agent": CommandPlace("agent", "Watch this machine and report to a controller."),
    "doctor": CommandPlace("doctor", "What is missing, or follows; one line each."),
    "run": CommandPlace("run", "Run one rank of a job so that its agent watches it."),
    "submit": CommandPlace("submit", "Submit a training job that shall finish.", JOBS),
    "jobs": CommandPlace("jobs", "All jobs.", JOBS),
    "job": CommandPlace("jobs", "One job, with its interruptions.", JOBS),
    "logs": CommandPlace("logs", "What a rank wrote; --follow across attempts.", JOBS),
    "stop": CommandPlace("jobs", "Stop a job; 'restart' continues it.", JOBS),
    "restart": CommandPlace("restart", "Continue an ended job from its checkpoints.", JOBS),
    "nodes": CommandPlace("nodes", "All nodes, and why one is not at work.", NODES),
    "node": CommandPlace("nodes", "One node.", NODES),
    "incidents": CommandPlace("incidents", "The illnesses of nodes.", NODES),
    "incident": CommandPlace("incidents", "One incident, with the time of every stage.", NODES),
    "explain": CommandPlace("explain", "Why a node, job or incident is as it is.", NODES),
    "check": CommandPlace("checks", "Exercise this machine, or idle nodes, now.", NODES),
    "inject": CommandPlace("inject", "Break a virtual device, to see what happens.", NODES),
    "cordon": CommandPlace("nodes", "Keep new work off a node.", NODES),
    "uncordon": CommandPlace("nodes", "Give a node back on your own word.", NODES),
    "drain": CommandPlace("nodes", "Take a node out of service.", NODES),
    "reset": CommandPlace("nodes", "Reset its GPUs.", NODES),
    "reboot": CommandPlace("nodes", "Reboot it once its jobs are off.", NODES),
    "replace": CommandPlace("nodes", "Give its seat to another machine.", NODES),
    "confirm": CommandPlace("incidents", "A held repair is done: check the node.", NODES),
    "hold": CommandPlace("incidents", "Keep a node out until a person decides.", NODES),
    "dismiss": CommandPlace("incidents", "Close an incident on your own word.", NODES),
    "escalate": CommandPlace("incidents", "Go one rung up.", NODES),
    "pause": CommandPlace("safety", "Do nothing to any node for a while.", SAFETY),
    "unpause": CommandPlace("safety", "End the pause.", SAFETY),
    "brake": CommandPlace("safety", "Show and reset the brakes.", SAFETY),
    "exclude": CommandPlace("safety", "Leave some faults or nodes alone.", SAFETY),
    "notify": CommandPlace("notify", "Try the channels through which people are told.", SAFETY),
    "notices": CommandPlace("notify", "What people were told, and what came of it.", SAFETY),
    "token": CommandPlace("tokens", "Who may ask, and who may act.", SAFETY),
    "audit": CommandPlace("audit", "Who did what, when and why.", SAFETY),
    "sim": CommandPlace("sim", "Run a scenario on the real engine in virtual time.", TRY),
    "policy": CommandPlace("policy", "Show, check and compare policies.", TRY),
    "knowledge": CommandPlace("knowledge", "What a fault means, and who says so.", TRY),
    "completion": CommandPlace("completion", "Completion of commands and names in your shell.", TRY),
}

ABOUT = """Sickbay keeps GPU clusters training: it finds a sick node, takes it out of service, repairs it, proves that
it is well, and puts the interrupted job back to work.

\b
Begin here:
  sickbay up                                       a cluster on this machine
  sickbay submit --name first --nodes 2 -- CMD …   a training job
  sickbay inject node-0 --xid 79                   break a GPU under it
  sickbay explain node-0                           what happened, and why
  sickbay demo                                     all that by itself

\b
Without any cluster:
  dmesg | sickbay diagnose -                       what is wrong in a log, and what to do
  sickbay check --level 1                          exercise this machine's hardware
  sickbay agent --once                             everything that can be seen here now
"""
EPILOG = """\b
The server is SICKBAY_URL (default http://127.0.0.1:8080), the credential SICKBAY_TOKEN or what 'sickbay up' left.
Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 cannot reach.
--json prints JSON alone on standard output. 'sickbay COMMAND --help' tells more."""


LONGEST = max(map(len, COMMANDS))


class Sickbay(click.Group):
    """Knows its commands by name without importing them; errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        command = getattr(import_module(f"sickbay.faces.cli.{where.module}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            guess = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}: {guess}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for section in dict.fromkeys(where.section for where in COMMANDS.values()):
            with formatter.section(section):
                mine = [(name, where.about) for name, where in COMMANDS.items() if where.section == section]
                formatter.write_dl([(name.ljust(LONGEST), about) for name, about in mine])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name or "sickbay", **extra)
        except click.UsageError as error:
            _wrong_use(error)
            sys.exit(WRONG_USE)
        except click.ClickException as error:
            _one_line(error.format_message())
            sys.exit(CANNOT_REACH if error.exit_code == CANNOT_REACH else WRONG_USE)
        except (BadInput, UnusableStore) as error:
            _one_line(str(error))
            sys.exit(NO if getattr(error, "status", 0) == CONFLICT else WRONG_USE)
        except (StoreUnavailable, StoreUnknown) as error:
            _one_line(f"cannot reach the store: {error}")
            sys.exit(CANNOT_REACH)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read us has had enough (`| head`); without this Python would complain while it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(NO)
        except OSError as error:
            # A full disk, a directory without permission: nothing that a list of our own calls would explain.
            _one_line(f"{error.filename or 'this machine'}: {error.strerror or error}")
            sys.exit(WRONG_USE)
        sys.exit(code if isinstance(code, int) else DONE)


def _wrong_use(error: click.UsageError) -> None:
    if (
        type(error).__name__ == "NoArgsIsHelpError" and error.ctx is not None
    ):  # a group that was called by its name only
        click.echo(error.ctx.get_help())
        return
    see = f" (see '{error.ctx.command_path.strip()} --help')" if error.ctx is not None else ""
    said = error.format_message().rstrip(".")
    for clicks, ours in (("a valid integer range", "a whole number"), ("a valid integer", "a whole number")):
        said = said.replace(clicks, ours)
    _one_line(f"{said}{see}")


def _one_line(text: str) -> None:
    click.echo(" ".join(text.split()), err=True)


@click.group(
    "sickbay",
    cls=Sickbay,
    help=ABOUT,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="sickbay", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
