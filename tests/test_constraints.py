"""`constraints.txt` pins what the set-up commands install, `constraints-floors.txt` the oldest supported releases."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.extras import MODULES, OF_INTEGRATIONS, REQUIRED

ROOT = Path(__file__).resolve().parents[1]
OURS = "affinity-workflows"
EXTRAS = ("demo", "test-all")
ON_FLOORS = ("demo", "test-core")
COMPANIONS = {"fastmcp-slim", "mcp-types", "openai", "py-key-value-aio"}
"""What the oldest libraries of integrations need in an older release too."""
INTEGRATIONS = ("langgraph", "mcp", "openai-agents", "pydantic-ai")
PULLED_IN = {"commonmark", "psycopg-binary", "pydantic-core", "sniffio"}
"""Packages that only dependencies need, in versions that depend on theirs."""


def test_everything_that_is_installed_is_pinned() -> None:
    """Also dependencies of dependencies, as far as they are needed here."""
    pinned = pins("constraints-floors.txt" if on_floors() else "constraints.txt")
    needed = {
        name
        for extra in (ON_FLOORS if on_floors() else EXTRAS)
        for name in _needed(Requirement(f"{OURS}[{extra}]"), set())
    } - {OURS}
    assert {"psycopg", "pytest"} <= needed
    assert needed <= pinned.keys()


def test_what_groups_install_is_pinned() -> None:
    """By their own requirements; `nox` and `uv` install them."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"].values()
    wanted = {canonicalize_name(Requirement(each).name) for group in groups for each in group}
    assert wanted | {"nox", "uv"} <= pins("constraints.txt").keys()


def test_what_is_skipped_without_a_package_needs_one_of_the_large_extra() -> None:
    """And none of the small one, which has what most tests need."""
    small, large = (set(_needed(Requirement(f"{OURS}[{extra}]"), set())) for extra in ("test", "test-all"))
    installed = packages_distributions()
    missing = {module for module in MODULES if module not in installed}
    assert not (REQUIRED and missing - (OF_INTEGRATIONS if on_floors() else set()))
    for module in MODULES - missing:
        assert {canonicalize_name(name) for name in installed[module]} & (large - small), module


def test_the_floors_of_the_project_are_tested() -> None:
    floors = pins("constraints-floors.txt")
    for name, floor in floors_of_the_project().items():
        assert Version(floor) == Version(floors[name]), name


def test_the_oldest_libraries_of_integrations_are_tested() -> None:
    """`nox -s integrations` installs them. They are those that the extras declare."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    floors = floors_of(each for name in INTEGRATIONS for each in extras[name])
    oldest = {name: Version(pin) for name, pin in pins("constraints-integrations.txt").items()}
    assert {name: Version(floor) for name, floor in floors.items()} == {
        name: pin for name, pin in oldest.items() if name not in COMPANIONS
    }
    assert oldest.keys() >= COMPANIONS


def test_the_releases_of_adk_are_tested_with_the_newest_of_other_packages() -> None:
    """`nox -s adk` installs them: the oldest that the extra declares, and a newer one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (floor,) = floors_of(extras["adk"]).values()
    (telemetry,) = floors_of(extras["otel"]).values()
    newest, oldest = pins("constraints-adk.txt"), pins("constraints-adk-oldest.txt")
    assert Version(oldest["google-adk"]) == Version(floor) < Version(newest["google-adk"])
    assert Version(oldest["opentelemetry-api"]).release[:2] == Version(telemetry).release[:2]
    assert oldest.keys() - newest.keys() == {"fastapi"}
    others = pins("constraints.txt")
    assert {name for name in newest if name in others and not name.startswith("opentelemetry")} == {
        "tenacity",
        "watchdog",
        "websockets",
    }


def test_the_floors_differ_from_the_pins_in_what_the_project_needs_only() -> None:
    newest = pins("constraints.txt")
    differ = {name for name, pin in pins("constraints-floors.txt").items() if newest.get(name) != pin}
    assert differ <= floors_of_the_project().keys() | PULLED_IN


def test_the_image_installs_what_is_pinned_by_hash() -> None:
    """Each requirement has one, and the version of `constraints.txt`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = pins("constraints.txt")
    runs, builds = hashed("deploy/requirements.txt"), hashed("deploy/requirements-build.txt")
    assert floors_of_the_project().keys() <= runs.keys()
    assert {str(Requirement(each)) for each in project["build-system"]["requires"]} <= {
        f"{name}=={release}" for name, release in builds.items()
    }
    assert {name: pinned[name] for name in runs} == runs
    assert {name: pinned.get(name, release) for name, release in builds.items()} == builds


def on_floors() -> bool:
    """Whether the oldest releases are installed."""
    floors = pins("constraints-floors.txt")
    return all(version(name) == floors[name] for name in floors_of_the_project())


def hashed(file: str) -> Mapping[str, str]:
    """Versions by package; each has a hash at least."""
    text = re.sub(r"^#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE)
    found = re.findall(r"^([\w.-]+)==([\w.]+)(?: ;.*)? \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(found) == sum(line[0] != " " for line in text.splitlines()), file
    return {canonicalize_name(name): release for name, release in found}


def pins(file: str) -> Mapping[str, str]:
    """Versions by package; every line of the file is one."""
    lines = (ROOT / file).read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([\w.+]+)", line) for line in lines]
    pinned: dict[str, str] = {canonicalize_name(each[1]): each[2] for each in found if each is not None}
    assert len(pinned) == len(lines), file
    return pinned


def floors_of_the_project() -> Mapping[str, str]:
    """The lowest version of each dependency, and of uvloop, that ``pyproject.toml`` admits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return floors_of([*project["dependencies"], *project["optional-dependencies"]["uvloop"]])


def floors_of(requirements: Iterable[str]) -> Mapping[str, str]:
    """The lowest version that each of these admits."""
    return {
        canonicalize_name(each.name): clause.version
        for each in map(Requirement, requirements)
        for clause in each.specifier
        if clause.operator == ">="
    }


def ours(extras: Iterable[str]) -> list[str]:
    """Requirements of ``pyproject.toml``, which may be younger than the metadata of the installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]


def _needed(wanted: Requirement, seen: set[str]) -> Iterator[str]:
    """The package, and what it requires with these extras."""
    name = canonicalize_name(wanted.name)
    key = f"{name}[{','.join(sorted(wanted.extras))}]"
    if key in seen:
        return
    seen.add(key)
    try:
        required = ours(wanted.extras) if name == OURS else requires(name) or []
    except PackageNotFoundError:  # for another platform, or another extra of somebody else's
        return
    yield name
    for text in required:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (wanted.extras or {""})):
            yield from _needed(one, seen)
