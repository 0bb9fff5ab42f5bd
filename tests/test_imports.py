"""Modules import each other in one direction: no circle at import time, for type checking, or inside functions."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, get_args

import pytest

from affinity.guests import GUESTS, Side
from tests.support.public_names import FOR_EXTENSIONS, PUBLIC, WITHOUT_LIST

ROOT: Final = Path(__file__).parent.parent

PACKAGES: Final = (ROOT / "affinity", ROOT / "affinity_workflows", ROOT / "conformance" / "affinity_conformance")
"""The roots of the import contract in `pyproject.toml`, and the suites."""

LATE: Final[Mapping[tuple[str, str], str]] = {
    ("affinity.guests", "affinity.audit"): "the seams of the kernel load the guests that it lists",
    ("affinity.guests", "affinity.conversation"): "the seams of the kernel load the guests that it lists",
    ("affinity.guests", "affinity.flow"): "the seams of the kernel load the guests that it lists",
    ("affinity.guests", "affinity.schedules"): "the seams of the kernel load the guests that it lists",
    ("affinity.guests", "affinity.trends"): "the seams of the kernel load the guests that it lists",
    ("affinity.guests", "affinity.worker"): "a side of a guest is named so; it is no module of the kernel",
}
"""Imports inside functions that close a circle, by importing and imported module, each with its reason."""


class Imports(NamedTuple):
    """The modules of the roots that a module imports."""

    on_import: frozenset[str]
    for_types: frozenset[str]
    """Under ``if TYPE_CHECKING``."""
    late: frozenset[str]
    """Inside functions, or by ``import_module(f"package.{name}")``."""


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text())
    return found


def imports_of(tree: ast.AST, known: Mapping[str, ast.Module]) -> Imports:
    kinds: dict[str, set[str]] = {"on_import": set(), "for_types": set(), "late": set()}

    def walk(node: ast.AST, kind: str) -> None:
        for name in _imported(node):
            if (module := _module(name, known)) is not None:
                kinds[kind].add(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            kind = "late"
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for each in node.body:
                walk(each, "for_types")
            for each in node.orelse:
                walk(each, kind)
            return
        for child in ast.iter_child_nodes(node):
            walk(child, kind)

    walk(tree, "on_import")
    kinds["late"].update(_imported_by_name(tree, known))
    return Imports(**{kind: frozenset(names) for kind, names in kinds.items()})


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imported_by_name(tree: ast.AST, known: Mapping[str, ast.Module]) -> Iterator[str]:
    """Modules with names from a table: the call has the beginning of the name, a text of the module has the rest."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call) and "import_module" in ast.dump(node.func)]
    forms = [call.args[0].values[0] for call in calls if isinstance(call.args[0], ast.JoinedStr)]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for form in forms:
        assert isinstance(form, ast.Constant)
        assert isinstance(form.value, str)
        for text in texts:
            yield from {f"{form.value}{name}" for name in (text, text.partition(".")[0])} & known.keys()


def _module(name: str, known: Mapping[str, ast.Module]) -> str | None:
    """The module that is imported: the name itself, or the part before its last dot when that names an attribute."""
    return next((each for each in (name, name.rpartition(".")[0]) if each in known), None)


