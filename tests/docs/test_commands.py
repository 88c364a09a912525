"""Every command in the documents runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_IS_AN_ANSWER = {"sickbay policy diff"}  # exit code 1: they differ


def _commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("sickbay ")]


PAGES = {
    page: commands
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if (commands := _commands(page))
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_in_their_order(page: Path, tmp_path: Path) -> None:
    for command in PAGES[page]:
        ran = subprocess.run(
            [str(Path(sys.executable).parent / "sickbay"), *shlex.split(command)[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        fine = {0, 1} if any(command.startswith(known) for known in NO_IS_AN_ANSWER) else {0}
        assert ran.returncode in fine, f"{command}: exit {ran.returncode}\n{ran.stderr}"


def test_the_readme_names_only_targets_that_the_makefile_has() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\bmake ([a-z-]+)", page.read_text(encoding="utf-8")):
            assert target in targets, f"{page.name} names make {target}"
