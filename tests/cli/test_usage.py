"""Misuse that is refused before a database is touched, and the help."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest

from affinity import RuntimeOptions
from affinity.audit.options import AuditOptions
from affinity.cli import main
from affinity.cli.help import FAILED, MISUSED, NO_DATABASE, REFUSED, TIMED_OUT, UNKNOWN
from affinity.cli.loading import load_app
from affinity.cli.output import cell, clock, pairs, printable, seconds, table
from affinity.cli.shell import exit_code
from affinity.cli.worker import worker
from affinity.conversation.options import ConversationOptions
from affinity.errors import (
    AffinityError,
    ConnectionLost,
    ConversationTerminated,
    InstanceFinished,
    InstanceNotFinished,
    InvalidApp,
    NoReply,
    OrchestrationFailed,
    QuotaExceeded,
    UnknownConversation,
    UnknownInstance,
    UnknownWorker,
    WaitTimeout,
    WakeFailed,
    WorkerFenced,
)
from affinity.trends.options import TrendOptions
from tests.cli.conftest import refused, run, succeed
from tests.support.extras import needs

CONTEXT = click.Context(main)

UNREACHABLE = "postgresql://someone:secret@127.0.0.1:1/db?connect_timeout=2"
"""Nothing listens on port 1."""

ON_AN_INSTANCE = [["show"], ["history"], ["wait"], ["cancel"], ["delete"], ["raise", "ID", "event"]]


# --- help -------------------------------------------------------------------------------------------------------------


def test_help_teaches_by_example_and_documents_exit_codes() -> None:
    text = succeed("--help")
    assert '  affinity start conversation --id chat-17 --input \'{"topic": "tea"}\'\n' in text
    for code in ("0", "1", "2", "3", "4", "5", "6", "130"):
        assert f"\n  {code:<3}  " in text


@pytest.mark.parametrize("values", [[], [("messages", None)], [("", None), ("name", None)]])
def test_nothing_to_show_is_shown(values: list[tuple[str, object]], capsys: pytest.CaptureFixture[str]) -> None:
    pairs(values)
    table(["NAME"], [], empty="no rows")
    assert capsys.readouterr() == ("", "no rows\n")


@needs("uvicorn")
@pytest.mark.parametrize("name", main.list_commands(CONTEXT))
def test_every_command_has_help_and_the_common_options(name: str) -> None:
    found = main.get_command(CONTEXT, name)
    assert found is not None
    calls: list[tuple[str, ...]] = [(name,)]
    if isinstance(found, click.Group) and not found.invoke_without_command:
        calls = [(name, each) for each in found.commands]
    for words in calls:
        text = succeed(*words, "--help")
        assert "--json" in text
        assert ("--url" in text) is (name != "init")  # which writes files, and meets no database
    assert found.short_help


def test_every_runtime_option_has_a_flag_that_is_explained() -> None:
    """Help and documentation come from one description, which no option lacks. Options of guests are at the end."""
    flags = {param.name: param.opts for param in worker.params}
    text = " ".join(succeed("worker", "--help").split())
    for option in RuntimeOptions.describe():
        assert flags[option.name] == [option.flag]
        assert len(option.description) > len(option.name)
        assert f"[default: {option.default}]" in text
    of_guests = {*AuditOptions.model_fields, *ConversationOptions.model_fields, *TrendOptions.model_fields}
    names = [option.name for option in RuntimeOptions.describe()]
    assert {*names[-len(of_guests) :]} == of_guests
    assert sorted(names) == sorted(RuntimeOptions.model_fields)


def test_no_command_and_unknown_ones() -> None:
    assert run().exit_code == MISUSED
    assert "No such command" in refused(MISUSED, "restart")
    assert "Missing argument" in refused(MISUSED, "start")


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "{'a': 1}", "tea", "NaN", "", "[1,]"])
def test_malformed_json_is_refused(text: str) -> None:
    assert "not JSON" in refused(MISUSED, "start", "brew", "--input", text)
    assert "not JSON" in refused(MISUSED, "raise", "t", "pour", "--data", text)


def test_json_from_a_file_that_is_not_there_or_not_text(directory: Path) -> None:
    assert "absent.json" in refused(MISUSED, "start", "brew", "--input", "@absent.json")
    (directory / "image.json").write_bytes(b"\xff\xd8")
    assert "--input" in refused(MISUSED, "start", "brew", "--input", "@image.json")


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite://affinity.db", "affinity.db", "postgresql//host"])
@pytest.mark.parametrize("command", [["list"], ["start", "brew"], ["migrate"], ["workers"]])
def test_a_wrong_url_is_refused(command: list[str], url: str) -> None:
    assert "sqlite:///" in refused(MISUSED, *command, "--url", url)
    assert "sqlite:///" in refused(MISUSED, "--url", url, *command)


def test_the_url_of_the_command_wins_over_the_group_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each URL has another error: no message has a URL in it."""
    monkeypatch.setenv("AFFINITY_URL", "environment://x")
    group, own = "sqlite://group", "postgresql://[own"
    assert "use sqlite:///path or postgresql" in refused(MISUSED, "list")
    assert "an SQLite URL is" in refused(MISUSED, "--url", group, "list")
    assert "malformed" in refused(MISUSED, "--url", group, "list", "--url", own)


