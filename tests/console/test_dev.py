"""The button that kills the worker: `affinity dev` has it, and no other console."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from affinity import Client
from affinity.console.dev import KILL, create_dev, serve_dev
from affinity.console.pages import pages
from tests.console.conftest import ORIGIN, Open, token

pytestmark = pytest.mark.anyio

BUTTON = "Kill the worker"


def browser(client: Client, kills: list[bool]) -> httpx.AsyncClient:
    """Of a console of `affinity dev`, whose worker dies if the list has something left."""
    console = create_dev(client, lambda: bool(kills) and kills.pop())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=console), base_url="http://console.test")


async def test_the_button_kills_the_worker_and_shows_the_page_again(client: Client) -> None:
    kills = [True]
    async with browser(client, kills) as http:
        page = "/instances?status=failed"
        text = (await http.get(page)).text
        assert BUTTON in text
        assert 'name="back" value="/instances?status=failed"' in text
        form = {"token": await token(http), "what": "worker", "back": page}
        done = await http.post(f"/do/{KILL}", data=form, headers=ORIGIN)
        assert (done.status_code, done.headers["location"], kills) == (303, page, [])
        again = await http.post(f"/do/{KILL}", data=form, headers=ORIGIN)
        assert again.status_code == 409
        assert "no worker runs now" in again.text


async def test_another_site_kills_no_worker(client: Client) -> None:
    kills = [True]
    async with browser(client, kills) as http:
        form = {"token": await token(http), "what": "worker"}
        for headers in ({"origin": "http://evil.test"}, {}):
            assert (await http.post(f"/do/{KILL}", data=form, headers=headers)).status_code == 403
        assert (await http.post(f"/do/{KILL}", data={"what": "worker"}, headers=ORIGIN)).status_code == 403
    assert kills == [True]


async def test_no_other_console_has_the_button(open_console: Open) -> None:
    """Also for a user who may do everything, and if somebody makes the form."""
    async with open_console() as http:
        for path in [path for path, page in pages().items() if page.is_in_menu or path in ("/", "/workers")]:
            assert BUTTON not in (await http.get(path)).text
        form = {"token": await token(http, "/workers"), "what": "worker"}
        assert (await http.post(f"/do/{KILL}", data=form, headers=ORIGIN)).status_code == 404


async def test_its_address_opens_in_each_browser_and_no_other_token_does(sqlite_url: str) -> None:
    """Also again in the same one. A browser that has not opened the address sees nothing."""
    async with Client(sqlite_url), serve_dev(sqlite_url, lambda: False, "ann") as address:
        base, _, given = address.partition("/login?token=")
        for _ in range(2):
            async with httpx.AsyncClient(base_url=base) as http:
                assert (await http.get("/")).status_code == 401
                assert (await http.get("/login", params={"token": given[:-1]})).status_code == 401
                for _ in range(2):
                    assert (await http.get(address)).status_code == 200
                    assert BUTTON in (await http.get("/")).text
