"""The commands on sessions, on an SQLite file."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import anyio
import click
import pytest

from affinity import SessionManager, SessionStore, open_store
from affinity.cli import shell
from affinity.cli.help import INTERRUPTED, MISUSED, NO_DATABASE, REFUSED, UNKNOWN
from affinity.cli.sessions import sessions
from affinity.provider.sqlite.session_store import SqliteSessionStore
from affinity.session import SessionMetadata, SessionState
from tests.cli.conftest import Play, document, refused, run, succeed

T = TypeVar("T")

FAMILY = (("top", None), ("kid", "top"), ("grandkid", "kid"), ("other", None))


def within(database: Path, work: Callable[[SessionStore], Awaitable[T]]) -> T:
    """The result of ``work`` with the store of the database."""

    async def run() -> T:
        async with open_store(f"sqlite:///{database}") as store:
            return await work(store)

    return anyio.run(run)


def put(database: Path, session_id: str, state: object = None, **metadata: Any) -> None:
    raw = state if isinstance(state, bytes) else json.dumps(state).encode()
    new = SessionState(session_id=session_id, state=raw, metadata=SessionMetadata(**metadata))
    within(database, lambda store: store.save(new))


def listed(*options: str) -> list[str]:
    return [record["session_id"] for record in document("sessions", "list", *options)["sessions"]]


@pytest.fixture
def family(database: Path) -> None:
    for session_id, parent in FAMILY:
        put(database, session_id, {"of": parent}, parent=parent, kind="chat", labels={"team": "a"})


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to be asked."""
    monkeypatch.setattr(shell, "is_interactive", lambda: True)


# --- the group --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(sessions.commands))
def test_every_subcommand_teaches_by_example(name: str) -> None:
    text = succeed("sessions", name, "--help")
    assert f"  affinity sessions {name}" in text
    assert "--json" in text
    assert "--url" in text
    assert sessions.commands[name].short_help


def test_without_a_subcommand_the_leases_are_shown(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.hold("t", "kettle"))
    for command in (["sessions"], ["sessions", "leases"]):
        (lease,) = document(*command)
        assert (lease["session_id"], lease["worker_id"]) == ("kettle", "puppet")
        assert document(*command, "--worker", "other") == []
        assert "kettle" in succeed(*command, "--held")


def test_release(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.hold("t", "kettle"))
    assert document("sessions", "release", "kettle", "pot", code=REFUSED) == {
        "sessions": {"kettle": "busy", "pot": "not_held"}
    }
    succeed("delete", "t", "--force", "--yes")
    assert "released" in succeed("sessions", "release", "kettle")
    assert document("sessions", "release", "kettle") == {"sessions": {"kettle": "not_held"}}


def test_options_before_a_subcommand() -> None:
    assert "leases --held" in refused(MISUSED, "sessions", "--held", "list")
    assert "after the subcommand" in refused(MISUSED, "sessions", "--json", "list")
    other, group, own = "other://x", "sqlite://group", "postgresql://[own"
    assert "an SQLite URL is" in refused(MISUSED, "sessions", "--url", group, "list")
    assert "an SQLite URL is" in refused(MISUSED, "--url", group, "sessions", "list")
    assert "malformed" in refused(MISUSED, "--url", other, "sessions", "--url", group, "list", "--url", own)


@pytest.mark.parametrize("command", [["list"], ["show", "s"], ["delete", "s"], ["prune", "--keep", "1"], ["export"]])
def test_a_database_that_is_not_there(command: list[str]) -> None:
    assert "migrate" in refused(NO_DATABASE, "sessions", *command)


# --- list and show ----------------------------------------------------------------------------------------------------


