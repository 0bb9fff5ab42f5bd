"""Requests: a conversation waits for an answer, which is one, in time, and to this request."""

from __future__ import annotations

from typing import Literal

import anyio
import pytest

import affinity
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    RequestEvent,
    ToolConfirmation,
    UserMessage,
)
from affinity.errors import InvalidInput, RequestNotPending, WakeFailed, WakeMisuse
from affinity.testing import Env
from tests.conversation.application import Chat, kinds, stage, status, until

pytestmark = pytest.mark.anyio


async def ask_first(wake: affinity.Wake, chat: Chat) -> None:
    """Ask for each message; say what was answered."""
    for event in wake.events:
        match event:
            case UserMessage():
                wake.require(ToolConfirmation("refund", {"of": event.text}))
            case ConfirmationAnswer():
                verdict = "expired" if event.expired else "allowed" if event.allowed else "refused"
                wake.append(AgentMessage(verdict))
            case CustomToolResult():
                wake.append(AgentMessage(f"result {event.result}"))


async def test_a_conversation_waits_for_the_answer(url: str) -> None:
    async with stage(url, ask_first) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("tea"), timeout=30)
        assert reply.requires_action
        assert await talk.status() == "requires_action"
        (request,) = await talk.requests()
        assert request.event == ToolConfirmation("refund", {"of": "tea"}, request_id=request.request_id)
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq, timeout=30)).text == "allowed"
        assert await talk.requests() == []
        assert await until(lambda: status(talk, "idle"))


async def test_a_terminated_conversation_waits_for_no_answer(url: str) -> None:
    async with stage(url, ask_first) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        await talk.terminate()
        assert await talk.requests() == []


async def test_a_result_of_a_tool_that_the_client_runs(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if any(isinstance(each, UserMessage) for each in wake.events):
            wake.require(CustomToolUse("lookup", {"key": 1}))
        await ask_first(wake, chat) if isinstance(wake.events[0], CustomToolResult) else None

    async with stage(url, handler) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("look"), timeout=30)
        (request,) = reply.requests
        assert isinstance(request, CustomToolUse)
        seq = await talk.answer(request.request_id, result={"found": 7})
        assert (await talk.reply(seq, timeout=30)).text == "result {'found': 7}"


