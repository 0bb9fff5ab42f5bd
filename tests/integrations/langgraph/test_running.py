"""A graph in the wakes of a conversation, and in an activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import anyio
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

import affinity
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    JournalEvent,
    Reply,
    RequestExpired,
    Retracted,
    Streamed,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
    current_wake,
)
from affinity.errors import InvalidOptions, OrchestrationFailed, WakeFailed
from affinity.integrations.langgraph import AffinitySaver, RunOptions, call_graph, graph_conversations
from affinity.integrations.langgraph.running import answer_of, check_graph
from tests.integrations.langgraph.graphs import Graph, Log, chain, line, says, thread

pytestmark = pytest.mark.anyio

RETRY = affinity.RetryPolicy(max_attempts=3, initial_interval=0.01)
PATIENCE = 60.0


def words(events: Sequence[JournalEvent]) -> Any:
    """The input of a graph that keeps a log."""
    said = [event.text for event in events if isinstance(event, UserMessage)]
    return {"said": said} if said else None


def whole(values: Any) -> JournalEvent:
    """The reply of a graph that keeps a log."""
    return AgentMessage(" ".join(values["said"]))


LOG: RunOptions = {"to_input": words, "to_reply": whole}


@asynccontextmanager
async def talking(url: str, graph: Graph, **options: Any) -> AsyncIterator[affinity.ConversationHandle]:
    """A conversation whose handler runs the graph."""
    chats = graph_conversations(graph, kind="chat", retry=RETRY, **options)
    app = affinity.App("chats")
    app.include(chats)
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        with anyio.fail_after(2 * PATIENCE):
            yield client.conversation(chats, str(uuid4()))


async def ask(talk: affinity.ConversationHandle, text: str) -> str:
    """The reply to a message."""
    return (await talk.ask(UserMessage(text), timeout=PATIENCE)).text


async def answer(talk: affinity.ConversationHandle, *, number: int = 0, **given: Any) -> str:
    """The reply to an answer."""
    request = (await talk.requests())[number]
    return (await talk.reply(await talk.answer(request.request_id, **given), timeout=PATIENCE)).text


async def test_a_graph_of_messages_needs_no_option(url: str, saver: AffinitySaver) -> None:
    """Its thread has the whole conversation; readers see the words of the model as they come."""
    model = GenericFakeChatModel(messages=iter([AIMessage("one two"), AIMessage("three")]))

    async def respond(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("respond", respond)
    builder.add_edge(START, "respond")
    builder.add_edge("respond", END)
    graph: Graph = builder.compile(checkpointer=saver)
    async with talking(url, graph) as talk:
        items = [item async for item in talk.stream_reply(UserMessage("hello"))]
        streamed = "".join(item.text for item in items if isinstance(item, Streamed))
        assert isinstance(items[-1], Reply)
        assert items[-1].text == "one two"
        assert "one two".startswith(streamed)  # a slow reader misses what the commit has replaced
        assert await ask(talk, "and then") == "three"
        state = await graph.aget_state(thread(talk.conversation_id))
        texts = [message.text for message in state.values["messages"]]
        assert texts == ["hello", "one two", "and then", "three"]


async def test_words_of_an_attempt_that_fails_are_taken_back(url: str, saver: AffinitySaver) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("lost words"), AIMessage("kept words")]))
    seen = anyio.Event()

    async def respond(state: MessagesState) -> dict[str, Any]:
        message = await model.ainvoke(state["messages"])
        if message.text == "lost words":
            await seen.wait()
            raise ConnectionError("429")
        return {"messages": [message]}

    builder = StateGraph(MessagesState)
    builder.add_node("respond", respond)
    builder.add_edge(START, "respond")
    graph: Graph = builder.compile(checkpointer=saver)
    said, kinds = "", list[type]()
    async with talking(url, graph) as talk:
        async for item in talk.stream_reply(UserMessage("hello")):
            kinds.append(type(item))
            if isinstance(item, Streamed):
                said += item.text
            if said == "lost words":
                seen.set()
            if isinstance(item, Retracted):
                said = ""
        assert isinstance(item, Reply)
        assert item.text == "kept words"
    assert kinds.index(Streamed) < kinds.index(Retracted)
    assert "kept words".startswith(said)


async def test_a_node_that_fails_runs_again_and_those_before_it_do_not(url: str, saver: AffinitySaver) -> None:
    runs: Counter[str] = Counter()

    async def first(state: Log) -> Log:
        runs["first"] += 1
        return {"said": ["first"]}

    async def second(state: Log) -> Log:
        runs["second"] += 1
        if runs["second"] == 1:
            raise ConnectionError("429")
        return {"said": ["second"]}

    graph = chain(saver, first=first, second=second)
    async with talking(url, graph, **LOG) as talk:
        assert await ask(talk, "in") == "in first second"
        assert runs == {"first": 1, "second": 2}
        assert await ask(talk, "again") == "in first second again first second"
        await anyio.to_thread.run_sync(line, graph, talk.conversation_id)


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_run_goes_on_at_a_super_step_without_its_checkpoint(
    url: str, saver: AffinitySaver, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A worker may end between the results of all tasks, which are stored, and the checkpoint behind them."""
    runs, lost, put = Counter[str](), list[int](), saver.aput

    async def put_but_once(config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if metadata["step"] == step and not lost:
            lost.append(step)
            raise ConnectionError("killed")
        return await put(config, checkpoint, metadata, new_versions)

    def counts(name: str) -> Any:
        async def node(state: Log) -> Log:
            runs[name] += 1
            return {"said": [name]}

        return node

    monkeypatch.setattr(saver, "aput", put_but_once)
    async with talking(url, chain(saver, first=counts("first"), second=counts("second")), **LOG) as talk:
        assert await ask(talk, "in") == "in first second"
    assert (lost, runs) == ([step], {"first": 1, "second": 1})


async def test_an_interrupt_is_a_request_and_its_answer_resumes(url: str, saver: AffinitySaver) -> None:
    """A node that asks the same twice asks two requests."""
    runs: Counter[str] = Counter()

    async def first(state: Log) -> Log:
        runs["first"] += 1
        return {"said": ["first"]}

    async def asks(state: Log) -> Log:
        runs["asks"] += 1
        return {"said": [str(interrupt("how many?")), str(interrupt("how many?"))]}

    async with talking(url, chain(saver, first=first, asks=asks), **LOG) as talk:
        reply = await talk.ask(UserMessage("in"), timeout=PATIENCE)
        assert (reply.text, reply.stop_reason) == ("", "requires_action")
        (request,) = await talk.requests()
        assert isinstance(request.event, CustomToolUse)
        assert (request.event.tool, request.event.arguments) == ("interrupt", {"value": "how many?"})
        assert await answer(talk, result=1) == ""
        assert await answer(talk, result=2) == "in first 1 2"
        assert await talk.requests() == []
        assert runs == {"first": 1, "asks": 3}


@pytest.mark.parametrize("origin", ["deleted", "fork of an earlier entry", "fork"])
async def test_a_thread_of_another_conversation_is_given_all_messages(
    url: str, saver: AffinitySaver, origin: str
) -> None:
    """Its numbers of entries are those of the other one. It may be left of a deleted conversation, or copied."""

    async def asks(state: Log) -> Log:
        return {"said": [str(interrupt("go?"))] if "b" in state["said"] else []}

    graph = chain(saver, asks=asks, last=says("."))
    async with talking(url, graph, **LOG) as talk:
        assert await ask(talk, "a") == "a ."
        first = (await talk.history())[-1].seq
        assert await ask(talk, "b") == ""
        assert await ask(talk, "c") == ""  # for the run behind the one that waits
        other = talk
        if origin == "deleted":
            await talk.delete()
        else:
            other = await talk.fork(str(uuid4()), at=None if origin == "fork" else first)
            await saver.acopy_thread(talk.conversation_id, other.conversation_id)
        assert await ask(other, "d") == ""
        said = "a . b yes . c d" if origin == "fork" else "a . b d"
        if origin == "fork":
            assert await answer(other, result="yes") == "a . b yes ."
        assert await answer(other, result="yes") == f"{said} yes ."
        assert await ask(other, "e") == ""
        assert await answer(other, result="no") == f"{said} yes . e no ."


async def test_a_step_within_a_node_is_there_when_the_node_runs_again(url: str, saver: AffinitySaver) -> None:
    runs: Counter[str] = Counter()

    async def pay() -> str:
        runs["pay"] += 1
        return "paid"

    async def first(state: Log) -> Log:
        runs["first"] += 1
        wake = current_wake()
        assert wake is not None
        paid = await wake.step("pay", pay)
        if runs["first"] < 3:
            raise ConnectionError("429")
        return {"said": [paid]}

    async with talking(url, chain(saver, first=first), **LOG) as talk:
        assert await ask(talk, "in") == "in paid"
    assert runs == {"pay": 1, "first": 3}


@pytest.mark.parametrize("asks", [1, 2])
async def test_a_node_that_fails_behind_an_answer_asks_no_more(url: str, saver: AffinitySaver, asks: int) -> None:
    """Its next attempt has the answers. A later question is asked once too, and the node does not run for that."""
    runs: Counter[str] = Counter()

    async def pays(state: Log) -> Log:
        runs["begun"] += 1
        answers = [str(interrupt("how many?")) for _ in range(asks)]
        runs["paid"] += 1
        if runs["paid"] == 1:
            raise ConnectionError("429")
        return {"said": answers}

    async with talking(url, chain(saver, pays=pays), **LOG) as talk:
        assert await ask(talk, "in") == ""
        said = [await answer(talk, result=number) for number in range(asks)]
        assert said[-1] == " ".join(["in", "0", "1"][: 1 + asks])
        assert len(await talk.history(kinds=[CustomToolUse])) == asks
    assert runs == {"begun": asks + 2, "paid": 2}


async def test_interrupts_of_parallel_nodes_wait_together(url: str, saver: AffinitySaver) -> None:
    """The graph goes on when all are answered."""

    def asks(name: str) -> Any:
        async def node(state: Log) -> Log:
            return {"said": [f"{name}: {interrupt({'of': name})}"]}

        return node

    builder = StateGraph(Log)
    for name in ("one", "two"):
        builder.add_node(name, asks(name))
        builder.add_edge(START, name)
    async with talking(url, builder.compile(checkpointer=saver), **LOG) as talk:
        assert await ask(talk, "in") == ""
        waiting = {request.event.arguments["of"]: request.request_id for request in await talk.requests()}  # type: ignore[attr-defined]
        assert waiting.keys() == {"one", "two"}
        first = await talk.answer(waiting["two"], result="b")
        assert (await talk.reply(first, timeout=PATIENCE)).text == ""
        second = await talk.answer(waiting["one"], result="a")
        assert (await talk.reply(second, timeout=PATIENCE)).text == "in one: a two: b"


async def test_a_parallel_node_that_has_ended_is_not_asked_again(url: str, saver: AffinitySaver) -> None:
    """While another one asks a second time."""
    runs: Counter[str] = Counter()

    async def once(state: Log) -> Log:
        runs["once"] += 1
        return {"said": [f"once {interrupt('a?')}"]}

    async def twice(state: Log) -> Log:
        runs["twice"] += 1
        return {"said": [f"twice {interrupt('b?')} {interrupt('c?')}"]}

    builder = StateGraph(Log)
    for name, node in (("once", once), ("twice", twice)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    async with talking(url, builder.compile(checkpointer=saver), **LOG) as talk:
        assert await ask(talk, "in") == ""
        for request in await talk.requests():
            asked = request.event.arguments["value"]  # type: ignore[attr-defined]
            seq = await talk.answer(request.request_id, result=f"to {asked}")
            assert (await talk.reply(seq, timeout=PATIENCE)).text == ""
        (request,) = await talk.requests()
        assert request.event.arguments == {"value": "c?"}  # type: ignore[attr-defined]
        assert await answer(talk, result="to c?") == "in once to a? twice to b? to c?"
        assert runs["once"] == 2


async def test_an_interrupt_of_a_subgraph_is_a_request_too(url: str, saver: AffinitySaver) -> None:
    async def asks(state: Log) -> Log:
        return {"said": [str(interrupt("how many?")), str(interrupt("how many?"))]}

    graph = chain(saver, first=says("first"), inner=chain(None, asks=asks, behind=says("behind")))
    async with talking(url, graph, **LOG) as talk:
        assert await ask(talk, "in") == ""
        assert await answer(talk, result=1) == ""
        assert await answer(talk, result=2) == "in first in first 1 2 behind"


async def test_what_comes_while_a_run_waits_is_for_the_next_run(url: str, saver: AffinitySaver) -> None:
    async def asks(state: Log) -> Log:
        return {"said": [f"answer {interrupt('how many?')}"]}

    async with talking(url, chain(saver, asks=asks), **LOG) as talk:
        assert await ask(talk, "one") == ""
        assert await ask(talk, "two") == ""
        assert await ask(talk, "three") == ""
        assert len(await talk.requests()) == 1
        assert await answer(talk, result=1) == "one answer 1"
        assert await answer(talk, result=2) == "one answer 1 two three answer 2"


async def test_a_run_that_fails_behind_another_one_of_its_wake_goes_on(url: str, saver: AffinitySaver) -> None:
    """The first run has ended in an attempt that has failed: its reply is that of its end."""
    runs, talks = Counter[str](), list[affinity.ConversationHandle]()

    async def pays(state: Log) -> Log:
        word = state["said"][-1]
        runs[word] += 1
        if (word, runs[word]) == ("one", 1):
            await talks[0].send(UserMessage("two"))
        if runs[word] == 1:
            raise ConnectionError("429")
        return {"said": [f"{word} paid"]}

    graph = chain(saver, pays=pays)
    async with talking(url, graph, **LOG) as talk:
        talks.append(talk)
        await talk.ask(UserMessage("one"), timeout=PATIENCE)
        assert await ask(talk, "three") == "one one paid two two paid three three paid"
        said = [each.event.text for each in await talk.history(kinds=[AgentMessage])]  # type: ignore[attr-defined]
        assert said[:2] == ["one one paid", "one one paid two two paid"]
        await anyio.to_thread.run_sync(line, graph, talk.conversation_id)
    assert runs == {"one": 2, "two": 2, "three": 2}


@pytest.mark.parametrize("failures", [3, 1000])
async def test_messages_whose_wake_fails_for_good_are_answered_or_fail(
    url: str, saver: AffinitySaver, failures: int
) -> None:
    """They were given to the graph together, and are tried one by one: the run goes on with the first of them."""
    runs = Counter[str]()

    async def pays(state: Log) -> Log:
        runs["pays"] += 1
        if runs["pays"] <= failures:
            raise ConnectionError("429")
        return {"said": ["paid"]}

    chats = graph_conversations(chain(saver, pays=pays), kind="chat", retry=RETRY, **LOG)
    app = affinity.App("chats")
    app.include(chats)
    async with affinity.Client(url) as client:
        talk = client.conversation(chats, str(uuid4()))
        first, second = [await talk.send(UserMessage(text)) for text in ("one", "two")]
        async with affinity.Worker(app, url):
            with anyio.fail_after(PATIENCE):
                if failures == RETRY.max_attempts:
                    assert (await talk.reply(first)).text == "one two paid"
                    assert runs == {"pays": failures + 1}
                else:
                    for seq in (first, second):
                        with pytest.raises(WakeFailed, match="429"):
                            await talk.reply(seq)


async def test_an_interrupt_of_a_person_ends_the_run(url: str, saver: AffinitySaver) -> None:
    """The request is dropped, and the next message begins anew: LangGraph drops the node that asked."""

    async def asks(state: Log) -> Log:
        return {"said": [str(interrupt("how many?"))]}

    async with talking(url, chain(saver, asks=asks), **LOG) as talk:
        assert await ask(talk, "one") == ""
        await talk.reply(await talk.send(UserInterrupt("never mind")), timeout=PATIENCE)
        assert await talk.requests() == []
        assert await ask(talk, "two") == ""
        assert await answer(talk, result=1) == "one two 1"


async def test_messages_before_an_interrupt_of_a_person_are_not_answered(url: str, saver: AffinitySaver) -> None:
    """Neither the one whose run it stops, nor one that has waited for the end of a run."""
    runs, begins = list[str](), anyio.Event()

    async def works(state: Log) -> Log:
        runs.append(state["said"][-1])
        if state["said"][-1] == "one":
            begins.set()
            await anyio.sleep_forever()
        return {"said": [str(interrupt("how many?"))]}

    async with talking(url, chain(saver, works=works), **LOG) as talk:
        seq = await talk.send(UserMessage("one"))
        await begins.wait()
        await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq, timeout=PATIENCE)).text == ""
        assert runs == ["one"]
        assert await ask(talk, "two") == ""
        assert await ask(talk, "three") == ""
        await talk.reply(await talk.interrupt(), timeout=PATIENCE)
        assert await ask(talk, "four") == ""
        assert await answer(talk, result=4) == "one two four 4"
        assert runs == ["one", "two", "four", "four"]


