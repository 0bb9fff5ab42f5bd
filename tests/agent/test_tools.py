"""Tools: schemas, arguments, names."""

from __future__ import annotations

from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel, Field

import affinity
from affinity import ConversationLimits
from affinity.agent import ModelReply, ModelRequest, Tool, ToolCall, builtin_tools, run_loop, tool
from affinity.agent.tools import BUILT_IN_NAMES, checked_arguments, in_chains, tools_by_name
from affinity.conversation import AgentMessage, ChildEnded, DefineOutcome, ToolResult, ToolUse, UserMessage
from affinity.errors import InvalidOptions, NotSerializable, UnknownEntry
from affinity.limits import MAX_PAGE
from tests.conversation.application import Chat, make, stage, until


class Place(BaseModel):
    """Somewhere."""

    city: str


@tool
async def weather(place: Place, days: Annotated[int, Field(ge=1, description="how many")] = 1) -> str:
    """The weather
    of the next days.

    Not for the model.
    """
    return f"{place.city} {days}"


@tool(name="add", confirm=lambda arguments: arguments["a"] > 10, resource=lambda arguments: f"n{arguments['a']}")
def add_numbers(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_a_tool_describes_its_function() -> None:
    assert (weather.name, weather.description) == ("weather", "The weather of the next days.")
    assert weather.parameters["properties"]["days"]["description"] == "how many"
    assert weather.parameters["required"] == ["place"]
    assert weather.to_openai()["function"]["parameters"] is weather.parameters
    assert weather.to_anthropic()["input_schema"] is weather.parameters


async def _run(each: Tool, **arguments: Any) -> Any:
    return await each.run(each.validate(arguments))


def test_sync_and_async_functions_run_with_typed_arguments() -> None:
    assert anyio.run(lambda: _run(weather, place={"city": "Oslo"}, days=2)) == "Oslo 2"
    assert anyio.run(lambda: _run(add_numbers, a=1, b=2)) == 3


def test_options_may_depend_on_the_arguments() -> None:
    assert [add_numbers.needs_confirmation({"a": a}) for a in (1, 11)] == [False, True]
    assert add_numbers.resource_key({"a": 4}) == "n4"


def test_a_result_without_a_json_form_is_an_error() -> None:
    with pytest.raises(NotSerializable, match="result of tool 'nothing'"):
        anyio.run(lambda: _run(tool(name="nothing")(object)))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (ToolUse("nope", {}, "1"), "unknown_tool"),
        (ToolUse("add", {"a": 1}, "1"), "invalid_tool_arguments"),
        (ToolUse("add", {"a": 1, "b": 2, "c": 3}, "1"), "invalid_tool_arguments"),
        (ToolUse("add", {}, "1", raw_arguments="{a:1"), "invalid_tool_arguments"),
    ],
)
def test_calls_that_cannot_run_say_why(call: ToolUse, kind: str) -> None:
    found: Any = checked_arguments(tools_by_name([add_numbers]), call)
    assert found["error"]["kind"] == kind


def test_names_are_unique_and_no_built_in_tool_is_shadowed() -> None:
    name = min(BUILT_IN_NAMES)
    with pytest.raises(InvalidOptions, match="name of a built-in tool"):
        tools_by_name([tool(name=name)(lambda: 1)])
    with pytest.raises(InvalidOptions, match="two tools have the name 'add'"):
        tools_by_name([add_numbers, tool(name="add")(lambda: 1)])


def test_parameters_need_annotations_and_names() -> None:
    with pytest.raises(InvalidOptions, match="'x' has no annotation"):
        tool(lambda x: x)
    with pytest.raises(InvalidOptions, match="cannot be given by name"):
        tool(lambda *x: x)
    with pytest.raises(InvalidOptions, match="give the function, or the arguments"):
        Tool(name="nothing")


def test_calls_of_one_resource_are_a_chain() -> None:
    calls = [ToolUse("t", {}, str(n)) for n in range(5)]
    assert in_chains(calls, ["a", None, "a", "b", None]) == [[0, 2], [1], [3], [4]]


def test_annotations_that_cannot_be_read_are_refused() -> None:
    def look(at: Nowhere) -> None:  # type: ignore[name-defined] # noqa: F821
        pass

    with pytest.raises(InvalidOptions, match="NameError"):
        tool(look)


