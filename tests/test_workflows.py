"""The workflows of the repository: what they run is pinned, and what builds a release has no rights."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REQUIREMENTS: Final = ROOT / ".github" / "build-requirements.txt"


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """A tag or a branch can be moved by others. The version beside the commit is for readers, and for the bot."""
    lines = re.findall(r"uses: *(.*)", path.read_text())
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+)*", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_with_rights_run_only_actions(path: Path) -> None:
    """No job that can publish or attest installs a package or runs a script."""
    for name, job in jobs(path).items():
        rights = job.get("permissions") or {}
        if "write" in rights.values():
            assert not [step["run"] for step in job["steps"] if "run" in step], name


def test_a_release_is_built_of_what_has_a_hash() -> None:
    steps = [step for job in jobs(ROOT / ".github/workflows/release.yml").values() for step in job["steps"]]
    installs = [step["run"] for step in steps if "pip install" in step.get("run", "")]
    assert installs == [f"python -m pip install --require-hashes -r {REQUIREMENTS.relative_to(ROOT)}"]
    (builds,) = [step for step in steps if ".ci/distributions" in step.get("run", "")]
    assert builds["env"]["UV_BUILD_CONSTRAINT"] == str(REQUIREMENTS.relative_to(ROOT))


def test_the_hashes_are_of_the_pinned_versions() -> None:
    """The build-system of the project, and the uv of the constraints; each with a hash."""
    text = REQUIREMENTS.read_text().replace("\\\n", "")
    pins = {line.split()[0] for line in text.splitlines() if not line.startswith("#")}
    assert all("--hash=sha256:" in line for line in text.splitlines() if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert {*project["build-system"]["requires"], *(line for line in constraints if line.startswith("uv=="))} <= pins
