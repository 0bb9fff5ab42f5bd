"""``affinity history --export`` and ``affinity replay``."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import anyio
import psycopg
import pytest

from affinity import App, Client, Worker, migrate
from affinity.cli.help import FAILED, INTERRUPTED, MISUSED, NO_DATABASE, UNKNOWN
from affinity.errors import AffinityError
from affinity.provider import change_rights
from tests.cli.conftest import document, launch, refused, run, succeed
from tests.provider.roles import CLIENT, CREATE, as_role
from tests.servers.lost_tail import Pair
from tests.servers.programs import LocalServer, programs
from tests.support.changed_code_app import changed, line_of, milk, record, record_mixed
from tests.support.waiting import until
from tests.support.worker_processes import PATIENCE

APPS = "tests.support.changed_code_app:"


@pytest.fixture
def url(any_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database that the commands use."""
    monkeypatch.setenv("AFFINITY_URL", any_url)
    return any_url


def test_histories_of_a_database(url: str) -> None:
    """Histories of running instances, unless others are asked for."""
    anyio.run(record, url, "a", "b")
    anyio.run(partial(record, url, "c", ended=True))
    found = document("replay", f"{APPS}recorded")
    assert found.pop("seconds") >= 0
    assert found == {"histories": 2, "matched": 2, "events": 12, "findings": [], "known": []}
    assert document("replay", f"{APPS}reworded", "--status", "completed", "--since", "1h")["events"] == 10
    assert document("replay", f"{APPS}recorded", "--status", "running", "--sample", "1")["histories"] == 1
    assert document("replay", f"{APPS}recorded", "--sample", "none", "--name", "visit", "--name", "nap")["matched"] == 2
    for nothing in (["--name", "nap"], ["--status", "failed"], ["--since", "0.000001s"]):
        result = run("replay", f"{APPS}recorded", *nothing)
        assert (result.exit_code, "no history was selected" in result.stderr) == (UNKNOWN, True)


def test_conversations_and_earlier_executions(url: str) -> None:
    """Which no worker replays any more, so that they are replayed on demand."""
    anyio.run(record_mixed, url)
    assert document("replay", f"{APPS}mixed")["matched"] == 2
    assert document("replay", f"{APPS}mixed", "--earlier")["matched"] == 4
    assert document("replay", f"{APPS}mixed", "--name", "support.conversation")["matched"] == 1
    assert document("replay", f"{APPS}milk", "--name", "drink", code=FAILED)["histories"] == 1
    findings = document("replay", f"{APPS}milk", "--name", "drink", "--earlier", code=FAILED)["findings"]
    assert sorted(each["execution_id"] for each in findings) == [1, 2, 3]


def test_what_does_not_match(url: str, directory: Path) -> None:
    """With the number of the event, both sides, and the line of the code; for people, for scripts and for CI."""
    anyio.run(record, url, "a")
    found = document("replay", f"{APPS}changed", "--junit", "replay.xml", code=FAILED)
    (finding,) = found["findings"]
    source = finding.pop("source")
    assert source.endswith(f"changed_code_app.py:{line_of('greets')}, in visit")
    assert "nondeterministic" in finding.pop("message")
    assert finding == {
        "instance_id": "a",
        "orchestration": "visit",
        "execution_id": 1,
        "file": None,
        "error": "Nondeterminism",
        "event_id": 2,
        "history": "ActivityScheduled('greet', session_id='ann')",
        "code": "ActivityScheduled('greet', session_id='bob')",
    }
    suite = results(directory)
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "1",
        "failures": "1",
        "skipped": "0",
    }
    (failure,) = suite.iterfind("testcase/failure")
    assert source in (failure.text or "")
    result = run("replay", f"{APPS}changed")
    assert result.exit_code == FAILED
    assert result.stdout.splitlines()[:5] == [
        "a (visit), execution 1, event 2",
        "  history  ActivityScheduled('greet', session_id='ann')",
        "  code     ActivityScheduled('greet', session_id='bob')",
        f"  at       {source}",
        "",
    ]


