"""The workflows of the repository and .ci/run: what they run is pinned, what builds a release has no rights, and each
session of noxfile.py has its place.
"""

from __future__ import annotations

import ast
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


BY_HAND: Final = {"bench"}
"""Sessions that no machine runs."""

AT_NIGHT: Final = {"coverage", "majors", "nightly"}

ONLY_A_JOB: Final = {"adk", "integrations", "older", "slow"}
"""Sessions for which one machine that runs the others, by .ci/run --all, has no time."""


def test_a_job_runs_each_session() -> None:
    """With every change, or at night."""
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["nox"]["strategy"]["matrix"]
    daily = {*matrix["session"], *(entry["session"] for entry in matrix["include"])}
    assert daily == sessions() - AT_NIGHT - BY_HAND
    assert set(jobs(ROOT / ".github/workflows/nightly.yml")["nox"]["strategy"]["matrix"]["session"]) == AT_NIGHT


def test_the_systems_of_the_classifiers_are_those_of_jobs() -> None:
    """`docs/run/versions.md` says where it may work too, untested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {one.rpartition(" :: ")[2] for one in project["classifiers"] if one.startswith("Operating System ::")}
    systems = {"ubuntu": "Linux", "macos": "MacOS", "windows": "Windows"}
    runs_on = {job["runs-on"].partition("-")[0] for path in WORKFLOWS for job in jobs(path).values()}
    assert named == {systems[system] for system in runs_on}


def test_a_job_runs_the_readme_on_each_supported_python() -> None:
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["nox"]["strategy"]["matrix"]
    on = [*matrix["python"], *(entry["python"] for entry in matrix["include"] if entry["session"] == "tests")]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert on == [found[1] for line in classifiers if (found := re.search(r":: (3\.\d+)$", line))]


def test_ci_runs_each_session_that_is_not_for_the_night() -> None:
    """With one on the oldest releases, beside those of other Pythons, by their tag."""
    commands = re.findall(r"\brun -([st]) ([a-z ]+)", (ROOT / ".ci" / "run").read_text())
    run = {name for option, names in commands if option == "s" for name in names.split()}
    assert [names.strip() for option, names in commands if option == "t"] == ["others"]
    assert run | {"floors"} == sessions() - AT_NIGHT - BY_HAND - ONLY_A_JOB


def test_the_files_that_sessions_name_exist() -> None:
    """Pytest runs nothing where one is missing."""
    named = [path for part in ("PART", "SMALL_PART", "VERSIONED") for path in constant(part)]
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def sessions() -> set[str]:
    """The names of the functions of noxfile.py that are sessions, but for those of other Pythons."""
    functions = [node for node in noxfile().body if isinstance(node, ast.FunctionDef)]
    return {each.name for each in functions if any("nox.session" in ast.unparse(by) for by in each.decorator_list)}


def constant(name: str) -> list[str]:
    """A list of noxfile.py."""
    (found,) = (
        node.value
        for node in noxfile().body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value is not None
    )
    values: list[str] = eval(ast.unparse(found))  # noqa: S307 -- without installing nox
    return values


def noxfile() -> ast.Module:
    """The syntax tree, for which nox need not be installed."""
    return ast.parse((ROOT / "noxfile.py").read_text())
