"""Which versions of Python are supported: one list, and how .ci/run finds interpreters for them."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = [found[1] for text in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", text))]
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = next(minor for minor in SUPPORTED if minor != OWN)

SHIM = "echo 'pyenv: command not found' >&2; exit 127"
"""What pyenv puts on PATH for a version that is not switched on."""


def test_the_supported_versions_are_named_once() -> None:
    first, *_, last = SUPPORTED
    assert f"You need Python {', '.join(SUPPORTED[:-1])} or {last}" in (ROOT / "README.md").read_text()
    assert PROJECT["requires-python"] == f">={first}"


def test_an_interpreter_is_found_on_path(tmp_path: Path) -> None:
    """One that does not run, or is of another version than its name says, is passed over."""
    place(tmp_path / "one", SHIM)
    place(tmp_path / "two", python(platform.python_version()))
    place(tmp_path / "three", python(f"{OTHER}.7"))
    assert printed(tmp_path, "one", "two", "three") == [f"{OTHER}.7 {sys.executable}"]


def test_an_interpreter_is_found_in_pyenv(tmp_path: Path) -> None:
    """The newest."""
    for patch in (9, 10, 8):
        place(tmp_path / "versions" / f"{OTHER}.{patch}" / "bin", python(f"{OTHER}.{patch}"))
    place(tmp_path / "versions" / f"{OTHER}-dev" / "bin", python(f"{OTHER}.11"))
    assert printed(tmp_path) == [f"{OTHER}.10 {sys.executable}"]


@pytest.mark.parametrize("script", [None, SHIM])
def test_a_machine_may_have_no_other_interpreter(tmp_path: Path, script: str | None) -> None:
    if script is not None:
        place(tmp_path / "bin", script)
    assert printed(tmp_path, "bin") == []


def printed(home: Path, *directories: str) -> list[str]:
    """What the script prints where ``home`` has pyenv, and the ``directories`` in it are on PATH."""
    path = ":".join(str(home / directory) for directory in directories)
    script: list[str | Path] = [sys.executable, ROOT / ".ci" / "interpreters"]
    environment = {"PATH": path, "PYENV_ROOT": str(home)}
    return subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def place(directory: Path, script: str) -> None:
    directory.mkdir(parents=True)
    file = directory / f"python{OTHER}"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def python(version: str) -> str:
    """This interpreter, with another version."""
    claim = f"import platform, sys; platform.python_version = lambda: {version!r}; exec(sys.argv[2])"
    return f'exec {shlex.quote(sys.executable)} -c {shlex.quote(claim)} "$@"'
