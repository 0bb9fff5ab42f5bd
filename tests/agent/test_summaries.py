"""Summaries of a transcript: one that cannot be made, or is too long, costs no wake, and is not made in each turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ContextWindow, ModelReply, ModelRequest, run_loop
from affinity.conversation import ContextSummary, JournalEvent, UserMessage
from affinity.conversation.events import text_of
from affinity.testing import Env

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    """The state of a conversation."""


def _letters(event: JournalEvent) -> int:
    return len(text_of(getattr(event, "content", "")))


def _last(request: ModelRequest) -> str:
    return text_of(getattr(request.events[-1], "content", ""))


def _fails(events: Sequence[JournalEvent]) -> str:
    raise ConnectionError("the summariser is busy")


def _given(*contents: Any) -> Callable[[Sequence[JournalEvent]], Any]:
    return lambda events: contents[0]


async def _talk(window: ContextWindow, turns: int) -> tuple[list[ContextSummary], list[ModelRequest], list[str]]:
    """The summaries and requests of a talk, and the names of the spans that have failed."""
    requests: list[ModelRequest] = []

    async def model(request: ModelRequest) -> ModelReply:
        requests.append(request)
        return ModelReply(content="a" * 50)

    chats = affinity.Conversations(Chat, kind="chat")

    @chats.on_wake(retry=RetryPolicy(max_attempts=1))
    async def handle(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, context=window)

    app = affinity.App("summaries")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        for turn in range(turns):
            assert (await talk.ask(UserMessage(f"{turn} " + "q" * 50))).text == "a" * 50
        found: Any = [each.event for each in await talk.history(kinds=[ContextSummary])]
        spans: Any = [each.event for each in await talk.history(last=1000, kinds=["span.completed"])]
    return found, requests, [each.name for each in spans if each.error is not None]


@pytest.mark.parametrize("summarise", [_fails, _given(object()), _given(None), _given([{"type": {1}}])])
async def test_one_that_cannot_be_made_is_left_out(summarise: Any) -> None:
    """The model is given the turns that fit. Each wake tries again."""
    window = ContextWindow(max_tokens=300, count_tokens=_letters, summarise=summarise)
    summaries, requests, failed = await _talk(window, 8)
    assert summaries == []
    assert set(failed) == {"summarise"}
    assert len(failed) == 5
    assert all(sum(map(_letters, each.events)) <= 300 for each in requests)
    assert all(_last(each).startswith(f"{turn} ") for turn, each in enumerate(requests))


@pytest.mark.parametrize(
    "content", ["ä" * 5_000, [{"type": "text", "text": "x" * 3_000}, {"type": "text", "text": "y"}], "z" * 2_000_000]
)
@pytest.mark.parametrize("options", [{"max_bytes": 4_000}, {"max_tokens": 1_500, "count_tokens": _letters}])
async def test_the_end_of_a_long_one_is_cut_off(content: Any, options: Any) -> None:
    """It has a quarter of the bound, and the turns behind it half: so turns pass before the next one."""
    window = ContextWindow(**options, summarise=_given(content))
    summaries, requests, failed = await _talk(window, 30)
    assert failed == []
    assert 2 <= len(summaries) <= 10
    assert all(0 < window.size_of(each) <= window.bound // 4 for each in summaries)
    assert all(each.text[:10] == text_of(content)[:10] for each in map(_as_text, summaries))
    assert all(sum(map(window.size_of, each.events)) <= window.bound for each in requests)


def _as_text(summary: ContextSummary) -> Any:
    return UserMessage(summary.content)


async def test_one_turn_over_the_bound_is_not_summarised_again_and_again() -> None:
    """What stands before it is one summary already."""
    window = ContextWindow(max_tokens=60, count_tokens=_letters, summarise=_given("short"))
    summaries, requests, _ = await _talk(window, 6)
    assert len(summaries) <= 5
    assert all(_last(each).startswith(f"{turn} ") for turn, each in enumerate(requests))
