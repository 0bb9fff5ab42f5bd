"""What is imported late: modules without which a program begins faster, and a command answers sooner."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import pytest

from tests.support.worker_processes import ROOT

DATABASES: Final = {"psycopg", "sqlite3"}
LIBRARIES: Final = {"anyio", "prometheus_client", "pydantic", "pydantic_core", "rich", "tenacity", "uvloop"}
HEAVY: Final = {*DATABASES, *LIBRARIES, "asyncio", "importlib.metadata"}


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that are there after this code."""
    last = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", f"{last}\n{code}", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {*done.stderr.split()}


def test_an_import_of_affinity_is_light() -> None:
    """Names are imported when they are used, each with what it needs."""
    found = imported("import affinity")
    assert found & {*HEAVY, "click", "affinity.errors"} == set()


@pytest.mark.parametrize(
    ("names", "without"),
    [
        ("App, OrchestrationContext, ActivityContext", {*DATABASES, "prometheus_client", "affinity.client"}),
        ("Client", {*DATABASES, "prometheus_client", "affinity.worker", "affinity.conversation.handle"}),
        ("Conversations, Client", {*DATABASES, "prometheus_client", "affinity.worker.worker"}),
        ("Worker", {*DATABASES, "click", "affinity.client", "affinity.conversation.wake", "affinity.audit.acting"}),
    ],
)
def test_a_name_brings_what_it_needs(names: str, without: set[str]) -> None:
    found = imported(f"from affinity import {names}")
    assert "affinity.orchestration" in found
    assert found & {*without, "opentelemetry"} == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_the_help_imports_no_command(arguments: list[str]) -> None:
    found = imported("from affinity_workflows.__main__ import main; main()", *arguments)
    assert "affinity.cli.main" in found
    assert found & {*HEAVY, "affinity.client", "affinity.cli.shell", "affinity.cli.worker"} == set()


@pytest.mark.parametrize("command", ["list", "sessions", "start"])
def test_a_command_imports_no_worker(command: str) -> None:
    found = imported("from affinity_workflows.__main__ import main; main()", command, "--help")
    assert found & {"psycopg", "prometheus_client", "affinity.worker.worker", "affinity.demo"} == set()
