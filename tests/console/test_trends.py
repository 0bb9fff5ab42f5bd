"""Charts on the overview, and the page of trends."""

from __future__ import annotations

import anyio
import pytest

from affinity import Client
from affinity.trends.store.contract import LAG
from tests.console.conftest import Open
from tests.support.console_app import shows
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.slow_cases(r"\[sqlite")
async def test_the_charts_have_the_counts(client: Client, open_console: Open) -> None:
    """As lines, and as a table behind a fold; the names link to their charts."""
    await (await client.start(shows, "tea", for_session="s")).wait(20)

    async def is_counted() -> bool:
        await anyio.sleep(0.2)
        return (await client.trends("shows")).total.completed == 1

    await until(is_counted, LAG + 30)
    async with open_console() as browser:
        overview = (await browser.get("/")).text
        assert overview.count("<svg") >= 4
        assert "The numbers of the charts" in overview
        page = (await browser.get("/trends")).text
        assert "name=shows" in page
        for span in ("hour", "day"):
            named = (await browser.get("/trends", params={"name": "shows", "span": span})).text
            assert "Trends of the orchestration shows" in named
            assert '<td class="number">1</td>' in named


async def test_an_address_that_names_no_time_is_refused(open_console: Open) -> None:
    async with open_console() as browser:
        assert (await browser.get("/trends", params={"span": "year"})).status_code == 400
        assert (await browser.get("/trends", params={"kind": "year"})).status_code == 400
