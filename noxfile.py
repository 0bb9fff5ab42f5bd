"""What must hold before a change lands, as sessions: `nox -l` lists them, `nox -s types` runs one.

`.ci/run --all` runs them beside each other on one machine, `.github/workflows` each on its own. Arguments behind ``--``
are pytest's: ``nox -s tests -- tests/worker``.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import nox

nox.needs_version = ">=2026.4.10"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

ROOT: Final = Path(__file__).resolve().parent
PROJECT: Final = nox.project.load_toml("pyproject.toml")
NEWEST: Final = "constraints.txt"
FLOORS: Final = "constraints-floors.txt"
OLDEST: Final = "constraints-integrations.txt"
ADK: Final = {"newest": "constraints-adk.txt", "oldest": "constraints-adk-oldest.txt"}

PART: Final = [
    *(f"tests/test_{name}.py" for name in ("async_block", "constraints", "records", "startup", "telemetry")),
    *("tests/orchestration", "tests/session", "tests/client", "tests/cli/test_usage.py"),
    *(f"tests/worker/test_{name}.py" for name in ("metrics", "options", "sessions", "telemetry", "worker")),
    *(f"tests/conversation/test_{name}.py" for name in ("events", "requests", "wake")),
    *(f"tests/agent/test_{name}.py" for name in ("formats", "loop", "tools")),
    *("tests/provider/test_sqlite.py", "tests/provider/test_postgres_connections.py", "tests/sync/test_client.py"),
]
"""What depends on the releases of the dependencies and on Python: replay, event loops, threads, SQLite, drivers, the
command.
"""

SMALL_PART: Final = [
    *("tests/test_startup.py", "tests/orchestration", "tests/session"),
    *("tests/cli/test_usage.py", "tests/provider/test_sqlite.py"),
]
"""What differs most from one Python to the next."""

VERSIONED: Final = [
    "tests/provider",
    "tests/session/test_stores.py",
    *(f"tests/worker/test_{name}.py" for name in ("connections", "faults", "outage")),
]
"""What depends on the version of PostgreSQL."""

PROGRAMS: Final = [
    ["--programs", "6"],
    ["--programs", "2", "--postgres", "old"],
    ["--areas", "orchestrations", "--programs", "2", "--processes"],
    ["--programs", "3", "--codec"],
    ["--programs", "3", "--codec", "--blobs"],
]

PYTEST: Final = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]

os.environ["AFFINITY_TESTS_EXTRAS"] = "required"  # a test that is skipped for want of a package fails


# --- installing -------------------------------------------------------------------------------------------------------


def install(session: nox.Session, *extras: str, groups: tuple[str, ...] = (), constraints: str = NEWEST) -> None:
    """Install the package with these extras, and groups of development."""
    wanted = nox.project.dependency_groups(PROJECT, *groups)
    session.install("-c", constraints, "-e", f".[{','.join(extras)}]" if extras else ".", *wanted)


def use_places_of_pip() -> None:
    """Give uv the indexes and folders of pip's configuration, which it does not read, in variables."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    found: dict[str, list[str]] = {}
    for option, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        found.setdefault(option, []).extend(ast.literal_eval(value).split())
    for option, variable, separator in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
    ):
        if option in found:
            os.environ.setdefault(variable, separator.join(found[option]))
    os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # as pip does


if "UV_INDEX_STRATEGY" not in os.environ:
    use_places_of_pip()


def other_interpreters() -> dict[str, str]:
    """Paths of the other supported interpreters of this machine, by minor version, the oldest first."""
    script = [sys.executable, ROOT / ".ci" / "interpreters"]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603
    found = sorted((tuple(map(int, version.split("."))), path) for version, path in map(str.split, lines))
    return {f"{major}.{minor}": path for (major, minor, _), path in found}


OTHERS: Final = other_interpreters()