def test_a_password_on_the_command_line_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users of the machine see it; the environment is visible to the user only."""
    warning = "can be read by every user of this machine (`ps`): put the URL into AFFINITY_URL"
    for arguments in (
        ["list", "--url", UNREACHABLE],
        ["--url", UNREACHABLE, "list"],
        ["demo", "--url", UNREACHABLE, "--workers", "1"],
    ):
        said = run(*arguments)
        assert warning in said.stderr
        assert "secret" not in said.output
    monkeypatch.setenv("AFFINITY_URL", UNREACHABLE)
    assert warning not in run("list").stderr


@pytest.mark.parametrize("command", [["list"], ["worker", "kitchen_app:app"], ["demo", "--workers", "1"]])
def test_a_misspelt_variable_is_refused(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a command would go on with the default database, or a worker with the default option."""
    monkeypatch.setenv("AFFINITY_ULR", UNREACHABLE)
    said = refused(MISUSED, *command)
    assert "AFFINITY_ULR: did you mean AFFINITY_URL?" in said
    assert "secret" not in said


@pytest.mark.parametrize("command", [["list"], ["start", "brew"], ["migrate"], ["sessions"], ["show", "t"]])
def test_an_unreachable_database_has_another_exit_code_than_bad_input(command: list[str]) -> None:
    said = refused(NO_DATABASE, *command, "--url", UNREACHABLE)
    assert "Connection refused" in said
    assert "cannot connect to PostgreSQL at 127.0.0.1:1: " in said
    for name in ("secret", "someone", "postgresql:"):
        assert name not in said


@pytest.mark.parametrize(
    "options",
    [
        ["--all", "--limit", "5"],
        ["--all", "--after", "2020-01-01T00:00:00+00:00/t"],
        ["--limit", "0"],
        ["--limit", "-1"],
        ["--limit", "1001"],
        ["--status", "happy"],
    ],
)
def test_contradictory_or_impossible_list_options(options: list[str]) -> None:
    refused(MISUSED, "list", *options)


def test_a_timeout_without_a_wait_is_refused() -> None:
    assert "--wait" in refused(MISUSED, "start", "brew", "--timeout", "5")


# --- worker -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(directory: Path) -> Path:
    source = "import affinity\n\napp = affinity.App('kitchen')\nnested = type('Nested', (), {'app': app})\nnumber = 5\n"
    (directory / "kitchen_app.py").write_text(source)
    return directory


def test_an_app_is_found_in_the_working_directory(module: Path) -> None:
    assert load_app("kitchen_app:app").name == "kitchen"
    assert load_app("kitchen_app:nested.app").name == "kitchen"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("kitchen_app", "use MODULE:APP"),
        (":app", "use MODULE:APP"),
        ("kitchen_app:", "use MODULE:APP"),
        ("kitchen_app.py:app", "is a path"),
        ("./kitchen_app:app", "is a path"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("no_such_package.module:app", "there is no module 'no_such_package'"),
        ("kitchen_app:application", "has no 'application'; it has app"),
        ("kitchen_app:number", "not an affinity.App, but of type int"),
        ("kitchen_app:number.app", "has no 'number.app'"),
    ],
)
def test_a_target_that_names_no_app(module: Path, target: str, message: str) -> None:
    assert message in refused(MISUSED, "worker", target)


