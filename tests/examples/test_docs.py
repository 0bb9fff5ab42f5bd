"""What the documentation names exists: options and defaults, metrics, log lines, tests, files, links."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from affinity.testing.conformance.providers import ProviderConformance

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "affinity").rglob("*.py")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_options_is_as_the_code_generates_it() -> None:
    """`.ci/options` writes it."""
    subprocess.run([sys.executable, ROOT / ".ci" / "options", "--check"], cwd=ROOT, check=True)


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    code = (ROOT / "affinity" / "worker" / "metrics.py").read_text() + (
        ROOT / "affinity" / "worker" / "worker.py"
    ).read_text()
    defined = set(re.findall(r"(?:histogram|counter|gauge|_Tally)\(\s*\"(\w+)\"", code))
    table = (ROOT / "docs" / "run" / "monitoring.md").read_text()
    documented = set(re.findall(r"^\| `affinity_(\w+)` \|", table, re.MULTILINE))
    assert {name.removesuffix("_total") for name in documented} == defined


def test_every_log_line_exists() -> None:
    """The first words of each line that the table quotes stand in the code."""
    section = (ROOT / "docs" / "run" / "monitoring.md").read_text().split("## Log lines", 1)[1].split("\n## ", 1)[0]
    quoted = re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    assert quoted
    code = re.sub(r"\s+", " ", sources())
    for line in quoted:
        words = re.split(r"\b[A-Z]\b|…|_fetch|SIGTERM", re.sub(r"^worker W: ", "", line))
        longest = max((part.split("(")[0].strip(" :;") for part in words), key=len)
        assert longest in code, line


def test_every_test_that_the_rules_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "understand" / "leases.md").read_text()))
    assert named
    missing = [name for name in sorted(named) if not hasattr(ProviderConformance, name)]
    assert not missing


def test_every_theme_of_the_suite_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "understand" / "provider-contract.md").read_text()
    missing = [base.__name__ for base in ProviderConformance.__bases__ if f"`{base.__name__}`" not in guide]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_is_named_exists(page: Path) -> None:
    """`Class.member` and paths under affinity, tests, examples and deploy; `DBOS` is another project."""
    text = prose(page).replace("`DBOS.", "`")
    code = sources()
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`", text):
        assert re.search(rf"class {owner}\b", code), f"{owner}.{member}"
        assert re.search(rf"\b{member}\b", code), f"{owner}.{member}"
    for path in re.findall(r"`((?:affinity|tests|examples|deploy|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:worker|orchestration|provider)/\w+\.py)`", text):
        assert (ROOT / "affinity" / path).exists(), path