# --- sessions ---------------------------------------------------------------------------------------------------------


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, and the import contract."""
    session.install("-c", NEWEST, *nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Types: mypy --strict, pyright on the examples, and misuses that both refuse."""
    install(session, "test-all", groups=("types",))
    session.run("mypy")
    session.run(*PYTEST, "tests/examples/test_snippets.py", "-k", "have_the_types")
    session.run(*PYTEST, "tests/typing")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """README's test command, word for word: all tests but the slow ones."""
    found = re.search(r"<!-- test -->\n```sh\n(.+?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None, "README.md has no test command"
    session.run("bash", "-euo", "pipefail", "-c", " ".join([found[1], shlex.join(session.posargs)]), external=True)


@nox.session
def slow(session: nox.Session) -> None:
    """The slow tests, which README's command leaves out, but those of `older`, of the browser and of the night: in a
    workflow, and not in .ci/run.
    """
    install(session, "test-all")
    session.run("python", "-m", "pytest", "-m", "slow and not (browser or nightly or older)", *session.posargs)


@nox.session
def older(session: nox.Session) -> None:
    """The conformance suite on the older PostgreSQL: in a workflow, and not in .ci/run."""
    install(session, "test-all")
    session.run("python", "-m", "pytest", "-m", "older", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """The console, and the page of an example, in chromium."""
    install(session, "test-all")
    required = {"AFFINITY_TESTS_BROWSER": "required"}
    session.run(*PYTEST, "-m", "browser", *(session.posargs or ["tests/console", "tests/examples"]), env=required)


@nox.session(python=next(iter(OTHERS.values()), None), tags=["others"])
def floors(session: nox.Session) -> None:
    """A part of the tests with the oldest releases of the dependencies, on the oldest other Python that is found."""
    install(session, "test-core", constraints=FLOORS)
    run_part(session, PART)


@nox.session
def integrations(session: nox.Session) -> None:
    """The tests of integrations with the oldest releases of their libraries: in a workflow, and not in .ci/run, whose
    tests have the newest.
    """
    install(session, "test-all", constraints=with_pins(session, OLDEST))
    session.run(*PYTEST, "-n", "2", *(session.posargs or ["tests/integrations"]))


@nox.session
@nox.parametrize("age", sorted(ADK))
def adk(session: nox.Session, age: str) -> None:
    """The tests of Google's ADK, with its newest and its oldest release: in a workflow, and not in .ci/run. Its
    requirements do not fit the newest releases of other packages, so it is in no other session.
    """
    install(session, "adk", "mcp", "otel", "test", constraints=with_pins(session, ADK[age]))
    session.install("-c", with_pins(session, ADK[age]), "google-adk[mcp]", "mypy")
    os.environ["AFFINITY_TESTS_ADK"] = "required"
    session.run("mypy", "-p", "affinity.integrations.adk", "-p", "tests.integrations.adk")
    old = ["SelectableGroups:DeprecationWarning", "[EXPERIMENTAL]:UserWarning", "MCPTool class:DeprecationWarning"]
    ignored = [word for warning in old for word in ("-W", f"ignore:{warning}")]  # of the oldest releases
    files = session.posargs or ["tests/integrations/adk", "tests/test_telemetry.py", "tests/worker/test_telemetry.py"]
    session.run(*PYTEST, "-n", "2", "--all", *ignored, *files)


def with_pins(session: nox.Session, file: str) -> str:
    """The newest releases, but for the packages that this file pins."""
    pins = {plain(line): line for line in (ROOT / file).read_text().split() if "==" in line}
    newest = [line for line in (ROOT / NEWEST).read_text().split() if plain(line) not in pins]
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join([*newest, *pins.values()]))
    return str(constraints)


def plain(pin: str) -> str:
    """The package of a pin, in one spelling."""
    return pin.partition("==")[0].lower().replace("_", "-")


def add_session(minor: str, path: str, tags: list[str]) -> None:
    """Add a session for another Python; a part of the tests runs on it, with the newest releases."""

    @nox.session(name=f"python-{minor}", python=path, tags=tags)
    def other(session: nox.Session) -> None:
        """A small part of the tests on this Python."""
        install(session, "test", "console", "otel")
        run_part(session, SMALL_PART)


for place, (minor, path) in enumerate(OTHERS.items()):
    add_session(minor, path, ["others"] if place else [])  # the oldest one has the floors


def run_part(session: nox.Session, files: list[str]) -> None:
    """Run what is neither slow nor on PostgreSQL, but for the driver's own tests."""
    marks = "not slow and not once and (driver or not postgres)"
    session.run(*PYTEST, "-n", "2", "-m", marks, "--durations=5", *(session.posargs or files))


@nox.session
def programs(session: nox.Session) -> None:
    """Random programs, the same ones each time; on SQLite, on PostgreSQL, and with workers that are killed."""
    install(session, "test-all")
    for arguments in PROGRAMS:
        session.run("python", "-m", "tests.programs", "--repeats", *arguments)


@nox.session
def docs(session: nox.Session) -> None:
    """The site. An argument names its folder."""
    install(session, groups=("docs",))
    session.run("python", "docs/site.py", *(session.posargs or [f"{session.create_tmp()}/site"]))


@nox.session
def distributions(session: nox.Session) -> None:
    """Wheels and sdists; the demo, and a part of the suites, from each. An argument names their folder."""
    session.install("-c", NEWEST, "uv")
    session.run(".ci/distributions", *(session.posargs or [f"{session.create_tmp()}/dist"]), external=True)


@nox.session
def nightly(session: nox.Session) -> None:
    """All tests, and random programs for ten minutes with a new seed."""
    install(session, "test-all")
    session.run("python", "-m", "pytest", "--all", *session.posargs)
    session.run("python", "-m", "tests.programs", "--all")


@nox.session
def majors(session: nox.Session) -> None:
    """What depends on the version of PostgreSQL, on 16 and 17: all other sessions have 15 and 18."""
    install(session, "test-all")
    os.environ["AFFINITY_TESTS_MAJORS"] = "16 17"
    session.run("python", "-m", "pytest", "--all", "-n", "2", *(session.posargs or VERSIONED))


@nox.session
def coverage(session: nox.Session) -> None:
    """The lines and branches that README's test command runs, as pages in build/coverage."""
    install(session, "test-all", groups=("coverage",))
    reports = ["--cov-report=term:skip-covered", "--cov-report=html:build/coverage"]
    session.run("python", "-m", "pytest", "--cov", *reports, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """`python -m bench` beside the peers; arguments are its own."""
    install(session, "test-all", groups=("bench",))
    session.run("python", "-m", "bench", *session.posargs)