EARLY = """
import affinity
chats = affinity.Conversations(dict, kind="chat")
app = affinity.App("early")
app.include(chats)
"""


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("raises_app", "value = 1\nvalue / 0\n", "ZeroDivisionError: division by zero"),
        ("syntax_app", "def broken(:\n", "SyntaxError"),
        ("exits_app", "import sys\nsys.exit(0)\n", "SystemExit"),
        ("needs_app", "import no_such_dependency\n", "No module named 'no_such_dependency'"),
        ("refused_app", "import affinity\napp = affinity.App('refused')\napp.include(5)\n", "can include an App"),
        ("early_app", EARLY, "have no handler: decorate one with on_wake, above app.include"),
        ("python_app", "import json\njson.loads('{')\n", "JSONDecodeError"),
    ],
)
def test_a_module_that_does_not_import_names_the_line(directory: Path, name: str, source: str, message: str) -> None:
    (directory / f"{name}.py").write_text(source)
    with pytest.raises(InvalidApp, match=f"{name}.py:") as refusal:
        load_app(f"{name}:app")
    assert message in str(refusal.value)
    assert message in refused(MISUSED, "worker", f"{name}:app")


def test_negative_max_sessions_are_refused(module: Path) -> None:
    text = refused(MISUSED, "worker", "kitchen_app:app", "--max-sessions", "-1")
    assert "max_sessions_per_runtime" in text
    assert "-1" in text


def test_contradictory_timeouts_are_refused_with_both_values(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(MISUSED, "worker", "kitchen_app:app", "--session-lock-timeout", "5", "--work-item-lock-timeout", "9")
    assert "5 s" in text
    assert "9 s" in text
    monkeypatch.setenv("AFFINITY_WORK_ITEM_LOCK_TIMEOUT", "8")
    assert "8 s" in refused(MISUSED, "worker", "kitchen_app:app", "--session-lock-timeout", "5")


@pytest.mark.parametrize("flags", [["--concurrency", "many"], ["--node-id", ""], ["--metrics-port", "70000"]])
def test_wrong_worker_flags(module: Path, flags: list[str]) -> None:
    refused(MISUSED, "worker", "kitchen_app:app", *flags)


def test_a_worker_without_a_database(module: Path) -> None:
    refused(NO_DATABASE, "worker", "kitchen_app:app", "--url", UNREACHABLE, "--startup-timeout", "0.1")


LISTINGS = [
    "list --prefix {}",
    "list --name {}",
    "list --after 2026-01-01T00:00:00+00:00/{}",
    "conversation list --prefix {}",
    "conversation list --kind {}",
    "conversation list --after 2026-01-01T00:00:00+00:00/{}",
    "sessions list --name {}",
    "sessions list --label {}=a",
    "sessions list --label a={}",
    "sessions moves --worker {}",
    "sessions prune --kind {} --older-than 1d --yes",
    "sessions export --kind {}",
]


@pytest.mark.parametrize("words", LISTINGS)
def test_conditions_that_are_no_unicode(words: str, database: Path) -> None:
    """An argument of bytes that are no UTF-8 has surrogates."""
    assert "U+DCFF" in refused(MISUSED, *words.format("\udcff").split())


@pytest.mark.parametrize("listing", [["list"], ["conversation", "list"], ["sessions", "list"]])
def test_a_cursor_of_no_time(listing: list[str], database: Path) -> None:
    assert "not a cursor" in refused(MISUSED, *listing, "--after", "0001-01-01T00:00:00+01:00/x")


# --- output -----------------------------------------------------------------------------------------------------------


def test_what_is_printed_cannot_do_anything_to_a_terminal() -> None:
    assert printable("a\x1b[31mb\x07 ü 茶\n") == "a\\x1b[31mb\\x07 ü 茶\n"
    assert cell("a\nb") == "a b"
    assert len(cell("x" * 1000)) == 100
    assert printable(None) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.44, "0.4 s"), (-2.0, "-2.0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-200, "-3 min 20 s")],
)
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


# --- tables and times -------------------------------------------------------------------------------------------------

NEW_GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
LONG_ID = "chat-" + "7" * 251