@pytest.mark.anyio
async def test_built_in_tools_read_the_journal_come_back_later_and_give_work(url: str) -> None:
    helper = make(kind="helper")
    made = [
        ToolCall("1", "session_get_events", {"kinds": ["user.message"]}),
        ToolCall("2", "session_list_children", {}),
        ToolCall("3", "session_revisit", {"seconds": 3600, "reason": "to look"}),
        ToolCall("4", "session_delegate", {"to": "helper", "child": "prices", "task": "the price of tea"}),
        ToolCall("5", "session_delegate", {"to": "unknown", "child": "prices", "task": "the price of tea"}),
        ToolCall("6", "session_get_events", {"conversation": "unknown"}),
    ]

    async def model(request: ModelRequest) -> ModelReply:
        last = request.events[-1]
        if isinstance(last, UserMessage):
            return ModelReply(calls=made)
        return ModelReply(content=str(last.result) if isinstance(last, ChildEnded) else "begun")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, builtins=builtin_tools(wake, children={"helper": helper}))

    async with stage(url, handler, helper) as found:
        reply = await found.talk().ask(UserMessage("what does tea cost?"), timeout=30)
        results = [event for event in reply.events if isinstance(event, ToolResult)]
        results.sort(key=lambda each: each.tool_use_id)
        assert [each.is_error for each in results] == [False, False, False, False, True, True]
        assert "what does tea cost?" in str(results[0].result)
        assert [each.reason for each in await found.talk().revisits()] == ["to look"]

        async def said() -> bool:
            messages = await found.talk().history(kinds=[AgentMessage])
            return [getattr(each.event, "text", "") for each in messages] == ["begun", "re: the price of tea"]

        await until(said)


async def test_built_in_tools_show_how_conversations_stand_and_keep_the_goal(url: str) -> None:
    """The goal is one of a person or of the agent, whichever came last; it is read by clients too."""
    helper = make(kind="helper")
    begin = [ToolCall("1", "session_delegate", {"to": "helper", "child": "prices", "task": "one"})]
    look = [
        ToolCall("2", "outcome_read", {}),
        ToolCall("3", "session_run_child", {"child": "prices", "task": "two", "cycles": 1}),
        ToolCall("4", "session_run_child", {"child": "nothing", "task": "two"}),
        ToolCall("5", "session_list", {}),
        ToolCall("6", "session_get_snapshot", {"conversation": "other"}),
        ToolCall("7", "session_get_snapshot", {"conversation": "unknown"}),
    ]
    end = [ToolCall("8", "outcome_define", {"outcome": "a price", "status": "reached", "note": "it is 3"})]
    again = [ToolCall("9", "outcome_read", {})]
    rounds: list[list[ToolCall]] = []

    async def model(request: ModelRequest) -> ModelReply:
        match request.events[-1]:
            case UserMessage():
                rounds[:] = [begin]
            case DefineOutcome():
                rounds[:] = [look, end, again]
        return ModelReply(calls=rounds.pop(0)) if rounds else ModelReply(content="done")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.conversation_id == "other":
            return
        await run_loop(wake, model=model, builtins=builtin_tools(wake, children={"helper": helper}))

    async with stage(url, handler, helper) as found:
        await found.talk("other").ask(UserMessage("I am here"), timeout=30)
        talk = found.talk()
        assert await found.talk("other").outcome() is None
        await talk.ask(UserMessage("what does tea cost?"), timeout=30)
        await until(lambda: _has_ended(talk))
        reply = await talk.ask(DefineOutcome("know the price", ["a number"]), timeout=30)
        results = {each.tool_use_id: each for each in reply.events if isinstance(each, ToolResult)}
        assert [name for name, each in results.items() if each.is_error] == ["4", "7"]
        defined = {"outcome": "know the price", "criteria": ["a number"], "status": "open", "note": ""}
        assert results["2"].result == defined
        updated = {"outcome": "a price", "criteria": [], "status": "reached", "note": "it is 3"}
        assert results["9"].result == updated
        assert [each["conversation"] for each in results["5"].result] == ["other"]  # type: ignore[union-attr, index, call-overload]
        assert "I am here" in str(results["6"].result)
        outcome = await talk.outcome()
        assert outcome is not None
        assert outcome.model_dump(exclude={"kind"}) == updated
        children = await found.client.conversation(helper, f"{talk.conversation_id}/prices").history(
            kinds=[UserMessage]
        )
        assert [getattr(each.event, "text", "") for each in children] == ["one", "two"]


