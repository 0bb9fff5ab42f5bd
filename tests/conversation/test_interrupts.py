"""Interrupts drop what waits, and cancel a run that is under way if that is requested. Termination ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

import affinity
from affinity import ConversationLimits
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import (
    AgentMessage,
    ChildEnded,
    ConfirmationAnswer,
    SpanCompleted,
    ToolConfirmation,
    ToolUse,
    UserInterrupt,
    UserMessage,
    program,
)
from affinity.conversation import worker as journals
from affinity.conversation.program import WakeOutcome, WakeTask
from affinity.conversation.running import WakeRunner
from affinity.errors import ConversationTerminated, RequestNotPending
from affinity.provider.contract import Turn, TurnResult
from affinity.worker.commits import Commits
from affinity.worker.fetcher import Fetcher
from tests.conversation.application import Chat, Stage, echo, kinds, make, stage, status, until

pytestmark = pytest.mark.anyio


async def asks(wake: affinity.Wake, chat: Chat) -> None:
    """Ask and plan for each message."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            wake.require(ToolConfirmation("refund"))
            wake.revisit(0.5, key="nudge")
        elif isinstance(event, UserInterrupt):
            wake.append(AgentMessage(f"interrupted: {len(wake.requests)} {event.reason}"))
        elif isinstance(event, ConfirmationAnswer):
            wake.append(AgentMessage("refunded"))
    chat.received += [each.key for each in wake.due]


@pytest.mark.parametrize("commits", [False, True])
async def test_an_interrupt_that_waits_in_a_fork_drops_what_the_wake_before_it_requests(
    url: str, commits: bool
) -> None:
    """The fork has both as inputs, for a wake each. The wake may commit a part before its end."""

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.conversation_id == "c":
            await anyio.sleep_forever()
        await asks(wake, chat)
        if commits:
            await wake.commit()

    async with stage(url, handler, limits=ConversationLimits(inputs=1)) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        seq = await talk.interrupt(reason="stop")
        fork = await talk.fork("fork")
        reply = await fork.reply(int(seq), timeout=30)
        assert reply.text == "interrupted: 0 stop"
        assert ([*await fork.requests()], [*await fork.revisits()]) == ([], [])


async def test_an_interrupt_drops_requests_and_revisits_before_the_next_run(url: str) -> None:
    async with stage(url, asks) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("tea"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        seq = await talk.interrupt(reason="stop")
        assert await talk.requests() == []
        assert await talk.revisits() == []
        with pytest.raises(RequestNotPending):
            await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq, timeout=30)).text == "interrupted: 0 stop"
        await anyio.sleep(0.7)
        assert (await on.state()).received == []  # nothing is left to be due
        assert await talk.status() == "idle"


async def test_an_interrupt_is_not_undone_by_the_run_under_way(url: str) -> None:
    """Requests of a wake that began before the interrupt are dropped too, although it commits after it."""
    entered, go = anyio.Event(), anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], UserMessage):
            entered.set()
            await go.wait()
        await asks(wake, chat)

    async with stage(url, slow) as on:
        talk = on.talk()
        first = await talk.send(UserMessage("tea"))
        await entered.wait()
        seq = await talk.interrupt(reason="stop")
        go.set()
        reply = await talk.reply(first, timeout=30)
        assert "agent.tool_confirmation" in kinds(reply.entries)
        assert (await talk.reply(seq, timeout=30)).text == "interrupted: 0 stop"
        assert await talk.requests() == []
        assert await talk.revisits() == []


async def test_an_interrupt_cancels_the_run_if_that_is_requested(url: str) -> None:
    entered = anyio.Event()
    cancelled = anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        if len(wake.pending) == 1:
            wake.append(AgentMessage("never"))
            wake.stream("never")
            entered.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()
        wake.append(AgentMessage(" ".join(event.kind for event in wake.events)))

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        await entered.wait()
        seq = await talk.interrupt(reason="stop", cancel_running=True)
        reply = await talk.reply(seq, timeout=30)
        assert cancelled.is_set()
        assert reply.text == "user.message user.interrupt"
        spans = [each for each in await talk.history() if isinstance(each.event, SpanCompleted)]
        assert [each.event.result for each in spans if isinstance(each.event, SpanCompleted)] == [
            "cancelled",
            "ok",
        ]
        assert spans[0].wake_id != spans[1].wake_id
        assert len(await talk.history(kinds=["agent.message"])) == 1