@pytest.mark.parametrize("next_one", ["ends", "asks"])
async def test_what_a_program_has_answered_waits_for_no_one(url: str, saver: AffinitySaver, next_one: str) -> None:
    """The next wake withdraws the request for the interrupt that ``update_state`` has put aside."""

    async def asks(state: Log) -> Log:
        return {"said": [str(interrupt("how many?"))]}

    async def behind(state: Log) -> Log:
        return {"said": ["end" if next_one == "ends" else str(interrupt("how much?"))]}

    graph = chain(saver, asks=asks, behind=behind)
    async with talking(url, graph, **LOG) as talk:
        assert await ask(talk, "one") == ""
        (old,) = await talk.requests()
        await graph.aupdate_state(thread(talk.conversation_id), {"said": ["by hand"]}, as_node="asks")
        said = await ask(talk, "two")
        (new,) = await talk.requests()
        assert new.request_id != old.request_id
        if next_one == "ends":
            assert said == "one by hand end"
        else:
            assert (said, new.event.arguments) == ("", {"value": "how much?"})  # type: ignore[attr-defined]
            assert await answer(talk, result=3) == "one by hand 3"
        (ended,) = [each.event for each in await talk.history(kinds=[CustomToolResult]) if each.wake_id]
        assert ended == CustomToolResult(old.request_id, "it was withdrawn", is_error=True, expired=True)


