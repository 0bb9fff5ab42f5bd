"""The commands on instances, sessions and workers, on an SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from affinity import App, Client, OrchestrationContext
from affinity.cli.help import FAILED, MISUSED, NO_DATABASE, REFUSED, TIMED_OUT, UNKNOWN, UNSERVED
from affinity.client import HistoryRecord, Pages
from affinity.limits import MAX_ID_BYTES, MAX_PAYLOAD_BYTES
from affinity.orchestration.events import ActivityScheduled, EventRefused, RawJson
from affinity.provider.contract import FetchOptions, Incarnation, MessageReply, WorkAbandon, WorkerIdentity
from affinity_conformance.providers.builders import profile
from tests.cli.conftest import Play, document, refused, run, succeed
from tests.client.conftest import TIMEOUTS, Puppet


def test_start_creates_the_default_database_and_prints_the_id(directory: Path) -> None:
    UUID(succeed("start", "brew").strip())
    assert (directory / "affinity.db").exists()
    assert succeed("start", "brew", "--id", "t") == "t\n"


def test_rerun_starts_it_again(play: Play) -> None:
    """One with the same or another input, or all that fit; a dry run says how many."""

    async def end_two(puppet: Puppet) -> None:
        await puppet.end("a")
        await puppet.end_badly("b", "failed", '{"type": "ValueError", "message": "no"}')

    for name in ("a", "b", "c"):
        succeed("start", "brew", "--id", name, "--input", f'"{name}"', "--label", "team=tea")
    play(end_two)
    assert document("list", "--sort", "-ended")["instances"][0]["instance_id"] == "b"
    assert [one["instance_id"] for one in document("list", "--sort", "duration")["instances"]] != []
    assert document("count", "--conversations")["total"] == 0
    assert document("rerun", "--label", "team=tea", "--dry-run") == {"instances": 2}
    assert document("rerun", "a", "--id", "again")["instance_id"] == "again"
    assert document("rerun", "a", "--input", "null")["of"] == "a"
    done = document("rerun", "--status", "failed", "--yes")["instances"]
    assert [one["of"] for one in done] == ["b"]
    assert document("show", done[0]["instance_id"])["labels"] == {"team": "tea"}
    for wrong in ([], ["a", "--yes"], ["--status", "running", "--yes"], ["--name", "brew", "--id", "x", "--yes"]):
        refused(MISUSED, "rerun", *wrong)
    refused(UNKNOWN, "rerun", "absent")
    assert document("retries") == {"activities": []}
    succeed("retries", "--part", "blocked")


def test_other_commands_do_not_create_a_database(directory: Path) -> None:
    assert "migrate" in refused(NO_DATABASE, "list")
    assert not (directory / "affinity.db").exists()


def test_migrate_reports_what_it_did(directory: Path) -> None:
    first = document("migrate")
    assert first["from"] == 0 < first["to"]
    assert document("migrate") == {"from": first["to"], "to": first["to"]}
    assert "had already" in succeed("migrate")


def test_migrate_shows_what_it_would_do(directory: Path) -> None:
    """And does nothing of it: there is not even a file."""
    before = document("migrate", "--dry-run")
    assert before["version"] == before["oldest_code"] == 0
    assert (len(before["pending"]), before["usable"]) == (before["known"], False)
    assert "0001_schema" in succeed("migrate", "--dry-run")
    assert list(directory.iterdir()) == []
    succeed("migrate")
    after = document("migrate", "--dry-run")
    assert (after["version"], after["pending"], after["behind"], after["usable"]) == (after["known"], [], [], True)
    assert 0 < after["oldest_code"] <= after["known"]


def test_migrate_reports_its_progress_on_stderr(directory: Path) -> None:
    """Its output is one document."""
    result = run("migrate", "--json")
    assert "migration: new schema" in result.stderr
    assert json.loads(result.stdout)["from"] == 0


@pytest.mark.usefixtures("database")
def test_start_is_idempotent_by_id() -> None:
    assert document("start", "brew", "--id", "t") == {"instance_id": "t", "outcome": "created"}
    assert document("start", "brew", "--id", "t") == {"instance_id": "t", "outcome": "running"}
    again = run("start", "brew", "--id", "t")
    assert (again.exit_code, again.stdout) == (0, "t\n")
    assert "already" in again.stderr
    assert "'brew'" in refused(REFUSED, "start", "rest", "--id", "t")


@pytest.mark.usefixtures("database")
def test_inputs_from_text_file_and_stdin(directory: Path) -> None:
    (directory / "tea.json").write_text('{"kind": "grün"}')
    succeed("start", "brew", "--id", "a", "--input", '{"kind": "green"}', "--version", "2.0.0")
    succeed("start", "brew", "--id", "b", "--input", "@tea.json")
    succeed("start", "brew", "--id", "c", "--input", "-", stdin="[1, 2]")
    assert document("show", "a")["version"] == "2.0.0"
    assert {i["instance_id"] for i in document("list")["instances"]} == {"a", "b", "c"}


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("bad", ["", "x" * (MAX_ID_BYTES + 1), "a\nb", "\x07"])
def test_bad_ids(bad: str) -> None:
    assert "instance id" in refused(MISUSED, "start", "brew", "--id", bad)
    assert "orchestration name" in refused(MISUSED, "start", bad)
    assert "event name" in refused(MISUSED, "raise", "t", bad)
    for command in (
        ["raise", bad, "pour"],
        ["wait", bad],
        ["show", bad],
        ["history", bad],
        ["cancel", bad],
        ["delete", "--yes", bad],
    ):
        assert "instance id" in refused(MISUSED, *command)


@pytest.mark.usefixtures("database")
def test_a_payload_over_the_limit(directory: Path) -> None:
    (directory / "large.json").write_text('"' + "x" * MAX_PAYLOAD_BYTES + '"')
    assert "limit" in refused(MISUSED, "start", "brew", "--input", "@large.json")
    succeed("start", "brew", "--id", "t")
    assert "limit" in refused(MISUSED, "raise", "t", "pour", "--data", "@large.json")


@pytest.mark.usefixtures("database")
def test_an_unknown_instance() -> None:
    for command in (
        ["raise", "t", "pour"],
        ["wait", "t"],
        ["show", "t"],
        ["history", "t"],
        ["cancel", "t"],
        ["delete", "t", "--yes"],
    ):
        assert "no instance has the id 't'" in refused(UNKNOWN, *command)


def test_a_finished_instance_takes_no_event(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    assert document("raise", "t", "pour", "--data", "1")["delivered"]
    play(lambda puppet: puppet.end("t"))
    assert "has ended" in refused(REFUSED, "raise", "t", "pour")
    assert "has ended" in refused(REFUSED, "cancel", "t")


def test_an_event_with_a_key_is_sent_once(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    for _ in range(2):
        assert document("raise", "t", "pour", "--key", "k")["delivered"]
    play(check_one_event)
    assert "idempotency key" in refused(MISUSED, "raise", "t", "pour", "--key", "")


async def check_one_event(puppet: Puppet) -> None:
    assert len((await puppet.take("t")).messages) == 2  # the start, and one event


def test_ask_prints_the_reply(play: Play) -> None:
    """Which may come later: with its key the command is repeated."""
    ask = ("ask", "t", "pour", "--data", '{"cups": 2}', "--key", "k")
    assert "no instance has the id 't'" in refused(UNKNOWN, *ask)
    started = (*ask, "--start", "brew", "--input", "1", "--timeout", "0.5")
    assert "has not replied" in refused(TIMED_OUT, *started)
    play(lambda puppet: puppet.reply("t", MessageReply("k", '{"tea":"green"}')))
    assert succeed(*ask) == '{"tea":"green"}\n'
    assert document(*started) == {"instance_id": "t", "event": "pour", "reply": {"tea": "green"}}
    assert "has not replied" in refused(TIMED_OUT, "ask", "t", "pour", "--key", "other", "--timeout", "0.5")
    play(lambda puppet: puppet.end("t"))
    assert "without a reply" in refused(FAILED, "ask", "t", "pour", "--key", "other")
    assert "has ended" in refused(REFUSED, "ask", "t", "pour")
    assert "--start" in refused(MISUSED, "ask", "t", "pour", "--input", "1")


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_prints_the_result(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.end("t", output='{"cups":2}'))
    assert succeed("wait", "t") == '{"cups":2}\n'
    assert document("wait", "t") == {"instance_id": "t", "status": "completed", "output": {"cups": 2}}
    assert succeed("start", "brew", "--id", "t", "--wait") == '{"cups":2}\n'
    assert document("start", "brew", "--id", "t", "--wait")["outcome"] == "ended"


def test_an_ended_instance_is_restarted_on_demand(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.end("t"))
    assert document("start", "brew", "--id", "t")["outcome"] == "ended"
    assert "has ended" in refused(REFUSED, "start", "brew", "--id", "t", "--if-ended", "fail")
    assert document("start", "brew", "--id", "t", "--if-ended", "restart")["outcome"] == "restarted"
    assert document("start", "brew", "--id", "t", "--if-ended", "restart")["outcome"] == "running"


def test_wait_reports_the_failure(play: Play) -> None:
    succeed("start", "brew", "--id", "f")
    play(lambda puppet: puppet.end_badly("f", "failed", '{"type":"ValueError","message":"no water"}'))
    assert "ValueError: no water" in refused(FAILED, "wait", "f")
    error = {"type": "ValueError", "message": "no water"}
    assert document("wait", "f", code=FAILED) == {"instance_id": "f", "status": "failed", "error": error}


def test_wait_and_show_print_category_bases_and_fields(play: Play) -> None:
    more = {"category": "lost", "bases": ["Base"], "fields": {"n": 1}}
    error = {"type": "ValueError", "message": "no tea", **more}
    succeed("start", "brew", "--id", "t")
    succeed("start", "brew", "--id", "u")
    play(lambda puppet: puppet.end_badly("t", "failed", json.dumps(error)))
    play(lambda puppet: puppet.end_badly("u", "failed", json.dumps(error | {"bases": 5})))
    assert json.loads(run("wait", "t", "--json").stdout)["error"] == error
    assert document("show", "t")["error_details"] == more
    assert document("show", "u")["error_details"] == {}


def test_show_prints_the_stack_of_an_error(play: Play) -> None:
    """On request; as JSON always. Recorded text is no code for the terminal."""
    stack = 'Traceback (most recent call last):\n  File "tea.py", line 3, in brew\nValueError: no \x1b[31mwater\n'
    error = {"type": "ValueError", "message": "no water"}
    for name, recorded in (("t", error | {"stack": stack}), ("u", error)):
        succeed("start", "brew", "--id", name)
        play(partial(Puppet.end_badly, instance_id=name, status="failed", error=json.dumps(recorded)))
    assert 'File "tea.py", line 3, in brew\nValueError: no \\x1b[31mwater' in succeed("show", "t", "--stack")
    assert "tea.py" not in succeed("show", "t")
    assert document("show", "t", "--stack")["error_stack"] == document("show", "t")["error_stack"] == stack
    assert "no stack is recorded" in succeed("show", "u", "--stack")
    assert document("show", "u")["error_stack"] == ""


def test_failures_are_shown_counted_and_searched(database: Path) -> None:
    """Attempts with their stacks, the groups of the last hour, and the failures of one."""
    attempt = ("t", 1, 2, 1, "activity", "boil", "ValueError", 1, "ValueError: no water", "in boil")
    whole = ("t", 1, 0, 0, "orchestration", "brew", "OSError", 0, "OSError: no tea", None)
    succeed("start", "brew", "--id", "t")
    with closing(sqlite3.connect(database)) as connection, connection:
        for each in (attempt, whole):
            connection.execute(
                "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type,"
                " is_retried, error, stack, failed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, unixepoch() - 60)",
                each,
            )
    assert "boil, attempt 1, 1 min ago: ValueError: no water" in succeed("show", "t")
    assert "attempt 1 of boil:\nin boil" in succeed("show", "t", "--stack")
    assert [each["stack"] for each in document("show", "t")["failed_attempts"]] == ["in boil"]
    groups = {each["name"]: (each["error_type"], each["count"]) for each in document("errors")["groups"]}
    assert groups == {"boil": ("ValueError", 1), "brew": ("OSError", 1)}
    assert "ValueError  boil  activity" in succeed("errors")
    assert "no water  affinity show --stack t\n" in succeed("errors")
    of = document("errors", "boil", "--type", "ValueError")["failures"]
    assert [(each["instance_id"], each["attempt"], each["is_retried"]) for each in of] == [("t", 1, True)]
    assert [each["name"] for each in document("errors", "--text", "NO TEA", "--day")["failures"]] == ["brew"]
    assert document("errors", "brew", "--kind", "orchestration", "--text", "water")["failures"] == []
    refused(MISUSED, "errors", "--type", "ValueError")


SUSPEND = (
    "INSERT INTO suspensions (instance_id, name, execution_id, event_count, error_type, message, worker_id, code,"
    " tried, needs_code, suspended_at) VALUES (?, 'brew', 1, 0, ?, 'no code', 'w', 'v1', '[]', 1, unixepoch() - 200000)"
)
FAIL = (
    "INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, error,"
    " failed_at) VALUES (?, 1, 0, 0, ?, 'brew', ?, 0, 'OSError: no tea', unixepoch() - 60)"
)


def test_suspended_instances_are_counted_and_listed(database: Path) -> None:
    """First, however long ago; with a page of their own for one class."""
    for name in ("s", "t", "u"):
        succeed("start", "brew", "--id", name)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE instances SET status = 'suspended' WHERE instance_id IN ('s', 't')")
        connection.execute(SUSPEND, ("s", "Nondeterminism"))
        connection.execute(SUSPEND, ("t", "UnknownOrchestration"))
        connection.execute(FAIL, ("u", "orchestration", "OSError"))
    groups = document("errors")["groups"]
    assert [(each["kind"], each["instance_id"]) for each in groups[-1:]] == [("orchestration", "u")]
    found = {(each["kind"], each["error_type"], each["count"], each["instance_id"]) for each in groups[:-1]}
    assert found == {("suspension", "Nondeterminism", 1, "s"), ("suspension", "UnknownOrchestration", 1, "t")}
    of = document("errors", "brew", "--kind", "suspension", "--type", "Nondeterminism")["failures"]
    assert [(each["instance_id"], each["error"]) for each in of] == [("s", "no code")]
    assert "suspended  no code" in succeed("errors", "brew", "--kind", "suspension")


@pytest.mark.parametrize("name", ["t-1", "o'neil's order; rm -rf $HOME", "-x", "a\u200bb's\\n", "größe", "~", 'q"`x`"'])
def test_each_next_command_of_errors_runs_as_it_is_printed(database: Path, name: str) -> None:
    """In a shell, for any id: that of a suspended instance, and that of one which has failed."""
    succeed("start", "--id", name, "--", "brew")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE instances SET status = 'suspended' WHERE instance_id = ?", [name])
        connection.execute(SUSPEND, (name, "Nondeterminism"))
        for kind in ("activity", "orchestration"):
            connection.execute(FAIL.replace("0, 0, ?", "?1 = '', ?2 = 'activity', ?2"), (name, kind, "OSError"))
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    printed = [line[line.index("affinity ") :] for line in succeed("errors").splitlines()[1:]]
    assert [" ".join(line.split()[1:2]) for line in printed] == ["why", "show", "show"]
    for line in printed:
        read = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True, env=env)
        command, *arguments = read.stdout.decode().split("\0")[:-1]
        assert command == "affinity"
        assert json.loads(run(arguments[0], "--json", *arguments[1:]).stdout)["instance_id"] == name


def test_wait_reports_the_cancellation(play: Play) -> None:
    succeed("start", "brew", "--id", "c")
    assert document("cancel", "c", "--reason", "closing time")["cancel_requested"]
    error = '{"type":"OrchestrationCancelled","message":"closing time"}'
    play(lambda puppet: puppet.end_badly("c", "cancelled", error))
    assert "closing time" in refused(FAILED, "wait", "c")
    assert document("wait", "c", code=FAILED)["status"] == "cancelled"


@pytest.mark.usefixtures("database")
def test_wait_times_out() -> None:
    succeed("start", "brew", "--id", "t")
    assert "has not ended" in refused(TIMED_OUT, "wait", "t", "--timeout", "0.01")
    assert "has not ended" in refused(TIMED_OUT, "start", "brew", "--wait", "--timeout", "0")
    assert "timeout" in refused(MISUSED, "wait", "t", "--timeout", "-1")


# --- looking ----------------------------------------------------------------------------------------------------------


def test_show_and_history(play: Play) -> None:
    succeed("start", "brew", "--id", "t", "--input", '"\x1b[31mred"'.replace("\x1b", "\\u001b"))
    play(lambda puppet: puppet.end("t", output="[1,null]"))
    text = succeed("show", "t")
    for shown in ("brew", "1.0.0", "completed", "[1,null]", "puppet"):
        assert shown in text
    instance = document("show", "t")
    assert (instance["status"], instance["output"], instance["event_count"]) == ("completed", [1, None], 2)
    text = succeed("history", "t")
    assert "orchestration_started" in text
    assert "orchestration_completed" in text
    assert "\x1b" not in text
    events = document("history", "t")["events"]
    assert [event["type"] for event in events] == ["orchestration_started", "orchestration_completed"]
    assert [event["worker_id"] for event in events] == ["puppet", "puppet"]
    assert events[0]["recorded_at"] > instance["created_at"]
    assert document("history", "t", "--execution", "9")["events"] == []


def test_show_reads_the_history_in_one_pass(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    succeed("start", "brew", "--id", "t")
    refusal = EventRefused(schedule_id=3, name="add", message="no sugar")
    play(lambda puppet: puppet.record("t", ActivityScheduled(name="boil", input=RawJson("null")), refusal))
    reads = []
    read = Client.history

    def count(self: Client, instance_id: str, **options: Any) -> Pages[HistoryRecord]:
        reads.append(instance_id)
        return read(self, instance_id, **options)

    monkeypatch.setattr(Client, "history", count)
    text = succeed("show", "t")
    assert "boil: has ended; its result waits to be recorded" in text
    assert "add: no sugar" in text
    assert reads == ["t"]


def test_list_filters_and_pages(play: Play) -> None:
    for name in ("tea-1", "tea-2", "tea-3"):
        succeed("start", "brew", "--id", name)
    succeed("start", "rest", "--id", "nap")
    play(lambda puppet: puppet.end("tea-2"))

    def listed(*options: str) -> set[str]:
        return {instance["instance_id"] for instance in document("list", *options)["instances"]}

    assert listed("--status", "completed") == {"tea-2"}
    assert listed("--status", "completed", "--status", "pending", "--name", "brew") == {"tea-1", "tea-2", "tea-3"}
    assert listed("--prefix", "tea-", "--all") == {"tea-1", "tea-2", "tea-3"}
    assert listed("--parent", "tea-1") == set()
    first = document("list", "--limit", "3")
    assert listed("--limit", "3", "--after", first["next"]) == {"tea-1"}
    assert "cursor" in refused(MISUSED, "list", "--after", "yesterday")

    table = run("list", "--limit", "3")
    assert table.exit_code == 0
    assert table.stdout.splitlines()[0].split()[:3] == ["INSTANCE", "ORCHESTRATION", "STATUS"]
    assert first["next"] in table.stderr
    nothing = run("list", "--prefix", "coffee")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no instances" in nothing.stderr


@pytest.mark.usefixtures("database")
def test_instances_of_a_session_are_listed() -> None:
    succeed("start", "brew", "--id", "t1", "--for-session", "chat-1")
    succeed("start", "brew", "--id", "t2")
    assert [each["instance_id"] for each in document("list", "--session", "chat-1")["instances"]] == ["t1"]
    assert document("show", "t1")["session_id"] == "chat-1"
    assert "chat-1" in succeed("list")
    assert "session id" in refused(MISUSED, "start", "brew", "--for-session", "")


def test_sessions_and_workers(play: Play) -> None:
    assert document("sessions") == []
    assert document("workers") == []
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.hold("t", "kettle [red]"))
    (session,) = document("sessions")
    assert (session["session_id"], session["worker_id"], session["held"]) == ("kettle [red]", "puppet", True)
    assert document("sessions", "--held", "--worker", "puppet") == [session] or session["epoch"] == 1
    assert document("sessions", "--worker", "other") == []
    (worker,) = document("workers")
    assert (worker["worker_id"], worker["alive"], worker["sessions"]) == ("puppet", True, 1)
    assert "kettle [red]" in succeed("sessions")
    assert "host=here" in succeed("workers")


def test_delete(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    assert "force" in refused(REFUSED, "delete", "t", "--yes")
    assert document("delete", "t", "--force", "--yes") == {"instance_id": "t", "deleted": True}
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.end("t"))
    assert "give --yes" in refused(MISUSED, "delete", "t")
    assert succeed("delete", "t", "--yes") == ""
    refused(UNKNOWN, "show", "t")


async def _suspend_three(puppet: Puppet) -> None:
    await puppet.suspend("a")
    await puppet.suspend("b")
    await puppet.suspend("p", "OrchestrationPoisoned")


@pytest.mark.usefixtures("database")
def test_suspended_instances_are_shown_and_resumed(play: Play) -> None:
    for name in ("a", "b", "p", "t"):
        succeed("start", "brew", "--id", name)
    play(_suspend_three)
    assert "Nondeterminism: history has tea" in succeed("show", "a")
    assert document("show", "a")["suspension"]["code"] == "v1"
    assert len(document("list", "--status", "suspended")["instances"]) == 3
    assert document("resume", "a") == {"instances": {"a": "resumed"}}
    assert document("resume", "a", "missing", code=UNKNOWN)["instances"] == {"a": "not_suspended", "missing": "unknown"}
    assert document("resume", "--all", "--reason", "Nondeterminism") == {"instances": {"b": "resumed"}}
    assert document("resume", "--all") == {"instances": {"p": "resumed"}}
    assert document("resume", "--all") == {"instances": {}}
    assert document("show", "p")["status"] == "pending"


async def _refuse(puppet: Puppet) -> None:
    await puppet.record("t", EventRefused(schedule_id=2, name="pour", message="must be int"))


@pytest.mark.usefixtures("database")
def test_events_that_were_refused_are_shown(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(_refuse)
    assert "pour: must be int" in succeed("show", "t")
    (refused_event,) = document("show", "t")["refused_events"]
    assert (refused_event["event_id"], refused_event["fields"]["name"]) == (2, "pour")


@pytest.mark.parametrize("arguments", [[], ["a", "--all"], ["a", "--reason", "Nondeterminism"]])
def test_resume_takes_ids_or_all(arguments: list[str]) -> None:
    assert "--all" in refused(MISUSED, "resume", *arguments)


@pytest.mark.usefixtures("database")
def test_a_failed_instance_is_reset(play: Play) -> None:
    succeed("start", "brew", "--id", "t")
    play(lambda puppet: puppet.end_badly("t", "failed", '{"type":"ValueError","message":"no water"}'))
    assert document("reset", "t", "--to-event", "1") == {"instance_id": "t", "execution_id": 2}
    shown = document("show", "t")
    assert (shown["status"], shown["execution_id"], shown["error"]) == ("running", 2, None)
    assert len(document("history", "t", "--execution", "1")["events"]) == 1
    assert "events 1 to" in refused(MISUSED, "reset", "t", "--to-event", "9")
    assert "--to-event" in refused(MISUSED, "reset", "t")


# --- what an instance is made of, and how much there is ---------------------------------------------------------------


def test_show_names_an_activity_in_back_off(play: Play) -> None:
    succeed("start", "brew", "--id", "t")

    async def fail(puppet: Puppet) -> None:
        await puppet.hold("t", "s")
        options = FetchOptions(limit=10, max_sessions=10, names=["act"], unknown_after=300, timeouts=TIMEOUTS)
        assert await puppet.provider.release_unknown_locks(puppet.identity, []) == 1
        (item,) = (await puppet.provider.fetch_work_item(puppet.identity, options)).items
        again = WorkAbandon(lock=item.lock, failed=True, delay=600, error="ValueError: \x1b[31mred")
        await puppet.provider.abandon_work_item(puppet.identity, [again])

    play(fail)
    text = succeed("show", "t")
    assert "activity 2" in text
    assert "act: attempt 2 in 10 min, " in text
    assert "after ValueError: " in text
    assert "\x1b" not in text
    (activity,) = document("show", "t")["activities"]
    assert (activity["status"], activity["attempt"], activity["session_id"]) == ("queued", 2, "s")
    assert activity["next_attempt_at"] > activity["scheduled_at"]


def test_executions_tree_and_stats(play: Play) -> None:
    for name in ("t", "u"):
        succeed("start", "brew", "--id", name)
    play(lambda puppet: puppet.end("t"))
    (execution,) = document("executions", "t")["executions"]
    assert (execution["execution_id"], execution["status"], execution["event_count"]) == (1, "completed", 2)
    assert execution["ended_at"] > execution["started_at"]
    assert "completed" in succeed("executions", "t")
    assert document("executions", "t", "--before", "1")["executions"] == []
    tree = document("tree", "t")
    assert ([node["instance_id"] for node in tree["nodes"]], tree["truncated"]) == (["t"], False)
    assert "brew@1.0.0" in succeed("tree", "t")
    counts = document("stats")
    assert (counts["instances"]["completed"], counts["instances"]["pending"]) == (1, 1)
    assert (counts["messages"]["waiting"], counts["oldest_work_item"]) == (1, None)
    assert counts["oldest_message"] >= 0
    assert "oldest waiting message" in succeed("stats", "--limit", "1")
    for command in ("executions", "tree"):
        assert "no instance has the id" in refused(UNKNOWN, command, "unknown")


SERVED: Final = App("served")


@SERVED.orchestration
async def review(ctx: OrchestrationContext, number: int) -> None:
    await ctx.schedule_wait("answer", int)


NOT_SERVED = ["no live worker registers", "did you mean 'review'?"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["start", "reviw"], UNSERVED, NOT_SERVED),
        (["start", "review", "--version", "9", "--input", "1"], UNSERVED, ["'review@9': they have '1.0.0'"]),
        (["start", "review", "--input", '"x"'], MISUSED, ["input of orchestration 'review': 'x'", "--force"]),
        (["start", "review", "--input", "1"], 0, []),
        (["raise", "i", "answer", "--data", '"x"'], MISUSED, ["data of event 'answer'", "'x'", "--force"]),
        (["raise", "i", "answer", "--data", "5"], 0, []),
        (["raise", "i", "answr", "--data", "5"], UNSERVED, ["waits for no event 'answr': did you mean 'answer'?"]),
        (["ask", "i", "answer", "--data", '"x"'], MISUSED, ["data of event 'answer'", "'x'", "--force"]),
        (["ask", "j", "answer", "--data", "1", "--start", "reviw"], UNSERVED, NOT_SERVED),
        (["schedules", "create", "s", "reviw", "--every", "60"], UNSERVED, NOT_SERVED),
        (["schedules", "create", "s", "review", "--every", "60"], MISUSED, ["input of orchestration 'review'"]),
        (["schedules", "create", "s", "review", "--every", "60", "--input", "1"], 0, []),
        (["conversation", "send", "c", "hi", "--kind", "reviw"], 0, []),
    ],
)
def test_what_no_live_worker_has_code_for_or_takes_needs_force(
    play: Play, arguments: list[str], code: int, says: list[str]
) -> None:
    """The worker has no conversations, so any kind of them may be of a worker that is not there yet."""

    async def serve(puppet: Puppet) -> None:
        about = profile(registered=SERVED.registered(), interfaces=SERVED.interfaces())
        await puppet.provider.register_worker(puppet.identity, 300, {}, profile=about)
        async with Client.from_provider(puppet.provider) as client:
            await client.start(review, 1, instance_id="i")

    play(serve)
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert all(each in result.stderr for each in says), result.stderr
    if code:
        timeout = ["--timeout", "0.1"] if arguments[0] == "ask" else []
        assert run(*arguments, *timeout, "--force").exit_code == (TIMED_OUT if timeout else 0)


def test_workers_with_other_code_for_a_name_are_marked(play: Play) -> None:
    """In the table and in the document; two releases of one app are not."""
    codes = {"a": "place.one", "b": "place.two", "c": "elsewhere.one"}

    async def serve(puppet: Puppet, *names: str) -> None:
        for name in names:
            identity = WorkerIdentity(worker_id=name, incarnation=Incarnation(name))
            about = profile(registered={"activities": {"reply": codes[name]}})
            await puppet.provider.register_worker(identity, 300, {"app": "shop"}, profile=about)

    play(lambda puppet: serve(puppet, "a", "b"))
    assert " *" not in succeed("workers")
    assert [each["other_code"] for each in document("workers")] == [[]] * 3
    play(lambda puppet: serve(puppet, "c"))
    shown = succeed("workers")
    assert "* other code for activity 'reply': a, b, c" in shown
    assert {line.split()[0] for line in shown.splitlines() if "alive *" in line} == {"a", "b", "c"}
    found = {each["worker_id"]: each["other_code"] for each in document("workers")}
    assert found == {"puppet": [], **{name: ["activity 'reply'"] for name in "abc"}}