def test_list_filters(database: Path) -> None:
    put(database, "a", kind="chat", name="Tea", labels={"team": "x", "tier": "1"})
    put(database, "b", kind="plan", parent="a", labels={"team": "x"})
    assert listed() == ["b", "a"]
    assert listed("--kind", "chat") == listed("--name", "Tea") == ["a"]
    assert listed("--label", "team=x") == ["b", "a"]
    assert listed("--label", "team=x", "--label", "tier=1") == ["a"]
    assert listed("--parent", "a") == ["b"]
    assert listed("--schema-version", "1") == ["b", "a"]
    assert listed("--schema-version", "2") == []
    assert (
        listed("--updated-after", "2020-01-01") == listed("--created-after", "2020-01-01T00:00:00+02:00") == ["b", "a"]
    )
    assert listed("--updated-after", "9000-01-01") == listed("--created-after", "9000-01-01") == []
    assert listed("--idle-for", "0s") == ["b", "a"]
    assert listed("--idle-for", "1.5h") == []


def test_list_by_participant_and_by_missing_parent(database: Path) -> None:
    put(database, "a", participants=["ann", "bob"], message_count=2)
    put(database, "b", participants=["ann"], parent="gone")
    put(database, "c", parent="b", message_count=3, participants=["cy"])
    assert listed("--participant", "ann") == ["b", "a"]
    assert listed("--orphaned") == ["b"]
    assert document("sessions", "count", "--participant", "ann") == {"count": 2}
    assert succeed("sessions", "count") == "3\n"
    found = document("sessions", "family", "c")
    assert (found["head"], found["message_count"], found["participants"]) == ("b", 3, ["ann", "cy"])
    assert [member["session_id"] for member in found["members"]] == ["b", "c"]
    shown = succeed("sessions", "family", "c")
    assert "ann, cy" in shown


def test_list_by_holder(database: Path, play: Play) -> None:
    put(database, "kettle")
    put(database, "pot")
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.hold("t", "kettle"))
    assert listed("--holder", "puppet") == ["kettle"]
    assert listed("--holder", "other") == []


def test_list_pages(database: Path) -> None:
    for session_id in ("a", "b", "c"):
        put(database, session_id)
    first = document("sessions", "list", "--limit", "2")
    assert [record["session_id"] for record in first["sessions"]] == ["c", "b"]
    assert listed("--limit", "2", "--after", first["next"]) == ["a"]
    assert listed("--all") == ["c", "b", "a"]
    assert document("sessions", "list")["next"] is None
    table = run("sessions", "list", "--limit", "2")
    assert table.stdout.splitlines()[0].split()[:3] == ["SESSION", "KIND", "NAME"]
    assert first["next"] in table.stderr
    nothing = run("sessions", "list", "--kind", "other")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no records\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "0"], "--limit"),
        (["--limit", "1001"], "--limit"),
        (["--all", "--limit", "5"], "--all contradicts"),
        (["--after", "yesterday"], "cursor"),
        (["--idle-for", "30"], "90s, 15m, 12h, 30d"),
        (["--idle-for", "-5s"], "90s, 15m, 12h, 30d"),
        (["--idle-for", "99999999d"], "100 years"),
        (["--updated-after", "yesterday"], "2026-07-31"),
        (["--label", "team"], "KEY=VALUE"),
        (["--label", "=a"], "KEY=VALUE"),
        (["--label", "team=a", "--label", "team=b"], "one label of a key"),
        (["--schema-version", "-1"], "--schema-version"),
        (["--parent", ""], "must not be empty"),
        (["--holder", ""], "must not be empty"),
    ],
)
@pytest.mark.usefixtures("database")
def test_wrong_options_say_what_is_right(options: list[str], message: str) -> None:
    assert message in refused(MISUSED, "sessions", "list", *options)


def test_show(database: Path) -> None:
    put(database, "chat-17", {"topic": "Tee grün"}, kind="chat", name="a\x1b[31mred", labels={"team": "x"})
    put(database, "chat-2", b"\xff\x00")
    text = succeed("sessions", "show", "chat-1")
    for shown in ("chat-17", "team=x", '{"topic":"Tee grün"}', "a\\x1b[31mred"):
        assert shown in text
    assert document("sessions", "show", "chat-17")["state"] == {"topic": "Tee grün"}
    assert "/wA= (base64)" in succeed("sessions", "show", "chat-2")
    assert "2 bytes" in succeed("sessions", "show", "chat-2")
    assert document("sessions", "show", "chat-2")["state_base64"] == "/wA="


