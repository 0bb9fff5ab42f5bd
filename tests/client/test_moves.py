"""Following moves: each once, late ones included; what a caller may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from affinity import Client
from affinity.client import moves
from affinity.errors import InvalidInput
from affinity.provider.contract import MoveFilter, SessionMove

pytestmark = pytest.mark.anyio


def move(epoch: int) -> SessionMove:
    return SessionMove(
        session_id="s",
        from_worker=None,
        to_worker="w",
        epoch=epoch,
        reason="new",
        moved_at=datetime.now(UTC),
        queued=0,
        hydrate_seconds=None,
        hydrate_bytes=None,
    )


class Table:
    """A provider; each call finds the moves that are committed by then."""

    def __init__(self, *commits: list[int]) -> None:
        self._commits = list(commits)
        self._there: set[int] = set()
        self.asked: list[int | None] = []

    async def list_session_moves(
        self, where: MoveFilter, *, after: int | None = None, before: int | None = None, limit: int = 100
    ) -> Sequence[SessionMove]:
        self._there |= set(self._commits.pop(0))
        self.asked.append(after)
        found = sorted(epoch for epoch in self._there if epoch > (after or 0))
        return [move(epoch) for epoch in (found[-limit:] if after is None else found[:limit])]


async def followed(table: Any, after: int | None) -> list[int]:
    seen: list[int] = []
    try:
        async for one in moves.follow_moves(lambda: table, MoveFilter(), after, 0.0):
            seen.append(one.epoch)
    except IndexError:  # there is no further commit
        return seen
    raise AssertionError


async def test_a_move_that_is_committed_late_is_found() -> None:
    """Each once, also one with a smaller epoch than the moves that were seen."""
    table = Table([1], [], [2, 5], [3], [4, 6], [])
    assert await followed(table, None) == [2, 5, 3, 4, 6]


async def test_what_was_seen_long_ago_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "LATE_SECONDS", 0.0)
    table = Table([1, 2], [3], [], [4], [])
    assert await followed(table, 0) == [1, 2, 3, 4]
    assert table.asked == [0, 2, 3, 3, 4]


async def test_more_than_a_page_comes_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "MAX_PAGE", 2)
    table = Table([1, 2, 3, 4, 5], [], [], [], [])
    assert await followed(table, 0) == [1, 2, 3, 4, 5]


async def test_bad_questions_are_refused(client: Client) -> None:
    for question in ({"limit": 0}, {"limit": 1001}, {"after": 1, "before": 2}):
        with pytest.raises(InvalidInput):
            await client.session_moves(**question)  # type: ignore[arg-type]
    assert await client.session_moves() == []
