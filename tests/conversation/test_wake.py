"""Wakes: one at a time, repeated after failures, retried by a policy, cancelled by interrupts."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

import affinity
from affinity import RetryPolicy, Wake
from affinity.conversation import AgentMessage, SpanCompleted, UserMessage, program
from affinity.conversation.kinds import SIGNAL
from affinity.conversation.running import WakeRunner
from affinity.errors import InvalidApp, InvalidInput, InvalidOptions, PayloadTooLarge, SessionError, WakeFailed
from affinity.limits import MAX_EVENT_BYTES
from affinity.worker.maintenance import code_version
from tests.conversation.application import Chat, echo, kinds, make, stage, status, until

pytestmark = pytest.mark.anyio


async def test_a_wake_processes_what_has_arrived(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        second = await talk.ask(UserMessage("two"), event_id="m-2", timeout=30)
        assert (first.text, second.text) == ("re: one", "re: two")
        assert kinds(second.entries) == ["span.started", "agent.message", "span.completed", "conversation.idle"]
        assert second.stop_reason == "end_turn"
        assert (await on.state()).received == ["one", "two"]


async def test_the_same_event_id_is_one_event_and_wakes_nothing(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        first = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        again = await talk.ask(UserMessage("one"), event_id="m-1", timeout=30)
        assert (again.seq, again.wake_id, again.text) == (first.seq, first.wake_id, first.text)
        assert (await on.state()).wakes == 1


async def test_what_arrives_during_a_wake_goes_to_the_next(url: str) -> None:
    entered, go = anyio.Event(), anyio.Event()
    batches: list[list[str]] = []

    async def slow(wake: Wake, chat: Chat) -> None:
        batches.append([event.text for event in wake.events if isinstance(event, UserMessage)])
        entered.set()
        await go.wait()
        wake.append(AgentMessage("done"))

    async with stage(url, slow) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await entered.wait()
        await talk.send(UserMessage("two"))
        last = await talk.send(UserMessage("three"))
        await anyio.sleep(0.1)
        assert len(batches) == 1
        go.set()
        reply = await talk.reply(last, timeout=30)
        assert batches == [["one"], ["two", "three"]]
        assert reply.processed == last


async def test_a_handler_that_raises_is_retried_by_its_policy(url: str) -> None:
    attempts: list[int] = []

    async def flaky(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        chat.received.append("half")
        wake.append(AgentMessage("half"))
        if len(attempts) < 3:
            raise ValueError("not yet")

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01)
    async with stage(url, flaky, retry=policy) as on:
        reply = await on.talk().ask(UserMessage("one"), timeout=30)
        assert attempts == [1, 2, 3]
        assert (await on.state()).received == ["half"]
        entries = [*(await on.talk().trace(reply.wake_id))]
        assert kinds(entries).count("agent.message") == 1
        assert [each.event.result for each in entries if isinstance(each.event, SpanCompleted)] == [
            "error",
            "error",
            "ok",
        ]


async def test_a_handler_that_fails_for_good_runs_again_for_the_next_event(url: str) -> None:
    broken = True
    seen: list[list[str]] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        seen.append([event.text for event in wake.events if isinstance(event, UserMessage)])
        if broken:
            raise ValueError("broken")
        wake.append(AgentMessage("mended"))

    policy = RetryPolicy(max_attempts=2, initial_interval=0.01)
    async with stage(url, handler, retry=policy) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed, match="ValueError: broken") as caught:
            await talk.ask(UserMessage("one"), timeout=30)
        assert caught.value.error_type == "ValueError"
        assert await until(lambda: status(talk, "failed"))
        await anyio.sleep(0.3)
        assert seen == [["one"], ["one"]]  # no hot loop
        broken = False
        reply = await talk.ask(UserMessage("two"), timeout=30)
        assert reply.text == "mended"
        assert seen[-1] == ["two"]
        assert await until(lambda: status(talk, "idle"))


@pytest.mark.parametrize(
    ("answer", "error_type"),
    [("x" * MAX_EVENT_BYTES, "PayloadTooLarge"), ("\udcff", "NotSerializable")],
    ids=["large", "surrogate"],
)
async def test_an_answer_that_no_event_takes_fails_the_wake_once(url: str, answer: str, error_type: str) -> None:
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        wake.append(AgentMessage(answer if wake.events == [UserMessage("all of it")] else "in short"))

    async with stage(url, handler, retry=RetryPolicy(initial_interval=0.01)) as on:
        with pytest.raises(WakeFailed) as caught:
            await on.talk().ask(UserMessage("all of it"), timeout=30)
        assert (caught.value.error_type, attempts) == (error_type, [1])
        assert (await on.talk().ask(UserMessage("shorter"), timeout=30)).text == "in short"


async def test_resume_tries_again(url: str) -> None:
    broken = True

    async def handler(wake: Wake, chat: Chat) -> None:
        if broken:
            raise ValueError("broken")
        wake.append(AgentMessage("mended"))

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"))
        assert await until(lambda: status(talk, "failed"))
        broken = False
        await talk.resume()
        assert await until(lambda: status(talk, "idle"))
        assert (await talk.reply(seq, timeout=30)).text == "mended"


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_wake_that_tries_again_is_running(url: str, attempts: int) -> None:
    """After it has failed for good, and after the pause between two attempts."""
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if not entered.is_set():
            entered.set()
            raise ValueError("broken")
        await go.wait()

    async with stage(url, handler, retry=RetryPolicy(max_attempts=attempts, initial_interval=0.5)) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        assert await until(lambda: status(talk, "failed" if attempts == 1 else "rescheduling"))
        if attempts == 1:
            await talk.resume()
        assert await until(lambda: status(talk, "running"))
        go.set()
        assert await until(lambda: status(talk, "idle"))


async def test_what_is_refused_for_its_size_is_not_appended(sqlite_url: str) -> None:
    """And smaller entries are, that say so."""

    async def handler(wake: Wake, chat: Chat) -> None:
        for _ in range(8):
            wake.append(AgentMessage("x" * 1_000_000))
        with pytest.raises(PayloadTooLarge, match="over the limit"):
            wake.append(AgentMessage("x" * 1_000_000))
        wake.append(AgentMessage("that was too much"))

    async with stage(sqlite_url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        reply = await on.talk().ask(UserMessage("one"), timeout=30)
        assert reply.text == "that was too much"
        assert len(reply.events) == 9


@pytest.mark.parametrize("hangs", [True, False])
async def test_all_attempts_together_have_a_time(url: str, hangs: bool) -> None:
    """An attempt that runs at its end is cancelled, and none begins later. On a slow machine that may be any."""
    attempts: list[int] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        if hangs and wake.attempt > 1:
            await anyio.sleep_forever()
        raise ValueError("broken")

    policy = RetryPolicy(max_attempts=1000, initial_interval=0.2, strategy="fixed", total_timeout=0.7)
    async with stage(url, handler, retry=policy) as on:
        with pytest.raises(WakeFailed, match="TimeoutError" if hangs else "ValueError: broken|TimeoutError"):
            await on.talk().ask(UserMessage("one"), timeout=30)
        assert len(attempts) <= 2 if hangs else len(attempts) <= 4


@pytest.mark.parametrize("fails", [True, False])
async def test_what_a_handler_leaves_behind_adds_nothing(url: str, fails: bool) -> None:
    """A task that goes on after the handler has ended: its entry would be in the commit, of a failed attempt too."""
    tasks: list[asyncio.Task[None]] = []

    async def go_on(wake: Wake) -> None:
        for _ in range(200):
            await asyncio.sleep(0)
            with wake.span("late"):
                wake.append(AgentMessage("late"))

    async def handler(wake: Wake, chat: Chat) -> None:
        tasks.append(asyncio.create_task(go_on(wake)))
        if fails:
            raise ValueError("broken")

    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        await talk.send(UserMessage("one"))
        await until(lambda: talk.history(kinds=["conversation.idle"]))
        with pytest.raises(SessionError, match="handler of this wake has ended"):
            await tasks[0]
        assert kinds(await talk.history(last=1)) == ["conversation.idle"]
        assert not fails or not await talk.history(kinds=["agent.message"])


async def test_resume_of_a_conversation_with_nothing_to_do_runs_nothing(url: str) -> None:
    async with stage(url) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        (before,) = await talk.history(last=1)
        assert not await talk.resume()
        await anyio.sleep(0.3)
        assert await talk.history(after=before.seq) == []
        assert (await on.state()).wakes == 1


async def test_a_journal_that_was_recreated_under_a_wake_is_a_conflict_and_the_wake_runs_again(url: str) -> None:
    """As with a state that another writer has changed: nothing of the run is committed."""
    runs: list[list[str]] = []
    entered, go = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        texts = [event.text for event in wake.events if isinstance(event, UserMessage)]
        runs.append(texts)
        if len(runs) == 1:
            entered.set()
            await go.wait()
        wake.append(AgentMessage(",".join(texts)))

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.send(UserMessage("old"))
        await entered.wait()
        await on.client.session_store.delete(["c"])
        await on.client.journals.delete(["c"])
        seq = await talk.send(UserMessage("new"))
        go.set()
        assert (await talk.reply(seq, timeout=30)).text == "new"
        assert runs[0] == ["old"]
        assert runs[-1] == ["new"]
        assert kinds(await talk.history()) == [
            "user.message",
            "span.started",
            "agent.message",
            "span.completed",
            "conversation.idle",
        ]


@pytest.mark.slow_cases(r"\[new")
async def test_a_conversation_goes_on_after_hundreds_of_wakes_and_without_its_coroutine(url: str) -> None:
    """Its executions are bounded, and each turn may be a replay: the instances do not fit the worker's memory."""
    options = affinity.RuntimeOptions.make(worker_node_id="w", instance_cache_size=1)
    async with stage(url, options=options) as on:
        talks = [on.talk(f"c{number}") for number in range(3)]

        async def ask_all(talk: affinity.ConversationHandle, count: int) -> None:
            for number in range(count):
                assert (await talk.ask(UserMessage(str(number)), timeout=60)).text == f"re: {number}"

        async with anyio.create_task_group() as tasks:
            for talk in talks:
                tasks.start_soon(ask_all, talk, 5)
        await ask_all(talks[0], program.WAKES_PER_EXECUTION + 5)
        assert len(await on.client.executions("c0")) == 2
        ids = {each.wake_id for each in await talks[0].history(kinds=["span.started"], limit=1000)}
        assert len(ids) == program.WAKES_PER_EXECUTION + 10


