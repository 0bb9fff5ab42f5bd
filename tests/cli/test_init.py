"""`affinity init`: each template is a project whose tests pass, and which goes on when its worker is killed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, get_args

import psutil
import pytest
import yaml
from click.testing import CliRunner

from affinity.cli import main
from affinity.cli.help import MISUSED
from affinity.init.project import Template
from affinity_workflows import VERSION
from tests.cli.conftest import document, launch, refused, run, succeed
from tests.support.extras import needs
from tests.support.worker_processes import PATIENCE, ROOT

TEMPLATES = get_args(Template)


@pytest.fixture(params=TEMPLATES)
def project(request: pytest.FixtureRequest, directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The working directory is a project of this template, with a name of its own."""
    name = f"my_{request.param}"
    succeed("init", name, "--template", request.param)
    monkeypatch.chdir(directory / name)
    return name


def test_it_writes_a_project_and_prints_what_comes_next(directory: Path) -> None:
    done = run("init")
    assert done.stdout.splitlines() == [
        "cd chat",
        "affinity dev chat:app",
        "affinity conversation ask ann 'hello' --kind chat",
    ]
    assert "chat/ has chat.py, test_chat.py, requirements.txt, Dockerfile, compose.yaml" in done.stderr
    assert "second terminal" in done.stderr
    files = {path.name: path.read_text() for path in (directory / "chat").iterdir()}
    assert files.keys() == {"chat.py", "test_chat.py", "requirements.txt", "Dockerfile", "compose.yaml"}
    assert [name for name, text in files.items() if "{{" in text or "}}" in text.replace("}}'", "")] == []
    assert files["requirements.txt"] == f"affinity-workflows[console]=={VERSION}\n"
    assert "COPY chat.py ." in files["Dockerfile"]


def test_a_script_reads_the_files_and_what_comes_next(directory: Path) -> None:
    found = document("init", "refunds", "--template", "workflow")
    assert found["folder"] == str(directory / "refunds")
    assert found["template"] == "workflow"
    assert sorted(found["files"]) == sorted(os.listdir("refunds"))
    assert found["next"][:2] == ["cd refunds", "affinity dev refunds:app"]


def test_the_project_is_of_sixty_lines(project: str) -> None:
    """The module and its test; blank lines count."""
    assert 50 < sum(len(Path(name).read_text().splitlines()) for name in (f"{project}.py", f"test_{project}.py")) < 80


