"""Runs commands within the process of the tests."""

from __future__ import annotations

import inspect
from typing import Any

from click.testing import CliRunner


def new_runner() -> CliRunner:
    """A runner that keeps stdout and stderr apart, for which click before 8.2 has an option."""
    options: dict[str, Any] = {"mix_stderr": False}
    return CliRunner(**options if "mix_stderr" in inspect.signature(CliRunner).parameters else {})
