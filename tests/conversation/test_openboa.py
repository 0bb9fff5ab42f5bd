"""What the document on agent sessions says that happens, one test for each statement, and the defects of its original.

The document speaks of agents and their sessions: an agent is a kind of conversations here, its session a conversation.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import affinity
from affinity import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    DefineOutcome,
    Resource,
    RetryPolicy,
    SessionIdle,
    SpanCompleted,
    SpanStarted,
    ToolConfirmation,
    UserInterrupt,
    UserMessage,
    Wake,
)
from affinity.conversation.events import BUILT_IN, kind_of
from affinity.errors import (
    ConversationKindMismatch,
    ConversationTerminated,
    NotAParent,
    RequestNotPending,
    UnknownConversation,
    UnknownEntry,
    WakeFailed,
)
from tests.conversation.application import Chat, Stage, echo, kinds, make, stage, status, until

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


async def asks(wake: Wake, chat: Chat) -> None:
    """A message that names a request, or a revisit, makes one; an answer is repeated."""
    for event in wake.events:
        match event:
            case UserMessage(content="confirm"):
                wake.require(ToolConfirmation("refund", {"amount": 3}))
            case UserMessage(content="custom"):
                wake.require(CustomToolUse("lookup", {"key": "k"}))
            case UserMessage(content="later"):
                wake.revisit(0.2, key="later", reason="to look again")
            case ConfirmationAnswer(allowed=allowed):
                wake.append(AgentMessage(f"allowed {allowed}"))
            case CustomToolResult(result=result):
                wake.append(AgentMessage(f"result {result}"))
            case _:
                wake.append(AgentMessage(f"received {event.kind}"))
    for due in wake.due:
        wake.append(AgentMessage(f"revisit {due.key} {due.reason}"))


async def said(talk: affinity.Talk) -> list[str]:
    events = [each.event for each in await talk.history(kinds=["agent.message"])]
    return [event.text for event in events if isinstance(event, AgentMessage)]


def says(talk: affinity.Talk, text: str) -> Any:
    async def check() -> bool:
        return text in await said(talk)

    return check


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
    environment = Resource(open=lambda key: opened.append(key) or f"the {key}", key=lambda _: "substrate")  # type: ignore[func-returns-value]

    async def handler(wake: Wake, chat: Chat) -> None:
        found = await wake.resource(environment)
        wake.append(AgentMessage(found))

    async with stage(sqlite_url, handler) as on:
        for name in ("a", "b"):
            assert (await on.talk(name).ask(UserMessage("x"), timeout=30)).text == "the substrate"
        assert opened == ["substrate"]


async def test_a_session_has_resources_of_its_own(sqlite_url: str) -> None:
    attached = Resource(open=lambda session_id: f"workspace of {session_id}")

    async def handler(wake: Wake, chat: Chat) -> None:
        found = await wake.resource(attached)
        wake.append(AgentMessage(found))

    async with stage(sqlite_url, handler) as on:
        for name in ("a", "b", "a"):
            assert (await on.talk(name).ask(UserMessage("x"), timeout=30)).text == f"workspace of {name}"


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
        assert kinds(await talk.history(last=1)) == ["session.status_changed"]


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


# -- events


def test_the_families_of_events_are_those_of_the_document() -> None:
    families = {kind_of(each).split(".")[0] for each in BUILT_IN}
    assert families == {"user", "session", "span", "agent", "child"}


async def test_each_event_of_a_user_wakes_the_session(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        for event in (UserMessage("x"), DefineOutcome("tea"), UserInterrupt("stop")):
            seq = await talk.send(event)
            assert (await talk.reply(seq, timeout=30)).text == f"received {event.kind}"


async def test_an_event_is_pending_until_a_wake_has_processed_it(sqlite_url: str) -> None:
    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        seq = await talk.send(UserMessage("x"))
        assert [each.seq for each in await talk.history(pending=True)] == [seq]
        assert await talk.status() == "running"
    async with stage(sqlite_url) as on:
        await on.talk().reply(seq, timeout=30)
        assert await on.talk().history(pending=True) == []


async def test_an_interrupt_before_the_next_wake_clears_the_requests(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("confirm"), timeout=30)
        await talk.ask(UserMessage("custom"), timeout=30)
        assert len(await talk.requests()) == 2
        seq = await talk.interrupt()
        assert await talk.requests() == []
        assert (await talk.reply(seq, timeout=30)).stop_reason == "end_turn"


async def test_an_interrupt_drops_the_revisits_before_the_run(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        seq = await talk.interrupt()
        assert await talk.revisits() == []
        await talk.reply(seq, timeout=30)
        await anyio.sleep(0.5)
        assert not any(text.startswith("revisit") for text in await said(talk))


async def test_an_interrupt_is_followed_by_a_run_that_sees_it(sqlite_url: str) -> None:
    seen: list[str | None] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        seen.append(None if wake.interrupt is None else wake.interrupt.reason)

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        seq = await talk.interrupt(reason="other way")
        await talk.reply(seq, timeout=30)
        assert seen == [None, "other way"]


async def test_a_wake_up_carries_no_content_since_the_session_has_it(sqlite_url: str) -> None:
    """The instance knows numbers; what was said is in the journal alone."""
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("a secret"), timeout=30)
        events = await on.client.history("c")
        assert len(events) > 3
        assert "a secret" not in str(events)


async def test_the_handler_reads_what_was_processed_lately(sqlite_url: str) -> None:
    found: list[list[str]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        found.append(kinds(await wake.history(last=2)))

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        await on.talk().ask(UserMessage("two"), timeout=30)
        assert found == [["user.message"], ["session.idle", "user.message"]]


async def test_the_handler_reads_around_an_anchor(sqlite_url: str) -> None:
    found: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.pending[0].event_id == "second":
            found.extend([each.seq for each in await wake.history(around="first", limit=3)])
            with pytest.raises(UnknownEntry):
                await wake.history(around="never")

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
        await on.talk().ask(UserMessage("one"), event_id="first", timeout=30)
        await on.talk().ask(UserMessage("two"), event_id="second", timeout=30)
        assert found == [4, 5, 6]


async def test_the_handler_reads_events_of_some_kinds_only(sqlite_url: str) -> None:
    found: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        found[:] = kinds(await wake.history(kinds=["user.message", "session.idle"]))

    async with stage(sqlite_url, handler) as on:
        for text in ("one", "two"):
            await on.talk().ask(UserMessage(text), timeout=30)
        assert found == ["user.message", "session.idle", "user.message"]


async def test_tools_read_other_sessions_of_the_same_agent(sqlite_url: str) -> None:
    found: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "reader":
            found.extend(kinds(await wake.read("other", kinds=["user.message"])))
            with pytest.raises(UnknownConversation):
                await wake.read("nobody")

    async with stage(sqlite_url, handler) as on:
        await on.talk("other").ask(UserMessage("x"), timeout=30)
        await on.talk("reader").ask(UserMessage("x"), timeout=30)
        assert found == ["user.message"]


async def test_tools_read_no_sessions_of_another_agent(sqlite_url: str) -> None:
    refused: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        with pytest.raises(ConversationKindMismatch) as caught:
            await wake.read("other")
        refused.append(caught.value.conversation_id)

    other = make(kind="other")
    async with stage(sqlite_url, handler, other) as on:
        await on.talk("other", other).ask(UserMessage("x"), timeout=30)
        await on.talk("reader").ask(UserMessage("x"), timeout=30)
        assert refused == ["other"]


# -- storage and isolation


async def test_the_durable_state_of_a_session_is_stored(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
    async with affinity.Client(sqlite_url) as client:
        record = await client.session_manager.show("c")
        assert record.metadata.kind == "chat"


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


# -- ingress and wakes


async def test_callers_append_and_the_orchestration_takes_what_is_pending(sqlite_url: str) -> None:
    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        seqs = [await talk.send(UserMessage(text)) for text in ("one", "two", "three")]
    async with stage(sqlite_url) as on:
        replies = [await on.talk().reply(seq, timeout=30) for seq in seqs]
        assert len({each.wake_id for each in replies}) == 1
        assert (await on.state()).received == ["one", "two", "three"]


async def test_with_nothing_pending_and_nothing_due_a_wake_does_nothing(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("x"), timeout=30)
        (before,) = await talk.history(last=1)
        for _ in range(3):
            await talk.resume()
        await anyio.sleep(0.3)
        assert [each.kind for each in await talk.history(after=before.seq)] == ["session.status_changed"] * 3
        assert (await on.state()).wakes == 1


async def test_otherwise_it_is_one_bounded_run(sqlite_url: str) -> None:
    batches: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        batches.append(len(wake.pending))

    async with affinity.Client(sqlite_url) as client:
        talk = client.conversation(make(), "c")
        for number in range(5):
            last = await talk.send(UserMessage(str(number)))
    async with stage(sqlite_url, handler, limits=affinity.ConversationLimits(inputs=2)) as on:
        reply = await on.talk().reply(last, timeout=30)
        assert batches == [2, 2, 1]
        assert reply.stop_reason == "end_turn"
        idle = [each.event for each in await on.talk().history(kinds=["session.idle"])]
        assert [each.stop_reason for each in idle if isinstance(each, SessionIdle)] == ["more", "more", "end_turn"]


async def test_at_most_one_wake_of_a_session_runs_at_a_time(sqlite_url: str) -> None:
    running = most = 0

    async def handler(wake: Wake, chat: Chat) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.02)
        running -= 1

    async with stage(sqlite_url, handler, workers=2) as on:
        seqs: list[int] = []

        async def send(number: int) -> None:
            seqs.append(await on.talk().send(UserMessage(str(number))))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(send, number)
        await on.talk().reply(max(seqs), timeout=30)
        assert most == 1


# -- revisits


async def test_a_run_asks_for_another_run_later(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        reply = await talk.ask(UserMessage("later"), timeout=30)
        assert reply.stop_reason == "revisit"
        assert await until(says(talk, "revisit later to look again"))
        assert len({each.wake_id for each in await talk.history(kinds=["span.started"])}) == 2


async def test_the_same_session_goes_on_across_revisits(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        chat.wakes += 1
        chat.received += [each.key for each in wake.due] or ["asked"]
        if chat.wakes < 4:
            wake.revisit(0.01, key=f"n{chat.wakes}")

    async with stage(sqlite_url, handler) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)

        async def done() -> bool:
            return (await on.state()).wakes == 4

        assert await until(done)
        assert (await on.state()).received == ["asked", "n1", "n2", "n3"]


async def test_an_event_activates_immediately_and_a_revisit_later(sqlite_url: str) -> None:
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        await talk.ask(UserMessage("now"), timeout=30)
        assert await said(talk) == ["received user.message"]
        assert await until(says(talk, "revisit later to look again"))


async def test_no_hidden_process_changes_a_session(sqlite_url: str) -> None:
    """Each entry is an input, or of a wake with its span."""
    async with stage(sqlite_url, asks) as on:
        talk = on.talk()
        await talk.ask(UserMessage("later"), timeout=30)
        await until(says(talk, "revisit later to look again"))
        spans = {each.wake_id for each in await talk.history(kinds=["span.started"])}
        for entry in await talk.history():
            assert entry.wake_id in spans or entry.kind.startswith("user.")


# -- traces


async def test_entries_name_their_wake_which_is_read_as_a_trace(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), timeout=30)
        second = await talk.ask(UserMessage("two"), timeout=30)
        trace = await talk.trace(second.wake_id)
        assert {each.wake_id for each in trace} == {second.wake_id} != {first.wake_id}
        assert trace == second.entries


async def test_the_whole_trace_is_given(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        for number in range(250):
            wake.append(AgentMessage(str(number)))

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("x"), timeout=30)
        trace = await on.talk().trace(reply.wake_id)
        assert len(trace) == 253
        assert len(reply.entries) == 253


async def test_traces_have_spans_of_the_wake_and_of_tools(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        with wake.span("tool"):
            pass

    async with stage(sqlite_url, handler) as on:
        reply = await on.talk().ask(UserMessage("x"), timeout=30)
        begun = [each.event.name for each in reply.entries if isinstance(each.event, SpanStarted)]
        ended = [each.event.name for each in reply.entries if isinstance(each.event, SpanCompleted)]
        assert begun == ["chat.wake", "tool"]
        assert ended == ["tool", "chat.wake"]


async def failed(on: Stage) -> affinity.Talk:
    with pytest.raises(WakeFailed):
        await on.talk().ask(UserMessage("x"), timeout=30)
    return on.talk()


async def breaks(wake: Wake, chat: Chat) -> None:
    raise ValueError("broken")


async def test_a_run_that_fails_closes_its_trace_with_an_error(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        (ended,) = [each.event for each in await (await failed(on)).history(kinds=["span.completed"])]
        assert isinstance(ended, SpanCompleted)
        assert ended.error is not None
        assert (ended.result, ended.error.type, ended.processed) == ("error", "ValueError", 0)


async def test_a_run_that_fails_leaves_a_summary_that_says_so(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        (idle,) = [each.event for each in await (await failed(on)).history(kinds=["session.idle"])]
        assert isinstance(idle, SessionIdle)
        assert idle.stop_reason == "failed"
        assert idle.error is not None
        assert idle.error.message == "broken"


async def test_a_run_that_fails_does_not_leave_the_session_running(sqlite_url: str) -> None:
    async with stage(sqlite_url, breaks, retry=ONCE) as on:
        talk = await failed(on)
        assert await until(lambda: status(talk, "failed"))
        assert len(await talk.history(pending=True)) == 1  # kept


# -- the defects of the original


async def test_no_tail_of_a_journal_is_torn(sqlite_url: str) -> None:
    """A run that fails after it has appended leaves none of that, and no part of its state."""

    async def handler(wake: Wake, chat: Chat) -> None:
        chat.received.append("half")
        wake.append(AgentMessage("half"))
        wake.require(ToolConfirmation("half"))
        wake.revisit(0.01)
        if wake.attempt == 1:
            raise ValueError("torn")

    async with stage(sqlite_url, handler, retry=RetryPolicy(initial_interval=0.01)) as on:
        await on.talk().ask(UserMessage("x"), timeout=30)
        assert await said(on.talk()) == ["half"]
        assert len(await on.talk().requests()) == 1
        assert (await on.state()).received[:1] == ["half"]


async def test_no_wake_up_is_lost_that_comes_while_a_run_ends(sqlite_url: str) -> None:
    """It comes behind what the run has read, and nothing comes afterwards."""
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()
        await echo(wake, chat)

    async with stage(sqlite_url, handler) as on:
        await on.talk().send(UserMessage("one"))
        await entered.wait()
        seq = await on.talk().send(UserMessage("two"))
        await anyio.sleep(0.3)  # its signal is there too
        go.set()
        assert (await on.talk().reply(seq, timeout=30)).text == "re: two"


async def test_racing_senders_and_wakes_lose_nothing_and_do_nothing_twice(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        seqs: list[int] = []

        async def send(number: int) -> None:
            for part in range(10):
                seqs.append(await on.talk().send(UserMessage(f"{number}.{part}")))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
        await on.talk().reply(max(seqs), timeout=60)
        received = (await on.state()).received
        assert len(received) == len(set(received)) == 50
        assert await until(lambda: status(on.talk(), "idle"))


async def test_no_wake_up_is_lost_of_a_session_that_is_made_anew(sqlite_url: str) -> None:
    """The journal is deleted under its instance, and its numbers begin again: below those that were processed."""
    async with stage(sqlite_url) as on:
        talk = on.talk()
        for text in ("one", "two", "three"):
            await talk.ask(UserMessage(text), timeout=30)
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        reply = await talk.ask(UserMessage("anew"), timeout=30)
        assert (reply.seq, reply.text) == (1, "re: anew")


async def test_a_poisonous_event_is_no_endless_loop(sqlite_url: str) -> None:
    runs = 0

    async def handler(wake: Wake, chat: Chat) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("poison")

    async with stage(sqlite_url, handler, retry=RetryPolicy(max_attempts=3, initial_interval=0.01)) as on:
        await failed(on)
        await anyio.sleep(0.5)
        assert runs == 3
        await failed(on)
        assert runs == 6


async def test_an_interrupt_is_not_undone_by_a_run_that_began_before_it(sqlite_url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            entered.set()
            await go.wait()
            wake.require(ToolConfirmation("refund"))
            wake.revisit(0.01)

    async with stage(sqlite_url, handler) as on:
        talk = on.talk()
        first = await talk.send(UserMessage("x"))
        await entered.wait()
        seq = await talk.interrupt()
        go.set()
        await talk.reply(first, timeout=30)
        assert await talk.requests() == []
        await talk.reply(seq, timeout=30)
        assert await talk.requests() == []
        assert await talk.revisits() == []


async def test_racing_senders_of_one_event_make_one(sqlite_url: str) -> None:
    async with stage(sqlite_url) as on:
        seqs: list[int] = []

        async def send() -> None:
            seqs.append(await on.talk().send(UserMessage("x"), event_id="m-1"))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(send)
        assert set(seqs) == {1}
        await on.talk().reply(1, timeout=30)
        assert (await on.state()).received == ["x"]


async def test_racing_revisits_of_one_key_are_one(sqlite_url: str) -> None:
    """Also when it is requested again in the run for which it is due."""

    async def handler(wake: Wake, chat: Chat) -> None:
        chat.received += [each.key for each in wake.due]
        if wake.pending or len(chat.received) < 2:
            wake.revisit(0.05, key="only")
            wake.revisit(0.01, key="only")

    async with stage(sqlite_url, handler) as on:
        for _ in range(3):
            await on.talk().ask(UserMessage("x"), timeout=30)

        async def done() -> bool:
            return (await on.state()).received == ["only", "only"] and not await on.talk().revisits()

        assert await until(done)
