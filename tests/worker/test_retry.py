"""Whether the database answers: when it is said, and which errors end a start."""

from __future__ import annotations

import pytest

from affinity.errors import (
    AccessDenied,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
    StatementTimeout,
    WorkerFenced,
)
from affinity.worker import retry
from affinity.worker.retry import LONGEST_PAUSE, Backoff, DatabaseHealth

pytestmark = pytest.mark.anyio


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> DatabaseHealth:
    """As a worker sees it; it is back as soon as nothing fails."""
    monkeypatch.setattr(retry, "SETTLED", 0.0)
    return DatabaseHealth("w")


class Verb:
    """Raises what it is given, one after the other, and then answers."""

    def __init__(self, *errors: ProviderError) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().partition(" (")[0] for record in caplog.records]


LOST, BACK = "worker w: database lost", "worker w: database is back"


def test_reads_that_succeed_do_not_hide_writes_that_fail(
    database: DatabaseHealth, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: one line when it begins, and one when it is over, whatever else succeeds in between."""
    full = DatabaseFailure("no space left")
    for _ in range(5):
        database.note_failure(full, "commit")
        database.note_answer("read")
        database.note_failure(full, "renew")
        database.note_answer("read")
    assert said(caplog) == [LOST]
    database.note_answer("renew")
    database.note_answer("read")
    assert said(caplog) == [LOST]
    database.note_answer("commit")
    database.note_answer("read")
    assert said(caplog) == [LOST, BACK]


def test_one_failure_is_no_outage(database: DatabaseHealth, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        database.note_failure(ConnectionLost("gone"), "commit")
        database.note_answer("commit")
        database.note_failure(Contention("deadlock"), "commit")
    assert said(caplog) == []


def test_who_does_not_call_again_does_not_keep_the_database_lost(
    database: DatabaseHealth, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for caller in ("commit", "save"):
        database.note_failure(ConnectionLost("gone"), caller)
    database.forget("commit")
    database.note_answer("read")
    assert said(caplog) == [LOST]
    monkeypatch.setattr(retry, "FORGOTTEN", 0.0)
    database.note_answer("read")
    assert said(caplog) == [LOST, BACK]


async def test_who_calls_again_in_a_minute_does_not_keep_the_database_lost(
    database: DatabaseHealth, caplog: pytest.LogCaptureFixture
) -> None:
    database.note_failure(ConnectionLost("gone"), "read")
    with pytest.raises(ConnectionLost):
        await database.call_seldom(Verb(ConnectionLost("gone")), "compare")
    assert said(caplog) == [LOST]
    database.note_answer("read")
    assert said(caplog) == [LOST, BACK]


PASSING = [Contention("x"), ConnectionLost("x"), DatabaseFailure("x"), ReadOnly("x"), StatementTimeout("x")]
MISCONFIGURED = [AccessDenied("x"), SchemaMismatch("x")]
FINAL = [DataRefused("x"), WorkerFenced("x")]


@pytest.mark.parametrize("error", [*PASSING, *MISCONFIGURED], ids=lambda error: type(error).__name__)
async def test_a_worker_that_runs_outlasts_every_fault(database: DatabaseHealth, error: ProviderError) -> None:
    verb = Verb(error, error)
    assert await database.retry(verb) == "done"
    assert verb.calls == 3


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
async def test_a_start_outlasts_what_passes_by_itself(database: DatabaseHealth, error: ProviderError) -> None:
    assert await database.start(Verb(error), 30.0) == "done"
    with pytest.raises(type(error)):
        await database.start(Verb(error), 0.0)


@pytest.mark.parametrize("error", [*MISCONFIGURED, *FINAL], ids=lambda error: type(error).__name__)
async def test_a_start_ends_with_an_error_that_an_operator_must_resolve(
    database: DatabaseHealth, error: ProviderError
) -> None:
    verb = Verb(error)
    with pytest.raises(type(error)):
        await database.start(verb, 30.0)
    assert verb.calls == 1


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
async def test_what_is_final_is_not_repeated(database: DatabaseHealth, error: ProviderError) -> None:
    for calling in (database.retry, database.retry_if_unchanged):
        verb = Verb(error)
        with pytest.raises(type(error)):
            await calling(verb)
        assert verb.calls == 1


async def test_what_is_not_to_be_done_twice_is_repeated_while_nothing_was_changed(database: DatabaseHealth) -> None:
    verb = Verb(DatabaseFailure("full"), Contention("busy"), ConnectionLost("cut"))
    with pytest.raises(ConnectionLost):
        await database.retry_if_unchanged(verb)
    assert verb.calls == 3


def test_pauses_grow_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(2_000)]
    assert pauses[0] < pauses[3] < pauses[6] <= LONGEST_PAUSE
    assert min(pauses[10:]) >= LONGEST_PAUSE / 2
    assert max(pauses) <= LONGEST_PAUSE
    backoff.reset()
    assert backoff.next() <= pauses[1]
