"""An ask does not wait for reads beside a commit, nor for fetches of work items. Nothing is timed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, LiteralString

import anyio
import pytest

from affinity import RuntimeOptions, Wake
from affinity.conversation import AgentMessage, UserMessage
from affinity.conversation.journal import Appended, PendingWork
from affinity.conversation.store.postgres import PART
from affinity.errors import Contention
from affinity.provider import open_provider
from affinity.provider.contract import (
    FetchOptions,
    Hint,
    OrchestrationFetch,
    Turn,
    TurnResult,
    WorkerIdentity,
    WorkFetch,
)
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver.calls import Calls
from affinity.provider.postgres.driver.wire import Params, Statement
from affinity.worker.notifier import Notifier
from tests.conversation.application import Chat, Stage, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider(url: str) -> Any:
    """The class of the provider of this database."""
    opened = await open_provider(url)
    await opened.aclose()
    return type(opened)


async def test_the_work_of_a_wake_is_read_while_its_turn_is_committed(
    url: str, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_read = anyio.Event()
    was_read: list[bool] = []
    commit, read = provider.commit_turn, provider.get_pending

    async def get_pending(self: Any, session_ids: Sequence[str], **options: Any) -> Sequence[PendingWork | None]:
        is_read.set()
        return list(await read(self, session_ids, **options))

    async def commit_turn(
        self: Any, identity: WorkerIdentity, turns: Sequence[Turn], *rest: Any, **hints: Any
    ) -> list[TurnResult]:
        if any(not item.parked for turn in turns for item in turn.work_items):
            with anyio.move_on_after(3):
                await is_read.wait()
            was_read.append(is_read.is_set())
        return list(await commit(self, identity, turns, *rest, **hints))

    monkeypatch.setattr(provider, "get_pending", get_pending)
    monkeypatch.setattr(provider, "commit_turn", commit_turn)
    async with stage(url) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "re: one"
    assert was_read == [True]


async def test_the_work_of_a_wake_is_read_again_when_the_wake_before_it_is_committed_with_its_turn(url: str) -> None:
    """Otherwise its write would be refused, and it would run twice."""
    entered, go = anyio.Event(), anyio.Event()
    runs: list[tuple[int, list[str]]] = []

    async def slow(wake: Wake, chat: Chat) -> None:
        runs.append((wake.attempt, [event.text for event in wake.events if isinstance(event, UserMessage)]))
        entered.set()
        await go.wait()
        wake.append(AgentMessage("done"))

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await entered.wait()
        second = await talk.send(UserMessage("two"))
        await anyio.sleep(0.5)  # until the turn of its signal is committed
        go.set()
        await talk.reply(second, timeout=30)
    assert runs == [(1, ["one"]), (1, ["two"])]


async def test_a_message_is_fetched_without_a_fetch_of_work_items(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL: the commits of other processes, which say less, wake a worker on SQLite too."""
    fetch, go = PostgresProvider.fetch_work_item, anyio.Event()
    go.set()

    async def wait_and_fetch(self: PostgresProvider, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        await go.wait()
        return await fetch(self, identity, options)

    monkeypatch.setattr(PostgresProvider, "fetch_work_item", wait_and_fetch)
    options = RuntimeOptions(worker_node_id="w", poll_interval=10.0)
    async with stage(postgres_migrated, options=options) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "re: one"
        await anyio.sleep(0.3)  # until nothing is fetched any more
        go = anyio.Event()
        await on.talk().terminate()
        await on.client.wait("c", timeout=30)
        go.set()


async def test_an_ask_fetches_its_wake_and_nothing_else(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the next wake is parked: by the fetch of own work, and by no fetch of messages. On PostgreSQL, as above."""
    fetches: list[str] = []
    fetch_work, fetch_messages = PostgresProvider.fetch_work_item, PostgresProvider.fetch_orchestration_item

    async def note_work(self: PostgresProvider, identity: WorkerIdentity, options: FetchOptions) -> WorkFetch:
        fetches.append("own work" if options.only_own else "work")
        return await fetch_work(self, identity, options)

    async def note_messages(self: PostgresProvider, *args: Any, **options: Any) -> OrchestrationFetch:
        fetches.append("messages")
        return await fetch_messages(self, *args, **options)

    monkeypatch.setattr(PostgresProvider, "fetch_work_item", note_work)
    monkeypatch.setattr(PostgresProvider, "fetch_orchestration_item", note_messages)
    options = RuntimeOptions(worker_node_id="w", poll_interval=10.0)
    async with stage(postgres_migrated, options=options) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "re: one"
        await anyio.sleep(0.3)  # until nothing is fetched any more
        fetches.clear()
        for text in ("two", "three"):
            assert (await on.talk().ask(UserMessage(text), timeout=30)).text == f"re: {text}"
        assert fetches == ["own work", "own work"]


async def test_the_hints_of_an_ask_go_with_its_commits(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the worker from the third ask on: the second one's reply names it. No call of its own sends them."""
    sent: list[object] = []
    append, commit = PART.verbs["append_journal"], PostgresProvider.commit_turn
    workers, readers = PostgresProvider.notify_workers, PostgresProvider.notify_changes

    async def note_append(self: PostgresProvider, *args: Any, **hints: Any) -> Sequence[Appended]:
        sent.append(hints["notify"])
        appended: Sequence[Appended] = await append(self, *args, **hints)
        return appended

    async def note_commit(self: PostgresProvider, *args: Any, **hints: Any) -> Sequence[TurnResult]:
        sent.append(hints["notify"])
        return await commit(self, *args, **hints)

    async def note_hint(self: PostgresProvider, *args: Any) -> None:
        sent.append("hint")
        await workers(self, *args)

    async def note_notice(self: PostgresProvider, ids: Collection[str], *, minor: bool = False) -> None:
        if ids and not minor:
            sent.append("notice")
        await readers(self, ids, minor=minor)

    monkeypatch.setattr(PostgresProvider, "append_journal", note_append, raising=False)
    monkeypatch.setattr(PostgresProvider, "commit_turn", note_commit)
    monkeypatch.setattr(PostgresProvider, "notify_workers", note_hint)
    monkeypatch.setattr(PostgresProvider, "notify_changes", note_notice)
    options = RuntimeOptions(worker_node_id="w", poll_interval=10.0)
    async with stage(postgres_migrated, options=options) as on:
        await ask_twice(on, sent)
        await anyio.sleep(0.3)
        assert sent == [{"w": Hint(only_own=True)}, ["c"]] * 2


async def ask_twice(on: Stage, sent: list[Any]) -> None:
    """Two asks of a conversation that is there, with what they send."""
    for text in ("one", "two"):
        assert (await on.talk().ask(UserMessage(text), timeout=30)).text == f"re: {text}"
    await anyio.sleep(0.3)  # until nothing is sent any more
    sent.clear()
    for text in ("three", "four"):
        assert (await on.talk().ask(UserMessage(text), timeout=0.9)).text == f"re: {text}"


async def test_an_ask_is_an_append_a_fetch_a_commit_and_a_read(
    postgres_migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six statements, with the hints behind the append and the commit."""
    names = {"append_input(": "append", "AS waiting": "fetch", "commit_wake(": "commit", "is_inherited_input(": "read"}
    sent: list[str] = []
    run = Calls.run

    async def note(
        self: Calls, statement: LiteralString, params: Params | None = None, *, behind: Statement | None = None
    ) -> Any:
        for part, name in names.items():
            if part in statement:
                sent.extend([name] if behind is None else [name, "hint"])
        return await run(self, statement, params, behind=behind)

    monkeypatch.setattr(Calls, "run", note)
    options = RuntimeOptions(worker_node_id="w", poll_interval=10.0)
    async with stage(postgres_migrated, options=options) as on:
        await ask_twice(on, sent)
    assert sent == ["append", "hint", "fetch", "commit", "hint", "read"] * 2


async def test_steps_notify_no_reader(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in no journal. What a commit makes visible notifies the readers."""
    notified: list[str] = []
    found: list[list[str]] = []
    notify = Notifier.notify_change

    def note(self: Notifier, session_id: str) -> None:
        notified.append(session_id)
        notify(self, session_id)

    async def double(number: int) -> int:
        return 2 * number

    async def handler(wake: Wake, chat: Chat) -> None:
        for number in range(3):
            await wake.step("double", double, number)
        found.append([*notified])
        wake.append(AgentMessage("half"))
        await wake.commit()
        found.append([*notified])

    monkeypatch.setattr(Notifier, "notify_change", note)
    async with stage(url, handler) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "half"
    assert found == [[], ["c"]]


async def test_work_that_becomes_visible_is_fetched_beside_a_stream_of_messages(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each hint is about messages only."""
    fetches, rounds = 0, 0

    async def fetch_work(term: int) -> float:
        nonlocal fetches
        fetches += 1
        return 0.1  # until the next item is visible

    async def fetch_messages(term: int) -> float:
        nonlocal rounds
        rounds += 1
        await anyio.sleep(0.001)
        notifier.on_hint(Hint(only_messages=True))
        return 60.0

    async with stage(url) as on:
        fetcher = on.workers[0].runtime.fetcher
        notifier = fetcher._notifier
        monkeypatch.setattr(fetcher, "_fetch_work", fetch_work)
        monkeypatch.setattr(fetcher, "_fetch_messages", fetch_messages)
        notifier.notify_fetcher()
        with anyio.fail_after(30):
            while fetches < 5:
                await anyio.sleep(0.01)
    assert rounds > 2 * fetches


async def test_work_items_are_fetched_while_fetches_of_messages_fail(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = 0

    async def fetch_work(term: int) -> float:
        nonlocal fetches
        fetches += 1
        return 0.01

    async def fail(term: int) -> float:
        raise Contention("each time")

    async with stage(url) as on:
        fetcher = on.workers[0].runtime.fetcher
        monkeypatch.setattr(fetcher, "_fetch_work", fetch_work)
        monkeypatch.setattr(fetcher, "_fetch_messages", fail)
        fetcher._notifier.notify_fetcher()
        with anyio.fail_after(30):
            while fetches < 3:
                await anyio.sleep(0.01)


async def test_items_whose_locks_were_freed_after_a_lost_reply_are_fetched_with_a_hint_about_messages(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RuntimeOptions(worker_node_id="w", poll_interval=14.0)
    fetched = anyio.Event()

    async def fetch_work(term: int) -> float:
        fetched.set()
        return 14.0

    async with stage(url, options=options) as on:
        fetcher = on.workers[0].runtime.fetcher
        await anyio.sleep(0.3)  # until nothing is fetched any more
        monkeypatch.setattr(fetcher, "_fetch_work", fetch_work)
        fetcher._state.locks_uncertain = True
        fetcher._notifier.on_hint(Hint(only_messages=True))
        with anyio.fail_after(8):
            await fetched.wait()


def test_a_hint_about_work_is_not_lost_among_hints_about_messages() -> None:
    messages, none = Hint(only_messages=True), Hint(work=False, cancel=True)
    assert messages.merge(messages).only_messages
    assert none.merge(messages) == Hint(work=True, cancel=True, only_messages=True)
    for merged in (messages.merge(Hint()), Hint().merge(messages), none.merge(none)):
        assert not merged.only_messages
