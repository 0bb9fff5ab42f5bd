"""Context variables of the code that a worker runs: it sees the application's, and nothing that other code has set."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import context as spans
from pydantic import BaseModel

from affinity import ActivityContext, App, Conversations, OrchestrationContext, Resource, RetryPolicy, Sessions, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import UserMessage
from affinity.testing import Env

pytestmark = pytest.mark.anyio

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
CONFIG: ContextVar[str] = ContextVar("config", default="none")

seen: list[tuple[str, object]] = []


def note(place: str) -> None:
    """Note what the code of this place begins with, and set something else."""
    seen.append((place, (CONFIG.get(), TENANT.get(), decimal.getcontext().prec, spans.get_value("span"))))
    TENANT.set(place)
    decimal.getcontext().prec = 3
    spans.attach(spans.set_value("span", place))


class Basket(BaseModel):
    size: int = 0


def initial(session_id: str) -> Basket:
    note("initial")
    return Basket()


def dispose(session_id: str, basket: Basket) -> None:
    note("dispose")


def open_lamp(key: str) -> str:
    note("open")
    return key


async def close_lamp(key: str, value: str) -> None:
    note("close")


app = App("contexts")
baskets = Sessions(Basket, kind="basket", initial=initial, dispose=dispose)
lamps = Resource(open=open_lamp, close=close_lamp)


@app.activity
async def in_task(ctx: ActivityContext) -> None:
    note("task")
    if ctx.attempt == 1:
        raise ValueError


@app.activity
def in_thread(ctx: ActivityContext) -> None:
    note("thread")


@app.activity
async def with_state(ctx: ActivityContext) -> None:
    note("state")
    opening = baskets.open(ctx)
    async with opening as basket:
        basket.size += 1
        await opening.resource(lamps)


@app.orchestration
async def works(ctx: OrchestrationContext) -> None:
    note("orchestration")
    for _ in range(2):
        await ctx.schedule_activity(in_task, retry=RetryPolicy(max_attempts=2, initial_interval=0))
        await ctx.schedule_activity(in_thread)
        await ctx.schedule_activity(with_state).on_session("s")


async def step(n: int) -> int:
    note("step")
    return n


def step_in_thread(n: int) -> int:
    note("step in a thread")
    return n


def confirm(arguments: Any) -> bool:
    note("confirm")
    return False


@tool(confirm=confirm)
async def look(n: int) -> int:
    """Look."""
    note("tool")
    return n


@tool
def look_in_thread(n: int) -> int:
    """Look."""
    note("tool in a thread")
    return n


async def model(request: ModelRequest) -> ModelReply:
    note("model")
    if request.round > 2:
        return ModelReply(content="done")
    calls = [ToolCall(f"{request.round}{name}", name, {"n": 1}) for name in ("look", "look_in_thread")]
    return ModelReply(calls=calls)


chats = Conversations(list[str], kind="chat")


@chats.on_wake()
async def handle(wake: Wake, state: list[str]) -> None:
    for n in range(2):
        await wake.step("a", step, n)
        await wake.step("b", step_in_thread, n)
    await run_loop(wake, model=model, tools=[look, look_in_thread])
    note("handler")


app.include(baskets)
app.include(chats)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


async def test_code_sees_nothing_that_other_code_has_set(env_url: str | None) -> None:
    CONFIG.set("of the application")
    before = decimal.getcontext()
    decimal.setcontext(decimal.Context(prec=17))
    try:
        async with Env(app, url=env_url) as env:
            for _ in range(2):
                await (await env.client.start(works)).wait()
            talk = env.client.conversation(chats, "talk")
            for text in ("a", "b"):
                reply = await talk.ask(UserMessage(text))
                assert reply.stop_reason == "end_turn"
        assert decimal.getcontext().prec == 17
    finally:
        decimal.setcontext(before)
    places = {place for place, _ in seen}
    assert places >= {"task", "thread", "state", "step", "step in a thread", "tool", "tool in a thread", "model"}
    assert places >= {"orchestration", "initial", "dispose", "open", "close", "confirm", "handler"}
    for place, values in seen:
        if place == "orchestration":  # begins with the defaults, on each worker
            assert values == ("none", "nobody", decimal.DefaultContext.prec, None)
        elif place in {"initial", "dispose", "open", "close"}:  # called by the code of an activity of their session
            assert (place, values) == (place, ("of the application", "state", 3, "state"))
        else:
            assert (place, values) == (place, ("of the application", "nobody", 17, None))
