"""Inputs of a wake that has failed for good with several are tried one by one: only bad ones become dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest

import affinity
from affinity import ConversationLimits, RetryPolicy, Wake
from affinity.conversation import AgentMessage, ChildEnded, UserInterrupt, UserMessage
from affinity.errors import StepFailed, WakeFailed, WakeMisuse
from affinity.testing import Env
from tests.conversation.application import Chat, Stage, make, stage, status, until

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, initial_interval=0.01)


class Gate:
    """A handler that waits in the wake of a first message, so that those behind it come to one wake."""

    def __init__(self) -> None:
        self.inside, self.free = anyio.Event(), anyio.Event()
        self.wakes: list[list[str]] = []

    async def handle(self, wake: Wake, chat: Chat) -> None:
        texts = [event.text if isinstance(event, UserMessage) else str(event.kind) for event in wake.events]
        self.wakes.append(texts + [f"due {each.key}" for each in wake.due])
        if texts == ["first"]:
            self.inside.set()
            await self.free.wait()
            await self.begin(wake)
        for text in [*texts, *[each.key for each in wake.due]]:
            await self.take(wake, chat, text)

    async def begin(self, wake: Wake) -> None:
        """The end of the first wake."""

    async def take(self, wake: Wake, chat: Chat, text: str) -> None:
        if text.startswith("bad"):
            raise ValueError(f"cannot read {text}")
        chat.received.append(text)
        wake.append(AgentMessage(f"re: {text}"))


async def _send_together(on: Stage, gate: Gate, texts: Sequence[str]) -> list[int]:
    talk = on.talk()
    first = await talk.send(UserMessage("first"))
    await gate.inside.wait()
    found = [await talk.send(UserMessage(text)) for text in texts]
    gate.free.set()
    await talk.reply(first, timeout=30)
    return found


async def _ends(on: Stage, numbers: Sequence[int]) -> list[str]:
    """The reply to each, or the error."""
    found = []
    for number in numbers:
        try:
            found.append((await on.talk().reply(number, timeout=30)).text)
        except WakeFailed as error:
            found.append(error.message)
    return found


@pytest.mark.parametrize("retry", [ONCE, TWICE])
@pytest.mark.parametrize(
    "texts",
    [
        ["a", "bad 1"],
        ["bad 1", "a"],
        ["a", "bad 1", "b", "bad 2", "c"],
        ["bad 1", "bad 2", "a"],
        ["bad 1", "bad 2"],
        ["a", "bad 1", "bad 2"],
    ],
)
async def test_good_ones_get_their_replies(url: str, texts: Sequence[str], retry: RetryPolicy) -> None:
    """In order, each once. The last one, if it is bad, leaves the conversation failed, as one input alone does."""
    gate = Gate()
    async with stage(url, gate.handle, retry=retry) as on:
        ends = await _ends(on, await _send_together(on, gate, texts))
        assert ends == [f"cannot read {text}" if text.startswith("bad") else f"re: {text}" for text in texts]
        good = [text for text in texts if not text.startswith("bad")]
        assert (await on.state()).received == ["first", *good]
        is_last = texts[-1].startswith("bad")
        assert await on.talk().status() == ("failed" if is_last else "idle")
        bad = [text for text in texts[: -1 if is_last else None] if text.startswith("bad")]
        assert [each.event for each in await on.talk().dead_letters()] == [UserMessage(text) for text in bad]
        assert gate.wakes[1 : 1 + retry.max_attempts] == [texts] * retry.max_attempts
        assert (await on.talk().ask(UserMessage("later"), timeout=30)).text == "re: later"
        assert len(await on.talk().dead_letters()) == len(texts) - len(good)


async def _has_heard(on: Stage, number: int) -> bool:
    """Whether the conversation's instance has taken the signal of an input."""
    return any(each.fields.get("data") == {"type": "wake", "seq": number} for each in await on.client.history("c"))


@pytest.mark.parametrize("retry", [ONCE, TWICE])
async def test_what_came_while_others_were_tried_has_its_wake(url: str, retry: RetryPolicy) -> None:
    """Its signal came before the wake that fails for good as the last one."""
    late: list[int] = []

    class Sending(Gate):
        async def take(self, wake: Wake, chat: Chat, text: str) -> None:
            if len(wake.events) == 1 and text == "a":
                late.append(await on.talk().send(UserMessage("late")))
                await until(partial(_has_heard, on, late[0]))
            await super().take(wake, chat, text)

    gate = Sending()
    async with stage(url, gate.handle, retry=retry) as on:
        numbers = await _send_together(on, gate, ["a", "bad"])
        assert await _ends(on, numbers) == ["re: a", "cannot read bad"]
        assert await _ends(on, late) == ["re: late"]
        assert [each.event for each in await on.talk().dead_letters()] == [UserMessage("bad")]


