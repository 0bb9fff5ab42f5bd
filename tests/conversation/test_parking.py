"""Wakes that are scheduled ahead, and parked until an input comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from affinity import Wake
from affinity.conversation import AgentMessage, UserMessage
from affinity.worker.fetcher import Fetcher
from tests.conversation.application import Chat, stage, until

pytestmark = pytest.mark.anyio


async def test_a_conversation_is_idle_while_its_wake_is_parked(url: str) -> None:
    """It has the status, and the work, of one that waits."""
    async with stage(url) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert await on.talk().status() == "idle"
        assert [one.status for one in await on.client.activities("c")] == ["completed"]
        history = await on.client.history("c")
        assert [each.type for each in history].count("activity_scheduled") == 2
        for text in ("two", "three"):
            await on.talk().ask(UserMessage(text), timeout=30)
        assert [one.status for one in await on.client.activities("c")] == ["completed"] * 3


async def test_a_wake_without_a_journal_is_no_loop(url: str) -> None:
    """The journal is deleted while the wake runs: nothing would wake the next one."""
    entered, go = anyio.Event(), anyio.Event()

    async def slow(wake: Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()

    async with stage(url, slow) as on:
        await on.talk().send(UserMessage("one"))
        await entered.wait()
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        go.set()
        await anyio.sleep(0.5)
        history = await on.client.history("c")
        assert [each.type for each in history].count("activity_scheduled") == 1
        await on.talk().ask(UserMessage("two"), timeout=30)  # of the new journal


@pytest.mark.parametrize("ends", ["interrupt", "terminate"])
async def test_a_message_that_comes_late_leaves_no_trace_of_a_parked_wake(
    url: str, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It was sent while the wake before ran, and is fetched when the next one is parked."""
    entered, go = anyio.Event(), anyio.Event()
    fetch, is_late = Fetcher._fetch_messages, False

    async def fetch_late(self: Fetcher, term: int) -> float:
        return 0.05 if is_late else await fetch(self, term)

    async def slow(wake: Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()
        wake.append(AgentMessage("done"))

    monkeypatch.setattr(Fetcher, "_fetch_messages", fetch_late)
    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await entered.wait()
        is_late = True
        await anyio.sleep(0.2)  # until the fetch that is under way has ended
        await (talk.interrupt(cancel_running=True) if ends == "interrupt" else talk.terminate())
        go.set()
        wakes = 2 if ends == "interrupt" else 1  # after them one is parked
        await until(lambda: _have_ended(talk, wakes))
        is_late = False
        if ends == "interrupt":
            await anyio.sleep(0.3)
            await talk.ask(UserMessage("two"), timeout=30)
            wakes += 1
        else:
            await on.client.wait("c", timeout=30)
        assert Counter(await _spans(talk)) == {"span.started": wakes, "span.completed": wakes}


async def test_an_operator_cancels_a_conversation_whose_wake_is_parked(url: str) -> None:
    """No trace says that a wake was cancelled: none had begun."""
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        spans = await _spans(talk)
        await on.client.cancel("c")
        await on.client.wait_finished("c", timeout=30)
        assert await _spans(talk) == spans


async def _have_ended(talk: Any, wakes: int) -> bool:
    return len(await talk.history(kinds=["conversation.idle"])) == wakes


async def _spans(talk: Any) -> list[str]:
    return [each.event.kind for each in await talk.history(kinds=["span.started", "span.completed"])]