def test_nothing_is_overwritten(directory: Path) -> None:
    succeed("init")
    Path("chat", "chat.py").write_text("mine")
    assert "chat is there already" in refused(MISUSED, "init", "--template", "chat")
    assert Path("chat", "chat.py").read_text() == "mine"
    Path("notes").write_text("mine")
    assert "notes is there already" in refused(MISUSED, "init", "notes")
    assert Path("notes").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-chat", "use letters, digits and _"),
        ("../chat", "use letters, digits and _"),
        ("7up", "use letters, digits and _"),
        ("__", "use letters, digits and _"),
        ("class", "use letters, digits and _"),
        ("café", "use letters, digits and _"),
        ("json", "would hide the module 'json'"),
        ("pydantic", "would hide the module 'pydantic'"),
        ("affinity", "would hide the module 'affinity'"),
        ("x" * 65, "give 64 at most"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(directory: Path, name: str, why: str) -> None:
    assert why in refused(MISUSED, "init", name)
    assert os.listdir(directory) == []


def test_a_name_of_full_length_runs(directory: Path) -> None:
    """The kind of conversations has it too."""
    succeed("init", name := "x" * 64)
    module = load(Path(name, f"{name}.py"))
    assert module.app.name == name


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_that_cannot_be_made_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", fail)
    assert "cannot be made: Permission denied" in refused(MISUSED, "init")


def test_what_comes_next_can_be_called(project: str) -> None:
    """In a terminal, and in the containers: commands and options exist."""
    os.chdir("..")
    commands = document("init", "other", "--template", project.removeprefix("my_"))["next"]
    text = Path("other", "compose.yaml").read_text()
    commands += re.findall(r"docker compose exec worker (.+)", text)
    assert len(commands) == 4
    for command in commands[1:]:
        program, *arguments = shlex.split(command)
        assert program == "affinity"
        assert CliRunner().invoke(main, [*arguments, "--help"]).exit_code == 0
        found = main.get_command(None, arguments[0])  # type: ignore[arg-type]  # it needs no context
        assert found is not None
        if arguments[0] == "conversation":
            found, arguments = found.get_command(None, arguments[1]), arguments[1:]  # type: ignore[attr-defined]
        found.make_context(arguments[0], arguments[1:], obj=None)


def test_the_containers(project: str) -> None:
    """As far as it shows without Docker: names, dependencies, variables, and the commands that they run."""
    text = Path("compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    assert services.keys() == {"database", "worker", "console"}
    assert {name for service in services.values() for name in service.get("depends_on", ())} == {"database", "worker"}
    exported = set(re.findall(r"(\w+)=\$\(openssl", text))
    assert set(re.findall(r"\$\{(\w+):\?\}", text)) == exported == {"POSTGRES_PASSWORD", "AFFINITY_CONSOLE_TOKEN"}
    variable = "${POSTGRES_PASSWORD:?}"
    assert services["database"]["environment"]["POSTGRES_PASSWORD"] == variable
    for name in ("worker", "console"):
        assert services[name]["build"] == "."
        assert services[name]["environment"]["AFFINITY_URL"] == f"postgresql://postgres:{variable}@database/postgres"
    assert "AFFINITY_CONSOLE_TOKEN" in services["console"]["environment"]
    console, *options = services["console"]["command"]
    command = main.get_command(None, console)  # type: ignore[arg-type]
    assert command is not None
    command.make_context(console, options, obj=None)
    dockerfile = Path("Dockerfile").read_text()
    for copied in re.findall(r"^COPY (\S+) \.$", dockerfile, re.MULTILINE):
        assert Path(copied).exists()
    assert f'CMD ["worker", "{project}:app"]' in dockerfile
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", yaml.safe_load(text)["name"])


@pytest.mark.parametrize("name", ["_Support", "S7"])
def test_containers_have_a_name_that_is_allowed(directory: Path, name: str) -> None:
    succeed("init", name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]*", yaml.safe_load(Path(name, "compose.yaml").read_text())["name"])


@pytest.mark.slow
def test_its_own_tests_pass(project: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    output = called("-W", "error", "-m", "pytest", *options)
    assert re.search(r"^[12] passed", output, re.MULTILINE), output


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: nox -s types")
def test_their_types_are_right(directory: Path) -> None:
    for template in TEMPLATES:
        succeed("init", template, "--template", template)
    called("-m", "mypy", "--strict", *(str(path) for path in sorted(directory.glob("*/*.py"))))


def called(*arguments: str) -> str:
    paths = os.environ | {"PYTHONPATH": str(ROOT), "MYPYPATH": os.pathsep.join([str(ROOT), *TEMPLATES])}
    done = subprocess.run(
        [sys.executable, *arguments], check=False, env=paths, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Dev:
    """`affinity dev` of the project, and what it writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        self.process = process
        self._lines: IO[str] = process.stderr

    def until(self, text: str) -> str:
        """The line with this text."""
        seen = ""
        for line in self._lines:
            seen += line
            if text in line:
                return line
        raise AssertionError(f"it has ended without {text!r}: {seen}")

    def kill(self) -> None:
        """Kill the worker, as `kill -9` does."""
        (worker,) = psutil.Process(self.process.pid).children()
        worker.send_signal(signal.SIGKILL)


@contextmanager
def dev(name: str, *options: str) -> Iterator[Dev]:
    process = launch("dev", f"{name}:app", *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            yield Dev(process)
        finally:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()
            process.kill()


@pytest.fixture
def named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes the project, which is the working directory then."""

    def make(template: str) -> str:
        succeed("init", "mine", "--template", template)
        monkeypatch.chdir(directory / "mine")
        return "mine"

    return make


def wait_for(look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_refund_whose_worker_is_killed_is_paid_once(named: Callable[[str], str]) -> None:
    with dev(named("workflow"), "--no-console") as running:
        running.until("running app")
        succeed("start", "refund", "--input", '{"order": "7", "cents": 500}', "--id", "r-7")
        wait_for(lambda: Path("payments.db").exists() and payments() == [500])
        running.kill()
        running.until("the worker was killed: another one starts")
        found = document("wait", "r-7", "--timeout", str(PATIENCE))
        assert found["output"] == "500 cents for order 7 are on their way"
        assert payments() == [500]


def payments() -> list[int]:
    with closing(sqlite3.connect("payments.db")) as connection:
        try:
            return [cents for (cents,) in connection.execute("SELECT cents FROM payments")]
        except sqlite3.OperationalError:  # the table is not there yet
            return []


@pytest.mark.slow
def test_an_agent_whose_worker_is_killed_goes_on(named: Callable[[str], str]) -> None:
    """In the middle of a call of its model, and while a call waits for a person."""
    with dev(named("agent"), "--no-console") as running:
        running.until("running app")
        succeed("conversation", "send", "ann", "Please pay 5000 back", "--kind", "mine")
        wait_for(lambda: document("conversation", "show", "ann")["status"] == "running")
        running.kill()
        running.until("the worker was killed")
        wait_for(lambda: document("conversation", "show", "ann")["status"] == "requires_action")
        running.kill()
        running.until("the worker was killed")
        (request,) = document("conversation", "requests")["items"]
        succeed("conversation", "answer", "ann", request["request_id"], "--allow")
        wait_for(lambda: "5000 cents are on their way" in succeed("conversation", "events", "ann"))


@pytest.mark.slow
@needs("starlette", "uvicorn", "jinja2", "httpx2")
def test_a_chat_whose_worker_is_killed_by_the_button_goes_on(named: Callable[[str], str]) -> None:
    import httpx2 as httpx

    with dev(named("chat")) as running:
        address = running.until("the console: ").split("the console: ")[1].strip()
        base = address.partition("/login")[0]
        running.until("running app")
        assert succeed("conversation", "ask", "ann", "one", "--kind", "mine").startswith("This is answer 1.")
        with httpx.Client(base_url=base, follow_redirects=True) as browser:
            assert browser.get(address).status_code == 200
            page = browser.get("/workers").text
            token = re.search(r'name="token" value="([0-9a-f]+)"', page)
            assert token is not None
            succeed("conversation", "send", "ann", "two")
            wait_for(lambda: document("conversation", "show", "ann")["status"] == "running")
            form = {"token": token[1], "what": "worker", "back": "/workers"}
            assert browser.post("/do/kill-worker", data=form, headers={"origin": base}).status_code == 200
        running.until("the worker was killed: another one starts")
        answer = succeed("conversation", "ask", "ann", "three", "--timeout", str(PATIENCE))
        assert answer.strip() == "This is answer 3. You began with 'one', and now you say 'three'."
        assert "This is answer 2." in succeed("conversation", "events", "ann")
