"""sickbay diagnose FILE|-: what is wrong in whatever people paste. No server is asked."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.show import as_json, clean, print_json

if TYPE_CHECKING:
    from sickbay.model.symptom import Symptom

COLOURS = {"fatal": "bright_red", "error": "red", "warning": "yellow", "info": "green"}
ORDER = ("fatal", "error", "warning", "info")
PASSING = frozenset({"job.nan_loss"})  # training may go on after it: whatever ended the run is told first
TO_DO = {
    "none": "nothing to do to the node",
    "watch": "watch it",
    "restart_job": "restart the job",
    "restart_service": "restart the service",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "replace the node",
}
UNDER = 12  # consequences that are named under one cause
SHOWN = 160  # characters of the line that proves it


@click.command("diagnose")
@click.argument("path", metavar="FILE|-")
@click.option("--each", is_flag=True, help="One finding for every line, instead of one with a count.")
@click.option("--knowledge", metavar="FILE", help="Your own rows, in YAML, over the shipped tables.")
@as_json
def diagnose(path: str, each: bool, knowledge: str | None, as_json: bool) -> None:
    """Name what is wrong in a log or a paste, and what to do about it.

    It tells by itself what it reads, also several things in one text: kernel logs and journals, nvidia-smi, dcgmi and
    rocm-smi output, bug reports, metrics pages, Kubernetes events, Slurm messages, training logs; as text or packed
    (gz, bz2, xz). It asks no server and changes nothing. Exits 0 whatever it finds, 2 if it cannot read.

    \b
    dmesg -T | sickbay diagnose -
    sickbay diagnose nvidia-bug-report.log.gz
    journalctl -k -o json | sickbay diagnose - --json
    kubectl describe node NAME | sickbay diagnose -
    srun -N2 nvidia-smi -q 2>&1 | sickbay diagnose -
    """
    from sickbay.knowledge.load import load_tables
    from sickbay.signs.readers import diagnose as text

    tables = load_tables(Path(knowledge) if knowledge else None)
    found = text.diagnose(path, tables, each=each, notice=lambda words: click.echo(words, err=True), progress=_progress)
    if sys.stderr.isatty():
        click.echo("\x1b[K", err=True, nl=False)
    if as_json:
        print_json([as_row(symptom) for symptom in found.symptoms])
    else:
        _print(found.symptoms, found.lines, found.read_as)


def as_row(symptom: "Symptom") -> dict[str, Any]:
    """Its own fields, but for the place of its cause in this list, which only the printing needs."""
    names = {name: "class" if name == "monitor" else name for name in symptom.__struct_fields__ if name != "root"}
    return {shown: getattr(symptom, name) for name, shown in names.items()}


def _progress(seen: int, lines: int) -> None:
    """How far a long text has been read, on a terminal; what comes next writes over it."""
    if sys.stderr.isatty():
        click.echo(f"\x1b[K{seen / 1e6:,.0f} MB, {lines:,} lines …\r", err=True, nl=False)


# --- for people


def _print(found: "Sequence[Symptom]", lines: int, formats: Sequence[str]) -> None:
    read_as = (
        f"read as: {', '.join(formats)}"
        if formats
        else "nothing in it looks like a log or a tool's output that is known here"
    )
    if not found:
        click.echo(f"Nothing wrong was found in {_count(lines, 'line')} ({read_as}).")
        if not formats:
            click.echo("That is not a clean bill of health: only what is in the text can be found.")
        return
    roots = [place for place, symptom in enumerate(found) if symptom.root < 0]
    for place in sorted(roots, key=lambda place: _weight(found[place])):
        _one(found[place], [symptom for symptom in found if _leads_to(found, symptom) == place and symptom.root >= 0])
    causes = f", {_count(len(roots), 'cause')}" if len(roots) != len(found) else ""
    click.echo(f"{_count(len(found), 'finding')}{causes} in {_count(lines, 'line')} ({read_as})")


def _weight(symptom: "Symptom") -> tuple[int, int, bool, int]:
    return -symptom.remedy.rank, ORDER.index(symptom.severity), symptom.code in PASSING, symptom.line


def _leads_to(found: "Sequence[Symptom]", symptom: "Symptom") -> int:
    place = symptom.root
    while place >= 0 and found[place].root >= 0:
        place = found[place].root
    return place


def _one(symptom: "Symptom", under: "Sequence[Symptom]") -> None:
    colour = COLOURS.get(symptom.severity)
    where = f"  {clean(symptom.where)}" if symptom.where else ""
    click.echo(f"{click.style(symptom.code, bold=True, fg=colour)}{where}  {click.style(symptom.severity, fg=colour)}")
    click.echo(f"  what  {clean(symptom.because)}")
    click.echo(f"  do    {_to_do(symptom)}")
    click.echo(f"  line  {_proof(symptom)}")
    if under:
        click.echo(f"  and   {'; '.join(map(_consequence, under[:UNDER]))}{' …' if len(under) > UNDER else ''}")
    click.echo()


def _to_do(symptom: "Symptom") -> str:
    if symptom.restart is False and symptom.remedy == "none":
        return "mend the program or what it was given; running it again unchanged ends the same way"
    return TO_DO.get(symptom.remedy, str(symptom.remedy))


def _proof(symptom: "Symptom") -> str:
    times = f" ({symptom.count:,} times, last in line {symptom.last_line})" if symptom.count > 1 else ""
    text = clean(symptom.text)
    return f"{symptom.line}{times}: {text[:SHOWN]}{'…' if len(text) > SHOWN else ''}"


def _consequence(symptom: "Symptom") -> str:
    times = f" ×{symptom.count:,}" if symptom.count > 1 else ""
    where = f" {clean(symptom.where)}" if symptom.where else ""
    return f"{symptom.code}{where}{times} (line {symptom.line})"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
