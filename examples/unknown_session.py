"""An orchestration that itself notices that a session has moved, hydrates it, and tries again.

The cache has no ``hydrate`` callback. A turn that finds no state under its own lease raises `UnknownSession`; the
orchestration sees it as an `ActivityFailed` of that type, runs the activity ``load`` on the session, and repeats the
turn. Use this where loading needs what only the orchestration knows, or must be visible in the history.

Run it with ``python examples/unknown_session.py``.
"""

import tempfile

import anyio
from pydantic import BaseModel

import affinity
from affinity import Client, Handle, SessionCache
from affinity.errors import ActivityFailed, UnknownSession

app = affinity.App("basket")
baskets = SessionCache[list[str]](max_sessions=50)
app.include(baskets)
saved: dict[str, list[str]] = {}  # stands for a store that every worker reaches

MAX_MOVES = 5
"""Moves of the session during one turn, after which something else must be wrong."""


class Item(BaseModel):
    """What to put into the basket, and how many are in it before: a repeated turn can tell."""

    name: str
    before: int


@app.activity
async def load(ctx: affinity.ActivityContext, customer: str) -> None:
    """Hydrate the session from what was saved for the customer."""
    await baskets.put(ctx, list(saved.get(customer, ())))
    print(f"  {ctx.worker_id} loads the basket of {customer} (epoch {ctx.session_epoch})")


@app.activity
async def add(ctx: affinity.ActivityContext, item: Item) -> list[str]:
    """Put one item in; raises `UnknownSession` when this worker has no basket under this lease."""
    basket = baskets.peek(ctx)
    if len(basket) == item.before:
        basket.append(item.name)
    print(f"  {ctx.worker_id} has {basket}")
    return list(basket)


@app.activity
async def save(ctx: affinity.ActivityContext, customer: str) -> None:
    """Checkpoint."""
    saved[customer] = list(baskets.peek(ctx))


@app.orchestration
async def shopping(ctx: affinity.OrchestrationContext, customer: str) -> list[str]:
    """Add items until one is called checkout."""
    session = f"basket/{customer}"
    basket: list[str] = []
    while (name := await ctx.schedule_wait("item", str)) != "checkout":
        item = Item(name=name, before=len(basket))
        for moves_left in reversed(range(MAX_MOVES)):
            try:
                basket = await ctx.schedule_activity(add, item).on_session(session)
                await ctx.schedule_activity(save, customer).on_session(session)
                break
            except ActivityFailed as failure:
                if failure.error_type != UnknownSession.__name__ or not moves_left:
                    raise
                await ctx.schedule_activity(load, customer).on_session(session)
        ctx.set_custom_status(len(basket))
    return basket


async def shop(url: str, worker_id: str, items: list[str]) -> None:
    """Run one worker, and send it items one by one."""
    print(worker_id)
    async with affinity.Worker(app, url, affinity.RuntimeOptions(worker_node_id=worker_id)), Client(url) as client:
        run = await client.start(shopping, "ada", instance_id="ada")
        for item in items:
            before = (await run.status()).custom_status
            await run.raise_event("item", item)  # InstanceFinished, if the run has failed
            if item == "checkout":
                print(await run.wait(timeout=30))
            else:
                await status_after(run, before)


async def status_after(run: Handle[list[str]], before: object) -> None:
    """Wait until the orchestration shows another custom status."""
    while True:
        now = await run.status()
        if now.finished or now.custom_status != before:
            return
        await anyio.sleep(0.02)


async def main(url: str) -> None:
    """The second worker finds a session that it does not know."""
    await shop(url, "worker-a", ["tea", "milk"])
    await shop(url, "worker-b", ["sugar", "checkout"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, f"sqlite:///{folder}/affinity.db")