async def test_a_graph_that_stops_without_a_question_fails(url: str, saver: AffinitySaver) -> None:
    """It would be run again and again."""

    async def stops(state: Log) -> Log:
        raise GraphInterrupt

    async with talking(url, chain(saver, stops=stops), **LOG) as talk:
        with pytest.raises(WakeFailed, match=r"stops at stops without interrupt\(\)"):
            await ask(talk, "in")


async def test_requests_of_an_application(url: str, saver: AffinitySaver) -> None:
    """As a confirmation, which expires: that is a refusal."""

    async def asks(state: Log) -> Log:
        return {"said": ["yes" if interrupt("may I?") else "no"]}

    def confirm(interrupt: Any) -> ToolConfirmation:
        return ToolConfirmation("send", summary=interrupt.value)

    async with talking(url, chain(saver, asks=asks), to_request=confirm, **LOG) as talk:
        assert await ask(talk, "in") == ""
        assert await answer(talk, allowed=True) == "in yes"
    async with talking(url, chain(saver, asks=asks), to_request=confirm, expires_in=timedelta(0), **LOG) as talk:
        await talk.send(UserMessage("in"))
        while not (said := [each.event for each in await talk.history(kinds=[AgentMessage])]):
            await anyio.sleep(0.05)
        assert [event.text for event in said if isinstance(event, AgentMessage)] == ["in no"]


