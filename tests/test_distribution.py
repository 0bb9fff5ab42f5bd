"""The distribution: what it refuses to be installed beside, and what its extras are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from affinity_workflows import check_installation
from tests.support.worker_processes import ROOT

COMMAND: Final = "from affinity_workflows.__main__ import main; main()"
CONFLICT: Final = "the distribution affinity 0.1.0 is installed beside affinity-workflows"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for `sys.path` with the metadata of this distribution."""
    add_distribution(tmp_path, "affinity-workflows")
    return tmp_path


def add_distribution(folder: Path, name: str, command: str = "") -> None:
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\naffinity = {command}\n" if command else "")


def run(code: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, folders))
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_the_package_refuses_another_distribution_of_its_name(folder: Path) -> None:
    add_distribution(folder, "affinity")
    done = run("import affinity", folder, ROOT)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {CONFLICT}")
    assert "pip uninstall affinity" in last


def test_the_command_refuses_it_in_one_line(folder: Path) -> None:
    """Also where the package is the other one's, and cannot be imported."""
    add_distribution(folder, "affinity")
    (folder / "affinity").mkdir()
    (folder / "affinity" / "__init__.py").write_text("raise AssertionError('the other package is imported')\n")
    done = run(COMMAND, folder, ROOT)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith(f"Error: {CONFLICT}")) == (1, True)


def test_an_editable_install_of_the_former_name_is_no_conflict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(folder)])
    check_installation()
    add_distribution(folder, "affinity", "affinity.cli:main")
    check_installation()


def test_a_package_that_is_not_installed_has_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout on the import path: the path says which package is meant."""
    add_distribution(tmp_path, "affinity")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    check_installation()


@pytest.mark.parametrize("suite", ["providers", "stores"])
def test_the_conformance_suites_name_their_extra(suite: str) -> None:
    done = run(f"import sys; sys.modules['pytest'] = None; import affinity.testing.conformance.{suite}", ROOT)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: the conformance suites need pytest: pip install 'affinity-workflows[conformance]'"
    )
