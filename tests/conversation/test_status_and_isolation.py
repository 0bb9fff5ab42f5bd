"""A conversation's parts, its status, storage and isolation, and its children; one test for each promise.

Events, wakes and revisits are in test_events_and_wakes.py, traces and races in test_traces_and_races.py. The names
speak of agents and sessions: an agent is a kind of conversations, its session a conversation.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import affinity
from affinity import Resource, RetryPolicy, Wake
from affinity.conversation import AgentMessage, ChildEnded, ToolConfirmation, UserInterrupt, UserMessage
from affinity.errors import (
    ConversationKindMismatch,
    ConversationTerminated,
    NotAParent,
    RequestNotPending,
    WakeFailed,
)
from tests.conversation.application import Chat, echo, kinds, make, stage, status, until
from tests.conversation.request_handler import ONCE, asks, said, says

pytestmark = pytest.mark.anyio


# -- what a session is, and what it owns


async def test_the_definition_lasts_and_the_session_is_what_runs(sqlite_url: str) -> None:
    """One definition, run by one worker and then by another: the conversation goes on."""
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
    async with stage(sqlite_url, options=affinity.RuntimeOptions(worker_node_id="another")) as on:
        await on.talk().ask(UserMessage("two"), timeout=30)
        assert (await on.state()).received == ["one", "two"]


async def test_the_environment_is_used_again_by_many_sessions(sqlite_url: str) -> None:
    """A resource whose key is not the session's is opened once in a process."""
    opened: list[str] = []

    def open_it(key: str) -> str:
        opened.append(key)
        return f"the {key}"

    environment = Resource(open=open_it, key=lambda _: "substrate")

    async def handler(wake: Wake, chat: Chat) -> None:
        found = await wake.resource(environment)
        wake.append(AgentMessage(found))

    async with stage(sqlite_url, handler) as on:
        for name in ("a", "b"):
            assert (await on.talk(name).ask(UserMessage("x"), timeout=30)).text == "the substrate"
        assert opened == ["substrate"]


async def test_a_session_has_resources_of_its_own(sqlite_url: str) -> None:
    """One of each name: it is opened once for all wakes of the session."""
    opened: list[str] = []

    def open_workspace(session_id: str) -> str:
        opened.append(session_id)
        return f"workspace of {session_id}"

    attached = Resource(open=open_workspace)

    async def handler(wake: Wake, chat: Chat) -> None:
        found = await wake.resource(attached)
        wake.append(AgentMessage(found))

    async with stage(sqlite_url, handler) as on:
        for name in ("a", "b", "a"):
            assert (await on.talk(name).ask(UserMessage("x"), timeout=30)).text == f"workspace of {name}"
        assert opened == ["a", "b"]


async def test_a_session_has_one_id_and_one_definition(sqlite_url: str) -> None:
    other = make(kind="other")
    async with stage(sqlite_url, echo, other) as on:
        await on.talk("c").ask(UserMessage("x"), timeout=30)
        with pytest.raises(ConversationKindMismatch):
            await on.talk("c", other).send(UserMessage("x"))


