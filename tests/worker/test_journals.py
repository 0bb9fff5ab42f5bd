"""Journals in a worker: shared reads, and results that go with entries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage
from affinity.conversation.journal import JournalWrite, PendingWork
from affinity.conversation.store.contract import journals_of
from affinity.conversation.worker import READ_AHEAD_SECONDS, WorkerJournals
from affinity.errors import ConnectionLost, DataRefused, SessionError
from affinity.orchestration.engine import Step
from affinity.orchestration.events import ActivityCompleted, Event
from affinity.provider.contract import Token, WorkKey, WorkLock
from affinity.session import SessionMetadata, SessionState, StateWrite
from affinity.testing import Env
from affinity.testing.env.workers import EnvWorker
from affinity.worker.live import Input, staged_of, unwanted_results
from affinity.worker.results import StagedResult
from affinity.worker.services import REAL_TIME

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    """The state of a conversation."""


class Reads:
    """Calls of a database; each ends when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[str], int]] = []
        self.go = anyio.Event()
        self.error: Exception | None = None
        self.next_due: float | None = None

    async def __call__(self, session_ids: Sequence[str], limit: int) -> Sequence[PendingWork | None]:
        self.calls.append((session_ids, limit))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return [replace(work(session_id), next_due=self.next_due) for session_id in session_ids]


def work(kind: str) -> PendingWork:
    return PendingWork(
        journal_id=1,
        kind=kind,
        processed=0,
        last_seq=0,
        closed=False,
        parent=None,
        inputs=[],
        more=False,
        due=[],
        requests=[],
        revisits=[],
        next_due=None,
    )


async def test_reads_that_come_while_one_is_under_way_share_the_next_call() -> None:
    reads = Reads()
    of = journals(reads)
    found: list[str] = []

    async def get(name: str, limit: int = 10) -> None:
        answer = await of.get_pending(name, limit)
        assert answer is not None
        found.append(answer.kind)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(get, "a")
        await anyio.wait_all_tasks_blocked()
        for name in ("b", "c", "b"):
            tasks.start_soon(get, name)
        tasks.start_soon(get, "d", 5)
        await anyio.wait_all_tasks_blocked()
        assert reads.calls == [(["a"], 10)]
        reads.go.set()
    assert reads.calls == [(["a"], 10), (["b", "c"], 10), (["d"], 5)]
    assert sorted(found) == ["a", "b", "b", "c", "d"]


async def test_a_read_that_fails_fails_for_its_wake_and_the_next_goes_on() -> None:
    reads = Reads()
    of = journals(reads)
    reads.error = DataRefused("no")
    reads.go.set()
    with pytest.raises(DataRefused):
        await of.get_pending("a", 10)
    reads.error = None
    assert await of.get_pending("a", 10) == work("a")


async def test_a_cancelled_reader_does_not_disturb_the_others() -> None:
    reads = Reads()
    of = journals(reads)
    found: list[PendingWork | None] = []

    async def get() -> None:
        found.append(await of.get_pending("b", 10))

    async with anyio.create_task_group() as tasks:
        with anyio.move_on_after(0.01):
            await of.get_pending("a", 10)
        tasks.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        reads.go.set()
    assert found == [work("b")]


async def test_a_worker_that_has_ended_repeats_no_read() -> None:
    """Each would fail: its provider is closed."""
    reads, chats = Reads(), affinity.Conversations(Chat, kind="chat")
    reads.error = ConnectionLost("the test refuses it")
    reads.go.set()

    @chats.on_wake
    async def reply(wake: affinity.Wake, chat: Chat) -> None:
        wake.append(AgentMessage("hello"))

    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        worker = env._workers[0]
        assert isinstance(worker, EnvWorker)
        journals = journals_of(worker.runtime.services.provider)
        journals.get_pending = refusing(reads)  # type: ignore[method-assign, assignment]
        talk = env.client.conversation(chats, "ann")
        await talk.send(UserMessage("hello"))
        while not reads.calls:
            await anyio.sleep(0.001)
        await env.crash()
        assert (await talk.ask(UserMessage("again"))).text == "hello"
        calls = len(reads.calls)
        await anyio.sleep(0.2)  # several pauses
        assert len(reads.calls) == calls