def results(directory: Path) -> ElementTree.Element:
    return ElementTree.parse(directory / "replay.xml").getroot()  # noqa: S314 -- it is ours


def test_an_orchestration_that_the_app_does_not_register(url: str) -> None:
    anyio.run(record, url, "a")
    (finding,) = document("replay", f"{APPS}unrelated", code=FAILED)["findings"]
    assert (finding["error"], finding["event_id"]) == ("UnknownOrchestration", None)
    assert "'visit@1.0.0'" in finding["message"]


def test_an_instance_that_is_suspended_for_it_already(url: str, directory: Path) -> None:
    """That is no finding; and neither is one that the code goes on with now."""
    anyio.run(record, url, "a", "b")
    anyio.run(suspend, url, "a")
    found = document("replay", f"{APPS}changed", "--junit", "replay.xml", code=FAILED)
    assert [each["instance_id"] for each in found["known"]] == ["a"]
    assert [each["instance_id"] for each in found["findings"]] == ["b"]
    assert results(directory).get("skipped") == "1"
    result = run("replay", f"{APPS}changed", "--status", "suspended")
    assert (result.exit_code, "suspended for this already" in result.stdout) == (0, True)
    assert document("replay", f"{APPS}recorded")["matched"] == 2
    succeed("history", "a", "--export", "a.json")
    assert document("replay", f"{APPS}changed", "a.json")["known"][0]["file"] == "a.json"


def test_a_repair_that_is_wrong_in_another_way_is_not_known(url: str) -> None:
    anyio.run(record, url, "a")
    anyio.run(suspend, url, "a")
    succeed("history", "a", "--export", "a.json")
    for source in (["--status", "suspended"], ["a.json"]):
        found = document("replay", f"{APPS}repaired_wrongly", *source, code=FAILED)
        assert ([each["code"] for each in found["findings"]], found["known"]) == (["TimerCreated(0.01 s)"], [])


def test_a_suspension_is_of_the_current_execution(url: str) -> None:
    """An earlier one that is exported alone does not match for a reason that is not known."""
    anyio.run(record_mixed, url)
    anyio.run(partial(suspend, url, "d", milk, "tea", 1))
    succeed("history", "d", "--export", "all.json")
    found = document("replay", f"{APPS}milk", "all.json", code=FAILED)
    assert [[each["execution_id"] for each in found[kind]] for kind in ("known", "findings")] == [[3], [2, 1]]
    succeed("history", "d", "--execution", "2", "--export", "second.json")
    assert document("replay", f"{APPS}milk", "second.json", code=FAILED)["known"] == []


async def suspend(
    url: str, instance_id: str, app: App = changed, event: str = "said", payload: str | int = "bye"
) -> None:
    """By a worker with code that has changed."""
    async with Worker(app, url), Client(url) as client:
        await client.raise_event(instance_id, event, payload)

        async def is_suspended() -> bool:
            return (await client.status(instance_id)).status == "suspended"

        await until(is_suspended)


def test_a_history_as_a_file(url: str, directory: Path) -> None:
    """With payloads, which is said, and for its owner alone, whatever was there before."""
    anyio.run(partial(record, url, "a", ended=True))
    (directory / "a.json").touch(0o644)
    (directory / "a.json.part").touch(0o666)
    said = run("history", "a", "--export", "a.json")
    assert (said.exit_code, said.stdout) == (0, "")
    assert "holds the payloads" in said.stderr
    assert "0600" in said.stderr
    assert stat.S_IMODE((directory / "a.json").stat().st_mode) == 0o600
    history = json.loads((directory / "a.json").read_text())
    assert (history["format"], history["format_version"]) == ("affinity.history", 1)
    assert history["executions"][0]["events"][0]["input"] == "ann"
    assert json.loads(succeed("history", "a", "--export", "-")) == history
    assert document("history", "a", "--export", "b.json")["holds_payloads"] is True
    both = document("replay", f"{APPS}recorded", "a.json", "b.json")
    assert (both["matched"], both["events"]) == (2, 20)
    found = document("replay", f"{APPS}changed", "a.json", "b.json", code=FAILED)["findings"]
    assert [each["file"] for each in found] == ["a.json", "b.json"]


