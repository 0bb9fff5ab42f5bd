"""Tests of an application with sessions, in virtual time. Run with ``pytest examples/testing``."""

from datetime import timedelta

import pytest
from pydantic import BaseModel

import affinity.testing

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
        _, text = await ctx.select(ctx.schedule_wait("message", str), ctx.schedule_timer(86_400))
        if text is None or text == "bye":
            return counts
        counts.append(await ctx.schedule_activity(remember, text).on_session("ann"))


# --- the tests --------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that workers and clients run on."""
    return "asyncio"


@pytest.fixture
def affinity_app() -> affinity.App:
    """What `affinity_env` runs."""
    return app


async def test_messages_are_counted(affinity_env: affinity.testing.Env) -> None:
    """Events may be raised before the orchestration waits for them."""
    chat = await affinity_env.client.start(conversation)
    for text in ["hello", "how are you?", "bye"]:
        await chat.raise_event("message", text)
    assert await chat.wait() == [1, 2]
    assert [one.name for one in await chat.activities()] == ["remember", "remember"]


async def test_a_conversation_ends_after_a_day_of_silence(affinity_env: affinity.testing.Env) -> None:
    chat = await affinity_env.client.start(conversation)
    await affinity_env.advance(timedelta(hours=23))
    await chat.raise_event("message", "hello")
    assert await chat.wait() == [1]
    assert affinity_env.now() - affinity_env.started == timedelta(hours=47)


@pytest.mark.affinity_env(workers=2)
async def test_a_conversation_survives_its_worker(affinity_env: affinity.testing.Env) -> None:
    """The other worker replays the history and loads the state."""
    chat = await affinity_env.client.start(conversation)
    await chat.raise_event("message", "hello")
    await affinity_env.advance(1)
    (session,) = [each async for each in affinity_env.client.sessions()]
    await affinity_env.crash(session.worker_id, restart=False)
    await chat.raise_event("message", "still there?")
    await chat.raise_event("message", "bye")
    assert await chat.wait() == [1, 2]


async def test_an_orchestration_without_its_activities(affinity_env: affinity.testing.Env) -> None:
    affinity_env.fake(remember, ValueError("the disk is full"))
    chat = await affinity_env.client.start(conversation)
    await chat.raise_event("message", "hello")
    with pytest.raises(affinity.errors.OrchestrationFailed, match="the disk is full"):
        await chat.wait()


async def test_the_state_of_a_session(affinity_env: affinity.testing.Env) -> None:
    """A test opens a session by its id, as a script does: to prepare its state, or to look at it."""
    store = affinity_env.client.session_store
    async with chats.open("ann", store=store) as chat:
        chat.messages.append("from the test")
    run = await affinity_env.client.start(conversation)
    await run.raise_event("message", "hello")
    await run.raise_event("message", "bye")
    assert await run.wait() == [2]
    async with chats.open("ann", store=store) as chat:
        assert chat.messages == ["from the test", "hello"]
