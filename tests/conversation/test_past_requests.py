"""A fork at an earlier entry has the requests that were pending there, whatever has come of them since."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import anyio
import pytest

import affinity
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    ConfirmationAnswer,
    JournalEntry,
    RequestEvent,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
)
from affinity.errors import WakeFailed
from tests.conversation.application import Chat, stage, status, until

pytestmark = pytest.mark.anyio


class Choice(RequestEvent):
    """A request of the application."""

    of: str
    request_id: str = ""
    kind: Literal["agent.choice"] = "agent.choice"


class Chosen(AnswerEvent):
    """Its answer."""

    answers = "agent.choice"

    option: str = ""
    kind: Literal["user.choice"] = "user.choice"


async def asks(wake: affinity.Wake, chat: Chat) -> None:
    """Ask for each message; a second time as a request of the application."""
    for event in wake.events:
        match event:
            case UserMessage(content="twice"):
                wake.require(ToolConfirmation("twice"))
                wake.append(AgentMessage("and"))
                wake.require(Choice("twice"))
            case UserMessage(content="briefly"):
                wake.require(ToolConfirmation("briefly"), expires_in=0.2)
            case UserMessage():
                wake.require(ToolConfirmation(event.text))
            case _:
                wake.append(AgentMessage(event.kind))


def pending(entries: Sequence[JournalEntry]) -> list[str]:
    """The requests that no later entry resolves. No wake runs while an interrupt comes."""
    found: list[str] = []
    for event in [each.event for each in entries]:
        match event:
            case ToolConfirmation() | Choice():
                found.append(event.request_id)
            case AnswerEvent():
                found.remove(event.request_id)
            case UserInterrupt():
                found.clear()
    return found


async def ids(talk: affinity.ConversationHandle) -> list[str]:
    return [each.request_id for each in await talk.requests()]


@pytest.mark.nightly_cases("new")
async def test_at_each_entry(url: str) -> None:
    """Asked long ago and not answered, answered, interrupted, expired: as the fork begins, or without an end."""
    async with stage(url, asks, events=[Choice, Chosen]) as on:
        talk = on.talk()
        for text in ("dropped", "also dropped"):
            await talk.ask(UserMessage(text), timeout=30)
        await talk.reply(await talk.interrupt(), timeout=30)
        for text in ("waits", "twice", "briefly", "last"):
            await talk.ask(UserMessage(text), timeout=30)
        _, first, second, *_ = await talk.requests()
        await talk.reply(await talk.send(Chosen(second.request_id, "b")), timeout=30)
        await talk.reply(await talk.answer(first.request_id, allowed=False), timeout=30)
        await until(lambda: _is_expired(talk))
        entries = await talk.history(limit=1000)
        seen = set()
        for at in range(1, len(entries) + 1):
            fork = await talk.fork(f"fork-{at}", at=at)
            expected = pending(entries[:at])
            assert await ids(fork) == expected, at
            assert {each.expires_at for each in await fork.requests()} <= {None}
            await until(partial(status, fork, "requires_action" if expected else "idle"))
            seen.add(len(expected))
        assert seen == {0, 1, 2, 3, 4, 5}
        again = await (on.talk("fork-20")).fork("again", at=18)
        assert await ids(again) == pending(entries[:18])


async def _is_expired(talk: affinity.ConversationHandle) -> bool:
    answers = [each.event for each in await talk.history(kinds=[ConfirmationAnswer])]
    return any(isinstance(each, ConfirmationAnswer) and each.expired for each in answers)


@pytest.mark.usefixtures("maybe_traced")
async def test_a_request_that_an_interrupt_had_dropped_before_it_was_there(url: str) -> None:
    """The wake that has made it had not read the interrupt, which stands before the request."""
    entered, go = anyio.Event(), anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            entered.set()
            await go.wait()
            await asks(wake, chat)

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        await entered.wait()
        seq = await talk.interrupt()
        go.set()
        await talk.reply(seq, timeout=30)
        (asked,) = await talk.history(kinds=[ToolConfirmation])
        assert asked.seq > seq
        for at in (asked.seq, asked.seq + 2):
            assert await ids(await talk.fork(f"fork-{at}", at=at)) == []


@pytest.mark.usefixtures("maybe_traced")
async def test_a_request_that_a_wake_had_committed_before_it_failed(url: str) -> None:
    """The end of a wake that has failed does not name it."""

    async def fails(wake: affinity.Wake, chat: Chat) -> None:
        if wake.conversation_id == "c":
            await asks(wake, chat)
            await wake.commit()
            raise ValueError("afterwards")

    async with stage(url, fails, retry=affinity.RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("tea"), timeout=30)
        (request,) = await ids(talk)
        end = (await talk.history(last=1))[0].seq
        await talk.send(UserMessage("more"))
        assert await ids(await talk.fork("fork", at=end)) == [request]


async def test_a_merge_had_none_of_its_sides(url: str) -> None:
    async with stage(url, asks) as on:
        left, right = on.talk("left"), on.talk("right")
        for talk in (left, right):
            await talk.ask(UserMessage("tea"), timeout=30)
        merged = await left.merge("right", into="merged")
        assert await ids(merged) == []
        first, start = (await left.history(last=1))[0].seq + 1, (await merged.history(last=1))[0].seq
        for at in range(first, start):  # also before what is copied has an end of a wake
            assert await ids(await merged.fork(f"at {at}", at=at)) == []
        assert len(await ids(await (await merged.fork("left again", at=first - 1)).fork("of it", at=first - 2))) == 1
        await merged.ask(UserMessage("more"), timeout=30)
        end = (await merged.history(last=1))[0].seq
        assert await ids(await merged.fork("before", at=start)) == []
        assert await ids(await merged.fork("behind", at=end - 1)) == await ids(merged)
        assert len(await ids(merged)) == 1


async def test_an_import_has_the_requests_of_what_was_exported(url: str) -> None:
    """So has a fork of it at an earlier entry."""
    async with stage(url, asks) as on:
        talk, copy = on.talk(), on.talk("copy")
        await talk.ask(UserMessage("tea"), timeout=30)
        await copy.import_([line async for line in talk.export()])
        first = await ids(copy)
        assert first == await ids(talk) != []
        assert await ids(await copy.fork("first", at=(await copy.history(last=1))[0].seq)) == first
        await copy.ask(UserMessage("more"), timeout=30)
        pending, end = await ids(copy), (await copy.history(last=1))[0].seq
        await copy.send(UserMessage("again"))
        assert await ids(await copy.fork("fork", at=end)) == pending
        assert len(pending) == 2