async def test_what_a_wake_commits_while_it_is_being_cancelled_is_known_to_the_next_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake may commit until the turn that cancels it is committed."""
    entered, cancelling, paid = anyio.Event(), anyio.Event(), anyio.Event()
    payments: list[str] = []

    async def pays(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            entered.set()
            await cancelling.wait()
        await wake.step("pay", payments.append, "tea", repeat="never")
        if wake.interrupt is None:
            paid.set()
            await anyio.sleep_forever()

    write_turns = Commits._write_turns

    async def write_late(self: Commits, turns: Sequence[Turn]) -> Sequence[TurnResult]:
        if any(turn.cancel_activities for turn in turns) and not cancelling.is_set():
            await anyio.sleep(0.2)  # long enough for a read that should not be made yet
            cancelling.set()
            await paid.wait()
        return await write_turns(self, turns)

    monkeypatch.setattr(Commits, "_write_turns", write_late)
    async with stage(url, pays) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        await entered.wait()
        seq = await talk.interrupt(cancel_running=True)
        await talk.reply(seq, timeout=30)
        assert len(payments) == 1


async def test_an_interrupt_is_received_after_many_events(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when there are more of them than one execution takes."""
    monkeypatch.setattr(program, "SIGNALS_PER_EXECUTION", 3)
    entered = anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        if not entered.is_set():
            entered.set()
            await anyio.sleep_forever()
        wake.append(AgentMessage(f"{len(wake.pending)} {wake.interrupt is not None}"))

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("first"))
        await entered.wait()
        for number in range(5):
            await talk.send(UserMessage(f"{number}"))
        seq = await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq, timeout=30)).text == "7 True"
        assert len(await on.client.executions("c")) > 1


async def test_an_interrupt_without_cancel_lets_the_run_end(url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        entered.set()
        await go.wait()
        wake.append(AgentMessage(" ".join(event.kind for event in wake.events)))

    async with stage(url, slow) as on:
        talk = on.talk()
        first = await talk.send(UserMessage("tea"))
        await entered.wait()
        seq = await talk.interrupt()
        await anyio.sleep(0.1)
        go.set()
        assert (await talk.reply(first, timeout=30)).text == "user.message"
        assert (await talk.reply(seq, timeout=30)).text == "user.interrupt"


async def test_an_interrupt_ends_the_pause_before_the_next_attempt(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            raise ValueError("broken")
        wake.append(AgentMessage("mended"))

    async with stage(url, handler, retry=affinity.RetryPolicy(initial_interval=600, max_interval=600)) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        assert await until(lambda: status(talk, "rescheduling"))
        seq = await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq, timeout=30)).text == "mended"
        assert await until(lambda: status(talk, "idle"))


async def test_a_terminated_conversation_takes_no_more_events(url: str) -> None:
    entered = anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        entered.set()
        await anyio.sleep_forever()

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("tea"))
        await entered.wait()
        await talk.terminate(reason="closed")
        assert await talk.status() == "terminated"
        with pytest.raises(ConversationTerminated):
            await talk.send(UserMessage("more"))
        with pytest.raises(ConversationTerminated):
            await talk.interrupt()
        await talk.terminate()  # idempotent

        async def ended() -> bool:
            return (await on.client.status("c")).finished

        assert await until(ended)
        spans = [each.event for each in await talk.history() if isinstance(each.event, SpanCompleted)]
        assert [each.result for each in spans][:1] == ["cancelled"]
        assert (await on.state()).wakes == 0


async def test_an_interrupt_cancels_the_first_wake_of_a_journal_that_was_recreated(url: str) -> None:
    """Its numbers are smaller than in the journal before, which the instance knows."""
    entered = anyio.Event()

    async def slow(wake: affinity.Wake, chat: Chat) -> None:
        if [each.event for each in wake.pending] == [UserMessage("new")]:
            entered.set()
            await anyio.sleep_forever()
        await echo(wake, chat)

    async with stage(url, slow) as on:
        talk = on.talk()
        for text in ("one", "two"):
            await talk.ask(UserMessage(text), timeout=30)
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        await talk.send(UserMessage("new"))
        await entered.wait()
        seq = await talk.interrupt(cancel_running=True)
        assert (await talk.reply(seq, timeout=15)).text == "re: new"
        spans = [each.event for each in await talk.history(kinds=["span.completed"])]
        assert [each.result for each in spans if isinstance(each, SpanCompleted)] == ["cancelled", "ok"]


