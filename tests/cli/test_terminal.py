"""Where the command runs: terminals of any encoding, closed pipes, taken ports, the first process of a container."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import click
import pytest

from affinity import RuntimeOptions, Worker
from affinity.cli.failures import report
from affinity.cli.help import EXIT_CODES, INTERNAL, INTERRUPTED, MISUSED, NO_DATABASE, PIPE_CLOSED
from affinity.errors import ConnectionLost, InvalidOptions
from tests.cli.conftest import launch, run, succeed
from tests.support.apps import app as any_app
from tests.support.extras import needs
from tests.support.worker_processes import PATIENCE, ROOT

NAME: Final = "Grüße € 漢字 😀"
"""For an instance: characters that LATIN-1 has, and that it does not have."""

POSIX: Final = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

TERMINALS: Final[Mapping[str, Mapping[str, str]]] = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "latin-1": {"PYTHONIOENCODING": "latin-1:strict"},
    "locale C": POSIX,
    "utf-8": {"PYTHONIOENCODING": "utf-8"},
}

SHOWING: Final[Sequence[Sequence[str]]] = (
    ["list"],
    ["show", NAME],
    ["why", NAME],
    ["show", f"{NAME} that nobody started"],
    ["schedules", "show", NAME],
)


def ended(*arguments: str, variables: Mapping[str, str] | None = None) -> tuple[int, bytes, bytes]:
    """The exit code and the bytes on stdout and stderr of a command in a process of its own."""
    process = launch(*arguments, variables=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.buffer, process.stderr.buffer  # type: ignore[attr-defined]
    with process:
        said = out.read(), err.read()
    return process.returncode, *said


@pytest.fixture
def filled(database: Path) -> None:
    """A database with a name that few terminals can print."""
    succeed("start", "greet", "--id", NAME, "--input", f'"{NAME}"')
    succeed("schedules", "create", NAME, "greet", "--cron", "0 3 * * *")


@pytest.mark.nightly_cases("cp1252|latin-1|utf-8")
@pytest.mark.parametrize("terminal", TERMINALS)
def test_what_a_terminal_cannot_print_is_escaped(filled: None, terminal: str) -> None:
    """Each character on its own; no command ends with a traceback. JSON is UTF-8 everywhere."""
    encoding = "ascii" if terminal == "locale C" else terminal
    shown = NAME.encode(encoding, "backslashreplace")
    for arguments in SHOWING if terminal != "locale C" else SHOWING[:1]:  # with it, arguments are ASCII too
        _, out, err = ended(*arguments, variables=TERMINALS[terminal])
        assert b"Traceback" not in err, (arguments, err)
        (out + err).decode(encoding)
        assert shown in out + err, (arguments, out, err)
    code, out, _ = ended("list", "--json", variables=TERMINALS[terminal])
    assert code == 0
    assert NAME in out.decode()


def test_output_that_nobody_reads_is_no_error(filled: None) -> None:
    """As before `| head`: the exit code of a process that SIGPIPE ends, and not a word."""
    reading, writing = os.pipe()
    os.close(reading)
    process = launch("list", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert process.communicate()[1] == ""
    assert process.returncode == PIPE_CLOSED


@pytest.mark.slow_cases(r"\[<&-\]|\[2>&-\]")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_may_be_closed(filled: None, closed: str) -> None:
    line = f"{sys.executable} -m affinity list {closed}"
    done = subprocess.run(
        ["sh", "-c", line], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line(filled: None) -> None:
    with open("/dev/full", "w") as full:
        process = launch("list", stdout=full, stderr=subprocess.PIPE)
        said = process.communicate()[1]
    assert re.fullmatch(r"Error: .*No space left on device\n", said), said
    assert process.returncode == INTERNAL


@pytest.mark.slow_cases(r"\[(1|0|7)\]")
@pytest.mark.parametrize("columns", ["0", "1", "7", "20"])
def test_a_terminal_may_be_narrow(filled: None, columns: str) -> None:
    import pty

    main, other = pty.openpty()
    process = launch("list", variables={"COLUMNS": columns}, stdout=other, stderr=subprocess.PIPE)
    os.close(other)
    with closing(os.fdopen(main, "rb", closefd=True)) as shown:
        assert process.communicate()[1] == ""
        assert select.select([shown], [], [], 5)[0]
    assert process.returncode == 0


@pytest.mark.slow_cases("variables[0-5]")
@pytest.mark.nightly_cases(r"variables[1-357-9]")
@pytest.mark.parametrize(
    "variables",
    [
        {"HOME": ""},
        {"HOME": "/no/such/home"},
        {"TZ": ""},
        {"TZ": "Nowhere/City"},
        {"TZ": ":::"},
        {"LANG": "xx_XX.KOI8-R"},
        {"LC_ALL": "tr_TR.UTF-8"},
        {"TERM": "dumb"},
        {"COLUMNS": "many"},
    ],
)
def test_an_odd_environment_changes_nothing(filled: None, variables: Mapping[str, str]) -> None:
    code, _, err = ended("show", NAME, variables=variables)
    assert (code, err) == (0, b"")


# --- ports ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of this machine that another program has."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield other.getsockname()[1]


@pytest.mark.slow
@needs("uvicorn")
def test_a_port_that_cannot_be_had_is_one_line(database: Path, taken: int) -> None:
    """With the port and the name of the option: of the metrics and of the console."""
    worker = ["worker", "tests.support.apps:app"]
    metrics = [*worker, "--metrics-port", "0", "--metrics-host"]
    for arguments, words in (
        ([*worker, "--metrics-port", str(taken)], [str(taken), "--metrics-port", "in use"]),
        ([*metrics, "no-such-host.invalid"], ["no-such-host.invalid", "--metrics-host"]),
        ([*metrics, "192.0.2.1"], ["192.0.2.1", "--metrics-host", "assign"]),
        (["console", "--port", str(taken)], [str(taken), "--port", "in use"]),
    ):
        code, out, err = ended(*arguments)
        (line,) = (each for each in err.decode().splitlines() if "INFO" not in each)
        assert code == MISUSED, err
        assert out == b""
        assert line.startswith("Error: ")
        assert all(word in line for word in words), line


async def _never(worker: Worker) -> None:
    async with worker:
        pytest.fail("it has a port that is taken")


@pytest.mark.anyio
async def test_a_worker_in_a_program_names_the_option_too(sqlite_url: str, taken: int) -> None:
    with pytest.raises(InvalidOptions, match=f"metrics_port={taken}"):
        await _never(Worker(any_app, sqlite_url, RuntimeOptions(metrics_port=taken)))


# --- exit codes -------------------------------------------------------------------------------------------------------


def test_the_table_of_exit_codes_is_in_the_help_and_the_documents() -> None:
    """The help prints `EXIT_CODES`; the page has the same rows."""
    page = (ROOT / "docs/run/terminal.md").read_text()
    rows = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)}
    assert rows == dict(EXIT_CODES)
    assert len(rows) == len(EXIT_CODES)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted\n"),
        (click.Abort(), INTERRUPTED, "interrupted\n"),
        (ConnectionLost("gone"), NO_DATABASE, "Error: gone\n"),
        (BaseExceptionGroup("several", [ExceptionGroup("x", [ConnectionLost("gone")])]), NO_DATABASE, "Error: gone\n"),
        (OSError(28, "No space left on device"), INTERNAL, "Error: [Errno 28] No space left on device\n"),
        (ZeroDivisionError("division by zero"), INTERNAL, "Error: unexpected: ZeroDivisionError: division by zero\n"),
    ],
)
def test_each_end_has_its_exit_code(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a defect has a traceback."""
    assert report(error) == code
    said = capsys.readouterr().err
    assert said.endswith(words)
    assert (said == words) is not isinstance(error, ZeroDivisionError)


def test_a_defect_is_told_from_what_has_failed(monkeypatch: pytest.MonkeyPatch, database: Path) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("affinity.cli.inspection.table", broken)  # first, since it may be imported only now
    monkeypatch.setattr("affinity.cli.output.table", broken)
    result = run("list")
    assert result.exit_code == INTERNAL
    assert "Traceback" in result.stderr


# --- the first process of a container ---------------------------------------------------------------------------------

UNSHARE: Final = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs the right to make a PID namespace",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "entry",
    [["-m", "affinity"], ["-m", "affinity_workflows"], ["-c", "from affinity_workflows.__main__ import main; main()"]],
)
def test_a_signal_during_the_imports_of_the_first_process_is_heeded(
    directory: Path, entry: Sequence[str], number: signal.Signals
) -> None:
    """The kernel ignores signals to it that have no handler. One that comes while the app is imported ends it."""
    (directory / "slow_app.py").write_text(
        "import sys, time, affinity\nprint('importing', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*UNSHARE, sys.executable, *entry, "worker", "slow_app:app"],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{directory}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline() == "importing\n"
        (first,) = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True).split()
        os.kill(int(first), number)
        assert process.wait(PATIENCE) == 128 + number