def lines_of(
    capsys: pytest.CaptureFixture[str], columns: tuple[str, ...], *rows: tuple[object, ...], width: str = ""
) -> list[str]:
    """What is printed of a table, without its style, on a terminal that is so wide, or into a pipe."""
    with pytest.MonkeyPatch.context() as patch:
        if width:
            patch.setattr(sys.stdout, "isatty", lambda: True)
            patch.setenv("COLUMNS", width)
        table(columns, rows, empty="none")
    return click.unstyle(capsys.readouterr().out).splitlines()


def test_a_table_that_fits_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("a", 1), ("bc茶", None)
    assert lines_of(capsys, ("INSTANCE", "EVENTS"), *rows, width="80") == ["INSTANCE  EVENTS", "a         1", "bc茶"]


def test_long_values_give_way_to_ids(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = lines_of(capsys, ("SESSION", "LABELS", "STATUS"), (NEW_GUID, "x" * 90, "running"), width="80")
    assert line == f"{NEW_GUID}  {'x' * 32}…  running"
    assert len(line) == 80


@pytest.mark.parametrize("instance_id", [NEW_GUID, LONG_ID])
def test_ids_are_never_cut(instance_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not fit beside them goes to further lines, under its name, and only ids are longer than a line."""
    columns = ("INSTANCE", "STATUS", "SESSION", "OWNER", "CUSTOM STATUS")
    row = (instance_id, "running", instance_id[::-1], "worker-0", "y" * 200)
    lines = lines_of(capsys, columns, row, width="80")
    assert len(lines) % 2 == 0
    names, values = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    words = " ".join(lines).split()
    assert {instance_id, instance_id[::-1], "running", "worker-0"} < {*words}
    assert "y" * 77 + "…" in words
    assert all(len(line) <= 80 or line.strip() in instance_id + " " + instance_id[::-1] for line in values)
    for name in columns:  # each value begins in the column of its name
        place = next(i for i, line in enumerate(names) if name in line)
        assert values[place][names[place].index(name)] != " "


def test_nothing_is_cut_to_the_width_of_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    _, line = lines_of(capsys, ("SESSION", "PARENT", "LABELS"), (LONG_ID, LONG_ID, "x" * 90))
    assert line == f"{LONG_ID}  {LONG_ID}  {'x' * 90}"


@pytest.mark.parametrize(
    ("away", "text"),
    [(-0.2, "0 s ago"), (-59.1, "59 s ago"), (-119, "2 min ago"), (-7300, "2 h ago"), (-86400 * 5, "5 d ago")],
)
def test_times_are_relative(away: float, text: str) -> None:
    assert printable(datetime.now(UTC) + timedelta(seconds=away)) == text
    assert printable(datetime(2020, 5, 4, 12, tzinfo=UTC)) == "2020-05-04"
    assert printable(datetime.now(UTC) + timedelta(minutes=5, seconds=9)) == "in 5 min"


def test_events_have_the_time_of_the_clock() -> None:
    """Of another day with its date."""
    assert clock(datetime(2020, 5, 4, 12, 1, 2, 3999).astimezone()) == "2020-05-04 12:01:02.003"
    now = datetime.now().astimezone()
    assert clock(now) in {f"{now:%H:%M:%S}.{now.microsecond // 1000:03}", f"{now:%Y-%m-%d %H:%M:%S}"}


# --- exit codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OrchestrationFailed("ValueError", "no"), FAILED),
        (NoReply("i", "failed"), FAILED),
        (WakeFailed("c", "ValueError", "no"), FAILED),
        (InvalidApp("none"), MISUSED),
        (ConnectionLost("gone"), NO_DATABASE),
        (WorkerFenced("taken"), NO_DATABASE),
        (WaitTimeout("late"), TIMED_OUT),
        (UnknownInstance("i"), UNKNOWN),
        (UnknownConversation("c", "none"), UNKNOWN),
        (UnknownWorker("w"), UNKNOWN),
        (InstanceFinished("i"), REFUSED),
        (InstanceNotFinished("i"), REFUSED),
        (ConversationTerminated("c", "ended"), REFUSED),
        (QuotaExceeded("instances", 1), REFUSED),
    ],
)
def test_what_failed_what_is_unknown_and_what_is_refused_differ(error: AffinityError, code: int) -> None:
    assert exit_code(error) == code
    assert f"\n  {code:<3}  " in succeed("--help")
