"""Conversations that move between workers, and ids that begin again: nothing is lost, nothing is processed twice, and
the next ask waits for no lease and no poll.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import pytest

from affinity import ConversationHandle, RuntimeOptions, Wake, Worker
from affinity.conversation import AgentMessage, ToolConfirmation, UserMessage
from affinity.worker import maintenance
from affinity.worker.retry import DatabaseHealth
from tests.conversation.application import Chat, Stage, stage, status, until

pytestmark = pytest.mark.anyio

PATIENCE: Final = 30.0
SLOW: Final = 60.0
"""Seconds between two looks of a worker that gets no hint: beyond the patience of a test."""

LONG_LOCKS: Final = dict.fromkeys(
    ["worker_lease_timeout", "work_item_lock_timeout", "session_lock_timeout", "stall_timeout"], 10 * SLOW
)


@dataclass
class Steered:
    """A handler that does what its messages say, and notes where."""

    ran: list[tuple[str, str, str]] = field(default_factory=list)
    """Conversation, worker, and what its wake was for."""
    running: Counter[str] = field(default_factory=Counter)
    gate: anyio.Event = field(default_factory=anyio.Event)

    async def respond(self, wake: Wake, chat: Chat) -> None:
        """One wake of a conversation at a time, on whatever worker."""
        name = wake.conversation_id
        assert not self.running[name]
        self.running[name] += 1
        try:
            for revisit in wake.due:
                self.ran.append((name, wake.context.worker_id, revisit.key))
            for event in wake.events:
                text = event.text if isinstance(event, UserMessage) else event.kind
                self.ran.append((name, wake.context.worker_id, text))
                chat.received.append(text)
                if text == "wait":
                    await self.gate.wait()
                elif text == "require":
                    wake.require(ToolConfirmation(tool="t", arguments={}))
                elif text == "revisit":
                    wake.revisit(0.3, key="later")
                wake.append(AgentMessage(f"re: {text}"))
        finally:
            self.running[name] -= 1

    async def has_run(self, text: str) -> bool:
        """Whether the last wake was for this."""
        return bool(self.ran) and self.ran[-1][2] == text


@dataclass
class Fleet:
    """Two workers, and the handler of both."""

    on: Stage
    handler: Steered

    async def move(self, name: str) -> str:
        """Move a session to the other worker, whose id is returned."""
        (holder,) = [each.worker_id async for each in self.on.client.sessions() if each.session_id == name]
        other = "w0" if holder == "w1" else "w1"
        assert await self.on.client.move_session(name, other, wait=True) == "moved"
        return other

    async def ask(self, talk: ConversationHandle, text: str) -> str:
        """Ask; the worker that has answered."""
        reply = await talk.ask(UserMessage(text), timeout=PATIENCE)
        assert reply.text == f"re: {text}"
        (worker,) = [worker for name, worker, said in self.handler.ran if (name, said) == (talk.conversation_id, text)]
        return worker


@asynccontextmanager
async def fleet(url: str, **options: Any) -> AsyncIterator[Fleet]:
    """Workers with these options."""
    handler = Steered()
    first, second = (RuntimeOptions.make(worker_node_id=name, **options) for name in ("w0", "w1"))
    async with (
        stage(url, handler.respond, workers=0) as on,
        Worker(on.app, url, first),
        Worker(on.app, url, second),
    ):
        yield Fleet(on, handler)


async def test_a_conversation_whose_wake_is_parked_moves(url: str) -> None:
    """There and back: its coroutine stays where it was."""
    async with fleet(url) as two:
        talk = two.on.talk()
        for number in range(4):
            await two.ask(talk, f"before {number}")
            await two.ask(talk, f"again {number}")
            to = await two.move("c")
            assert await two.ask(talk, f"after {number}") == to


async def test_a_conversation_with_a_wake_and_an_input_moves(url: str) -> None:
    """The wake ends where it runs; the input that waits is for the other worker."""
    async with fleet(url) as two, anyio.create_task_group() as group:
        talk = two.on.talk()
        here = await two.ask(talk, "one")
        await talk.send(UserMessage("wait"))
        await until(lambda: two.handler.has_run("wait"))
        seq = await talk.send(UserMessage("two"))
        group.start_soon(two.move, "c")
        await until(lambda: _is_leaving(two.on))
        assert await two.handler.has_run("wait")
        two.handler.gate.set()
        assert (await talk.reply(seq, timeout=PATIENCE)).text == "re: two"
        (_, first, _), (_, then, text) = two.handler.ran[-2:]
        assert (first, text) == (here, "two")
        assert then != here
        assert (await two.on.state()).received == ["one", "wait", "two"]


async def _is_leaving(on: Stage) -> bool:
    (found,) = [each async for each in on.client.sessions() if each.session_id == "c"]
    return found.next_worker is not None


async def test_a_conversation_that_waits_for_time_or_a_person_moves(url: str) -> None:
    async with fleet(url) as two:
        talk = two.on.talk()
        await two.ask(talk, "revisit")
        to = await two.move("c")
        await until(lambda: two.handler.has_run("later"))
        await until(lambda: status(talk, "idle"))
        assert [worker for _, worker, text in two.handler.ran if text == "later"] == [to]
        await two.ask(talk, "require")
        to = await two.move("c")
        (request,) = await talk.requests()
        seq = await talk.answer(request.request_id, allowed=True)
        assert (await talk.reply(seq, timeout=PATIENCE)).text == "re: user.tool_confirmation"
        assert two.handler.ran[-1][1] == to


async def test_a_fork_beside_moves_with_its_home(url: str) -> None:
    """Also while a wake of it runs, which the home waits for."""
    async with fleet(url) as two, anyio.create_task_group() as group:
        talk = two.on.talk()
        await two.ask(talk, "one")
        fork = await talk.fork("f", beside=True)
        await two.ask(fork, "two")
        to = await two.move("c")
        assert await two.ask(fork, "three") == await two.ask(talk, "four") == to
        await fork.send(UserMessage("wait"))
        await until(lambda: two.handler.has_run("wait"))
        group.start_soon(two.move, "c")
        await until(lambda: _is_leaving(two.on))
        seq = await talk.send(UserMessage("five"))
        two.handler.gate.set()
        assert (await talk.reply(seq, timeout=PATIENCE)).text == "re: five"
        assert two.handler.ran[-1][1] != to
        assert await two.ask(fork, "six") == two.handler.ran[-2][1]
        assert (await two.on.state("f")).received == ["one", "two", "three", "wait", "six"]


async def test_a_worker_that_is_resumed_takes_work_immediately(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the hint: it looks for the end of its drain seldom."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", SLOW)
    options = RuntimeOptions.make(poll_interval=1.0)
    async with stage(url, options=options) as on:
        await on.client.drain_worker(on.workers[0].identity.worker_id)
        await until(lambda: _is_drained(on))
        seq = await on.talk().send(UserMessage("one"))
        await on.client.resume_worker(on.workers[0].identity.worker_id)
        assert (await on.talk().reply(seq, timeout=PATIENCE)).text == "re: one"


async def test_a_drained_worker_looks_seldom_while_a_check_of_its_work_hangs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of the next check stays there until then."""
    handler, calls, hanging = Steered(), list[object](), anyio.Event()
    retry = DatabaseHealth.retry

    async def count(health: DatabaseHealth, verb: Any) -> Any:
        calls.append(getattr(verb, "func", verb))
        return await retry(health, verb)

    monkeypatch.setattr(DatabaseHealth, "retry", count)
    async with stage(url, handler.respond) as on:
        runtime = on.workers[0].runtime

        async def hang(locks: object) -> list[bool]:
            hanging.set()
            await anyio.sleep_forever()
            return []

        monkeypatch.setattr(runtime.services.provider, "check_work_item", hang)
        await on.talk().send(UserMessage("wait"))
        await until(lambda: handler.has_run("wait"))
        await on.client.drain_worker(runtime.services.identity.worker_id)
        await until(lambda: _is_drained(on))
        runtime.services.notifier.check_wanted.set()
        await hanging.wait()
        runtime.services.notifier.check_wanted.set()
        calls.clear()
        await anyio.sleep(1.0)
        assert 1 <= calls.count(runtime.services.provider.drain_worker) <= 1.0 / maintenance.DRAIN_STEP_SECONDS + 2
        handler.gate.set()