async def test_a_signal_that_is_none_is_left_out(sqlite_url: str) -> None:
    """Anybody may raise an event of this name."""
    async with stage(sqlite_url) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        for data in (None, 3, {"type": "wake"}, {"type": "wake", "seq": "x"}, {"type": "dance"}):
            await on.client.raise_event("c", SIGNAL, data)
        await on.talk().ask(UserMessage("two"), timeout=30)
        assert (await on.state()).received == ["one", "two"]


async def test_what_a_wake_appends_is_bounded(sqlite_url: str) -> None:
    refused: list[str] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        for text in ("x", "y", "z"):
            try:
                wake.append(AgentMessage(text))
            except InvalidInput as error:
                refused.append(str(error))

    async def talks_much(wake: Wake, chat: Chat) -> None:
        for _ in range(9):
            wake.append(AgentMessage("x" * 1_000_000))

    many = make(talks_much, kind="much", retry=RetryPolicy(max_attempts=1))
    async with stage(sqlite_url, handler, many, limits=affinity.ConversationLimits(entries=3)) as on:
        # the beginning of the span is an entry too
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "y"
        assert len(refused) == 1
        with pytest.raises(WakeFailed, match="PayloadTooLarge"):
            await on.talk("much", many).ask(UserMessage("one"), timeout=30)


