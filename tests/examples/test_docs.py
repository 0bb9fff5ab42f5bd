"""What the documentation names exists: options and defaults, metrics, log lines, tests, files, links."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import affinity
from affinity.audit.store.contract import AuditProvider
from affinity.blobs.store.contract import BlobProvider
from affinity.conversation.store.contract import JournalProvider
from affinity.flow.store.contract import LimitProvider
from affinity.provider.contract import Provider
from affinity.provider.statements import load_statements
from affinity.schedules.store.contract import ScheduleProvider
from affinity.trends.store.contract import TrendProvider
from affinity.worker.guests import guest_parts
from affinity_conformance.providers import ProviderConformance
from affinity_conformance.providers.base import Rules

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "affinity").rglob("*.py")))


@cache
def files() -> set[str]:
    """The names of all files with code."""
    folders = ("affinity", "bench", "conformance", "examples", "tests")
    return {path.name for folder in folders for path in (ROOT / folder).rglob("*.*")}


def test_the_index_lists_every_page() -> None:
    """The site has the pages in its order."""
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / page).resolve() for page in re.findall(r"\]\(([\w/-]+\.md)", index.read_text())}
    pages = {*index.parent.glob("*.md"), *index.parent.glob("*/*.md"), *index.parent.glob("learn/*/*.md")} - {index}
    assert pages - listed == set()


def test_the_index_begins_with_ten_words_at_most() -> None:
    """A line each, in the order in which a beginner meets them; the glossary has them too, or explains them."""
    index = (ROOT / "docs" / "index.md").read_text()
    section = re.split(r"^## Ten words.*$", index, flags=re.MULTILINE)[1].split("\n## ")[0]
    lines = re.findall(r"^\d+\. (.+)$", section, re.MULTILINE)
    words = [found[1] for line in lines if (found := re.match(r"\*\*(\w+)\*\*: .{20,}", line))]
    assert 5 < len(words) == len(lines) <= 10
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert [word for word in words if not re.search(rf"\b{word}\b", glossary)] == []


def test_diagrams_need_no_script() -> None:
    """Mermaid is drawn by a script, which the site would fetch from elsewhere."""
    assert [name_of(page) for page in PAGES if "```mermaid" in page.read_text()] == []


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


def test_pages_that_the_code_names_exist() -> None:
    named = set[str]()
    for folder in ("affinity", "bench", "conformance", "deploy", "examples", "tests"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".sql", ".yaml"):
                named |= set(re.findall(r"docs/[\w/-]+\.md", path.read_text()))
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_options_is_as_the_code_generates_it() -> None:
    """`.ci/options` writes it."""
    subprocess.run([sys.executable, ROOT / ".ci" / "options", "--check"], cwd=ROOT, check=True)


def test_a_number_behind_an_option_of_workers_is_its_default() -> None:
    """As in "`stall_timeout` (60 s)" and "`worker_lease_timeout`, 15 s"; for another value a page says "is"."""
    defaults = affinity.RuntimeOptions().model_dump()
    found = [
        (name_of(page), name, float(number.replace(",", "")) * UNITS[unit])
        for page in PAGES
        for name, number, unit in DEFAULTS.findall(re.sub(r"\s+", " ", prose(page)))
        if name in defaults
    ]
    assert len(found) > 12
    assert [(page, name, value) for page, name, value in found if value != defaults[name]] == []


UNITS = {"s": 1, "min": 60, "days": 86_400, "MiB": 2**20}
DEFAULTS = re.compile(rf"`(\w+)`(?: \(|, |: )(\d[\d,.]*) ({'|'.join(UNITS)})\b")


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    code = (ROOT / "affinity" / "worker" / "metrics.py").read_text() + (
        ROOT / "affinity" / "worker" / "worker.py"
    ).read_text()
    defined = set(re.findall(r"(?:histogram|counts|counter|gauge)\(\s*\"(\w+)\"", code))
    defined |= {part.late[0] for part in guest_parts().values() if part.late is not None}
    defined |= {measure.name for part in guest_parts().values() for measure in part.measures}
    table = (ROOT / "docs" / "run" / "monitoring.md").read_text()
    cells = re.findall(r"^\| (`affinity_[^|]+) \|", table, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`affinity_(\w+)`", cell)}
    assert {name.removesuffix("_total") for name in documented} == defined


def test_every_log_line_exists() -> None:
    """Each line that the table quotes is made by a call of a logger. A capital, and …, stand for inserted values."""
    section = (ROOT / "docs" / "run" / "monitoring.md").read_text().split("## Log lines", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    lines = [line for cell in cells for line in re.findall(r"`([^`]+)`", cell) if " " in line]
    assert len(lines) > 20
    assert [line for line in lines if not is_written(line)] == []
    assert not is_written(lines[0].replace("migration", "migrations"))


def is_written(line: str) -> bool:
    """Whether a call of a logger can write the line: its text and, where something is inserted, text of the code."""
    whole = line.removesuffix("…").rstrip(" ,;:")
    for template in log_lines():
        if not is_beginning(template.partition("%")[0], whole):
            continue
        beginnings = range(len(template) + 1) if whole != line else [len(template)]
        for end in beginnings:
            pieces = re.split(r"%[.\d]*[a-z]", template[:end].rstrip(" ,;:"))
            found = re.fullmatch("(.+)".join(map(re.escape, pieces)), whole)
            if found and all(is_code(words) for text in found.groups() for words in re.split(r"\b[A-Z]\b|…", text)):
                return True
    return False


def is_beginning(text: str, line: str) -> bool:
    """Whether one of them begins with the other, but for punctuation at the end of the text."""
    return line.startswith(text.rstrip(" ,;:")) or text.startswith(line)


def is_code(words: str) -> bool:
    return not re.search("[a-z]", words) or (words := words.strip(" ();:,")) == "s" or words in sources()


@cache
def log_lines() -> list[str]:
    """The templates that loggers are called with, without templates that have no words of their own."""
    found = list[str]()
    for path in sorted((ROOT / "affinity").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            written = list[ast.expr]()
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in WRITERS:
                written = node.args[:2]
            elif isinstance(node, ast.Assign) and "%s" in text_of(node.value):
                written = [node.value]
            found += [text for text in map(text_of, written) if re.search(r"[a-z]{4}", text)]
    return found


WRITERS = {"debug", "info", "warning", "error", "exception", "log", "progress"}


def text_of(node: ast.AST) -> str:
    """A constant text, or an f-string with %s for inserted values; else nothing."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "%s" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_logger_exists() -> None:
    """Loggers that the documentation names are in the code."""
    made = set(re.findall(r"getLogger\(\"([\w.]+)\"\)", sources()))
    text = (ROOT / "docs" / "run" / "monitoring.md").read_text()
    line = re.search(r"^Loggers: (.+)$", text, re.MULTILINE)
    assert line is not None
    assert set(re.findall(r"`([\w.]+)`", line[1])) == made