def circles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules; each module imports all others of its group, directly or not."""
    reached = {name: _reachable(name, graph) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(map(list, groups))


def _reachable(start: str, graph: Mapping[str, frozenset[str]]) -> frozenset[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return frozenset(seen)


@pytest.fixture(scope="module")
def imported() -> dict[str, Imports]:
    known = modules()
    return {name: imports_of(tree, known) for name, tree in known.items()}


def test_no_circle_at_import_time(imported: dict[str, Imports]) -> None:
    assert circles({name: each.on_import for name, each in imported.items()}) == []


def test_no_circle_with_the_imports_for_type_checking(imported: dict[str, Imports]) -> None:
    assert circles({name: each.on_import | each.for_types for name, each in imported.items()}) == []


def test_no_circle_with_the_imports_inside_functions(imported: dict[str, Imports]) -> None:
    """Except imports that `LATE` gives a reason for; each of them exists."""
    late = {(name, other) for name, each in imported.items() for other in each.late}
    assert set(LATE) <= late
    graph = {
        name: each.on_import | each.for_types | {other for other in each.late if (name, other) not in LATE}
        for name, each in imported.items()
    }
    assert circles(graph) == []


@pytest.mark.parametrize("package", ["orchestration", "provider", "session", "worker"])
def test_the_engine_names_no_conversation(package: str) -> None:
    """They are one layer above it."""
    for path in sorted((ROOT / "affinity" / package).rglob("*")):
        if path.suffix in {".py", ".sql"}:
            assert "conversation" not in path.read_text().lower(), path.relative_to(ROOT)


@pytest.mark.parametrize("package", ["client", "explain", "orchestration", "provider", "session", "worker"])
def test_the_kernel_names_no_audit_log(package: str) -> None:
    """A guest joins it at seams that name none."""
    for path in sorted((ROOT / "affinity" / package).rglob("*")):
        if path.suffix in {".py", ".sql"}:
            assert "audit" not in path.read_text().lower(), path.relative_to(ROOT)


def test_no_file_of_the_kernel_is_named_after_a_guest() -> None:
    """A guest has all that it consists of in its own folder."""
    kernel = ("client", "explain", "orchestration", "provider", "session", "worker")
    files = [path for package in kernel for path in (ROOT / "affinity" / package).rglob("*")]
    assert [path for path in files if path.stem.lstrip("0123456789_") in GUESTS] == []


@pytest.mark.parametrize("guest", GUESTS)
def test_the_modules_that_a_guest_is_listed_with_exist(guest: str) -> None:
    """And are listed: a seam looks at no other."""
    places = {side: ROOT / "affinity" / guest / side.replace(".", "/") for side in get_args(Side)}
    sides = {side for side, path in places.items() if path.is_dir() or path.with_suffix(".py").exists()}
    assert sides == GUESTS[guest]
    assert list(GUESTS) == sorted(GUESTS)


def test_conversations_know_no_model(imported: dict[str, Imports]) -> None:
    """A wake calls no provider, and assembles no context: `affinity.agent` is built on it."""
    used = {
        other
        for name, each in imported.items()
        if name.split(".")[1:2] == ["conversation"]
        for other in each.on_import | each.for_types | each.late
    }
    assert used
    assert [name for name in sorted(used) if name.split(".")[1:2] in (["agent"], ["integrations"])] == []


def test_the_suite_of_the_kernel_needs_no_guest(imported: dict[str, Imports]) -> None:
    """A provider without conversations, schedules or the audit log runs it alone."""
    suite = "affinity_conformance.providers"
    guests = (
        f"{suite}.conversation",
        f"{suite}.schedules",
        f"{suite}.audit",
        f"{suite}.trends",
        "affinity.conversation",
        "affinity.schedules",
        "affinity.audit",
        "affinity.trends",
    )
    shared = {name for name in imported if name.count(".") == 2 and name.startswith(suite)} - {f"{suite}.suite"}
    kernel = [name for name in imported if name in shared - {*guests} or name.startswith(f"{suite}.kernel.")]
    assert len(kernel) > 50
    used = {(name, other) for name in kernel for other in imported[name].on_import | imported[name].late}
    assert [each for each in sorted(used) if each[1].startswith(guests)] == []


FACES: Final = ("agent", "cli", "console", "demo", "integrations", "sync")
"""What shows the product to people and to other libraries. It stands on what any application could import."""

KITS: Final[Mapping[str, str]] = {"command": "affinity.cli", "page": "affinity.console"}
"""By the name of a module of a guest: the package that loads the module, and whose parts it is made of."""


def test_faces_import_only_public_names() -> None:
    """Of other packages: names that the page on versions lists, by whichever path."""
    found = [
        f"{name}: {module}.{what}"
        for name, tree in modules().items()
        if name.split(".")[1:2] and name.split(".")[1] in FACES
        for module, what in _taken(tree)
        if not _is_within(module, ".".join(name.split(".")[:2])) and not is_public(module, what)
        if not _is_within(module, KITS.get(name.split(".")[2] if name.count(".") > 1 else "", "-"))
    ]
    assert found == []


def test_what_is_public_for_extensions_is_used_by_a_face() -> None:
    """Or by the command or page of a guest."""
    faces = [tree for name, tree in modules().items() if {*name.split(".")[1:2]} & {*FACES} or _is_face(name)]
    used = {taken for tree in faces for taken in _taken(tree)}
    assert {(module, name) for module in FOR_EXTENSIONS for name in PUBLIC[module]} - used == set()


def _is_face(module: str) -> bool:
    return {*module.split(".")[2:3]} <= KITS.keys() and module.count(".") > 1


def _taken(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a module imports of `affinity`, each with where from; "" for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if _is_within(alias.name, "affinity"))
        elif isinstance(node, ast.ImportFrom) and _is_within(node.module or "", "affinity"):
            for alias in node.names:
                path = ROOT.joinpath(*f"{node.module}.{alias.name}".split("."))
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield (f"{node.module}.{alias.name}", "") if is_module else (str(node.module), alias.name)


def _is_within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def is_public(module: str, name: str) -> bool:
    """Whether a public module is imported, or what is public under this name."""
    if not name or module in WITHOUT_LIST:
        return module in {*PUBLIC, *WITHOUT_LIST}
    value = getattr(importlib.import_module(module), name)
    places = [place for place, names in PUBLIC.items() if name in names]
    return any(getattr(importlib.import_module(place), name) is value for place in places)


def test_a_private_name_is_found() -> None:
    names = "from affinity.client.client import Handle, retrying_store"
    text = f"{names}\nfrom affinity import errors, worker\nimport affinity.cli"
    private = [found for found in _taken(ast.parse(text)) if not is_public(*found)]
    assert private == [("affinity.client.client", "retrying_store"), ("affinity.worker", ""), ("affinity.cli", "")]


def test_each_kind_of_import_is_found() -> None:
    text = """
import affinity.a
from affinity import b
from affinity.c import attribute
if TYPE_CHECKING:
    from affinity.d import Type
def function():
    import affinity.e
TABLE = {"command": "f.command"}
import_module(f"affinity.{name}")
"""
    known = {f"affinity.{name}": ast.parse("") for name in "abcdefg"}
    found = imports_of(ast.parse(text), known)
    assert found.on_import == {"affinity.a", "affinity.b", "affinity.c"}
    assert found.for_types == {"affinity.d"}
    assert found.late == {"affinity.e", "affinity.f"}


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"e"}}
    assert circles({name: frozenset(others) for name, others in graph.items()}) == [["a", "b", "c"], ["e"]]
