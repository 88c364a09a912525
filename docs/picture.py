"""Draws docs/pictures/demo.svg: what `sickbay demo` really prints, colours included. `make pictures` runs it."""

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "pictures" / "demo.svg"
WIDTH = 126
# Rich would fetch a font from elsewhere: a picture in a repository must stand alone.
TEMPLATE = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")


def demo() -> str:
    """What a person at a terminal sees. Raises CalledProcessError where it did not heal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    command = [sys.executable, "-m", "sickbay", "demo"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env) as child:  # noqa: S603 - our own command
        os.close(theirs)
        said = bytearray()
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the terminal of a process that has ended cannot be read
                break
            if not piece:
                break
            said += piece
        os.close(ours)
        if child.wait():
            raise subprocess.CalledProcessError(child.returncode, command, said.decode())
    return said.decode().replace("\r\n", "\n")


def draw(said: str) -> str:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text("$ sickbay demo", style="bold"))
    console.print(Text.from_ansi(said))
    return console.export_svg(title="sickbay demo", code_format=TEMPLATE, unique_id="demo")


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(demo()), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(PICTURE.parents[2])}")