async def test_a_graph_in_an_activity_of_a_session(url: str, saver: AffinitySaver) -> None:
    """Runs of one thread follow one another; an attempt after a failure goes on from the last super-step."""
    runs: Counter[str] = Counter()

    async def first(state: Log) -> Log:
        runs["first"] += 1
        return {"said": ["first"]}

    async def second(state: Log) -> Log:
        runs["second"] += 1
        if runs["second"] == 1:
            raise ConnectionError("429")
        return {"said": ["second"]}

    graph = chain(saver, first=first, second=second)
    app = affinity.App("graphs")

    @app.activity
    async def run(ctx: affinity.ActivityContext, text: str) -> list[str]:
        said: list[str] = (await call_graph(ctx, graph, {"said": [text]}))["said"]
        return said

    @app.orchestration
    async def both(ctx: affinity.OrchestrationContext, name: str) -> list[str]:
        calls = [ctx.schedule_activity(run, text, retry=RETRY).on_session(name, ordered=True) for text in ("a", "b")]
        return max(await ctx.gather(*calls), key=len)

    @app.orchestration
    async def alone(ctx: affinity.OrchestrationContext, name: str) -> list[str]:
        return await ctx.schedule_activity(run, name)

    name = str(uuid4())
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        with anyio.fail_after(PATIENCE):
            said = await (await client.start(both, name)).wait()
            with pytest.raises(OrchestrationFailed, match="on a session"):
                await (await client.start(alone, name)).wait()
    assert said == ["a", "first", "second", "b", "first", "second"]
    assert runs == {"first": 2, "second": 3}
    await anyio.to_thread.run_sync(line, graph, name)


def test_a_graph_that_cannot_run_here_is_refused(saver: AffinitySaver) -> None:
    builder = StateGraph(Log)
    node: Any = says("first")
    builder.add_node("first", node)
    builder.add_edge(START, "first")
    for graph in (builder.compile(), builder.compile(checkpointer=InMemorySaver())):
        with pytest.raises(InvalidOptions, match=r"checkpointer=AffinitySaver\(url\)"):
            graph_conversations(graph, kind="chat")
    with pytest.raises(InvalidOptions, match="use interrupt"):
        check_graph(builder.compile(checkpointer=saver, interrupt_before=["first"]))


def test_an_answer_that_is_an_error_is_false() -> None:
    """So that no node takes it for a consent."""
    assert answer_of(CustomToolResult("r", {"error": 1}, is_error=True)) is None
    assert answer_of(CustomToolResult("r", 7)) == 7
    assert answer_of(ConfirmationAnswer("r", allowed=False)) is False
    assert answer_of(RequestExpired("r")) is None