async def test_a_session_has_one_append_only_stream_of_events(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        before = await talk.history()
        await talk.ask(UserMessage("two"), timeout=30)
        after = await talk.history()
        assert after[: len(before)] == before
        assert [each.seq for each in after] == list(range(1, len(after) + 1))


async def test_a_session_has_a_memory_of_its_own(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        await on.talk("a").ask(UserMessage("for a"), timeout=30)
        await on.talk("b").ask(UserMessage("for b"), timeout=30)
        assert (await on.state("a")).received == ["for a"]
        assert (await on.state("b")).received == ["for b"]


async def test_a_session_has_a_status_and_a_stop_reason(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("one"), timeout=30)
        assert reply.stop_reason == "end_turn"
        assert await until(lambda: status(talk, "idle"))


async def test_a_delegated_session_names_its_parent(sqlite_url: str) -> None:
    async with parent_and_child(sqlite_url) as on:
        await on.talk("p").ask(UserMessage("p/child"), timeout=30)
        await until(says(on.talk("p"), "ended p/child completed"))
        (info,) = [each async for each in on.client.list_conversations(parent="p")]
        assert (info.conversation_id, info.parent) == ("p/child", "p")


# -- status


async def test_a_session_runs_while_a_wake_does_and_is_idle_afterwards(sqlite_url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()

    async def slow(wake: Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()

    async with stage(sqlite_url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("x"))
        await entered.wait()
        assert await talk.status() == "running"
        go.set()
        assert await until(lambda: status(talk, "idle"))


async def test_a_session_is_rescheduling_between_two_attempts(sqlite_url: str) -> None:
    async def broken(wake: Wake, chat: Chat) -> None:
        raise ValueError("broken")

    async with stage(sqlite_url, broken, retry=RetryPolicy(initial_interval=600, max_interval=600)) as on:
        talk = on.talk()
        await talk.send(UserMessage("x"))
        assert await until(lambda: status(talk, "rescheduling"))
        assert kinds(await talk.history(last=1)) == ["conversation.status_changed"]


async def test_a_terminated_session_stays_so(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        await talk.terminate()
        assert await talk.status() == "terminated"
        for event in (UserMessage("x"), UserInterrupt()):
            with pytest.raises(ConversationTerminated):
                await talk.send(event)
        await talk.terminate()
        assert await talk.status() == "terminated"


async def test_the_result_of_a_custom_tool_is_waited_for_without_another_approval_system(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        asked = await talk.ask(UserMessage("custom"), timeout=30)
        assert asked.stop_reason == "requires_action"
        assert await talk.status() == "requires_action"
        assert kinds(asked.entries)[1] == "agent.custom_tool_use"
        (request,) = await talk.requests()
        seq = await talk.answer(request.request_id, result=7)
        assert (await talk.reply(seq, timeout=30)).text == "result 7"


async def test_the_confirmation_of_a_tool_is_waited_for_in_the_same_way(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        assert (await talk.ask(UserMessage("confirm"), timeout=30)).stop_reason == "requires_action"
        (request,) = await talk.requests()
        assert isinstance(request.event, ToolConfirmation)
        seq = await talk.answer(request.request_id, allowed=False)
        assert (await talk.reply(seq, timeout=30)).text == "allowed False"


async def test_other_events_are_processed_while_a_request_is_pending(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("confirm"), timeout=30)
        reply = await talk.ask(UserMessage("meanwhile"), timeout=30)
        assert reply.text == "received user.message"
        assert reply.stop_reason == "requires_action"  # the request is still pending


# -- storage and isolation


async def test_the_durable_state_of_a_session_is_stored(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
    async with affinity.Client(sqlite_url) as client:
        record = await client.session_manager.show("c")
        assert record.metadata.kind == "chat"
        assert Chat.model_validate_json(record.state).received == ["x"]
        begun = ["user.message", "span.started", "agent.message", "span.completed"]
        assert kinds(await client.conversation(make(), "c").history())[:4] == begun


async def test_revisits_are_stored_with_the_session(sqlite_url: str) -> None:
    """They outlive the worker."""
    async with stage(sqlite_url, asks) as on:
        await on.talk().ask(UserMessage("later"), timeout=30)
    await anyio.sleep(0.3)
    async with stage(sqlite_url, asks) as on:
        assert await until(says(on.talk(), "revisit later to look again"))


async def test_a_bad_thread_does_not_contaminate_another(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "bad":
            raise ValueError("bad")
        wake.append(AgentMessage("good"))

    async with stage(sqlite_url, handler, retry=ONCE) as on:
        with pytest.raises(WakeFailed):
            await on.talk("bad").ask(UserMessage("x"), timeout=30)
        assert (await on.talk("good").ask(UserMessage("x"), timeout=30)).text == "good"
        assert await on.talk("bad").status() == "failed"


async def test_what_is_learned_is_shared_without_the_scratch_state(sqlite_url: str) -> None:
    lessons: list[str] = []  # of the application, above its sessions

    async def handler(wake: Wake, chat: Chat) -> None:
        wake.append(AgentMessage(",".join(lessons)))
        lessons.extend(event.text for event in wake.events if isinstance(event, UserMessage))

    async with stage(sqlite_url, handler) as on:
        await on.talk("a").ask(UserMessage("lesson"), timeout=30)
        assert (await on.talk("b").ask(UserMessage("x"), timeout=30)).text == "lesson"
        assert (await on.state("b")).received == []


async def test_the_history_of_a_session_is_its_own(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        await on.talk("a").ask(UserMessage("x"), event_id="m", timeout=30)
        reply = await on.talk("b").ask(UserMessage("y"), event_id="m", timeout=30)
        assert reply.seq == 1  # the same event id, in another session
        assert [each.seq for each in await on.talk("b").history()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["confirm", "custom"])
async def test_a_pending_request_is_its_session_s_own(sqlite_url: str, kind: str) -> None:
    async with stage(sqlite_url, asks) as on:
        await on.talk("a").ask(UserMessage(kind), timeout=30)
        await on.talk("b").ask(UserMessage(kind), timeout=30)
        (request,) = await on.talk("a").requests()
        answer: dict[str, Any] = {"allowed": True} if kind == "confirm" else {"result": 1}
        with pytest.raises(RequestNotPending):
            await on.talk("b").answer(request.request_id, **answer)
        assert len(await on.talk("b").requests()) == 1


async def test_the_queue_of_revisits_is_its_session_s_own(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        await on.talk("a").ask(UserMessage("later"), timeout=30)
        await on.talk("b").ask(UserMessage("x"), timeout=30)
        await until(says(on.talk("a"), "revisit later to look again"))
        assert await said(on.talk("b")) == ["received user.message"]


# -- children


def parent_and_child(url: str, cycles: int = 3) -> Any:
    async def works(wake: Wake, chat: Chat) -> None:
        chat.wakes += 1
        if chat.wakes < 5 and wake.conversation_id.endswith("busy"):
            wake.revisit(0.01)
        wake.append(AgentMessage(f"cycle {chat.wakes}"))

    child = make(works, kind="child")

    async def delegates(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage) and event.text == "list":
                wake.append(AgentMessage(",".join(sorted(await wake.children()))))
            elif isinstance(event, UserMessage):
                try:
                    await wake.delegate(child, event.text, UserMessage("go"), max_cycles=cycles)
                except NotAParent:
                    wake.append(AgentMessage("not a parent"))
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"ended {event.child} {event.outcome}"))

    return stage(url, delegates, child)


async def test_delegating_creates_a_direct_child(sqlite_url: str) -> None:
    async with parent_and_child(sqlite_url) as on:
        reply = await on.talk("p").ask(UserMessage("p/child"), timeout=30)
        assert "child.delegated" in kinds(reply.entries)
        assert await until(says(on.talk("p"), "ended p/child completed"))
        (info,) = [each async for each in on.client.list_conversations(parent="p")]
        assert (info.conversation_id, info.kind, info.parent) == ("p/child", "child", "p")
        assert [each.parent async for each in on.client.list_conversations(prefix="p")] == ["p", None]


async def test_the_direct_children_are_listed(sqlite_url: str) -> None:
    async with parent_and_child(sqlite_url) as on:
        for name in ("p/one", "p/two"):
            await on.talk("p").ask(UserMessage(name), timeout=30)
        await on.talk("q").ask(UserMessage("q/one"), timeout=30)
        assert (await on.talk("p").ask(UserMessage("list"), timeout=30)).text == "p/one,p/two"


async def test_a_child_runs_a_few_bounded_cycles(sqlite_url: str) -> None:
    async with parent_and_child(sqlite_url, cycles=2) as on:
        await on.talk("p").ask(UserMessage("p/busy"), timeout=30)
        assert await until(says(on.talk("p"), "ended p/busy max_cycles"))
        child = make(echo, kind="child")
        await anyio.sleep(0.2)
        assert await said(on.talk("p/busy", child)) == ["cycle 1", "cycle 2"]


async def test_only_the_direct_parent_addresses_a_child(sqlite_url: str) -> None:
    async with parent_and_child(sqlite_url) as on:
        await on.talk("p").ask(UserMessage("p/child"), timeout=30)
        await until(says(on.talk("p"), "ended p/child completed"))
        assert (await on.talk("q").ask(UserMessage("p/child"), timeout=30)).text == "not a parent"
        reply = await on.talk("p/child", make(kind="child")).ask(UserMessage("of a client"), timeout=30)
        assert reply.text == "cycle 2"


async def test_a_grandparent_does_not_address_a_child(sqlite_url: str) -> None:
    leaf = make(kind="leaf")

    async def halfway(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(leaf, "p/middle/leaf", event)

    middle = make(halfway, kind="middle")

    async def root(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if event == UserMessage("go"):
                await wake.delegate(middle, "p/middle", UserMessage("x"))
            elif isinstance(event, UserMessage):
                with pytest.raises(NotAParent):
                    await wake.delegate(leaf, "p/middle/leaf", event)
                wake.append(AgentMessage("refused"))
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage("ended"))

    async with stage(sqlite_url, root, middle, leaf) as on:
        await on.talk("p").ask(UserMessage("go"), timeout=30)
        assert await until(says(on.talk("p"), "ended"))
        assert (await on.talk("p").ask(UserMessage("to the leaf"), timeout=30)).text == "refused"
        assert await said(on.talk("p/middle/leaf", leaf)) == ["re: x"]


async def test_a_deleted_session_leaves_its_children_and_what_others_use(sqlite_url: str) -> None:
    """A child goes with its parent only by ``cascade=True``; a resource with a key of its own stays open."""
    log: list[str] = []

    def open_shared(key: str) -> str:
        log.append("open")
        return key

    shared = Resource(open=open_shared, close=lambda *_: log.append("close"), key=lambda _: "all")

    async def uses(wake: Wake, chat: Chat) -> None:
        await wake.resource(shared)
        await echo(wake, chat)

    child = make(uses, kind="child")

    async def delegates(wake: Wake, chat: Chat) -> None:
        await wake.resource(shared)
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "p/child", event)

    async with stage(sqlite_url, delegates, child) as on:
        below = on.talk("p/child", child)
        await on.talk("p").ask(UserMessage("one"), timeout=30)
        assert await until(lambda: status(on.talk("p"), "idle"))
        assert await on.talk("p").delete()
        assert (await below.ask(UserMessage("two"), timeout=30)).text == "re: two"
        async with child.open("p/child", store=on.client.session_store) as chat:
            assert chat.received == ["one", "two"]
        assert log == ["open"]