def refusing(reads: Reads) -> Callable[..., Awaitable[Sequence[PendingWork | None]]]:
    async def get_pending(session_ids: Sequence[str], *, limit: int) -> Sequence[PendingWork | None]:
        return await reads(session_ids, limit)

    return get_pending


def journals(reads: Reads) -> WorkerJournals:
    async def retry(call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    provider = SimpleNamespace(get_pending=refusing(reads))
    services = SimpleNamespace(provider=provider, health=SimpleNamespace(retry=retry), notifier=None, timing=REAL_TIME)
    return WorkerJournals(services)  # type: ignore[arg-type]


async def test_what_was_read_ahead_serves_one_wake_that_reads_as_much() -> None:
    """A wake that reads more than was read ahead reads for itself."""
    reads = Reads()
    reads.go.set()
    of = journals(reads)
    of.read_ahead("a", 10)
    await anyio.wait_all_tasks_blocked()
    assert await of.get_pending("a", 10) == work("a")
    assert reads.calls == [(["a"], 10)]
    assert await of.get_pending("a", 10) == work("a")
    assert reads.calls == [(["a"], 10)] * 2
    of.read_ahead("a", 10)
    await of.get_pending("a", 20)
    assert reads.calls[2:] == [(["a"], 10), (["a"], 20)]


async def test_what_was_read_ahead_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads()
    reads.go.set()
    reads.next_due = 5.0
    of, now = journals(reads), 100.0
    monkeypatch.setattr("affinity.conversation.worker.time", SimpleNamespace(monotonic=lambda: now))
    of.monotonic = lambda: now
    of.read_ahead("a", 10)
    now += READ_AHEAD_SECONDS / 2
    assert await of.get_pending("a", 10) == replace(work("a"), next_due=5.0 - READ_AHEAD_SECONDS / 2)
    of.read_ahead("a", 10)
    of.read_ahead("b", 10)
    now += 2 * READ_AHEAD_SECONDS
    assert await of.get_pending("a", 10) == replace(work("a"), next_due=5.0)
    of.read_ahead("c", 10)
    assert list(of._ahead) == ["c"]


def write(session_id: str = "s") -> JournalWrite:
    return JournalWrite(session_id=session_id, journal_id=1, base=0, processed=1, wake_id="w")


def state(session_id: str = "s") -> StateWrite:
    new = SessionState(
        session_id=session_id, state=b"", encoding="plain", schema_version=1, metadata=SessionMetadata(kind="k")
    )
    return StateWrite(new=new, base_version=0, epoch=1)


class Takes:
    def __init__(self, prepared: JournalWrite | StateWrite | None) -> None:
        self.prepared, self.applied = prepared, list[bool]()

    async def prepare(self) -> JournalWrite | StateWrite | None:
        return self.prepared

    def settled(self, applied: bool) -> None:
        self.applied.append(applied)


async def test_a_result_brings_one_state_and_one_write_of_a_journal() -> None:
    staged = await StagedResult.of([Takes(state()), Takes(write()), Takes(None)], "s")  # type: ignore[list-item]
    assert (staged.state, staged.parts, staged.sessions) == (state(), (write(),), frozenset({"s"}))


async def test_two_writes_of_a_journal_are_refused_and_settled() -> None:
    both = [Takes(write()), Takes(write())]
    with pytest.raises(SessionError, match="2 journals"):
        await StagedResult.of(both, "s")  # type: ignore[arg-type]
    assert [each.applied for each in both] == [[False], [False]]


def step(*events: tuple[int, Event]) -> Step:
    return Step(
        events=[*events],
        custom_status=None,
        outcome=None,
        consumed=1,
        holds={},
        ended_holds=[],
        headers={},
        unread=None,
    )


async def test_entries_of_a_result_that_no_code_waits_for_are_not_written() -> None:
    """Entries of a wake that an interrupt has cancelled in the same step."""
    staged = await StagedResult.of([Takes(write())], "s")  # type: ignore[list-item]
    lock = WorkLock(WorkKey("i", 1, 2), Token("t"))
    result = Input(ActivityCompleted(2, "null"), 4, lock=lock, staged=staged)
    recorded, dropped = step((3, result.event)), step()
    assert staged_of([result], unwanted_results(recorded, [result])) == [staged]
    assert staged_of([result], unwanted_results(dropped, [result])) == []
    assert result.writes_any(["s"])
    assert not result.writes_any(["other"])
