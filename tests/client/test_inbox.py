"""How often a feed of the inbox reads, on a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import pytest

from affinity.conversation.inbox import RequestFeed
from affinity.conversation.journal import OpenRequestPage, Request, RequestFilter
from affinity.conversation.journals import Journals

pytestmark = pytest.mark.anyio


def open_request(name: str) -> Request:
    return Request(
        session_id=name,
        journal_id=1,
        journal_kind="chat",
        title=None,
        owner=None,
        request_id="r",
        kind="agent.tool_confirmation",
        payload="{}",
        wake_id="w",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        expires_at=None,
        place=1,
        labels={},
    )


class Stub:
    """Journals of so many pages of requests, and the changes of all of them: what is changed at each second."""

    def __init__(self, pages: int, changed: Mapping[str, bool] | None) -> None:
        self.pages, self.changed = pages, changed
        self.now = 1000.0
        self.mark: str | None = None  # as of SQLite
        self.reads: list[Any] = []  # the conversations of each read, None: a page of all
        self.waits = 0

    async def all_changes(self) -> Stub:
        return self

    async def opened(self) -> None:
        pass

    async def wait(self) -> None:
        self.waits += 1
        self.now += 1.0
        await anyio.sleep(0)

    def take(self) -> Mapping[str, bool] | None:
        return self.changed if self.waits else {}

    def leave(self) -> None:
        pass

    async def all_requests(self, where: RequestFilter) -> Any:
        return await Journals.all_requests(cast("Journals", self), where)

    async def requests(self, where: RequestFilter, limit: int) -> OpenRequestPage:
        self.reads.append(where.session_ids)
        if where.session_ids is not None or (self.mark is not None and where.mark == self.mark):
            return OpenRequestPage(requests=[], after=None, mark=self.mark)
        number = 1 if where.after is None else where.after[2] + 1
        found = open_request(f"c{number}")
        after = (found.created_at, 1, number, "r") if number < self.pages else None
        return OpenRequestPage(requests=[found], after=after, mark=None if where.after else self.mark)


async def watch(monkeypatch: pytest.MonkeyPatch, stub: Stub, waits: int) -> None:
    """Let a feed wait so often, once for each second."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: stub.now)
    async with RequestFeed(cast("Journals", stub), RequestFilter()) as feed:
        for _ in range(stub.pages):
            await anext(feed)
        while stub.waits < waits:
            await feed._read_on()
    monkeypatch.undo()


@pytest.mark.parametrize("pages", [1, 3, 20])
async def test_an_idle_feed_reads_a_page_a_second(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """On average, and all of them again and again."""
    stub = Stub(pages, {})
    await watch(monkeypatch, stub, 120)
    assert set(stub.reads) == {None}
    assert 120 - pages <= len(stub.reads) - pages <= 120 + pages


async def test_a_feed_that_hears_of_many_changes_still_reads_all_at_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is changed in between; inputs of conversations without requests are not read."""
    stub = Stub(4, {"c2": False, "other": False, "new": True})
    await watch(monkeypatch, stub, 40)
    some = [[*reads] for reads in stub.reads if reads is not None]
    assert some[0] == ["c2", "new"]
    assert {name for reads in some for name in reads} == {"c2", "new"}
    assert 9 <= stub.reads.count(None) / 4 <= 12


async def test_after_a_change_of_any_journal_all_is_read_only_if_a_request_has_come_or_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise one question a hint says so; all is still read at times."""
    stub = Stub(10, None)
    await watch(monkeypatch, stub, 40)
    assert len(stub.reads) >= 400
    stub = Stub(10, None)
    stub.mark = "1"
    await watch(monkeypatch, stub, 40)
    assert 36 + 4 * 10 - 10 <= len(stub.reads) - 10 <= 36 + 4 * 10 + 10
