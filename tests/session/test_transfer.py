"""Records that are exported and imported: in the memory of the test, in an SQLite file, in PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from affinity.errors import (
    InvalidInput,
    SessionNotFound,
    SessionWriteConflict,
)
from affinity.limits import MAX_LABELS
from affinity.records import RecordTimes, SessionState
from affinity.session import MemorySessionStore, SessionManager, readable
from tests.session.clocked import ClockedStore, in_memory


async def test_what_is_exported_is_imported_as_it_was(stage: ClockedStore) -> None:
    await stage.put("json", b'{"a":[1,2.5,null,"\xc3\xbc"]}', schema_version=4, kind="chat", name="N", parent="binary")
    await stage.put("binary", b"\x00\xff", labels={"k": "v"}, message_count=3, participants=("a", "b"))
    await stage.put("large", b'["' + b"x" * 100_000 + b'"]')
    target = in_memory()
    done = await target.manager.import_(stage.manager.export())
    assert (done.added, done.replaced, done.skipped) == (3, 0, 0)
    for session_id in await stage.ids():
        was, came = await stage.store.load(session_id), await target.store.load(session_id)
        assert was is not None
        assert came is not None
        assert came.birth != was.birth
        assert (
            replace(
                came,
                birth=was.birth,
                created_at=was.created_at,
                updated_at=was.updated_at,
                metadata=was.metadata,
            )
            == was
        )
        assert replace(came.metadata, participants=tuple(came.metadata.participants)) == replace(
            was.metadata, participants=tuple(was.metadata.participants)
        )


async def test_a_line_is_complete_in_itself(stage: ClockedStore) -> None:
    await stage.put("s", b'{"text":"a\\nb"}', schema_version=2, kind="chat", labels={"k": "v"})
    (line,) = await stage.lines("s")
    assert "\n" not in line
    document = json.loads(line)
    assert document | {"created_at": 0, "updated_at": 0} == {
        "session_id": "s",
        "kind": "chat",
        "name": None,
        "parent": None,
        "labels": {"k": "v"},
        "message_count": None,
        "participants": [],
        "schema_version": 2,
        "version": 1,
        "epoch": None,
        "created_at": 0,
        "updated_at": 0,
        "state": {"text": "a\nb"},
    }
    assert datetime.fromisoformat(document["updated_at"]).tzinfo is not None


@pytest.mark.parametrize(
    "state",
    [
        b'{"a": 1, "b": "\\u00fc"}',
        b'{"a":1,"a":2}',
        b"[1.10]",
        b"[1e400]",
        b"[NaN]",
        b"1,2",
        b"1],[2",
        b"",
        b"null",
        b"123456789012345678901234567890",
        b'["\\ud800"]',
        b"\xef\xbb\xbf{}",
        b"[" * 199 + b"]" * 199,
        b"[" * 5_000 + b"]" * 5_000,
    ],
)
async def test_no_state_loses_anything_on_its_way(state: bytes) -> None:
    source, target = in_memory(), in_memory()
    await source.put("s", state)
    await target.manager.import_(source.manager.export())
    (record,) = [await target.store.load("s")]
    assert record is not None
    if "state" in readable(record):
        assert json.loads(record.state, object_pairs_hook=list) == json.loads(state, object_pairs_hook=list)
    else:
        assert record.state == state


async def test_an_export_misses_nothing_that_is_written_meanwhile(
    stage: ClockedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing is by the time of the last write, so a write moves a record to where the export has been."""
    monkeypatch.setattr("affinity.session.manager.MAX_PAGE", 2)
    for number in range(5):
        await stage.put(f"s{number}")
    exported = list[str]()
    async for line in stage.manager.export():
        exported.append(json.loads(line)["session_id"])
        if len(exported) == 1:
            await stage.put("s0", b'"written meanwhile"')
            await stage.manager.delete("s1")
    assert exported == ["s4", "s3", "s2", "s0"]


async def test_export_of_what_is_not_there(stage: ClockedStore) -> None:
    await stage.put("s1")
    given = list[str]()
    with pytest.raises(SessionNotFound, match="'t'"):
        given += [line async for line in stage.manager.export(["s1", "t"])]
    assert given == []