async def test_a_handler_has_a_time(sqlite_url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.attempt == 1:
            await anyio.sleep_forever()
        wake.append(AgentMessage("in time"))

    async with stage(sqlite_url, handler, timeout=0.1, retry=RetryPolicy(initial_interval=0.01)) as on:
        assert (await on.talk().ask(UserMessage("one"), timeout=30)).text == "in time"


def test_a_change_of_the_handler_s_file_is_another_version_of_the_code(tmp_path: Path) -> None:
    def version(text: str) -> str:
        path = tmp_path / "handlers.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("handlers", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        app = affinity.App("a")
        app.include(make(module.handler))
        return code_version(app)

    code = "async def handler(wake, chat): pass\n"
    assert version(code) == version(code)
    assert version(code) != version(code + "# another\n")


def test_conversations_need_a_handler_and_options_that_fit() -> None:
    conversations = affinity.Conversations(Chat, kind="chat")
    with pytest.raises(InvalidApp, match="on_wake"):
        affinity.App("a").include(conversations)
    with pytest.raises(InvalidApp, match="async def"):
        conversations.on_wake(lambda wake, chat: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidOptions, match="max_cycles"):
        conversations.on_wake(max_cycles=0)
    with pytest.raises(InvalidOptions, match="commits with its journal"):
        affinity.Conversations(Chat, store=affinity.MemorySessionStore())  # type: ignore[call-arg]
    with pytest.raises(InvalidApp, match="already"):
        make().on_wake(echo)


async def test_what_fails_behind_the_handler_drops_the_state_too(url: str) -> None:
    """The state is staged already when the attempt's time runs out, while another one is disposed to make room."""
    disposed: list[str] = []

    async def dispose(session_id: str, _: Chat) -> None:
        disposed.append(session_id)
        if len(disposed) == 1:
            await anyio.sleep(30)

    bounds: dict[str, Any] = {"max_bytes": 100, "size_of": lambda chat: 80 if chat.received else 1}
    retry = RetryPolicy(initial_interval=0.01)
    async with stage(url, timeout=1.0, retry=retry, dispose=dispose, **bounds) as on:
        await on.talk("first").ask(UserMessage("one"), timeout=30)
        reply = await on.talk("second").ask(UserMessage("one"), timeout=30)
        assert disposed[0] == "first"
        assert "conversation.status_changed" in kinds(reply.entries)
        assert await on.state("second") == Chat(received=["one"], wakes=1)


async def test_a_record_that_is_made_before_the_first_wake_commits_is_not_lost(url: str) -> None:
    """A wake that began without one, and finds one when it commits, is repeated with that."""
    began, made = anyio.Event(), anyio.Event()

    async def slow(wake: Wake, chat: Chat) -> None:
        began.set()
        await made.wait()
        await echo(wake, chat)

    async with stage(url, slow) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("one"))
        await began.wait()
        async with on.conversations.open("c", store=on.client.session_store) as chat:
            chat.received.append("by hand")
        made.set()
        assert (await talk.reply(seq, timeout=30)).text == "re: one"
        assert (await on.state()).received == ["by hand", "one"]


async def test_an_ask_learns_of_a_failure_that_was_recorded_late(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What records it has failed too; it is tried again, and the handler is not."""
    run, times = WakeRunner.run, Counter[str]()

    async def run_late(self: WakeRunner[Any], ctx: Any, task: Any) -> Any:
        times["closing" if "failed" in task else "wake"] += 1
        if "failed" not in task or times["closing"] < 3:
            raise RuntimeError("not now")
        return await run(self, ctx, task)

    async def handler(wake: Wake, chat: Chat) -> None:
        """The activity fails before it is called."""

    monkeypatch.setattr(WakeRunner, "run", run_late)
    monkeypatch.setattr(program, "CLOSING", RetryPolicy(initial_interval=0.2))
    async with stage(url, handler, retry=RetryPolicy(max_attempts=1)) as on:
        talk = on.talk()
        with pytest.raises(WakeFailed, match="RuntimeError"):
            await talk.ask(UserMessage("one"), timeout=15)
        assert times == {"wake": 1, "closing": 3}
        assert await until(lambda: status(talk, "failed"))
