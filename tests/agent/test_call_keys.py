"""Calls of tools are known by keys of ours: ids of a model may be equal, empty, missing, or used again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import (
    ModelReply,
    ModelRequest,
    Tool,
    from_anthropic,
    from_openai,
    run_loop,
    to_anthropic,
    to_openai,
)
from affinity.agent import tool as make_tool
from affinity.conversation import ToolResult, ToolUse, UserMessage
from affinity.testing import Env

pytestmark = pytest.mark.anyio

IDS: Final[Any] = [
    [["", ""], ["", ""]],
    [["a", "a"], ["a", "a"]],
    [[None, None], [None, "a"]],
    [["a", ""], ["a", "a"]],
    [["a", "b"], ["b", "a"]],
    [["a\n1", "a"], ["a", "1\na"]],
]
"""Ids of the two calls of each of two rounds."""

Shape = Callable[[Sequence[tuple[Any, str]]], ModelReply]


def _openai(made: Sequence[tuple[Any, str]]) -> ModelReply:
    calls = [{"id": name, "function": {"name": "look", "arguments": json.dumps({"at": at})}} for name, at in made]
    return ModelReply.from_openai({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]})


def _anthropic(made: Sequence[tuple[Any, str]]) -> ModelReply:
    calls = [{"type": "tool_use", "id": name, "name": "look", "input": {"at": at}} for name, at in made]
    return ModelReply.from_anthropic({"content": calls, "stop_reason": "tool_use"})


def _read_openai(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Id, argument and result of each call; the API refuses what is asserted here."""
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    results = [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]
    assert [call["id"] for call in calls] == [name for name, _ in results]
    arguments = [json.loads(call["function"]["arguments"])["at"] for call in calls]
    return [(name, at, text) for (name, text), at in zip(results, arguments, strict=True)]