@pytest.mark.parametrize("command", [["show"], ["delete", "--allow-prefix", "--yes"], ["export"]])
def test_a_session_is_named_by_a_unique_beginning(database: Path, command: list[str]) -> None:
    put(database, "chat-17")
    put(database, "chat-18")
    ambiguous = refused(UNKNOWN, "sessions", *command, "chat-")
    assert "'chat-17', 'chat-18'; give more of it" in ambiguous
    assert "no session has the id 'plan'" in refused(UNKNOWN, "sessions", *command, "plan")
    assert "must not be empty" in refused(MISUSED, "sessions", *command, "")
    assert listed() == ["chat-18", "chat-17"]


# --- delete and prune -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("family")
def test_delete_lists_the_children_that_it_removes() -> None:
    dry = run("sessions", "delete", "top", "--dry-run")
    assert (dry.exit_code, sorted(dry.stdout.split())) == (0, ["grandkid", "kid", "top"])
    assert dry.stderr == "would remove 'top' and 2 children of it\n"
    assert document("sessions", "delete", "top", "--dry-run")["dry_run"] is True
    assert len(listed()) == 4
    gone = run("sessions", "delete", "top", "--yes")
    assert (gone.exit_code, gone.stdout.split()[0]) == (0, "top")
    assert gone.stderr == "removed 'top' and 2 children of it\n"
    assert listed() == ["other"]


@pytest.mark.usefixtures("family")
def test_delete_of_one() -> None:
    done = document("sessions", "delete", "kid", "--no-cascade", "--yes")
    assert done == {"removed": ["kid"], "dry_run": False}
    assert sorted(listed()) == ["grandkid", "other", "top"]


def test_delete_takes_a_prefix_only_by_option(database: Path) -> None:
    put(database, "customer-1")
    put(database, "customer-17")
    assert run("sessions", "delete", "customer-1", "--yes").stdout == "customer-1\n"
    for option in ("--yes", "--dry-run"):
        assert "no session has the id 'customer-1'" in refused(UNKNOWN, "sessions", "delete", "customer-1", option)
    assert listed() == ["customer-17"]
    assert run("sessions", "delete", "customer-1", "--allow-prefix", "--yes").stdout == "customer-17\n"
    assert listed() == []


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize("command", [["delete", "top"], ["prune", "--keep", "0"]])
def test_nothing_is_removed_unasked(command: list[str]) -> None:
    assert "--yes" in refused(MISUSED, "sessions", *command)
    assert len(listed()) == 4