async def test_a_second_answer_is_refused_also_of_two_at_the_same_time(url: str) -> None:
    async with stage(url, ask_first) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("tea"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        refused = 0

        async def answer() -> None:
            nonlocal refused
            try:
                await talk.answer(request.request_id, allowed=True)
            except RequestNotPending:
                refused += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(answer)
        assert refused == 7
        answers = await talk.history(kinds=["user.tool_confirmation"])
        assert len(answers) == 1


async def test_an_answer_of_another_kind_or_to_another_request_is_refused(url: str) -> None:
    async with stage(url, ask_first) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("tea"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        with pytest.raises(RequestNotPending):
            await talk.send(CustomToolResult(request.request_id, 3))
        with pytest.raises(RequestNotPending):
            await talk.send(ConfirmationAnswer("another", allowed=True))
        assert await talk.status() == "requires_action"


async def test_a_late_answer_never_reaches_another_request(url: str) -> None:
    """Also when the handler gives both the same id: each has one of its own."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if any(isinstance(each, UserMessage) for each in wake.events):
            wake.require(ToolConfirmation("refund", request_id="refund"))

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("first"), timeout=30)
        (first,) = await talk.requests()
        await talk.answer(first.request_id, allowed=False)
        await until(lambda: status(talk, "idle"))
        await talk.ask(UserMessage("second"), timeout=30)
        (second,) = await talk.requests()
        for late in (first.request_id, "refund"):
            with pytest.raises(RequestNotPending):
                await talk.answer(late, allowed=True)
        assert [each.request_id for each in await talk.requests()] == [second.request_id]
        assert await talk.status() == "requires_action"


async def test_a_request_without_an_answer_in_time_counts_as_refused(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], UserMessage):
            wake.require(ToolConfirmation("refund"), expires_in=0.3)
        else:
            await ask_first(wake, chat)

    async with stage(url, handler) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("tea"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        said = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said[0].event == AgentMessage("expired")
        answers = await talk.history(kinds=["user.tool_confirmation"])
        assert [each.event for each in answers] == [
            ConfirmationAnswer(request.request_id, allowed=False, reason="no answer came in time", expired=True)
        ]
        with pytest.raises(RequestNotPending):
            await talk.answer(request.request_id, allowed=True)
        assert await until(lambda: status(talk, "idle"))


async def test_a_withdrawn_request_counts_as_refused(url: str) -> None:
    """It may be one of the same wake, and of an earlier one; no wake is due when it would have expired."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        (event,) = wake.events
        if event == UserMessage("ask"):
            for expires_in in (None, 600.0):
                wake.require(ToolConfirmation("refund"), expires_in=expires_in)
            wake.require(CustomToolUse("look"))
            brief = wake.require(ToolConfirmation("brief"))
            await wake.commit()
            wake.withdraw(brief.request_id)
            wake.withdraw(wake.require(ToolConfirmation("briefer")).request_id)
            assert len(wake.requests) == 3
            with pytest.raises(WakeMisuse, match="is pending"):
                wake.withdraw(brief.request_id)
        else:
            for request in wake.requests:
                wake.withdraw(request.request_id)
            wake.append(AgentMessage("withdrawn"))

    async with stage(url, handler) as on:
        talk = on.talk()
        assert (await talk.ask(UserMessage("ask"), timeout=30)).requires_action
        waiting = await talk.requests()
        assert len(waiting) == 3
        reply = await talk.ask(UserMessage("stop"), timeout=30)
        assert (reply.text, reply.stop_reason, await talk.requests()) == ("withdrawn", "end_turn", [])
        for request in waiting:
            with pytest.raises(RequestNotPending):
                await talk.send(
                    CustomToolResult(request.request_id)
                    if request.kind == "agent.custom_tool_use"
                    else ConfirmationAnswer(request.request_id, allowed=True)
                )
        answers = await talk.history(kinds=[ConfirmationAnswer, CustomToolResult])
        assert {entry.event for entry in answers if entry.event.kind == "user.custom_tool_result"} == {
            CustomToolResult(waiting[2].request_id, "it was withdrawn", is_error=True, expired=True)
        }
        refusals = [entry.event for entry in answers if isinstance(entry.event, ConfirmationAnswer)]
        assert [(each.allowed, each.reason, each.expired) for each in refusals] == [
            (False, "it was withdrawn", True) for _ in range(4)
        ]
        assert await until(lambda: status(talk, "idle"))
        assert [wake.outcome for wake in await talk.wakes()] == ["done", "done"]


async def test_another_request_expires_when_it_should() -> None:
    """The wake that withdraws the first one waits for the second, from when it was asked."""
    chats = affinity.Conversations(Chat, kind="chats")

    @chats.on_wake
    async def respond(wake: affinity.Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("ask")]:
            for expires_in in (60.0, 600.0):
                wake.require(ToolConfirmation("refund"), expires_in=expires_in)
        elif wake.events == [UserMessage("stop")]:
            wake.withdraw(wake.requests[0].request_id)

    app = affinity.App("chats")
    app.include(chats)
    async with Env(app) as env:
        talk = env.client.conversation(chats, "c")
        await talk.ask(UserMessage("ask"))
        await env.advance(30)
        await talk.ask(UserMessage("stop"))
        await env.advance(569)
        assert [request.expires_at is not None for request in await talk.requests()] == [True]
        assert len(await talk.wakes()) == 2
        await env.advance(2)
        assert (len(await talk.wakes()), await talk.requests()) == (3, [])


async def test_an_answer_that_comes_while_its_request_is_withdrawn_is_read(url: str) -> None:
    is_there, may_end = anyio.Event(), anyio.Event()

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("stop")]:
            is_there.set()
            await may_end.wait()
            wake.withdraw(wake.requests[0].request_id)
        else:
            await ask_first(wake, chat)

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        (request,) = await talk.requests()
        await talk.send(UserMessage("stop"))
        with anyio.fail_after(30):
            await is_there.wait()
        seq = await talk.answer(request.request_id, allowed=True)
        may_end.set()
        assert (await talk.reply(seq, timeout=30)).text == "allowed"
        assert await talk.requests() == []


async def test_a_run_asks_anew_what_its_wake_has_withdrawn(sqlite_url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for request in wake.requests:
            wake.withdraw(request.request_id)
        async with wake.run("asking") as run:
            answer = await run.require(ToolConfirmation("refund"))
            wake.append(AgentMessage(answer.reason))

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        assert (await talk.ask(UserMessage("one"), timeout=30)).requires_action
        assert (await talk.ask(UserMessage("two"), timeout=30)).requires_action
        (request,) = await talk.requests()
        seq = await talk.answer(request.request_id, allowed=False, reason="no")
        assert (await talk.reply(seq, timeout=30)).text == "no"


async def test_a_request_of_the_application_is_answered_and_expires(sqlite_url: str) -> None:
    class Choice(RequestEvent):
        options: list[str]
        request_id: str = ""
        kind: Literal["agent.choice"] = "agent.choice"

    class Chosen(AnswerEvent):
        answers = "agent.choice"

        option: str
        kind: Literal["user.choice"] = "user.choice"

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                wake.require(Choice(["a", "b"]), expires_in=None if event.text == "wait" else 0.1)
            else:
                wake.append(AgentMessage(event.kind))

    async with stage(sqlite_url, handler, events=[Choice, Chosen]) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("wait"), timeout=30)).requests
        assert isinstance(request, Choice)
        seq = await talk.send(Chosen(request.request_id, "b"))
        assert (await talk.reply(seq, timeout=30)).text == "user.choice"
        await talk.ask(UserMessage("briefly"), timeout=30)
        said = await until(lambda: _said(talk, "conversation.request_expired"))
        assert said


async def _said(talk: affinity.ConversationHandle, text: str) -> bool:
    return any(each.event == AgentMessage(text) for each in await talk.history(kinds=["agent.message"]))


async def test_a_wake_that_fails_asks_nothing(sqlite_url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        wake.require(ToolConfirmation("refund"))
        raise ValueError("afterwards")

    async with stage(sqlite_url, handler, retry=affinity.RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("one"), timeout=30)
        assert await talk.requests() == []
        assert "agent.tool_confirmation" not in kinds(await talk.history())


async def test_requests_are_bounded(sqlite_url: str) -> None:
    refused: list[Exception] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for _ in range(3):
            try:
                wake.require(ToolConfirmation("refund"))
            except InvalidInput as error:
                refused.append(error)
        with pytest.raises(InvalidInput, match="require"):
            wake.append(ToolConfirmation("refund"))
        with pytest.raises(InvalidInput):
            wake.require(AgentMessage("no request"))  # type: ignore[type-var]

    async with stage(sqlite_url, handler, limits=affinity.ConversationLimits(requests=2)) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert len(await on.talk().requests()) == 2
        assert len(refused) == 1
