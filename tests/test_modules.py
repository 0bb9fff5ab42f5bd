"""How the test modules depend on each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def test_no_test_module_imports_another() -> None:
    """Code that several test modules share is in a module without tests."""
    found = [(str(path.relative_to(TESTS)), name) for path in TESTS.rglob("*.py") for name in _imported(path)]
    assert ("test_conftest.py", "tests.conftest") in found
    assert [one for one in found if one[1].rpartition(".")[2].startswith("test_")] == []


def test_no_test_module_imports_a_private_name_of_another_module() -> None:
    """Names that modules of the tests share are public."""
    private = [
        (path.name, node.module, alias.name)
        for path in TESTS.rglob("*.py")
        for node in imports(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests"
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert private == []


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The statements of a file that import something."""
    return [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Import | ast.ImportFrom)]


def _imported(path: Path) -> Iterator[str]:
    """Modules of the tests that this one imports."""
    for node in imports(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.split(".")[0] == "tests")