class Shell:
    """Conversations whose model runs a command that a person has to allow, and says what became of it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.received: list[list[str]] = []
        self.before: Callable[[affinity.Wake], Awaitable[None]] | None = None
        """Called before the loop."""

        @tool(confirm=True)
        async def shell(command: str) -> str:
            self.ran.append(command)
            return "done"

        self._tools = [shell]

    async def handler(self, wake: affinity.Wake, chat: Chat) -> None:
        self.received.append([each.kind for each in wake.events])
        if self.before is not None:
            await self.before(wake)
        await run_loop(wake, model=self._model, tools=self._tools)

    async def _model(self, request: ModelRequest) -> ModelReply:
        if not any(isinstance(each, ToolUse) for each in request.events):
            return ModelReply(calls=[ToolCall("c1", "shell", {"command": "rm -rf /"})])
        results = [each["content"] for each in request.openai_messages() if each["role"] == "tool"]
        return ModelReply(content=str(results[-1]))


class Late:
    """Whether messages come late."""

    def __init__(self) -> None:
        self.is_set = False
        self.holds = anyio.Event()
        """Once a fetch was held back: from then on none is under way that began before."""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Messages to instances come late while it is set."""
    fetch, found = Fetcher._fetch_messages, Late()

    async def fetch_late(self: Fetcher, term: int) -> float:
        if not found.is_set:
            return await fetch(self, term)
        found.holds.set()
        return 0.05

    monkeypatch.setattr(Fetcher, "_fetch_messages", fetch_late)
    return found


class Parent:
    """A conversation with a child, whose wakes wait for a revisit until they are interrupted."""

    def __init__(self) -> None:
        self.entered, self.go = anyio.Event(), anyio.Event()
        self.child = make(self._work, kind="child")

    async def _work(self, wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is None:
            wake.revisit(600)
            self.entered.set()
            await self.go.wait()

    async def handler(self, wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage) and event.text == "work":
                await wake.delegate(self.child, "c/child", event)
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.child} {event.outcome}"))


async def end_late(on: Stage, parent: Parent, late: Late, below: affinity.ConversationHandle, ends: str) -> None:
    """Have the orchestration receive a message before the end of a wake that has committed it: alone, since another
    instance has taken the only place in memory.
    """
    await parent.entered.wait()
    await on.talk("other").ask(UserMessage("hello"), timeout=30)
    late.is_set = True
    await anyio.sleep(0.2)  # until the fetch that is under way has ended
    ended = len(await below.history(kinds=["conversation.idle"]))
    await (below.interrupt(cancel_running=True) if ends == "interrupt" else below.terminate())
    parent.go.set()

    async def has_ended() -> bool:
        return len(await below.history(kinds=["conversation.idle"])) > ended

    await until(has_ended)
    late.is_set = False


ONE_PLACE = affinity.RuntimeOptions.make(worker_node_id="w", instance_cache_size=1)


async def outcomes_of(talk: affinity.ConversationHandle) -> list[str]:
    """Outcomes of the delegations that have ended."""
    ended = [each.event for each in await talk.history(kinds=["child.ended"])]
    return [event.outcome for event in ended if isinstance(event, ChildEnded)]


@pytest.mark.parametrize("ends", ["interrupt", "terminate"])
async def test_a_wake_that_has_ended_is_not_cancelled(url: str, late: Late, ends: str) -> None:
    """Its delegations from a parent end all the same."""
    parent = Parent()
    async with stage(url, parent.handler, parent.child, options=ONE_PLACE) as on:
        talk, below = on.talk(), on.talk("c/child", parent.child)
        await talk.ask(UserMessage("work"), timeout=30)
        await end_late(on, parent, late, below, ends)
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage(f"c/child {'completed' if ends == 'interrupt' else 'terminated'}")
        spans = [each.event for each in await below.history(kinds=["span.completed"])]
        results = [each.result for each in spans if isinstance(each, SpanCompleted)]
        assert results == ["ok", "ok"] if ends == "interrupt" else "cancelled" not in results


async def test_a_wake_of_a_fork_that_has_ended_has_begun_nothing_of_its_base(url: str, late: Late) -> None:
    """The fork has the inputs that began the delegation, and does not end it."""
    parent = Parent()
    parent.go.set()
    async with stage(url, parent.handler, parent.child, options=ONE_PLACE) as on:
        talk, below = on.talk(), on.talk("c/child", parent.child)
        await talk.ask(UserMessage("work"), timeout=30)
        await until(lambda: below.history(kinds=["conversation.idle"]))
        fork = await below.fork("f")
        parent.entered, parent.go = anyio.Event(), anyio.Event()
        await fork.send(UserMessage("more"))
        await end_late(on, parent, late, fork, "interrupt")
        interrupted = (await fork.history(kinds=["user.interrupt"]))[-1]
        await fork.reply(interrupted.seq, timeout=30)
        await below.interrupt()
        (said,) = await until(lambda: talk.history(kinds=["agent.message"]))
        assert said.event == AgentMessage("c/child completed")


