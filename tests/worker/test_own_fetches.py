"""Fetches of a worker after a hint about items of sessions that it holds. Nothing is timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from affinity import App, RuntimeOptions
from affinity.conversation.journal import PendingWork
from affinity.conversation.worker import ConversationPart
from affinity.errors import Contention
from affinity.orchestration.definitions import Prefetch
from affinity.provider.contract import (
    FetchOptions,
    Hint,
    Incarnation,
    OrchestrationFetch,
    Token,
    WorkerIdentity,
    WorkFetch,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.worker.activities import ActivityRunner
from affinity.worker.metrics import Metrics
from affinity.worker.notifier import FEW_WORKERS
from affinity.worker.retry import DatabaseHealth
from affinity.worker.runtime import Runtime
from affinity.worker.services import REAL_TIME

pytestmark = pytest.mark.anyio

OWN = Hint(only_own=True)


def item(number: int = 1) -> WorkItem:
    lock = WorkLock(WorkKey(f"i{number}", 1, number), Token(f"t{number}"))
    return WorkItem(
        lock=lock,
        name="wake",
        payload="",
        session_id=f"i{number}",
        session_epoch=1,
        attempts=1,
        failures=0,
        unknown_for=None,
    )


def found(*items: WorkItem, **facts: Any) -> WorkFetch:
    return WorkFetch(items=items, claim_lost=False, next_due=None, **facts)


class Stage:
    """A worker without a database, whose fetches end as the test says; nothing that they bring is run."""

    def __init__(self) -> None:
        self.fetches: list[str] = []
        self.own: WorkFetch | Exception = found(item())
        self.started: list[WorkItem] = []
        self.slots = 10
        options = RuntimeOptions(worker_node_id="w", poll_interval=14.0)
        identity = WorkerIdentity(worker_id="w", incarnation=Incarnation("w-1"))
        provider = Mock(
            fetch_work_item=self._fetch_work_item,
            fetch_orchestration_item=self._fetch_orchestration_item,
            release_unknown_locks=self._release_unknown_locks,
        )
        self.runtime = Runtime(
            app=App("own"),
            provider=provider,
            identity=identity,
            options=options,
            listeners=[],
            health=DatabaseHealth("w"),
            metrics=Metrics("w", App()),
        )
        self.fetcher, self.notifier = self.runtime.fetcher, self.runtime.services.notifier
        self.state = self.runtime.services.fetch_state
        self.runtime.activities.start = self.started.append  # type: ignore[assignment]
        self.runtime.capacity.free_slots = lambda: self.slots  # type: ignore[method-assign]

    async def _fetch_work_item(self, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        self.fetches.append("own" if options.only_own else "work")
        if not options.only_own:
            return found(workers=3)
        if isinstance(self.own, Exception):
            raise self.own
        return self.own

    async def _fetch_orchestration_item(self, identity: WorkerIdentity, **options: Any) -> OrchestrationFetch:
        self.fetches.append("messages")
        return OrchestrationFetch(items=[], claim_lost=False, next_due=None)

    async def _release_unknown_locks(self, *args: Any) -> int:
        return 0

    async def fetch(self) -> list[str]:
        """Fetch one round; and again, if it is due immediately."""
        self.fetches.clear()
        while await self.fetcher._fetch_once() == 0.0:
            pass
        return list(self.fetches)

    async def idle(self) -> Stage:
        """When all was fetched for the first time."""
        assert await self.fetch() == ["work", "messages"]
        return self


@pytest.fixture
async def on() -> Stage:
    return await Stage().idle()


async def test_a_hint_about_own_work_leads_to_a_fetch_of_that(on: Stage) -> None:
    """What was due stays due, and what the last fetch of all has said about other workers is true still."""
    due = on.fetcher._work_at, on.fetcher._messages_at
    on.notifier.on_hint(OWN)
    assert on.notifier.fetch_wanted.is_set()
    assert await on.fetch() == ["own"]
    assert on.started == [item()]
    assert (on.fetcher._work_at, on.fetcher._messages_at) == due
    assert (on.state.workers, on.state.may_have_work) == (3, False)


@pytest.mark.parametrize("own", [found(), found(item(), limit_reached=True)], ids=["nothing", "not all"])
async def test_all_work_is_fetched_when_there_was_no_own_work_or_more(on: Stage, own: WorkFetch) -> None:
    on.own = own
    on.notifier.on_hint(OWN)
    assert await on.fetch() == ["own", "work", "messages"]
    assert not on.state.may_have_work


async def test_all_work_is_fetched_after_a_fetch_of_own_work_that_failed(on: Stage) -> None:
    on.own = Contention("once")
    on.notifier.on_hint(OWN)
    with pytest.raises(Contention):
        await on.fetch()
    assert await on.fetch() == ["work", "messages"]


async def test_without_a_free_slot_all_work_is_fetched_when_there_is_one(on: Stage) -> None:
    on.slots = 0
    on.notifier.on_hint(OWN)
    assert await on.fetch() == []
    on.notifier.fetch_wanted = anyio.Event()
    on.slots = 1
    on.notifier.on_slot_freed()
    assert on.notifier.fetch_wanted.is_set()
    assert await on.fetch() == ["work", "messages"]


async def test_own_work_for_which_the_last_slot_is_gone_is_fetched_with_the_next(on: Stage) -> None:
    """The fetch had one slot, and more waits."""
    on.own = found(item(), limit_reached=True)
    on.runtime.activities.start = lambda item: setattr(on, "slots", 0)  # type: ignore[assignment, misc]
    on.notifier.on_hint(OWN)
    assert await on.fetch() == ["own", "messages"]
    on.slots = 1
    on.notifier.on_slot_freed()
    assert await on.fetch() == ["work", "messages"]


def _poll_is_due(on: Stage) -> None:
    on.fetcher._work_at = time.monotonic()


def _messages_are_due(on: Stage) -> None:
    on.fetcher._messages_at = time.monotonic()


def _locks_are_uncertain(on: Stage) -> None:
    on.state.locks_uncertain = True


OTHERS: Sequence[Callable[[Stage], None]] = [
    _poll_is_due,
    _messages_are_due,
    _locks_are_uncertain,
    lambda on: on.notifier.on_hint(Hint()),
    lambda on: on.notifier.on_hint(Hint(only_messages=True)),
    lambda on: on.notifier.notify_fetcher(),
]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_hint_about_own_work_hides_nothing_else(on: Stage, other: Callable[[Stage], None]) -> None:
    """Whichever came first."""
    for order in ((other, lambda on: on.notifier.on_hint(OWN)), (lambda on: on.notifier.on_hint(OWN), other)):
        for happen in order:
            happen(on)
        assert await on.fetch() == ["work", "messages"]
        assert not on.state.own_wanted


async def test_a_hint_that_comes_during_a_fetch_is_handled(on: Stage) -> None:
    start: Any = on.runtime.activities.start

    def start_and_hear(item: WorkItem) -> None:
        start(item)
        if len(on.started) < 3:
            on.notifier.on_hint(OWN)

    on.runtime.activities.start = start_and_hear  # type: ignore[assignment]
    on.notifier.on_hint(OWN)
    async with asyncio.timeout(30):
        loop = asyncio.ensure_future(on.fetcher.fetch())
        while len(on.started) < 3:
            await anyio.sleep(0)
        loop.cancel()
        await asyncio.wait([loop])
    assert on.fetches == ["work", "messages", "own", "own", "own"]


async def test_a_slot_is_kept_for_own_work_that_no_fetch_has_seen() -> None:
    on = Stage()
    capacity = on.runtime.capacity
    free = capacity.slots_for_new_work()
    on.notifier.on_hint(OWN)
    assert capacity.slots_for_new_work() == free - 1


async def test_a_hint_to_all_of_many_is_about_all_work() -> None:
    on = await Stage().idle()
    on.state.workers = FEW_WORKERS + 1
    on.notifier.on_hint(replace(OWN, to_all=True))
    assert not on.state.own_wanted
    await on.notifier.fetch_wanted.wait()
    assert await on.fetch() == ["work", "messages"]


def test_a_hint_about_other_work_is_not_lost_among_hints_about_own_work() -> None:
    assert OWN.merge(OWN).only_own
    assert Hint(work=False, cancel=True).merge(OWN) == Hint(cancel=True, only_own=True)
    for other in (Hint(), Hint(only_messages=True)):
        for merged in (OWN.merge(other), other.merge(OWN)):
            assert merged == Hint()


async def test_what_a_fetch_brings_is_read_ahead_in_one_batch() -> None:
    """Before anything of it runs, and but for what came with it."""
    reads: list[Sequence[str]] = []

    async def get_pending(session_ids: Sequence[str], *, limit: int) -> Sequence[None]:
        reads.append(session_ids)
        return [None] * len(session_ids)

    services: Any = SimpleNamespace(
        provider=SimpleNamespace(get_pending=get_pending),
        health=SimpleNamespace(retry=lambda call: call()),
        timing=REAL_TIME,
        notifier=None,
        **dict.fromkeys(("identity", "options", "metrics", "fetch_state", "lease")),
    )
    part, started = ConversationPart(services, App("a"), code="1"), list[WorkItem]()
    journals, prefetch = part.access, Prefetch("conversation", 10)
    runner: Any = SimpleNamespace(_prefetches={"wake": prefetch}, _guests={"conversation": part}, start=started.append)
    items = [item(1), replace(item(2), name="other"), item(3), item(4)]
    came = PendingWork(
        journal_id=1,
        kind="chat",
        processed=0,
        last_seq=1,
        closed=False,
        parent=None,
        inputs=[],
        more=False,
        due=[],
        requests=[],
        revisits=[],
        next_due=None,
    )
    ActivityRunner.start_all(runner, found(*items, prefetched={"conversation": {"i4": came}}))
    assert started == items
    assert await journals.get_pending("i4", 10) is came
    assert await journals.get_pending("i3", 10) is None
    assert await journals.get_pending("i1", 10) is None
    assert reads == [["i1", "i3"]]
