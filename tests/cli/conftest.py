"""The command as a shell would run it, on an SQLite file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from click.testing import Result

from affinity.cli import main
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity_conformance.providers.builders import profile
from tests.client.conftest import Puppet
from tests.support.cli_runner import new_runner
from tests.support.worker_processes import ROOT

Play: TypeAlias = Callable[[Callable[[Puppet], Awaitable[object]]], None]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no database in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AFFINITY_URL", raising=False)
    return tmp_path


@pytest.fixture
def database(directory: Path) -> Path:
    """The default database of the working directory, migrated."""
    assert run("migrate").exit_code == 0
    return directory / "affinity.db"


@pytest.fixture
def play(database: Path) -> Play:
    """Have a worker without code do something with the instances."""

    async def with_puppet(act: Callable[[Puppet], Awaitable[object]]) -> None:
        provider = await open_provider(f"sqlite:///{database}")
        try:
            identity = WorkerIdentity(worker_id="puppet", incarnation=Incarnation("one"))
            await provider.register_worker(identity, 60.0, {"host": "here"}, profile=profile())
            await act(Puppet(provider, identity))
        finally:
            await provider.aclose()

    return lambda act: anyio.run(with_puppet, act)


def run(*arguments: str, stdin: str | None = None) -> Result:
    """The result of a command; anything but an exit is a failure of the test."""
    result = new_runner().invoke(main, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def succeed(*arguments: str, stdin: str | None = None) -> str:
    """The output of a command that must succeed."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*arguments: str, code: int = 0) -> Any:
    """The one JSON document that a command prints with ``--json``."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refused(code: int, *arguments: str, stdin: str | None = None) -> str:
    """What a command that must fail with ``code`` says on stderr; it prints nothing else."""
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def launch(*arguments: str, variables: Mapping[str, str] | None = None, **streams: Any) -> subprocess.Popen[str]:
    """The command in a process of its own, with these environment variables added."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | dict(variables or {})
    return subprocess.Popen([sys.executable, "-m", "affinity", *arguments], text=True, env=environment, **streams)