@pytest.mark.parametrize("bound", [1, 2])
async def test_what_did_not_fit_into_a_wake_that_fails_has_its_own(url: str, bound: int) -> None:
    """All came before the first of these wakes began: no later signal announces the rest."""
    gate = Gate()
    async with stage(url, gate.handle, retry=ONCE, limits=ConversationLimits(inputs=bound)) as on:
        ends = await _ends(on, await _send_together(on, gate, ["bad 1", "bad 2", "a", "bad 3"]))
        assert ends == ["cannot read bad 1", "cannot read bad 2", "re: a", "cannot read bad 3"]
        assert await on.talk().status() == "failed"
        assert len(await on.talk().dead_letters()) == 2


async def test_an_error_that_is_not_retried_too(url: str) -> None:
    class Misusing(Gate):
        async def take(self, wake: Wake, chat: Chat, text: str) -> None:
            if text == "bad":
                raise ExceptionGroup("unhandled errors in a TaskGroup", [WakeMisuse("never")])
            await super().take(wake, chat, text)

    gate = Misusing()
    async with stage(url, gate.handle, retry=TWICE) as on:
        assert await _ends(on, await _send_together(on, gate, ["a", "bad", "b"])) == ["re: a", "never", "re: b"]
    assert gate.wakes[1:] == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


@pytest.mark.parametrize("repeat", ["always", "never"])
@pytest.mark.parametrize("by_key", [False, True])
async def test_a_step_that_was_done_with_the_others_is_not_done_again(url: str, repeat: Any, by_key: bool) -> None:
    """Each input takes over its own, also of those with the same arguments, and an error that is kept."""
    runs: list[str] = []

    class Charging(Gate):
        async def take(self, wake: Wake, chat: Chat, text: str) -> None:
            cents = text.rpartition(" ")[2]
            try:
                paid = await wake.step("charge", charge, cents, key=text if by_key else None, repeat=repeat)
            except StepFailed as error:
                paid = str(error)
            except ConnectionError as error:
                paid = str(error)
            await super().take(wake, chat, text)
            wake.append(AgentMessage(paid))

    async def charge(cents: str) -> str:
        runs.append(cents)
        if cents == "declined":
            raise ConnectionError("card declined")
        return f"paid {cents} in run {len(runs)}"

    gate = Charging()
    texts = ["a 1", "b 1", "c 2", "d declined", "bad 1", "e 5"]
    async with stage(url, gate.handle, retry=TWICE) as on:
        ends = await _ends(on, await _send_together(on, gate, texts))
    assert ends[:4] == ["paid 1 in run 2", "paid 1 in run 3", "paid 2 in run 4", "card declined"]
    assert ends[4] == "cannot read bad 1"
    assert sorted(set(runs)) == ["1", "2", "5", "declined", "first"]
    assert [runs.count(cents) for cents in ("1", "2", "5")] == [3, 1, 1]
    if repeat == "never":
        assert runs.count("declined") == 1


@pytest.mark.parametrize("by_key", [False, True])
async def test_a_step_that_was_done_before_a_reset_is_not_done_again(url: str, by_key: bool) -> None:
    """The wake behind the reset finds it, and so do those that try its inputs one by one."""
    runs: list[str] = []

    class Charging(Gate):
        async def take(self, wake: Wake, chat: Chat, text: str) -> None:
            if text.startswith("pay"):
                paid = await wake.step("charge", charge, key=text if by_key else None, repeat="never")
                wake.append(AgentMessage(paid))
            await super().take(wake, chat, text)

    async def charge() -> str:
        runs.append(f"paid in run {len(runs) + 1}")
        return runs[-1]

    gate = Charging()
    async with stage(url, gate.handle, retry=RetryPolicy(max_attempts=2, initial_interval=0.5)) as on:
        numbers = await _send_together(on, gate, ["a", "pay 1", "pay 2", "bad"])
        await until(partial(_has_failed, on))
        await on.client.reset("c", to_event=len(await on.client.history("c")))
        ends = await _ends(on, numbers)
    assert [ends[0], ends[3]] == ["re: a", "cannot read bad"]
    assert runs == ["paid in run 1", "paid in run 2"]