@pytest.mark.usefixtures("family", "terminal")
@pytest.mark.parametrize("command", [["delete", "top"], ["prune", "--keep", "1"]])
def test_the_user_is_asked(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    no = run("sessions", *command, stdin="n\n")
    assert (no.exit_code, no.stdout.removeprefix(" n\n")) == (0, "")  # click before 8.2 echoes the answer in tests
    assert "nothing was changed" in no.stderr
    assert len(listed()) == 4
    with monkeypatch.context() as patch:
        patch.setattr(click, "confirm", Mock(side_effect=click.Abort))  # what click makes of Ctrl-C at its question
        assert run("sessions", *command).exit_code == INTERRUPTED
    assert len(listed()) == 4
    yes = run("sessions", *command, stdin="y\n")
    assert (yes.exit_code, len(yes.stdout.removeprefix(" y\n").split())) == (0, 3)
    assert listed() == ["other"]


@pytest.mark.usefixtures("family")
def test_prune() -> None:
    assert document("sessions", "prune", "--older-than", "1h", "--yes") == {"removed": [], "left": [], "dry_run": False}
    dry = run("sessions", "prune", "--keep", "3", "--dry-run")
    assert (dry.stdout, dry.stderr) == ("top\n", "would remove 1 record\n")
    assert run("sessions", "prune", "--keep", "0", "--kind", "plan", "--yes").stderr == "removed 0 records\n"
    assert run("sessions", "prune", "--keep", "0", "--label", "team=b", "--yes").stdout == ""
    assert len(listed()) == 4
    done = run("sessions", "prune", "--keep", "1", "--older-than", "0s", "--label", "team=a", "--kind", "chat", "--yes")
    assert sorted(done.stdout.split()) == ["grandkid", "kid", "top"]
    assert listed() == ["other"]


@pytest.mark.usefixtures("family")
def test_prune_families(database: Path) -> None:
    refused(MISUSED, "sessions", "prune", "--keep", "1", "--either", "--yes")
    put(database, "grandkid", parent="kid")
    done = run("sessions", "prune", "--keep", "1", "--older-than", "1h", "--either", "--family", "--yes")
    assert done.stdout == "other\n"
    assert len(listed()) == 3


def test_prune_lists_what_it_left(database: Path, play: Play) -> None:
    put(database, "kettle")
    put(database, "pot")
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.hold("t", "kettle"))
    done = run("sessions", "prune", "--keep", "0", "--yes")
    assert done.stdout == "pot\n"
    assert "left 1 that are held" in done.stderr
    assert listed() == ["kettle"]


@pytest.mark.usefixtures("family")
@pytest.mark.parametrize(
    "options", [[], ["--kind", "chat"], ["--older-than", "30"], ["--keep", "-1"], ["--older-than", "1y"]]
)
def test_prune_needs_a_rule(options: list[str]) -> None:
    refused(MISUSED, "sessions", "prune", "--yes", *options)
    assert len(listed()) == 4


# --- export and import ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("family")
def test_export_and_import_into_another_database(directory: Path) -> None:
    report = document("sessions", "export", "-o", "all.jsonl")
    assert report == {"exported": 4, "file": "all.jsonl"}
    assert not (directory / "all.jsonl.part").exists()
    assert stat.S_IMODE((directory / "all.jsonl").stat().st_mode) == 0o600
    other = ["--url", "sqlite:///other.db"]
    succeed("migrate", *other)
    assert document("sessions", "import", "all.jsonl", *other) == {"added": 4, "replaced": 0, "skipped": 0, "old": 0}
    assert sorted(listed(*other)) == sorted(listed())
    assert document("sessions", "show", "kid", *other)["parent"] == "top"
    twice = refused(REFUSED, "sessions", "import", "all.jsonl", *other)
    assert "line 1" in twice
    assert "skip the line or replace the record" in twice
    skipped = run("sessions", "import", "all.jsonl", "--on-exists", "skip", *other)
    assert (skipped.exit_code, skipped.stderr) == (0, "skipped 4\n")
    assert document("sessions", "import", "all.jsonl", "--on-exists", "replace", *other)["replaced"] == 4


@pytest.mark.usefixtures("family")
def test_export_to_stdout_and_import_from_stdin() -> None:
    everything = succeed("sessions", "export")
    assert [json.loads(line)["session_id"] for line in everything.splitlines()] == listed()
    (line,) = succeed("sessions", "export", "to").splitlines()
    assert json.loads(line)["session_id"] == "top"
    assert len(succeed("sessions", "export", "--parent", "top").splitlines()) == 1
    succeed("sessions", "prune", "--keep", "0", "--yes")
    assert succeed("sessions", "import", "-", stdin=everything) == ""
    assert len(listed()) == 4
    assert "no records" in run("sessions", "import", "-", stdin="\n").stderr


