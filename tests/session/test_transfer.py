"""Records that are exported and imported: in the memory of the test, in an SQLite file, in PostgreSQL."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from pydantic import BaseModel, Field

from affinity import MemorySessionStore, SessionManager, Sessions
from affinity.errors import (
    InvalidInput,
    SessionLoadFailed,
    SessionNotFound,
    SessionRecordRefused,
    SessionWriteConflict,
)
from affinity.limits import MAX_LABELS
from affinity.session import RecordTimes, SessionState, readable
from affinity.session.transfer import ImportTimes, Lines
from tests.session.clocked import ClockedStore, in_memory

RECORD = {"session_id": "s", "schema_version": 1, "state": 1}


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
        assert came.generation != was.generation
        assert (
            replace(
                came,
                generation=was.generation,
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
        SessionWriteConflict, match=r"'b': line 3: .*written before it: 1\).*skip the line or replace the record"
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
        ('{"schema_version": 1, "state": 1}', "line 2: session_id: Field required"),
        ('{"schema_version": 1, "session_id": "", "state": 1}', "line 2: session_id: .*empty"),
        ('{"schema_version": 1, "session_id": "s"}', "line 2: .*either state or state_base64"),
        (
            '{"schema_version": 1, "session_id": "s", "state": 1, "state_base64": "AA=="}',
            "either state or state_base64",
        ),
        ('{"schema_version": 1, "session_id": "s", "state_base64": "*"}', "line 2 holds no record"),
        ('{"schema_version": 1, "session_id": "s", "state_base64": null}', "line 2: state_base64"),
        ('"\udcff"', "line 2 holds no record"),
        ('{"schema_version": 1, "session_id": "s", "state": NaN}', "line 2 holds no record"),
        ('{"schema_version": 1, "session_id": "s", "state": 1e400}', "line 2 holds no record"),
        (
            '{"schema_version": 1, "session_id": "s", "state": 1, "state_encoding": "x"}',
            "line 2: state_encoding: Extra",
        ),
        ('{"session_id": "s", "state": 1}', "line 2: schema_version: Field required"),
        ('{"session_id": "s", "state": 1, "schema_version": "2"}', "line 2: schema_version"),
        ('{"session_id": "s", "state": 1, "schema_version": 99999999999}', "line 2: schema_version"),
        ('{"schema_version": 1, "session_id": "s", "state": 1, "kind": "a\\u0000"}', "line 2: kind: .*U\\+0000"),
        (
            '{"schema_version": 1, "session_id": "s", "state": 1, "name": "%s"}' % ("x" * 257),
            "line 2: name: .*256 bytes",
        ),
        ('{"schema_version": 1, "session_id": "s", "state": 1, "parent": ""}', "line 2: parent"),
        (json.dumps(RECORD | {"updated_at": "0001-01-01T00:00:00+14:00"}), "line 2: updated_at"),
        (
            json.dumps(RECORD | {"labels": dict.fromkeys(map(str, range(MAX_LABELS + 1)), "")}),
            "labels",
        ),
        ('{"schema_version": 1, "session_id": 1, "kind": 1, "name": 1, "parent": 1, "state": 1}', "and 1 more"),
    ],
)
async def test_a_line_that_is_no_record_is_named(line: str, problem: str) -> None:
    stage = in_memory()
    with pytest.raises(InvalidInput, match=f"{problem}.*written before it: 1"):
        await stage.manager.import_([json.dumps(RECORD | {"session_id": "first"}), line])
    assert await stage.ids() == ["first"]


async def ended_ago(*days: int) -> list[str]:
    """The export of records that were last written so many days ago."""
    store, now = MemorySessionStore(), datetime.now(UTC)
    for each in days:
        when = now - timedelta(days=each)
        times = RecordTimes(created_at=when, updated_at=when)
        await store.save(SessionState(session_id=f"ago-{each}", state=b"1"), times=times)
    return [line async for line in SessionManager(store).export()]


async def kept_after(lines: Lines, *, keep: int, times: ImportTimes) -> list[str]:
    """The sessions that an import, and retention by number behind it, leave."""
    other = SessionManager(MemorySessionStore())
    await other.import_(lines, times=times)
    await other.prune(keep=keep)
    return await ids_of(other)


async def ids_of(manager: SessionManager) -> list[str]:
    """Of all sessions, the newest first."""
    return [each.session_id async for each in manager.list()]


@pytest.mark.parametrize("times", get_args(ImportTimes))
@pytest.mark.parametrize("order", [[2, 400, 1, 500], [1, 2, 400, 500], [500, 400, 2, 1]])
async def test_what_was_newest_stays_newest(order: list[int], times: ImportTimes) -> None:
    """Whatever the order of the lines: an export lists the newest first, or the sessions in the order of their ids."""
    lines = {json.loads(line)["session_id"]: line for line in await ended_ago(1, 2, 400, 500)}
    given = [lines[f"ago-{days}"] for days in order]
    assert await kept_after(given, keep=2, times=times) == ["ago-1", "ago-2"]
    assert await kept_after(given, keep=3, times=times) == ["ago-1", "ago-2", "ago-400"]


async def test_an_import_with_new_times_that_was_interrupted_goes_on_in_the_same_order() -> None:
    lines = await ended_ago(1, 2, 3, 4)
    other, left = SessionManager(MemorySessionStore()), 2

    def interrupt(done: int) -> None:
        if done == left:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        await other.import_(lines, times="now", progress=interrupt)
    assert len(await ids_of(other)) == left
    await other.import_(lines, times="now", on_exists="skip")
    assert await ids_of(other) == ["ago-1", "ago-2", "ago-3", "ago-4"]


async def test_records_without_times_are_the_newest_in_the_order_of_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the lines are more than memory has room for."""
    monkeypatch.setattr("affinity.session.transfer.IN_MEMORY", 1)
    lines = [json.dumps(RECORD | {"session_id": name, "state": "\n"}, indent=1) for name in ("a", "b", "c")]
    assert await kept_after([*lines, *await ended_ago(1)], keep=3, times="now") == ["c", "b", "a"]


