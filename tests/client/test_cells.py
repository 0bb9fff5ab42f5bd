"""The prototype of cells: ids have a place, and what runs stays where it is when a cell is added."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import affinity
from tests.support.cells import open_cells, rendezvous

pytestmark = pytest.mark.anyio

IDS = [f"order-{number}" for number in range(3_000)]


def test_a_cell_more_takes_its_share_and_nothing_else_moves() -> None:
    before = {each: rendezvous(each, ["a", "b", "c"]) for each in IDS}
    after = {each: rendezvous(each, ["a", "b", "c", "d"]) for each in IDS}
    assert all(after[each] in {before[each], "d"} for each in IDS)
    assert all(600 < number < 900 for number in Counter(after.values()).values())


async def test_running_work_stays_when_a_cell_is_added(tmp_path: Path) -> None:
    """Each root is found by its id, before and after; what begins later may go to the new cell."""
    app = affinity.App("cells")

    @app.orchestration
    async def order(ctx: affinity.OrchestrationContext, item: str) -> str:
        return f"{item} {await ctx.schedule_wait('paid', str)}"

    urls = {name: f"sqlite:///{tmp_path}/{name}.db" for name in "abc"}
    async with AsyncExitStack() as stack:
        for url in urls.values():
            await stack.enter_async_context(affinity.Worker(app, url))
        async with open_cells({name: urls[name] for name in "ab"}) as two:
            for each in IDS[:12]:
                await two.start(order, each, each)
            exceptions = await two.exceptions_for([*urls])
            assert len(await two.list()) == 12
        assert exceptions
        async with open_cells(urls, exceptions) as three:
            for each in IDS[12:24]:
                await three.start(order, each, each)
            assert {three.cell_of(each) for each in IDS[12:24]} == {*"abc"}
            for each in IDS[:24]:
                client = three.client_of(each)
                await client.raise_event(each, "paid", "card")
                assert await client.wait(each, timeout=30) == f"{each} card"
            assert [one.status for one in await three.list()] == ["completed"] * 24
            assert await three.exceptions_for([*urls]) == {}
