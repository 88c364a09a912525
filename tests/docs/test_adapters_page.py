"""The page on adapters names all that a rig must offer."""

import ast
import inspect
import re

from tests.support.manual import ROOT

from sickbay.testing import cluster_rig

PAGE = (ROOT / "docs" / "adapters.md").read_text()


def test_the_page_names_everything_that_a_rig_offers_and_nothing_else() -> None:
    offered = {name for name in vars(cluster_rig.ClusterRig) if not name.startswith("_")}
    offered |= cluster_rig.ClusterRig.__annotations__.keys()
    table = PAGE.partition("## What a rig must offer")[2].split("\n\n")[2]
    first = " ".join(line.split("|")[1] for line in table.splitlines()[2:])
    assert set(re.findall(r"`(\w+)", first)) == offered


def test_the_files_that_the_page_names_are_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link


def test_its_python_is_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(inspect.cleandoc(block))
