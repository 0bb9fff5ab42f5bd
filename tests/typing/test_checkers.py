"""mypy and pyright, as an editor uses them: the examples pass, and each misuse is refused by both."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.worker_processes import ROOT

FILES: Final = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob("*.py"))
MISUSES: Final = ROOT / "tests" / "typing" / "misuses.py"

ELSEWHERE: Final = "adk_"
"""Examples whose library does not fit those of the others, and is not installed here: their types are not checked."""


def mypy(file: Path) -> set[int]:
    """The lines of a file that mypy refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--output", "json", str(file.relative_to(ROOT))],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode in (0, 1), done.stderr
    return {each["line"] for each in found if each["severity"] == "error"}


def pyright(file: Path) -> set[int]:
    """The lines of a file, or of all files in a folder, that pyright refuses."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(file)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"], done.stderr
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    return {1 + each["range"]["start"]["line"] for each in errors if not Path(each["file"]).name.startswith(ELSEWHERE)}


def has(name: str, *programs: str) -> bool:
    return importlib.util.find_spec(name) is not None and all(map(shutil.which, programs))


HAS_MYPY: Final = pytest.mark.skipif(not has("mypy"), reason="mypy is not installed: nox -s types")
HAS_PYRIGHT: Final = pytest.mark.skipif(not has("pyright", "node"), reason="pyright or node is missing: nox -s types")


@pytest.mark.parametrize("check", [pytest.param(mypy, marks=HAS_MYPY), pytest.param(pyright, marks=HAS_PYRIGHT)])
def test_each_misuse_is_refused_and_nothing_else(check: Callable[[Path], set[int]]) -> None:
    wanted, unseen = (marked(mark) for mark in ("error", "unseen"))
    assert len(wanted) >= 74 / 77 * len(wanted | unseen) > 200
    assert check(MISUSES) - unseen == wanted


def marked(mark: str) -> set[int]:
    """The lines of the file of misuses that end with this comment."""
    lines = enumerate(MISUSES.read_text().splitlines(), start=1)
    return {number for number, line in lines if line.endswith(f"  # {mark}")}


@HAS_MYPY
@pytest.mark.parametrize(
    "arguments", [["-p", "examples.chat_api", "-p", "examples.chat_ui", "-p", "examples.local_llm"], FILES]
)
def test_mypy_accepts_the_examples(arguments: list[str]) -> None:
    """The others in `tests/examples/test_snippets.py`."""
    command = [sys.executable, "-m", "mypy", "--strict", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@HAS_PYRIGHT
def test_pyright_accepts_the_examples() -> None:
    assert pyright(ROOT / "examples") == set()


@HAS_PYRIGHT
def test_the_types_of_the_package_are_declared() -> None:
    """Not inferred, which checkers do in different ways."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--ignoreexternal"]
    done = subprocess.run(
        [*command, "--verifytypes", "affinity"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["typeCompleteness"]["completenessScore"] > 0.98