async def test_two_interrupts_in_a_row_lose_no_delegation(url: str, late: Late) -> None:
    """The first one cancels a wake that has committed, whose result is dropped; the second one the wake behind it."""
    parent = Parent()
    interrupted = anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is not None and not interrupted.is_set():
            interrupted.set()
            await anyio.sleep_forever()
        await parent._work(wake, chat)

    parent.child = make(work, kind="child")
    async with stage(url, parent.handler, parent.child, options=ONE_PLACE) as on:
        talk, below = on.talk(), on.talk("c/child", parent.child)
        await talk.ask(UserMessage("work"), timeout=30)
        await end_late(on, parent, late, below, "interrupt")
        await interrupted.wait()
        seq = await below.interrupt(cancel_running=True)
        await below.reply(seq, timeout=30)
        await until(lambda: outcomes_of(talk))
        spans = await below.history(kinds=["span.completed"])
        results = [each.event.result for each in spans if isinstance(each.event, SpanCompleted)]
        assert results == ["ok", "cancelled", "ok"]
        assert len({each.wake_id for each in spans}) == 3
        await below.ask(UserMessage("more"), timeout=30)
        assert await outcomes_of(talk) == ["completed"]


async def test_a_delegation_of_a_wake_whose_result_is_dropped_is_waited_for(url: str, late: Late) -> None:
    """An interrupt comes at the end of the wake that has delegated: its own parent waits for the child of the child."""
    parent, leaf_goes = Parent(), anyio.Event()

    async def of_leaf(wake: affinity.Wake, chat: Chat) -> None:
        await leaf_goes.wait()
        wake.finish("42 cm")

    leaf = make(of_leaf, kind="leaf")

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(leaf, "c/child/leaf", event)
                parent.entered.set()
                await parent.go.wait()
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"the leaf says {event.result}"))

    parent.child = make(work, kind="child")
    async with stage(url, parent.handler, parent.child, leaf, options=ONE_PLACE) as on:
        talk, below = on.talk(), on.talk("c/child", parent.child)
        await talk.ask(UserMessage("work"), timeout=30)
        await end_late(on, parent, late, below, "interrupt")
        interrupted = (await below.history(kinds=["user.interrupt"]))[-1]
        await below.reply(interrupted.seq, timeout=30)
        assert await outcomes_of(talk) == []
        leaf_goes.set()
        (ended,) = await until(lambda: talk.history(kinds=["child.ended"]))
        assert (ended.event.outcome, ended.event.result) == ("completed", "the leaf says 42 cm")


