"""A test with a crash at each commit. Run with ``pytest examples/testing``."""

import pytest
from pydantic import BaseModel

import affinity.testing


class Basket(BaseModel):
    """What a session knows."""

    items: list[str] = []


app = affinity.App("shop")
baskets = affinity.Sessions(Basket, kind="basket")
app.include(baskets)


@app.activity
async def add(ctx: affinity.ActivityContext, item: str) -> int:
    """It runs again after some crashes; its change and its result are one commit."""
    async with baskets.open(ctx) as basket:
        basket.items.append(item)
    return len(basket.items)


@app.orchestration
async def shopping(ctx: affinity.OrchestrationContext, items: list[str]) -> list[int]:
    """Put the items into the basket of the session."""
    return [await ctx.schedule_activity(add, item).on_session(ctx.instance_id) for item in items]


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that workers and clients run on."""
    return "asyncio"


pytestmark = pytest.mark.anyio


async def shop(env: affinity.testing.Env) -> list[int]:
    """The scenario: what a client does."""
    run = await env.client.start(shopping, ["tea", "milk"], instance_id="ann")
    return await run.wait()


async def is_full(env: affinity.testing.Env, counts: list[int]) -> None:
    """Whether all is right at the end."""
    assert counts == [1, 2]
    record = await env.client.session_manager.show("ann")
    assert Basket.model_validate_json(record.state).items == ["tea", "milk"]


async def test_no_crash_does_harm() -> None:
    """About ten runs, and one with a process that is killed."""
    await affinity.testing.crash_matrix(app, shop, is_full, kills=1)