def test_every_test_that_the_comparisons_name_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "understand" / "comparisons.md").read_text()))
    found = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert named
    assert named <= found


def test_every_verb_of_the_contract_is_in_the_guide_and_no_other() -> None:
    guide = (ROOT / "docs" / "understand" / "provider-contract.md").read_text()
    section = guide.split("## The verbs", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\|.*\|([^|]+)\|$", section, re.MULTILINE)
    named = [verb for cell in cells for verb in re.findall(r"`(\w+)`", cell)]
    verbs = [name for name in dir(Provider) if not name.startswith("_")]
    guests = (AuditProvider, BlobProvider, JournalProvider, LimitProvider, ScheduleProvider, TrendProvider)
    of_guests = [name for guest in guests for name in vars(guest) if not name.startswith("_")]
    assert sorted(named) == sorted(verbs + of_guests)


def test_every_theme_of_the_suite_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "understand" / "provider-contract.md").read_text()
    classes = {*ProviderConformance.__mro__} - {Rules, object}
    missing = [each.__name__ for each in classes if f"`{each.__name__}`" not in guide]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_that_is_named_exists(page: Path) -> None:
    """`Class.member` and paths under affinity, conformance, tests, examples and deploy; `DBOS` is another project."""
    text = prose(page).replace("`DBOS.", "`")
    code = sources()
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`", text):
        assert re.search(rf"class {owner}\b", code), f"{owner}.{member}"
        assert re.search(rf"\b{member}\b", code), f"{owner}.{member}"
    for path in re.findall(r"`((?:affinity|conformance|tests|examples|deploy|docs)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:worker|orchestration|provider|session|client)/[\w/]+\.(?:py|sql))`", text):
        assert (ROOT / "affinity" / path).exists(), path
    for file in re.findall(r"`(\w+\.(?:py|sql))`", text):
        assert file in files(), file


def test_every_function_of_the_five_minutes_exists() -> None:
    """The paths of the architecture, each at most six steps, lead to functions and classes of the code."""
    page = (ROOT / "docs" / "understand" / "architecture.md").read_text()
    section = page.split("## Find it in five minutes", 1)[1].split("\n## ", 1)[0]
    paths = section.split("\n### ")[1:]
    assert len(paths) == 6
    for path in paths:
        steps = re.findall(r"^\d\. ", path, re.MULTILINE)
        named = re.findall(r"`([\w/]+\.py):([\w.]+)`", path)
        assert 0 < len(steps) <= min(6, len(named)), path
        for file, name in named:
            folder = ROOT if file.startswith("conformance/") else ROOT / "affinity"
            assert defines(folder / file, name.split(".")), f"{file}:{name}"


def test_every_decider_of_a_claim_exists() -> None:
    """The page on claims names statements and functions of both providers, and tests of the conformance suite."""
    page = (ROOT / "docs" / "understand" / "claims.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [a-z]", line)]
    assert len(rows) >= 12
    for name, _, postgres, sqlite, test in rows:
        for package, cell in (("postgres", postgres), ("sqlite", sqlite)):
            assert PLACES.findall(cell), name
            for file, place in PLACES.findall(cell):
                assert has_place(package, file, place), f"{package}/{file}:{place}"
        assert hasattr(ProviderConformance, test.strip("`")), test
    for file, place in PLACES.findall(page):
        assert has_place("postgres", file, place) or has_place("sqlite", file, place), f"{file}:{place}"


