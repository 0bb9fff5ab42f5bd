"""What the documentation names exists: options and defaults, metrics, log lines, tests, files, links."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
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
    """Each line that the table quotes can be made by a call of a logger, and what is in its brackets is in the code."""
    section = (ROOT / "docs" / "run" / "monitoring.md").read_text().split("## Log lines", 1)[1].split("\n## ", 1)[0]
    quoted = [
        line for cell in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for line in re.findall(r"`([^`]+)`", cell)
    ]
    lines = [line for line in quoted if " " in line]
    assert len(lines) > 20
    code = re.sub(r"\s+", " ", sources())
    made = list(log_lines())
    for line in lines:
        wildcards = re.sub(r"\b[A-Z]\b|…", "*", line)
        assert any(meet(wildcards.strip(" *") + "*", one + "*") for one in made), line
        for words in re.findall(r"\(([a-z][^()*]{20,})\)", wildcards):
            assert words in code, line


def log_lines() -> Iterator[str]:
    """What the calls of loggers can write, with * for what is inserted."""
    for path in sorted((ROOT / "affinity").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOGGING:
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield re.sub(r"%[.\d]*[a-z]", "*", argument.value)


LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def meet(one: str, other: str) -> bool:
    """Whether there is a text that both patterns match, where * stands for any text."""

    @cache
    def from_here(i: int, j: int) -> bool:
        if i == len(one) or j == len(other):
            return set(one[i:] + other[j:]) <= {"*"}
        if "*" in (one[i], other[j]):
            return from_here(i + 1, j) or from_here(i, j + 1)  # the star ends, or stands for one more
        return one[i] == other[j] and from_here(i + 1, j + 1)

    return from_here(0, 0)


def test_every_logger_exists() -> None:
    """Loggers that the documentation names are those of the code."""
    made = set(re.findall(r"getLogger\(\"([\w.]+)\"\)", sources()))
    text = (ROOT / "docs" / "run" / "monitoring.md").read_text()
    line = re.search(r"^Loggers: (.+)$", text, re.MULTILINE)
    assert line is not None
    assert set(re.findall(r"`([\w.]+)`", line[1])) == made


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