@pytest.mark.parametrize("how", ["terminate", "delete"])
async def test_a_child_that_ends_as_its_wake_begins_notifies_its_parent(
    url: str, late: Late, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wake finds the journal closed, and has ended before its orchestration receives the termination."""
    run = WakeRunner.run
    begins = anyio.Event()

    async def run_late(self: WakeRunner[Chat], ctx: affinity.ActivityContext, task: WakeTask) -> WakeOutcome:
        if ctx.instance_id == "c/child" and not begins.is_set():
            late.is_set = True
            await late.holds.wait()
            begins.set()
            await until(closed)
        return await run(self, ctx, task)

    async def closed() -> bool:
        return await below.status() == "terminated"

    async def has_ended() -> bool:
        return "activity_completed" in [each.type for each in await on.client.history("c/child")]

    monkeypatch.setattr(WakeRunner, "run", run_late)
    monkeypatch.setattr(journals, "READ_AHEAD_SECONDS", 0.0)
    parent = Parent()
    async with stage(url, parent.handler, parent.child) as on, anyio.create_task_group() as group:
        talk, below = on.talk(), on.talk("c/child", parent.child)
        await talk.ask(UserMessage("work"), timeout=30)
        await begins.wait()
        group.start_soon(below.terminate if how == "terminate" else below.delete)
        await until(has_ended)
        late.is_set = False
        await until(lambda: outcomes_of(talk))
        await talk.ask(UserMessage("hello"), timeout=30)
        assert await outcomes_of(talk) == ["terminated"]


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("inputs", [1, 2])
async def test_an_interrupt_clears_an_answer_that_no_wake_has_read(url: str, inputs: int, cancel: bool) -> None:
    """Also where the wake that reads the answer does not read the interrupt yet."""
    shell = Shell()
    conversations = make(shell.handler, limits=affinity.ConversationLimits(inputs=inputs))
    async with stage(url, conversations) as on:
        (request,) = (await on.talk().ask(UserMessage("clean up"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
    async with affinity.Client(url) as client:  # no worker runs
        talk = client.conversation(conversations, "c")
        answered = await talk.answer(request.request_id, allowed=True)
        seq = await talk.interrupt(reason="STOP", cancel_running=cancel)
        with pytest.raises(RequestNotPending, match="dropped by an interrupt"):
            await talk.answer(request.request_id, allowed=True)
    shell.received.clear()
    async with stage(url, conversations) as on:
        talk = on.talk()
        assert "the call was interrupted and has not run" in (await talk.reply(answered, timeout=30)).text
        await talk.reply(seq, timeout=30)
        assert await until(lambda: status(talk, "idle"))
    assert shell.ran == []
    assert "user.tool_confirmation" not in [kind for each in shell.received for kind in each]


@pytest.mark.parametrize("final", [False, True])
async def test_an_interrupt_between_two_attempts_clears_the_answer_that_both_are_given(url: str, final: bool) -> None:
    """The first attempt has failed before the call ran: for now, or for good."""
    shell = Shell()

    async def fail(wake: affinity.Wake) -> None:
        if any(isinstance(each, ConfirmationAnswer) for each in wake.events):
            raise ValueError("broken")

    shell.before = fail
    retry = affinity.RetryPolicy(initial_interval=600, max_interval=600, max_attempts=1 if final else 3)
    async with stage(url, shell.handler, retry=retry) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("clean up"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        await talk.answer(request.request_id, allowed=True)
        await until(lambda: status(talk, "failed" if final else "rescheduling"))
        seq = await talk.interrupt(cancel_running=True)
        assert "the call was interrupted and has not run" in (await talk.reply(seq, timeout=30)).text
    assert shell.ran == []


@pytest.mark.parametrize("cancel", [False, True])
async def test_an_interrupt_while_the_wake_with_the_answer_begins(url: str, cancel: bool) -> None:
    """It is committed before the handler runs, although the wake has read its inputs."""
    shell = Shell()
    seqs: list[int] = []
    found = make(shell.handler)
    opened = found._open_state

    class Opening:
        """Opens the state when the interrupt is there."""

        def __init__(self, opening: Any) -> None:
            self._opening = opening

        async def __aenter__(self) -> Chat:
            if await on.talk().history(kinds=["user.tool_confirmation"]) and not seqs:
                seqs.append(await on.talk().interrupt(cancel_running=cancel))
            entered: Chat = await self._opening.__aenter__()
            return entered

        async def __aexit__(self, *raised: Any) -> None:
            await self._opening.__aexit__(*raised)

        def _snapshots(self) -> Any:
            return self._opening._snapshots()

    found._open_state = lambda ctx, work: Opening(opened(ctx, work))  # type: ignore[method-assign,assignment,return-value]
    async with stage(url, found) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("clean up"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        seq = await talk.answer(request.request_id, allowed=True)
        assert "the call was interrupted and has not run" in (await talk.reply(seq, timeout=30)).text
        await talk.reply(seqs[0], timeout=30)
    assert shell.ran == []


@pytest.mark.parametrize("cancel", [False, True])
async def test_an_interrupt_while_a_wake_has_the_answer_and_its_call_has_not_begun(url: str, cancel: bool) -> None:
    shell, entered, go = Shell(), anyio.Event(), anyio.Event()

    async def wait(wake: affinity.Wake) -> None:
        if any(isinstance(each, ConfirmationAnswer) for each in wake.events):
            entered.set()
            await go.wait()

    shell.before = wait
    async with stage(url, shell.handler) as on:
        talk = on.talk()
        (request,) = (await talk.ask(UserMessage("clean up"), timeout=30)).requests
        assert isinstance(request, ToolConfirmation)
        await talk.answer(request.request_id, allowed=True)
        await entered.wait()
        seq = await talk.interrupt(cancel_running=cancel)
        if not cancel:
            go.set()
        assert "the call was interrupted and has not run" in (await talk.reply(seq, timeout=30)).text
        assert await until(lambda: status(talk, "idle"))
        assert shell.ran == []
