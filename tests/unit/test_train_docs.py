"""The script of docs/training.md runs as it stands, and goes on when it is run again."""

import os
import re
import subprocess
import sys
from pathlib import Path

from sickbay import train

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_script_of_the_page_trains_and_resumes(tmp_path: Path) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SICKBAY_")}
    for attempt, code in ((1, script.replace("101", "55")), (2, script)):
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=clean, check=True, timeout=60)
        assert train.latest_valid(tmp_path / "checkpoints").attempt == attempt
    found = train.latest_valid(tmp_path / "checkpoints")
    assert (found.step, found.skipped) == (100, ())


def test_the_page_names_everything_that_a_script_may_use() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in train.__all__:
        if name not in {"Checkpoint", "CheckpointError", "Skipped", "Unreadable"}:
            assert name in text, f"docs/training.md does not speak of train.{name}"
