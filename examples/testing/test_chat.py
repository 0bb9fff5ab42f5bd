"""Tests of an application, on an SQLite file that is gone afterwards. Run with ``pytest examples/testing``."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity.client import Handle

# --- the application; yours is in a module of its own -----------------------------------------------------------------


class Chat(BaseModel):
    """What a session knows."""

    messages: list[str] = []


app = affinity.App("chat")
chats = affinity.Sessions(Chat)
app.include(chats)


@app.activity
async def remember(ctx: affinity.ActivityContext, text: str) -> int:
    """Add a message; return how many there are."""
    async with chats.open(ctx) as chat:
        chat.messages.append(text)
        return len(chat.messages)


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> list[int]:
    """Remember messages until one says bye, or none comes for a day."""
    counts: list[int] = []
    while True:
        chosen, text = await ctx.select(ctx.schedule_wait("message", str), ctx.schedule_timer(86_400))
        if chosen == 1 or text == "bye":
            return counts
        counts.append(await ctx.schedule_activity(remember, text).on_session("ann"))
        ctx.set_custom_status(counts)


# --- the tests --------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that workers and clients run on."""
    return "asyncio"


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A database of this test's own."""
    url = f"sqlite:///{tmp_path / 'test.db'}"
    await affinity.migrate(url)
    return url


@pytest.fixture
async def client(url: str) -> AsyncIterator[affinity.Client]:
    """Open for one test."""
    async with affinity.Client(url) as client:
        yield client


async def shown(chat: Handle[list[int]], status: list[int]) -> None:
    """Wait until the custom status is that."""
    with anyio.fail_after(10):
        while True:
            if (await chat.status()).custom_status == status:
                return
            await anyio.sleep(0.02)


async def test_messages_are_counted(url: str, client: affinity.Client) -> None:
    """Events may be raised before the orchestration waits for them."""
    async with affinity.Worker(app, url):
        chat = await client.start(conversation)
        for text in ["hello", "how are you?", "bye"]:
            await chat.raise_event("message", text)
        assert await chat.wait(timeout=10) == [1, 2]


async def test_a_conversation_survives_its_worker(url: str, client: affinity.Client) -> None:
    """The second worker replays the history and loads the state: a test of determinism, too."""
    chat = await client.start(conversation)
    async with affinity.Worker(app, url, affinity.RuntimeOptions(worker_node_id="a")):
        await chat.raise_event("message", "hello")
        await shown(chat, [1])
    async with affinity.Worker(app, url, affinity.RuntimeOptions(worker_node_id="b")):
        await chat.raise_event("message", "still there?")
        await chat.raise_event("message", "bye")
        assert await chat.wait(timeout=10) == [1, 2]


async def test_an_orchestration_without_its_activities(url: str, client: affinity.Client) -> None:
    """Another app registers the orchestration, and under the activity's name a function of the test."""
    fake = affinity.App("fake")
    fake.orchestration(conversation)

    @fake.activity(name="remember")
    async def refuse(ctx: affinity.ActivityContext, text: str) -> int:
        raise ValueError("the disk is full")

    async with affinity.Worker(fake, url):
        chat = await client.start(conversation)
        await chat.raise_event("message", "hello")
        with pytest.raises(affinity.errors.OrchestrationFailed, match="the disk is full"):
            await chat.wait(timeout=10)


async def test_state_without_a_worker(url: str) -> None:
    """A script opens a session by its id."""
    async with affinity.open_store(url) as store:
        async with chats.open("ann", store=store) as chat:
            chat.messages.append("from the test")
        record = await store.load("ann")
    assert record is not None
    assert b"from the test" in record.state
