"""The sync client: the calls of the async one, from any thread."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import affinity
from affinity import sync
from affinity.conversation import AgentMessage, FeedItem, JournalEntry, Reply, UserMessage
from affinity.errors import (
    ClientError,
    InvalidUrl,
    OrchestrationFailed,
    SessionError,
    UnknownInstance,
    UnknownLimit,
    WaitTimeout,
    WrongEventLoop,
)
from affinity.sync.loop import current_loop
from tests.provider.sqlite_files import create_file
from tests.sync.application import Chat, Say, chats, fail, greet, listen, support


def text_of(item: FeedItem) -> str:
    assert isinstance(item, JournalEntry)
    assert isinstance(item.event, UserMessage | AgentMessage)
    return item.event.text


def add_line(chat: Chat) -> int:
    chat.lines.append("two")
    return len(chat.lines)


def test_an_instance_from_its_start_to_its_end(url: str) -> None:
    with sync.Client(url) as client:
        run = client.start(greet, "Ada", instance_id="a")
        assert (run.instance_id, run.outcome) == ("a", "created")
        assert run.wait(timeout=30) == "HELLO ADA"
        assert client.wait("a", timeout=30) == "HELLO ADA"
        assert [each.instance_id for each in client.list_instances()] == ["a"]
        other, same = client.start_many([affinity.Start(greet, "Eve"), affinity.Start(greet, "Ada", "a")])
        assert other.wait(timeout=30) == "HELLO EVE"
        assert same.outcome == "ended"
        assert same.status() == run.status()


def test_a_conversation(url: str) -> None:
    with sync.Client(url) as client:
        talk = client.conversation(support, "c")
        assert talk.ask(UserMessage("hello"), timeout=30).text == "1: hello"
        with talk.stream_reply(UserMessage("bye"), event_id="m-2") as stream:
            *_, reply = stream
            assert isinstance(reply, Reply)
            assert reply.text == "2: bye"
            assert stream.position
        assert [text_of(each) for each in talk.events(kinds=[AgentMessage])] == ["1: hello", "2: bye"]
        copy = talk.fork("copy")
        assert isinstance(copy, sync.ConversationHandle)
        assert copy.conversation_id == "copy"
        assert {each.conversation_id for each in client.list_conversations()} == {"c", "copy"}


def test_a_listing_is_read_by_one_call_for_each_page(client: sync.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ["a", "b", "c"]
    for name in ids:
        client.start(greet, "Ada", instance_id=name).wait(timeout=30)
    loop, calls = current_loop(), []
    plain = loop.run

    def run(function: Any, *args: Any) -> Any:
        calls.append(function)
        return plain(function, *args)

    monkeypatch.setattr(loop, "run", run)
    assert sorted(each.instance_id for each in client.list_instances()) == ids
    assert len(calls) == len(["the listing", "its page", "its end"])
    assert [each.event_id for each in client.history("a")][:2] == [1, 2]
    page = client.list_instances().page(limit=2)
    rest = client.list_instances().page(page.next, limit=2)
    assert sorted(each.instance_id for each in (*page.items, *rest.items)) == ids
    assert rest.next is None
    with pytest.raises(UnknownInstance):
        next(client.history("no"))


def test_a_schedule(client: sync.Client) -> None:
    schedules = client.schedules
    assert schedules.create("hourly", greet, every=timedelta(hours=1), input="Ada").name == "hourly"
    assert client.wait(schedules.trigger("hourly"), timeout=30) == "HELLO ADA"
    assert [each.name for each in schedules.list()] == ["hourly"]


def test_limits(client: sync.Client) -> None:
    assert client.limits.list() == []
    with pytest.raises(UnknownLimit, match="there are none"):
        client.limits.pause("model")
    with pytest.raises(UnknownLimit, match="there are none"):
        list(client.limits.keys("model"))


def test_errors_are_the_same(client: sync.Client) -> None:
    with pytest.raises(UnknownInstance):
        client.status("no")
    with pytest.raises(OrchestrationFailed, match="broken"):
        client.start(fail).wait(timeout=30)
    waiting = client.start(listen)
    with pytest.raises(WaitTimeout):
        waiting.wait(timeout=0.01)
    with pytest.raises(InvalidUrl):
        sync.Client("nowhere://x").status("no")


def test_state_of_a_session(client: sync.Client) -> None:
    store = client.session_store
    with chats.open_sync("s", store=store) as chat:
        chat.lines.append("one")
    assert chats.update_sync("s", add_line, store=store) == 2
    record = store.load("s")
    assert record is not None
    assert record.version == 2
    assert [each.session_id for each in client.session_manager.list()] == ["s"]


def test_records_go_from_one_database_to_another(client: sync.Client, tmp_path: Path) -> None:
    """The clients share an event loop: one reads what the other one exports."""
    with chats.open_sync("s", store=client.session_store):
        pass
    create_file(tmp_path / "other.db")
    with sync.Client(f"sqlite:///{tmp_path / 'other.db'}") as other:
        assert other.session_manager.import_(client.session_manager.export()).added == 1
    with sync.open_store(f"sqlite:///{tmp_path / 'other.db'}") as store:
        assert store.load("s") is not None
    with pytest.raises(ClientError, match="closed"):
        store.load("s")


def test_an_open_sync_without_a_store_of_a_sync_client_says_so() -> None:
    async def use() -> None:
        with chats.open_sync("s", store=affinity.MemorySessionStore()):
            pass

    with pytest.raises(SessionError, match=r"affinity\.sync"):
        asyncio.run(use())


def test_a_feed_is_left_and_closed(client: sync.Client) -> None:
    talk = client.conversation(support, "c")
    talk.ask(UserMessage("hello"), timeout=30)
    feed = talk.events(follow=True)
    assert next(feed).kind == "user.message"
    feed.close()
    assert list(feed) == []
    with client.watch_requests() as requests:
        assert isinstance(requests, sync.RequestFeed)


def test_it_is_used_in_a_running_loop(file_url: str) -> None:
    """As in a notebook: opened by one cell, used and closed by others."""

    async def cells() -> None:
        client = sync.Client(file_url)
        run = client.start(greet, "Ada")
        await asyncio.sleep(0)
        assert run.wait(timeout=30) == "HELLO ADA"
        client.close()
        with pytest.raises(ClientError, match="closed"):
            run.status()

    asyncio.run(cells())


def test_several_threads_use_one_client(client: sync.Client) -> None:
    barrier = threading.Barrier(8)

    def work(n: int) -> str:
        barrier.wait()
        return client.start(greet, f"{n}", instance_id=f"i-{n}").wait(timeout=60)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [f"HELLO {n}" for n in range(8)]


def test_several_threads_open_it_together(file_url: str) -> None:
    client, barrier = sync.Client(file_url), threading.Barrier(8)

    def work(n: int) -> bool:
        barrier.wait()
        return client.start(greet, "x", instance_id="one").outcome == "created"

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(work, range(8))) == 1
    client.close()


@contextmanager
def interrupted(thread: int) -> Iterator[None]:
    """A SIGINT comes once the call of this block waits."""

    def interrupt() -> None:
        signal.pthread_kill(thread, signal.SIGINT)

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


def test_ctrl_c_ends_a_call_that_waits(client: sync.Client) -> None:
    run = client.start(listen)
    with interrupted(threading.main_thread().ident or 0):
        run.wait()
    assert run.ask(Say("still there"), timeout=30) == "STILL THERE"


def test_ctrl_c_loses_no_item_of_a_feed(client: sync.Client) -> None:
    talk = client.conversation(support, "c")
    talk.ask(UserMessage("hello"), timeout=30)
    feed = talk.events(follow=True, kinds=[UserMessage])
    assert text_of(next(feed)) == "hello"
    with interrupted(threading.main_thread().ident or 0):
        next(feed)
    talk.send(UserMessage("bye"))
    assert text_of(next(feed)) == "bye"


def test_ctrl_c_before_a_call_has_begun_leaves_it_undone() -> None:
    """The loop is busy meanwhile."""
    begun, free, calls = threading.Event(), threading.Event(), list[int]()

    def block() -> None:
        begun.set()
        free.wait()

    busy = threading.Thread(target=current_loop().run, args=[block])
    busy.start()
    begun.wait()
    frees = threading.Timer(0.6, free.set)  # behind the interrupt
    frees.start()
    with interrupted(threading.main_thread().ident or 0):
        current_loop().run(calls.append, 1)
    busy.join()
    assert calls == []


def test_a_call_in_a_callback_is_refused(client: sync.Client) -> None:
    """It runs on the loop that would have to answer."""
    client.start(greet, "Ada").wait(timeout=30)
    seen: list[Exception] = []

    def progress(count: int) -> None:
        with pytest.raises(ClientError, match="its own event loop") as refused:
            client.workers()
        seen.append(refused.value)

    client.prune(older_than=0, progress=progress)
    assert seen


def test_what_is_left_to_the_garbage_collector_is_closed(file_url: str) -> None:
    client = sync.Client(file_url)
    client.workers()
    (opening,) = [each for each in current_loop().open if each is client._opening]  # type: ignore[attr-defined]
    block = opening._block
    handle = client.handle("x")
    del client, opening
    gc.collect()
    assert block._stack is not None
    with pytest.raises(UnknownInstance):
        handle.status()
    del handle
    while block._stack is not None:
        gc.collect()  # the loop's thread may have the error of the call until now
        current_loop().run(asyncio.sleep, 0)  # behind what the collector has begun


def test_the_async_client_says_that_it_is_on_another_loop(client: sync.Client) -> None:
    """`Client.from_provider` and code of the layers above have the async one."""
    store, _ = client.session_store.on_loop()
    with pytest.raises(WrongEventLoop):
        asyncio.run(store.load("s"))


def test_calls_have_the_context_of_their_thread() -> None:
    """So a trace goes on."""
    variable = ContextVar("variable", default="none")
    variable.set("here")
    assert current_loop().run(variable.get) == "here"


def test_attributes_that_are_none(client: sync.Client) -> None:
    with pytest.raises(AttributeError, match="no attribute 'wiat'"):
        client.wiat("x")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'from_provider'"):
        client.from_provider(None)  # type: ignore[attr-defined]
