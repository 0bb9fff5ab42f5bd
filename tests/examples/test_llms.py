"""What coding assistants read is made from the pages: docs/llms.txt, and llms-full.txt of the site."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", DOCS / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_list_is_as_the_pages_make_it(site: ModuleType) -> None:
    """`python docs/site.py --llms` writes it."""
    assert (DOCS / "llms.txt").read_text() == site.llms()


def test_the_list_has_a_title_a_summary_and_every_page() -> None:
    text = (DOCS / "llms.txt").read_text()
    title, summary, first = text.split("\n\n")[:3]
    assert title == "# affinity"
    assert summary.startswith("> Durable workflows")
    assert "(learn/writing-code.md)" in first
    linked = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in linked if not (DOCS / link).is_file()] == []
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if not path.name[0].isdigit()}
    reports = {page for page in pages if page.startswith("understand/benchmarks/")}
    assert pages - reports - {*linked} == {"index.md", "glossary.md"}
    assert [line for line in text.split("\n") if line.startswith("## ")] == ["## Learn", "## Run", "## Understand"]


def test_the_whole_has_each_page_once(site: ModuleType) -> None:
    text = site.llms_full(DOCS)
    assert re.findall(r"^<!-- ([\w/-]+\.md) -->$", text, re.MULTILINE) == site.pages()
    assert len(site.pages()) == len({*site.pages()}) > 40
    assert (DOCS / "learn" / "writing-code.md").read_text() in text
    assert (DOCS / "glossary.md").read_text() in text