async def test_an_import_that_is_refused_reports_its_progress_and_continues_with_skip(stage: ClockedStore) -> None:
    for session_id in ("a", "b", "c"):
        await stage.put(session_id, b'"new"')
    lines = await stage.lines("a", "b", "c")
    await stage.manager.delete("a")
    await stage.manager.delete("c")
    await stage.put("b", b'"old"')
    with pytest.raises(
        SessionWriteConflict, match=r"'b': line 3: .*written before it: 1\).*skip or replace"
    ) as refusal:
        await stage.manager.import_([lines[0], "\n", *lines[1:]])
    assert (refusal.value.session_id, refusal.value.expected_version) == ("b", 0)
    assert sorted(await stage.ids()) == ["a", "b"]
    done = await stage.manager.import_(lines, on_exists="skip")
    assert (done.added, done.replaced, done.skipped) == (1, 0, 2)
    assert (await stage.manager.show("b")).state == b'"old"'
    done = await stage.manager.import_([line.encode() for line in lines], on_exists="replace")
    assert (done.added, done.replaced, done.skipped) == (0, 3, 0)
    assert (await stage.manager.show("b")).state == b'"new"'
    with pytest.raises(InvalidInput, match="on_exists"):
        await stage.manager.import_(lines, on_exists="ask")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 holds no record"),
        ("[]", "line 2: "),
        ('{"state": 1}', "line 2: session_id: Field required"),
        ('{"session_id": "", "state": 1}', "line 2: session_id: .*empty"),
        ('{"session_id": "s"}', "line 2: .*either state or state_base64"),
        ('{"session_id": "s", "state": 1, "state_base64": "AA=="}', "either state or state_base64"),
        ('{"session_id": "s", "state_base64": "*"}', "line 2 holds no record"),
        ('{"session_id": "s", "state_base64": null}', "line 2: state_base64"),
        ('"\udcff"', "line 2 holds no record"),
        ('{"session_id": "s", "state": NaN}', "line 2 holds no record"),
        ('{"session_id": "s", "state": 1e400}', "line 2 holds no record"),
        ('{"session_id": "s", "state": 1, "state_encoding": "x"}', "line 2: state_encoding: Extra"),
        ('{"session_id": "s", "state": 1, "schema_version": "2"}', "line 2: schema_version"),
        ('{"session_id": "s", "state": 1, "schema_version": 99999999999}', "line 2: schema_version"),
        ('{"session_id": "s", "state": 1, "kind": "a\\u0000"}', "line 2: kind: .*U\\+0000"),
        ('{"session_id": "s", "state": 1, "name": "%s"}' % ("x" * 257), "line 2: name: .*256 bytes"),
        ('{"session_id": "s", "state": 1, "parent": ""}', "line 2: parent"),
        (
            json.dumps({"session_id": "s", "state": 1, "labels": dict.fromkeys(map(str, range(MAX_LABELS + 1)), "")}),
            "labels",
        ),
        ('{"session_id": 1, "kind": 1, "name": 1, "parent": 1, "state": 1}', "and 1 more"),
    ],
)
async def test_a_line_that_is_no_record_is_named(line: str, problem: str) -> None:
    stage = in_memory()
    with pytest.raises(InvalidInput, match=f"{problem}.*written before it: 1"):
        await stage.manager.import_(['{"session_id": "first", "state": {}}', line])
    assert await stage.ids() == ["first"]


async def test_an_import_keeps_what_is_newest() -> None:
    """Export lists the newest first; retention by number goes by the times."""
    store = MemorySessionStore()
    now = datetime.now(UTC)
    for days in (1, 2, 400, 500):
        when = now - timedelta(days=days)
        times = RecordTimes(created_at=when, updated_at=when)
        await store.save(SessionState(session_id=f"ago-{days}", state=b"1"), times=times)
    lines = [line async for line in SessionManager(store).export()]
    choices: list[tuple[Literal["kept", "now"], list[str], int]] = [
        ("kept", ["ago-400", "ago-500"], 2),
        ("now", ["ago-1", "ago-2"], 0),
    ]
    for choice, removed, old in choices:
        other = SessionManager(MemorySessionStore())
        done = await other.import_(lines, times=choice)
        assert (done.added, done.old) == (4, old)
        assert sorted((await other.prune(keep=2, dry_run=True)).removed) == removed
    with pytest.raises(InvalidInput, match="times = 'later': must be one of kept, now"):
        await SessionManager(store).import_(lines, times="later")  # type: ignore[arg-type]
