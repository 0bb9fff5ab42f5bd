"""A worker's memory of its sessions; the database decides when a session is over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from affinity.errors import ConnectionLost, DatabaseFailure, ProviderError, SchemaMismatch
from affinity.worker import sessions
from affinity.worker.sessions import HeldSessions


class ScriptedDatabase:
    """Answers as the test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.left: dict[str, float] = {}
        self.error: ProviderError | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    async def check(self, session_ids: Collection[str]) -> Mapping[str, float]:
        self.asked.append(list(session_ids))
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return {session_id: self.left[session_id] for session_id in session_ids if session_id in self.left}


class RecordingListener:
    def __init__(self) -> None:
        self.notified: list[tuple[str, int | None]] = []
        self.sweeps = 0

    async def lost(self, session_id: str, epoch: int | None = None) -> None:
        self.notified.append((session_id, epoch))

    async def sweep(self) -> None:
        self.sweeps += 1


@pytest.fixture
def database() -> ScriptedDatabase:
    return ScriptedDatabase()


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture
def held(database: ScriptedDatabase, listener: RecordingListener) -> HeldSessions:
    """With a lock timeout of 0, so that a session's time seems over as soon as its work is."""
    return HeldSessions([listener], 0.0, database.check, lambda *_: None)


def idle(held: HeldSessions, *session_ids: str, epoch: int = 1) -> None:
    for session_id in session_ids:
        held.begin(session_id, epoch)
        held.end(session_id)


async def test_what_the_database_does_not_hold_is_lost(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener
) -> None:
    idle(held, "a", epoch=7)
    await held.sweep()
    assert database.asked == [["a"]]
    assert listener.notified == [("a", 7)]
    assert len(held) == 0


async def test_what_is_still_held_gets_the_new_end(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener
) -> None:
    idle(held, "a", "b", "c")
    database.left = {"a": 1000.0, "c": 1000.0}
    await held.sweep()
    await held.sweep()
    assert database.asked == [["a", "b", "c"]]  # one call for all, and none before the new end
    assert listener.notified == [("b", 1)]
    assert len(held) == 2


async def test_a_new_end_that_has_come_is_asked_again(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener
) -> None:
    idle(held, "a")
    database.left = {"a": 0.0}
    await held.sweep()
    assert listener.notified == []
    database.left = {}
    await held.sweep()
    assert listener.notified == [("a", 1)]


async def test_a_session_that_works_is_not_asked_for(held: HeldSessions, database: ScriptedDatabase) -> None:
    held.begin("a", 1)
    await held.sweep()
    assert database.asked == []
    assert len(held) == 1


@pytest.mark.parametrize("error", [ConnectionLost("gone"), DatabaseFailure("full"), SchemaMismatch("no such table")])
async def test_a_database_that_does_not_say_takes_no_session(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener, error: ProviderError
) -> None:
    """Whatever the reason: the worker goes on, and asks again."""
    idle(held, "a")
    database.error = error
    await held.sweep()
    assert listener.notified == []
    assert listener.sweeps == 1
    database.error = None
    await held.sweep()
    assert listener.notified == [("a", 1)]


async def test_work_that_comes_while_the_database_is_asked_keeps_the_session(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener
) -> None:
    idle(held, "a")
    database.meanwhile = lambda: held.begin("a", 2)
    await held.sweep()
    assert listener.notified == []
    assert held.running("a") == 1


async def test_a_session_that_ends_while_the_database_is_asked_is_not_notified_again(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener
) -> None:
    idle(held, "a")
    database.left = {"a": 1000.0}
    database.meanwhile = held._held.clear
    await held.sweep()
    assert (listener.notified, len(held)) == ([], 0)


async def test_many_are_asked_in_several_sweeps(
    held: HeldSessions, database: ScriptedDatabase, listener: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_BATCH", 2)
    idle(held, "a", "b", "c")
    await held.sweep()
    assert len(held) == 1
    await held.sweep()
    assert database.asked == [["a", "b"], ["c"]]
    assert listener.notified == [("a", 1), ("b", 1), ("c", 1)]