@pytest.mark.anyio
async def test_the_loop_joins_built_in_tools_and_those_of_the_user(url: str) -> None:
    """The model is offered both, and calls both in one round."""
    offered: list[set[str]] = []

    async def model(request: ModelRequest) -> ModelReply:
        offered.append({each.name for each in request.tools})
        if isinstance(request.events[-1], UserMessage):
            return ModelReply(
                calls=[ToolCall("1", "add", {"a": 1, "b": 2}), ToolCall("2", "session_list_children", {})]
            )
        return ModelReply(content="done")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[add_numbers], builtins=builtin_tools(wake))

    async with stage(url, handler) as found:
        reply = await found.talk().ask(UserMessage("1 + 2?"), timeout=30)
    results = {each.tool_use_id: each.result for each in reply.events if isinstance(each, ToolResult)}
    assert results == {"1": 3, "2": []}
    without_children = BUILT_IN_NAMES - {"session_delegate", "session_run_child"}
    assert offered == [{"add", *without_children}] * 2


@pytest.mark.anyio
async def test_the_tools_of_children_make_direct_ones_list_them_and_bound_their_runs(url: str) -> None:
    """`session_delegate`, `session_list_children`, `session_run_child`; the child comes back until it is stopped."""
    calls = {
        "begin": ToolCall("1", "session_delegate", {"to": "helper", "child": "prices", "task": "once"}),
        "list": ToolCall("2", "session_list_children", {}),
        "again": ToolCall("3", "session_run_child", {"child": "prices", "task": "for ever", "cycles": 2}),
    }

    async def endless(wake: affinity.Wake, chat: Chat) -> None:
        chat.wakes += 1
        chat.received += [event.text for event in wake.events if isinstance(event, UserMessage)]
        if chat.received[-1] == "for ever":
            wake.revisit(0.01)

    helper = make(endless, kind="helper")

    async def model(request: ModelRequest) -> ModelReply:
        match request.events[-1]:
            case UserMessage() as asked:
                return ModelReply(calls=[calls[asked.text]])
        return ModelReply(content="done")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, builtins=builtin_tools(wake, children={"helper": helper}))

    async with stage(url, handler, helper) as found:
        talk, below = found.talk("c"), found.talk("c/prices", helper)
        await talk.ask(UserMessage("begin"), timeout=30)
        await until(lambda: _has_ended(talk))
        (info,) = [each async for each in found.client.list_conversations(parent="c")]
        assert (info.conversation_id, info.kind, info.parent) == ("c/prices", "helper", "c")
        reply = await talk.ask(UserMessage("list"), timeout=30)
        assert [each.result for each in reply.events if isinstance(each, ToolResult)] == [["c/prices"]]
        await talk.ask(UserMessage("again"), timeout=30)
        first, second = await until(lambda: _both_ends(talk))
        assert [(each.outcome, each.cycles) for each in (first, second)] == [("completed", 1), ("max_cycles", 2)]
        assert await below.revisits() == []
        async with helper.open("c/prices", store=found.client.session_store) as chat:
            assert chat.wakes == 3


async def _both_ends(talk: affinity.ConversationHandle) -> list[ChildEnded]:
    ends = [entry.event for entry in await talk.history(kinds=[ChildEnded]) if isinstance(entry.event, ChildEnded)]
    return ends if len(ends) == 2 else []


async def _has_ended(talk: affinity.ConversationHandle) -> bool:
    return len(await talk.history(kinds=[ChildEnded])) > 0 and await talk.status() == "idle"


async def test_the_trace_tool_gives_the_whole_trace_or_says_what_is_left(sqlite_url: str) -> None:
    given: list[Any] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("many")]:
            for number in range(MAX_PAGE):
                wake.append(AgentMessage(str(number)))
            return
        (trace,) = [each for each in builtin_tools(wake) if each.name == "session_get_trace"]
        for arguments in ({}, {"number": 10}, {"number": 10, "after": 11}, {"after": MAX_PAGE}):
            given.append(await trace.run(trace.validate({"wake_id": wake.events[0].text, **arguments})))  # type: ignore[attr-defined]
        with pytest.raises(UnknownEntry):
            await trace.run(trace.validate({"wake_id": "none"}))

    many = ConversationLimits(entries=2 * MAX_PAGE)
    async with stage(sqlite_url, handler, limits=many, retry=affinity.RetryPolicy(max_attempts=1)) as on:
        reply = await on.talk().ask(UserMessage("many"), timeout=30)
        await on.talk().ask(UserMessage(reply.wake_id), timeout=30)
        seqs = [each.seq for each in await on.talk().trace(reply.wake_id)]
    whole, first, second, rest = given
    assert [each["seq"] for each in whole] == seqs == list(range(2, MAX_PAGE + 5))
    assert [each.get("seq") for each in first] == [*range(2, 12), None]
    assert first[-1] == {"more": len(seqs) - 10, "after": 11}
    assert second[:10] == whole[10:20]
    assert rest == whole[-4:]
