"""`promtool`, of Debian's package `prometheus`: checks rules, and plays series through them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

PROMTOOL: Final = shutil.which("promtool")

needs_promtool: Final = pytest.mark.skipif(
    PROMTOOL is None and os.environ.get("AFFINITY_TESTS_PROMTOOL") != "required",
    reason="this machine has no program promtool",
)


def check_rules(path: Path) -> str:
    """What promtool says of a file of rules."""
    return _run("check", "rules", path)


def check_expressions(folder: Path, expressions: list[str]) -> str:
    """What promtool says of expressions, as rules."""
    rules = [{"record": f"expression:{number}", "expr": one} for number, one in enumerate(expressions)]
    path = folder / "expressions.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    return check_rules(path)


def play(folder: Path, test: dict[str, Any]) -> str:
    """Run a test of rules."""
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test, width=10_000))
    return _run("test", "rules", path)


def _run(*arguments: str | Path) -> str:
    """Its output.

    Raises:
        AssertionError: it has failed; with the output.
    """
    assert PROMTOOL is not None, "promtool is required here: install Debian's package prometheus"
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