async def _is_drained(on: Stage) -> bool:
    return on.workers[0].runtime.lease.is_drained_by_operator


@pytest.mark.parametrize("way", ["delete", "delete the instance", "terminate", "reset"])
async def test_an_id_begins_again_while_a_wake_runs(url: str, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The wake is cancelled by the hint: otherwise a worker looks at what runs seldom, and renews its locks seldom."""
    monkeypatch.setattr(maintenance, "MAINTENANCE_SECONDS", SLOW)
    async with fleet(url, **LONG_LOCKS) as two:
        talk, client = two.on.talk(), two.on.client
        await two.ask(talk, "one")
        await two.move("c")
        await two.ask(talk, "two")  # the coroutine is on another worker than the wakes
        await talk.send(UserMessage("wait"))
        await until(lambda: two.handler.has_run("wait"))
        entered, before = len(two.handler.ran), two.handler.gate
        two.handler.gate = anyio.Event()
        two.handler.gate.set()  # for a repetition; the wake that runs waits for the one before
        if way == "terminate":
            await talk.terminate()
        if way in {"delete", "terminate"}:
            assert await talk.delete()
        elif way == "reset":
            await client.reset("c", to_event=1)
        else:
            await client.delete("c", force=True)
        await two.ask(talk, "again")
        kept = [] if way in {"delete", "terminate"} else ["one", "two", "wait"]
        assert not before.is_set()
        assert (await two.on.state()).received == [*kept, "again"]
        assert [text for _, _, text in two.handler.ran[entered:]] == [*kept[2:], "again"]
        texts = [each.event.text for each in await talk.history(kinds=[AgentMessage])]  # type: ignore[attr-defined]
        assert texts == [f"re: {text}" for text in [*kept, "again"]]
