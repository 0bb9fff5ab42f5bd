"""The distributions: what affinity refuses to be installed beside, and that the suites fit it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from affinity_workflows import VERSION, check_installation
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


def test_the_suites_need_this_version_and_what_affinity_is_tested_with() -> None:
    """They assert the contracts of one version. No extra of affinity names them."""
    ours, suites = project(ROOT), project(ROOT / "conformance")
    known = [*ours["dependencies"], *(name for extra in ours["optional-dependencies"].values() for name in extra)]
    assert suites["version"] == VERSION
    assert {*suites["dependencies"]} - {*known} == {f"{ours['name']}=={VERSION}"}
    assert not [name for name in known if name.startswith(suites["name"])]


def test_both_distributions_have_one_licence_and_the_same_interpreters() -> None:
    ours, suites = project(ROOT), project(ROOT / "conformance")
    for name in ("license", "license-files", "requires-python"):
        assert ours[name] == suites[name]
    assert (ROOT / "LICENSE").read_text() == (ROOT / "conformance" / "LICENSE").read_text()
    pythons = [[line for line in found["classifiers"] if ":: Python ::" in line] for found in (ours, suites)]
    assert pythons[0] == pythons[1] != []


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found
