"""Links to logs and traces, and exact times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from affinity import Client
from affinity.cli import main
from affinity.cli.help import MISUSED
from affinity.console.links import Links, span_of, trace_id_of
from affinity.errors import InvalidOptions
from tests.console.conftest import Open, fill
from tests.support.console_app import chats

pytestmark = pytest.mark.anyio

LINKS = {
    "logs": "https://logs.example/?q={instance_id}&from={since}&to={until}",
    "attempt": "https://logs.example/{name}/{activity_id}/{attempt}?w={worker_id}",
    "trace": "https://traces.example/{trace_id}",
    "wake": "https://logs.example/wake/{conversation_id}/{wake_id}",
}


@pytest.mark.parametrize(
    "address",
    [
        *("", "logs", "ftp://logs.example/{name}", "javascript:alert(1)//{name}", "https://{instance_id}.example/"),
        *("https://logs.example/{nothing}", "https://logs.example/{name!r}", "https://logs.example/{name:>9}"),
        *("https://logs.example/{", "https://logs.example/{}", "https://logs.example"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidOptions, match="'logs'"):
        Links({"logs": address})


def test_a_link_is_there_when_all_its_names_have_values() -> None:
    """What is stored stays within its place in the address."""
    links = Links(LINKS)
    about: dict[str, object] = {
        "instance_id": "a/../b?c=d&e#f \u202e",
        **span_of(datetime(2026, 1, 31, 12, tzinfo=UTC)),
    }
    ((text, address),) = links.of(**about)
    assert text == "logs"
    start = "https://logs.example/?q=a%2F..%2Fb%3Fc%3Dd%26e%23f%20%E2%80%AE&from=2026-01-31T12%3A00%3A00Z&to="
    assert address.startswith(start)
    assert [text for text, _ in links.of(**about, trace_id="1f")] == ["logs", "trace"]
    assert links.of("activity_id", **about) == []


def test_the_end_of_what_goes_on_is_the_same_for_minutes() -> None:
    ends = {span_of(datetime.now(UTC))["until_ms"] for _ in range(3)}
    assert len(ends) <= 2
    assert all(isinstance(end, int) and end > datetime.now(UTC).timestamp() * 1000 for end in ends)
    assert span_of(None) == {}
    at = datetime(2026, 1, 31, tzinfo=UTC)
    assert span_of(at, at + timedelta(seconds=5))["until"] == "2026-01-31T00:00:06Z"


def test_the_trace_of_a_context() -> None:
    assert (
        trace_id_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 a=b") == "0af7651916cd43dd8448eb211c80319c"
    )
    assert trace_id_of(None) is trace_id_of("") is None


async def test_the_pages_link_to_logs(client: Client, open_console: Open) -> None:
    """From an instance, its activities and a wake."""
    await fill(client, "plain")
    wake = (await client.conversation(chats, "talk").wakes(limit=1))[0].wake_id
    async with open_console(links=LINKS) as http:
        page = (await http.get("/instance?id=shown")).text
        assert re.search(
            r'href="https://logs.example/\?q=shown&amp;from=20[^"]+Z&amp;to=20[^"]+Z" rel="noreferrer">logs<', page
        )
        assert re.search(r'href="https://logs.example/[a-z]+/\d+/1\?w=one" rel="noreferrer">attempt<', page)
        assert "traces.example" not in page  # its client traces nothing
        page = (await http.get("/wake", params={"conversation": "talk", "id": wake})).text
        assert "https://logs.example/wake/talk/" in page
    async with open_console() as http:
        assert 'class="links"' not in (await http.get("/instance?id=shown")).text


@pytest.mark.parametrize("pair", ["logs", "=https://logs.example/", "logs="])
def test_an_option_that_is_no_link_is_refused(pair: str) -> None:
    result = CliRunner().invoke(main, ["console", "--link", pair])
    assert result.exit_code == MISUSED, result.output
    assert "--link" in result.output


async def test_exact_times_in_the_zone_of_the_address(client: Client, open_console: Open) -> None:
    """The last choice is kept: an address without one is sent on to the same page with it."""
    await fill(client, "plain")
    created = (await client.status("shown")).created_at
    text = created.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    async with open_console() as http:
        address = "/instances?prefix=shown"
        assert 'class="exact"' not in (await http.get(address)).text
        assert f">{text}Z</time>" in (await http.get(f"{address}&times=UTC")).text
        kept = await http.get(address)
        assert (kept.status_code, kept.headers["location"]) == (303, f"{address}&times=UTC")
        found = re.search(
            r'class="exact" datetime="([^"]+)">([^<]+)</time>', (await http.get(f"{address}&times=Asia/Tokyo")).text
        )
        assert found is not None
        assert found[2].endswith("+09:00")
        assert abs(datetime.fromisoformat(found[2]) - datetime.fromisoformat(found[1])) < timedelta(milliseconds=1)
        assert 'class="exact"' not in (await http.get(f"{address}&times=relative")).text
        assert (await http.get(address)).status_code == 200


@pytest.mark.parametrize("zone", ["Nowhere/City", "../../etc/passwd", "/etc/passwd", "Europe", "x" * 5_000, "\0"])
async def test_a_zone_that_is_none_is_refused(open_console: Open, zone: str) -> None:
    """And a cookie of it is ignored."""
    async with open_console() as http:
        for headers in ({}, {"accept": "text/event-stream"}):
            found = await http.get("/workers", params={"times": zone}, headers=headers)
            assert (found.status_code, "time zone" in found.text) == (400, True)
        if zone.isprintable():
            http.cookies.set("affinity_times", zone)
        assert (await http.get("/workers")).status_code == 200