def _read_anthropic(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    blocks = [block for each in messages for block in each["content"]]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    results = {block["tool_use_id"]: block["content"] for block in blocks if block["type"] == "tool_result"}
    return [(call["id"], call["input"]["at"], results[call["id"]]) for call in calls]


class Chat(BaseModel):
    """The state of a conversation."""


class Model:
    """Calls a tool twice in each round, and keeps the requests."""

    def __init__(self, ids: Sequence[Sequence[Any]], shape: Shape) -> None:
        self.requests: list[ModelRequest] = []
        self._ids, self._shape = ids, shape

    async def __call__(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        made = sum(isinstance(each, ToolUse) or each.kind == "agent.custom_tool_use" for each in request.events)
        if made // 2 >= len(self._ids):
            return ModelReply(content="done")
        rounds = made // 2
        return self._shape([(self._ids[rounds][0], f"slow {rounds}"), (self._ids[rounds][1], f"fast {rounds}")])

    def check(self, results: Mapping[str, str]) -> None:
        """The last request has each result with its call, under an id of its own, in each format."""
        last = self.requests[-1]
        for read in (_read_openai(last.openai_messages()), _read_anthropic(last.anthropic_messages())):
            assert {at: text for _, at, text in read} == results
            assert len({name for name, _, _ in read}) == len(read) == len(results)
            assert all(name for name, _, _ in read)


@asynccontextmanager
async def talk_to(model: Model, tool: Tool) -> AsyncIterator[tuple[Env, affinity.ConversationHandle]]:
    chats = affinity.Conversations(Chat, kind="chat")

    @chats.on_wake(retry=RetryPolicy(max_attempts=5, initial_interval=0.01))
    async def handle(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[tool])

    app = affinity.App("calls")
    app.include(chats)
    async with Env(app) as env:
        yield env, env.client.conversation(chats, "c")


async def _events(talk: affinity.ConversationHandle, kind: Any) -> list[Any]:
    return [each.event for each in await talk.history(kinds=[kind])]


async def _end_in_other_order(at: str) -> str:
    await anyio.sleep(0.05 if at.startswith("slow") else 0)
    return f"result of {at}"


RESULTS: Final = {f"{speed} {n}": f"result of {speed} {n}" for n in (0, 1) for speed in ("slow", "fast")}


@pytest.mark.parametrize("shape", [_openai, _anthropic])
@pytest.mark.parametrize("ids", IDS)
async def test_each_call_has_its_own_result(ids: Any, shape: Shape) -> None:
    """Though they end in another order; the entries say of which call they are."""
    model = Model(ids, shape)

    @make_tool
    async def look(at: str) -> str:
        """Look."""
        return await _end_in_other_order(at)

    async with talk_to(model, look) as (_, talk):
        await talk.ask(UserMessage("x"))
        calls = {each.call_key: each for each in await _events(talk, ToolUse)}
        results = {each.call_key: each.result for each in await _events(talk, ToolResult)}
    model.check(RESULTS)
    assert len(calls) == 4
    assert {key: f"result of {call.arguments['at']}" for key, call in calls.items()} == results


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("repeat", ["always", "never"])
async def test_a_call_that_is_done_is_not_done_again(ids: Any, repeat: Any) -> None:
    """The process ends while the slow one runs: the next attempt runs that alone, or says that it is not known."""
    model, runs, inside = Model(ids, _openai), [], [anyio.Event(), anyio.Event()]
    talks: list[affinity.ConversationHandle] = []

    @make_tool(repeat=repeat)
    async def look(at: str) -> str:
        """Look."""
        runs.append(at)
        if at.startswith("slow") and runs.count(at) == 1:
            while f"result of fast {at[-1]}" not in [
                each.result for each in await _events(talks[0], "agent.tool_result")
            ]:
                await anyio.sleep(0.01)
            inside[int(at[-1])].set()
            await anyio.sleep_forever()
        return f"result of {at}"

    async with talk_to(model, look) as (env, talk):
        talks.append(talk)
        seq = await talk.send(UserMessage("x"))
        for event in inside:
            with anyio.fail_after(30):
                await event.wait()
            await env.crash()
        await talk.reply(seq)
    assert sorted(runs) == sorted([*RESULTS, *(["slow 0", "slow 1"] if repeat == "always" else [])])
    if repeat == "always":
        model.check(RESULTS)


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("equal", [True, False])
async def test_an_approval_is_of_one_call(ids: Any, equal: bool) -> None:
    """A refused call reads that it was refused, though the other one has the same id, or the same arguments too."""
    model, runs = Model(ids[:1], _openai), []

    @make_tool(confirm=True)
    async def look(at: str) -> str:
        """Look."""
        runs.append(at)
        return f"result of {at}"

    async with talk_to(model, look) as (_, talk):
        await talk.ask(UserMessage("x"))
        first, second = await talk.requests()
        keys = [first.event.call_key, second.event.call_key]  # type: ignore[attr-defined]
        assert keys == [each.call_key for each in await _events(talk, ToolUse)]
        answers = [(second, True), (first, False)] if equal else [(first, False), (second, True)]
        for request, allowed in answers:
            seq = await talk.answer(request.request_id, allowed=allowed, reason="it is refused")
        await talk.reply(seq)
        results = {each.call_key: each.is_error for each in await _events(talk, ToolResult)}
    assert (runs, results) == (["fast 0"], {keys[0]: True, keys[1]: False})
    last = _read_openai(model.requests[-1].openai_messages())
    assert [at for _, at, text in last if "refused" in text] == ["slow 0"]


@pytest.mark.parametrize("ids", IDS)
async def test_a_result_of_the_client_is_of_one_call(ids: Any) -> None:
    class Place(BaseModel):
        at: str

    model = Model(ids[:1], _openai)
    async with talk_to(model, Tool(name="look", arguments=Place)) as (_, talk):
        await talk.ask(UserMessage("x"))
        for request in reversed(await talk.requests()):
            at = request.event.arguments["at"]  # type: ignore[attr-defined]
            seq = await talk.answer(request.request_id, result=f"result of {at}")
        await talk.reply(seq)
    model.check({at: text for at, text in RESULTS.items() if at.endswith("0")})


@pytest.mark.parametrize("ids", IDS)
def test_messages_with_equal_ids_are_read_and_written_in_their_order(ids: Any) -> None:
    """Also after a way through the other format."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    for number, names in enumerate(ids):
        pairs = list(zip(names, (f"slow {number}", f"fast {number}"), strict=True))
        calls = [{"id": name, "function": {"name": "look", "arguments": json.dumps({"at": at})}} for name, at in pairs]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": name or "", "content": f"result of {at}"} for name, at in pairs]
    events = from_openai(messages).events
    for made in (to_openai(events), to_openai(from_anthropic(to_anthropic(events)))):
        read = _read_openai(made)
        assert {at: text for _, at, text in read} == RESULTS
        assert len({name for name, _, _ in read}) == 4