@pytest.mark.usefixtures("family")
def test_export_misused(directory: Path) -> None:
    assert "not both" in refused(MISUSED, "sessions", "export", "top", "--kind", "chat")
    assert "--output" in refused(MISUSED, "sessions", "export", "--json")
    assert "No such file" in refused(MISUSED, "sessions", "export", "-o", "absent/all.jsonl")
    assert "directory" in refused(MISUSED, "sessions", "export", "-o", str(directory))
    (directory / "old.jsonl").write_text("kept")
    refused(UNKNOWN, "sessions", "export", "unknown", "-o", "old.jsonl")
    assert (directory / "old.jsonl").read_text() == "kept"
    assert sorted(path.name for path in directory.glob("*.jsonl*")) == ["old.jsonl"]


@pytest.mark.usefixtures("database")
def test_a_wrong_line_is_named_before_anything_is_written(directory: Path) -> None:
    (directory / "bad.jsonl").write_text(
        '{"session_id": "a", "schema_version": 1, "state": 1}\n\n{"session_id": "b"}\n'
    )
    assert "line 3" in refused(MISUSED, "sessions", "import", "bad.jsonl")
    assert listed() == []
    assert "absent.jsonl" in refused(MISUSED, "sessions", "import", "absent.jsonl")


def test_an_import_that_ends_in_the_middle_names_how_to_continue(database: Path, directory: Path) -> None:
    put(database, "b")
    lines = [json.dumps({"session_id": session_id, "schema_version": 1, "state": 1}) for session_id in ("a", "b", "c")]
    (directory / "three.jsonl").write_text("\n".join(lines))
    said = refused(REFUSED, "sessions", "import", "three.jsonl")
    assert "lines done: 1 before it ended" in said
    assert "--on-exists skip" in said
    assert document("sessions", "import", "three.jsonl", "--on-exists", "skip") == {
        "added": 1,
        "replaced": 0,
        "skipped": 2,
        "old": 0,
    }


APP = """
import affinity
from pydantic import BaseModel, Field

class Basket(BaseModel):
    total: int = Field(0, le=10)

app = affinity.App("shop")
app.include(affinity.Sessions(Basket, kind="basket"))
"""


@pytest.mark.usefixtures("database")
def test_an_import_with_the_app_loads_each_record_first(directory: Path) -> None:
    (directory / "basket_app.py").write_text(APP)
    lines = [
        {"session_id": name, "kind": kind, "schema_version": 1, "state": {"total": total}}
        for name, kind, total in (("a", "basket", 1), ("b", "other", 11), ("c", "basket", 11))
    ]
    (directory / "all.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (directory / "good.jsonl").write_text("\n".join(map(json.dumps, lines[:2])))
    said = refused(MISUSED, "sessions", "import", "all.jsonl", "--app", "basket_app:app")
    assert "line 3: the record of session 'c' could not be loaded" in said
    assert listed() == []
    absent = ["--url", "sqlite:///absent.db"]  # lines are checked before it is opened
    assert "line 3" in refused(MISUSED, "sessions", "import", "all.jsonl", "--app", "basket_app:app", *absent)
    done = run("sessions", "import", "good.jsonl", "--app", "basket_app:app")
    assert done.stderr == "added 2; 1 of kinds that basket_app:app does not have: only their form was checked\n"
    assert document("sessions", "import", "all.jsonl", "--on-exists", "skip")["added"] == 1
    assert "no module" in refused(MISUSED, "sessions", "import", "all.jsonl", "--app", "absent_app:app")


def test_ctrl_c_is_clean(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(database, "a")

    async def interrupted(*arguments: object, progress: Callable[[int], None] | None = None, **more: object) -> None:
        if progress is not None:
            progress(7)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    monkeypatch.setattr(SessionManager, "prune", interrupted)
    monkeypatch.setattr(SqliteSessionStore, "list", interrupted)
    for command in (["list"], ["export", "-o", "all.jsonl"]):
        assert refused(INTERRUPTED, "sessions", *command) == "interrupted\n"
    assert not list(database.parent.glob("*.jsonl*"))
    said = refused(INTERRUPTED, "sessions", "prune", "--keep", "0", "--yes")
    assert said == "removed 7 before it ended\ninterrupted\n"