async def _has_failed(on: Stage) -> bool:
    return "rescheduling" in [getattr(each.event, "status", "") for each in await on.talk().history()]


async def test_a_revisit_that_is_bad_leaves_the_inputs_alone(url: str) -> None:
    class Revisiting(Gate):
        async def begin(self, wake: Wake) -> None:
            for key in ("good", "bad", "other"):
                wake.revisit(0, key=key)

    gate = Revisiting()
    async with stage(url, gate.handle, retry=ONCE) as on:
        assert await _ends(on, await _send_together(on, gate, ["a", "b"])) == ["re: a", "re: b"]
        await until(lambda: status(on.talk(), "idle"))
        assert sorted((await on.state()).received) == ["a", "b", "first", "good", "other"]
        assert await on.talk().dead_letters() == []


async def test_an_interrupt_is_read_with_what_it_follows(url: str) -> None:
    """Also where one of them is being tried alone: the wakes that were to come are one wake again."""

    class Waiting(Gate):
        is_alone = anyio.Event()

        async def take(self, wake: Wake, chat: Chat, text: str) -> None:
            if len(wake.events) == 1 and text == "a":
                self.is_alone.set()
                await anyio.sleep_forever()
            if not wake.interrupt:
                await super().take(wake, chat, text)

    gate = Waiting()
    async with stage(url, gate.handle, retry=ONCE) as on:
        numbers = await _send_together(on, gate, ["a", "bad", "b"])
        with anyio.fail_after(30):
            await gate.is_alone.wait()
        await on.talk().ask(UserInterrupt(cancel=True), timeout=30)
        assert await on.talk().status() == "idle"
        assert gate.wakes[-1] == ["a", "bad", "b", "user.interrupt"]
        assert len(await _ends(on, numbers)) == 3


async def test_a_delegation_fails_with_its_own_input_only(url: str) -> None:
    gate = Gate()
    children = make(gate.handle, kind="child", retry=ONCE)

    async def lead(wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(children, "child", event)
            if isinstance(event, ChildEnded):
                wake.append(AgentMessage(event.outcome))

    async with stage(url, lead, children) as on:
        talk = on.talk()
        await talk.send(UserMessage("first"))
        await gate.inside.wait()
        for text in ("a", "bad", "b"):
            await talk.ask(UserMessage(text), timeout=30)
        gate.free.set()

        async def have_ended() -> bool:
            return len(await talk.history(kinds=[AgentMessage])) == 4

        await until(have_ended)
        outcomes = [each.event.text for each in await talk.history(kinds=[AgentMessage])]  # type: ignore[attr-defined]
    assert sorted(outcomes) == ["completed"] * 3 + ["failed"]


async def test_an_input_that_ends_its_process_takes_no_other_along() -> None:
    """Its wake is poisoned, once with all and once alone."""
    runs: list[list[str]] = []
    inside, free = anyio.Event(), anyio.Event()

    async def handle(wake: Wake, chat: Chat) -> None:
        texts = [event.text for event in wake.events if isinstance(event, UserMessage)]
        runs.append(texts)
        if "bad" in texts or "first" in texts:
            inside.set()
            await (free.wait() if "first" in texts else anyio.sleep_forever())
        wake.append(AgentMessage(f"re: {texts}"))

    chats, app = make(handle), affinity.App("poison")
    app.include(chats)
    async with Env(app, options=affinity.RuntimeOptions(max_attempts=2)) as env:
        talk = env.client.conversation(chats, "c")
        await talk.send(UserMessage("first"))
        await _passed(inside)
        numbers = [await talk.send(UserMessage(text)) for text in ("a", "bad", "b")]
        inside = anyio.Event()
        free.set()
        for _ in range(4):
            await _passed(inside)
            inside = anyio.Event()
            await env.crash()
        assert (await talk.reply(numbers[0])).text == "re: ['a']"
        with pytest.raises(WakeFailed) as failed:
            await talk.reply(numbers[1])
        assert failed.value.error_type == "ActivityPoisoned"
        assert (await talk.reply(numbers[2])).text == "re: ['b']"
    assert runs == [["first"], *[["a", "bad", "b"]] * 2, ["a"], ["bad"], ["bad"], ["b"]]


async def _passed(event: anyio.Event) -> None:
    with anyio.fail_after(30):
        await event.wait()
