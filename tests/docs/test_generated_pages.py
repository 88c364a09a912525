"""The pages that are made from the code say what the code says."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `make docs`"


def test_every_link_between_the_documents_leads_somewhere() -> None:
    import re

    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "examples").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_file_named_in_the_architecture_exists() -> None:
    import re

    source = DOCS.parent / "src" / "sickbay"
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    layers = "model|ports|brain|engine|knowledge|sim|testing|faces|hosts|agent|adapters|train"
    for name in re.findall(rf"`((?:{layers})/[\w/.]+)`", text):
        assert (source / name).exists(), f"{name} is named in docs/architecture.md but is not there"
