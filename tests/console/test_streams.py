"""The pieces of what is said, for browsers that look."""

from __future__ import annotations

import json

import pytest

from affinity.console.payloads import MAX_SHOWN
from affinity.conversation import Retracted, Streamed
from affinity.conversation.page.live import Said, SaidPieces

pytestmark = pytest.mark.anyio


def say(said: Said, text: str, show: str = "") -> None:
    part = Streamed(wake_id="w", attempt=1, number=1, value=text)
    said.take(part, lambda whole: show or whole)


async def next_piece(pieces: SaidPieces) -> dict[str, str]:
    async for event in pieces.during(60):
        name, data, *_ = event.split("\n")
        assert name == "event: stream"
        return dict(json.loads(data.removeprefix("data: ")))
    raise AssertionError("nothing has come")


async def test_each_browser_gets_what_it_does_not_have() -> None:
    """The one that comes later gets all of it; nothing comes where nothing has changed."""
    said = Said()
    first = SaidPieces(said)
    assert [each async for each in first.during(0.01)] == []
    say(said, "a\n")
    assert await next_piece(first) == {"state": "said", "text": "a\n"}
    say(said, "b")
    say(said, "c")
    assert await next_piece(first) == {"state": "said", "more": "bc"}
    assert await next_piece(SaidPieces(said)) == {"state": "said", "text": "a\nbc"}
    assert [each async for each in first.during(0.01)] == []


@pytest.mark.parametrize(("replaced", "state"), [(True, "replaced"), (False, "retracted")])
async def test_what_is_void_stays_until_more_is_said(replaced: bool, state: str) -> None:
    said = Said()
    pieces = SaidPieces(said)
    say(said, "no")
    await next_piece(pieces)
    said.take(Retracted(wake_id="w", attempt=1, replaced=replaced), str)
    assert await next_piece(pieces) == {"state": state, "more": ""}
    say(said, "nobody")
    assert await next_piece(pieces) == {"state": "said", "more": "body"}
    said.take(Retracted(wake_id="w", attempt=2, replaced=replaced), str)
    say(said, "yes")
    assert await next_piece(pieces) == {"state": "said", "text": "yes"}


async def test_what_is_redacted_may_change_as_a_whole() -> None:
    said = Said()
    pieces = SaidPieces(said)
    say(said, "my number is", show="my number is")
    await next_piece(pieces)
    say(said, " 12345", show="(a number)")
    assert await next_piece(pieces) == {"state": "said", "text": "(a number)"}


async def test_no_more_is_kept_than_is_shown() -> None:
    said = Said()
    for _ in range(3):
        say(said, "x" * MAX_SHOWN)
    assert len(said.text) == MAX_SHOWN + 1