PLACES = re.compile(r"`((?:schema/)?\w+\.(?:sql|py)):([\w.]+)`")
"""A file of a provider, and a statement, an object of the schema or a function in it."""


def has_place(package: str, file: str, place: str) -> bool:
    """Whether the file of the provider has what is named; behind the dot of a statement, the name of a part of it."""
    folder = ROOT / "affinity" / "provider" / package
    if file.endswith(".py"):
        return defines(folder / file, place.split("."))
    if not (folder / file).exists():
        return False
    if file.startswith("schema/"):
        return re.search(rf"^CREATE \w+ {place}\b", (folder / file).read_text(), re.MULTILINE) is not None
    name, _, part = place.partition(".")
    statement = load_statements(f"affinity.provider.{package}", file).get(name, "")
    return re.search(rf"\b{part} AS (MATERIALIZED )?\(" if part else ".", statement) is not None


def defines(file: Path, names: list[str]) -> bool:
    """Whether the file has the function or class, or the class the method."""
    found: list[ast.stmt] = ast.parse(file.read_text()).body if file.exists() else []
    for name in names:
        inner = [node for node in found if isinstance(node, DEFINITIONS) and node.name == name]
        if not inner:
            return False
        found = inner[0].body
    return True


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_names_of_the_public_objects_exist() -> None:
    """`ctx.name`, `client.name`, `app.name`, `affinity.name` in the text: attributes of what they stand for."""
    others = {
        "session_id",
        "instance_id",
        "activity",
        "label",
        "db",
        "providers",
        "integrations",
    }  # of log records; a logger; a file; entry points; a package that is imported by its modules
    names = {
        "affinity": {*dir(affinity), *others},
        "app": attributes(affinity.App),
        "client": attributes(affinity.Client),
        "ctx": attributes(affinity.OrchestrationContext) | attributes(affinity.ActivityContext),
    }
    pages = [
        page for page in PAGES if page.name != "tracing.md"
    ]  # it has the attributes of spans: tests/test_public_names.py
    found = [(page.name, *name) for page in pages for name in NAMES.findall(prose(page))]
    assert found
    assert [(page, owner, name) for page, owner, name in found if name not in names[owner]] == []


NAMES = re.compile(r"`(affinity|app|client|ctx)\.(\w+)")


def attributes(owner: type) -> set[str]:
    """Of the class and of its objects."""
    return {*dir(owner), *re.findall(r"self\.(\w+)", inspect.getsource(owner)), *getattr(owner, "__annotations__", {})}