def test_misuse(directory: Path) -> None:
    (directory / "a.json").write_text("[]")
    assert "not a history" in refused(MISUSED, "replay", f"{APPS}recorded", "a.json")
    assert "FILEs, or a database" in refused(MISUSED, "replay", f"{APPS}recorded", "a.json", "--since", "1h")
    assert "FILEs, or a database" in refused(MISUSED, "replay", f"{APPS}recorded", "a.json", "--url", "sqlite:///a.db")
    assert "FILEs, or a database" in refused(MISUSED, "--url", "sqlite:///a.db", "replay", f"{APPS}recorded", "a.json")
    assert "duration" in refused(MISUSED, "replay", f"{APPS}recorded", "--since", "1")
    assert "no module" in refused(MISUSED, "replay", "nowhere:app")
    assert "JSON document" in refused(MISUSED, "history", "a", "--export", "-", "--json")
    assert "--junit needs a file" in refused(MISUSED, "replay", f"{APPS}recorded", "--junit", "-")
    assert not (directory / "affinity.db").exists()
    assert "migrate" in refused(NO_DATABASE, "replay", f"{APPS}recorded")
    assert not (directory / "affinity.db").exists()


@pytest.mark.usefixtures("database")
def test_an_export_that_fails_leaves_no_file(directory: Path) -> None:
    succeed("start", "visit", "--id", "a")
    assert "no events" in refused(MISUSED, "history", "a", "--export", "a.json")
    assert "no instance" in refused(UNKNOWN, "history", "b", "--export", "a.json")
    assert [path.name for path in directory.iterdir() if "json" in path.name] == []
    assert "no history was selected" in run("replay", f"{APPS}recorded").stderr


def test_the_database_is_only_read(postgres_migrated: str) -> None:
    """By a client's role, whose transactions are read-only; a worker that is at work does not notice."""
    anyio.run(record, postgres_migrated, "a")
    with psycopg.connect(postgres_migrated, autocommit=True) as connection:
        connection.execute(CREATE)
    anyio.run(partial(change_rights, postgres_migrated, clients=[CLIENT]))
    url = as_role(postgres_migrated, CLIENT) + "&options=-c%20default_transaction_read_only%3Don"
    before = dump(postgres_migrated)
    assert document("replay", f"{APPS}recorded", "--url", url)["matched"] == 1
    assert dump(postgres_migrated) == before


async def has_events(url: str, count: int) -> bool:
    try:
        async with Client(url) as client:
            return len(await client.history("a")) == count
    except AffinityError:  # the standby has not even the schema yet
        return False


@pytest.mark.slow
def test_a_standby_is_read() -> None:
    newest = max(programs(), key=lambda offer: offer.major)
    with newest.open() as primary:
        assert isinstance(primary, LocalServer)
        with primary.standby() as standby:
            pair = Pair(primary, standby)
            anyio.run(migrate, pair.url)
            anyio.run(record, pair.url, "a")
            url = standby.url(pair.database)
            anyio.run(until, partial(has_events, url, 6))
            assert document("replay", f"{APPS}recorded", "--url", url)["matched"] == 1
            assert pair.run(standby, "SELECT pg_is_in_recovery()") == [(True,)]


def dump(url: str) -> Any:
    """The rows that a worker, a lock or a turn would change."""
    with psycopg.connect(url, options="-c search_path=affinity") as connection:
        return [
            connection.execute(f"SELECT t::text FROM {table} t ORDER BY 1").fetchall()
            for table in ("instances", "workers", "orchestrator_queue", "worker_queue", "history", "sessions", "sweeps")
        ]


def test_ctrl_c_ends_a_replay_with_130(sqlite_url: str) -> None:
    """Cleanly, and it says how far it came."""
    anyio.run(record, sqlite_url, *(f"v-{n}" for n in range(5)))
    with launch(
        "replay", f"{APPS}slow", "--url", sqlite_url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (INTERRUPTED, "")
    assert stderr.endswith("before it ended; nothing was changed\ninterrupted\n")