async def test_an_import_says_how_many_are_old() -> None:
    lines = await ended_ago(1, 2, 400, 500)
    choices: list[tuple[ImportTimes, int]] = [("kept", 2), ("now", 0)]
    for choice, old in choices:
        done = await SessionManager(MemorySessionStore()).import_(lines, times=choice)
        assert (done.added, done.old) == (4, old)
    with pytest.raises(InvalidInput, match="times = 'later': must be one of kept, now"):
        await SessionManager(MemorySessionStore()).import_(lines, times="later")  # type: ignore[arg-type]


# --- what could not be loaded -----------------------------------------------------------------------------------------


class Basket(BaseModel):
    """A state."""

    total: int = Field(0, le=10)


def baskets(schema_version: int = 1, **options: Any) -> Sessions[Basket]:
    return Sessions(Basket, kind="basket", schema_version=schema_version, **options)


def line_with(session_id: str, state: Any, **fields: Any) -> str:
    return json.dumps(RECORD | {"session_id": session_id, "kind": "basket", "state": state} | fields)


@pytest.mark.parametrize("times", get_args(ImportTimes))
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line_with("bad", {"total": 11}, schema_version=2), r"total: Input should be less than or equal to 10"),
        (line_with("bad", {"total": 1}, schema_version=3), "no migration from schema version 3 to 2"),
        (line_with("bad", {"amount": "x"}), "the migration from 1 to 2 raised"),
        ('{"session_id": "bad", "kind": "basket", "schema_version": 2, "state_base64": "AA=="}', "Invalid JSON"),
    ],
)
async def test_a_record_that_its_code_could_not_load_is_not_stored(bad: str, reason: str, times: ImportTimes) -> None:
    sessions, stage = baskets(2), in_memory()

    @sessions.migration(1, 2)
    def rename(plain: dict[str, Any]) -> dict[str, Any]:
        return {"total": int(plain["amount"])}

    manager = SessionManager(stage.store, [sessions])
    good = line_with("good", {"amount": "3"})
    with pytest.raises(
        SessionRecordRefused, match=rf"line 2: .*'bad'.*{reason}.*mend.*written before it: 1\)"
    ) as refused:
        await manager.import_([good, bad], times=times)
    assert refused.value.session_id == "bad"
    assert isinstance(refused.value.__cause__, SessionLoadFailed)
    assert await stage.ids() == ["good"]
    async with sessions.open("good", store=stage.store) as basket:
        assert basket.total == 3


async def test_a_record_of_a_kind_whose_code_is_not_at_hand_is_checked_by_its_form_alone() -> None:
    stage = in_memory()
    lines = [line_with("a", {"total": 11}), line_with("b", {"total": 1}), line_with("c", {}, kind="other")]
    done = await stage.manager.import_(lines)
    assert (done.added, done.unloaded) == (3, 3)
    done = await SessionManager(stage.store, [baskets()]).import_(lines[1:], on_exists="replace")
    assert (done.replaced, done.unloaded) == (2, 1)


async def test_a_state_that_was_loaded_as_a_check_is_not_disposed() -> None:
    """No code has had it, and a live session of its id may use what `dispose` ends."""
    disposed: list[str] = []

    async def dispose(session_id: str, basket: Basket) -> None:
        disposed.append(session_id)

    stage = in_memory()
    await SessionManager(stage.store, [baskets(dispose=dispose)]).import_([line_with("a", {"total": 1})])
    assert disposed == []
