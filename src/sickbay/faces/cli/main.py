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


class Where(NamedTuple):
    module: str
    name: str
    about: str


COMMANDS = {
    "demo": Where("sickbay.faces.cli.demo", "demo", "One fault from its first symptom to the next training step."),
    "up": Where("sickbay.faces.cli.up", "up", "Watch a simulated fleet break and heal, live."),
    "sim": Where("sickbay.faces.cli.sim", "sim", "Run a scenario on the real engine in virtual time."),
    "explain": Where("sickbay.faces.cli.explain", "explain", "Why a node, job or incident is as it is."),
    "policy": Where("sickbay.faces.cli.policy", "policy", "Show, check and compare policies."),
}

ABOUT = """Sickbay keeps GPU clusters training: it finds a sick node, takes it out of service, repairs it, proves that
it is well, and puts the interrupted job back to work.

\b
Begin here:
  sickbay demo                        one fault, line by line
  sickbay up                          a fleet that breaks and heals (q ends it)
  sickbay sim list                    what can be simulated
  sickbay demo --keep demo.db && sickbay explain train --store demo.db
"""
EPILOG = """\b
Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 cannot reach.
--json prints JSON alone on standard output. 'sickbay COMMAND --help' tells more."""


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
        command = getattr(import_module(where.module), where.name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            guess = f"did you mean '{close[0]}'? " if close else ""
            ctx.fail(f"there is no command {args[0]!r}: {guess}(known: {', '.join(COMMANDS)})")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, where.about) for name, where in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name or "sickbay", **extra)
        except click.UsageError as error:
            _wrong_use(error)
            sys.exit(WRONG_USE)
        except click.ClickException as error:
            _one_line(error.format_message())
            sys.exit(WRONG_USE)
        except (BadInput, UnusableStore) as error:
            _one_line(str(error))
            sys.exit(WRONG_USE)
        except (StoreUnavailable, StoreUnknown) as error:
            _one_line(f"cannot reach the store: {error}")
            sys.exit(CANNOT_REACH)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # Whoever read us has had enough (`| head`); without this Python would complain while it closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(NO)
        sys.exit(code if isinstance(code, int) else DONE)


def _wrong_use(error: click.UsageError) -> None:
    if (
        type(error).__name__ == "NoArgsIsHelpError" and error.ctx is not None
    ):  # a group that was called by its name only
        click.echo(error.ctx.get_help())
        return
    see = f" (see '{error.ctx.command_path.strip()} --help')" if error.ctx is not None else ""
    _one_line(f"{error.format_message().rstrip('.')}{see}")


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
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
