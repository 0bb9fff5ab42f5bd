"""Inputs of wakes that have failed for good: later wakes go on behind them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import affinity
from affinity import RetryPolicy
from affinity.conversation import AgentMessage, ChildEnded, DeadLetters, UserMessage
from affinity.conversation.journal import JournalRetention
from affinity.errors import InvalidInput, UnknownEntry, WakeFailed
from tests.conversation.application import Chat, make, stage, status, until

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


class Poisoned:
    """A handler that cannot read one text, until it is mended."""

    def __init__(self) -> None:
        self.broken = True

    async def handle(self, wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            text = event.text if isinstance(event, UserMessage) else str(event.kind)
            if self.broken and text == "poison":
                raise ValueError("cannot read this")
            chat.received.append(text)
            wake.append(AgentMessage(f"re: {text}"))


async def test_later_inputs_go_on_behind_a_poisoned_one(url: str) -> None:
    """Its sender learns of the failure, then and later; it is listed, and sent again by hand, once."""
    handler = Poisoned()
    async with stage(url, handler.handle, retry=ONCE) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        with pytest.raises(WakeFailed, match="cannot read this"):
            await talk.ask(UserMessage("poison"), event_id="p", timeout=30)
        assert await talk.status() == "failed"
        assert await talk.dead_letters() == []
        assert (await talk.ask(UserMessage("two"), timeout=30)).text == "re: two"
        assert await talk.status() == "idle"
        with pytest.raises(WakeFailed, match="cannot read this"):
            await talk.ask(UserMessage("poison"), event_id="p", timeout=30)
        (letter,) = await talk.dead_letters()
        assert (letter.event, letter.error.type, letter.retried_as) == (UserMessage("poison"), "ValueError", None)
        handler.broken = False
        number = await talk.retry(letter.seq)
        assert (await talk.reply(number, timeout=30)).text == "re: poison"
        assert await talk.retry(letter.seq) == number
        assert [each.retried_as for each in await talk.dead_letters()] == [number]
        with pytest.raises(UnknownEntry, match="is no dead letter"):
            await talk.retry(number)
        assert (await on.state()).received == ["one", "two", "poison"]


async def test_failed_wakes_are_among_the_errors(url: str) -> None:
    """Each attempt once, and whether it is tried again; not what sets the input aside, and no wake that succeeds."""
    handler = Poisoned()
    async with stage(url, handler.handle, retry=RetryPolicy(max_attempts=2, initial_interval=0.01)) as on:
        talk = on.talk()
        await talk.ask(UserMessage("one"), timeout=30)
        assert (await on.client.failure_groups()).groups == []
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("poison"), timeout=30)
        await talk.ask(UserMessage("two"), timeout=30)
        assert len(await talk.dead_letters()) == 1
        (group,) = (await on.client.failure_groups()).groups
        me = talk.conversation_id
        assert (group.kind, group.name, group.error_type) == ("activity", "chat.wake", "ValueError")
        assert (group.count, group.instances, group.instance_id) == (2, 1, me)
        assert group.error == "ValueError: cannot read this"
        listed = await on.client.failures(kind="activity", name="chat.wake")
        assert [(each.instance_id, each.is_retried, each.error) for each in listed] == [
            (me, False, group.error),
            (me, True, group.error),
        ]
        assert [each.is_retried for each in await on.client.failed_attempts(me, execution_id=1)] == [True, False]


async def test_an_import_has_the_dead_letters_with_their_numbers_there(url: str) -> None:
    """Entries before them are gone. A merge has none of its right side, whose numbers are of other entries there."""
    handler = Poisoned()
    async with stage(url, handler.handle, retry=ONCE) as on:
        talk, copy, other = on.talk(), on.talk("copy"), on.talk("other")
        await talk.ask(UserMessage("one"), timeout=30)
        with pytest.raises(WakeFailed):
            await talk.ask(UserMessage("poison"), timeout=30)
        await talk.ask(UserMessage("two"), timeout=30)
        (letter,) = await talk.dead_letters()
        handler.broken = False
        await talk.reply(await talk.retry(letter.seq), timeout=30)
        await on.client.journals.prune(JournalRetention(entries=20), 0, dry_run=False)
        await copy.import_([line async for line in talk.export()])
        (copied,) = await copy.dead_letters()
        assert (copied.event, copied.error, copied.seq < letter.seq) == (letter.event, letter.error, True)
        (again,) = await copy.history(around=copied.retried_as, limit=1)
        assert (again.event, again.seq > copied.seq) == (letter.event, True)
        await other.ask(UserMessage("three"), timeout=30)
        assert await (await other.merge("c", into="right")).dead_letters() == []
        assert len(await (await talk.merge("other", into="left")).dead_letters()) == 1


async def test_a_merge_retries_the_dead_letter_of_its_left_side(url: str) -> None:
    """Its right side has sent another one again, which has the same number there."""
    handler = Poisoned()
    async with stage(url, handler.handle, retry=ONCE) as on:
        left, right = on.talk("left"), on.talk("right")
        for talk in (left, right):
            with pytest.raises(WakeFailed):
                await talk.ask(UserMessage("poison"), timeout=30)
            await talk.ask(UserMessage("two"), timeout=30)
        handler.broken = False
        await right.reply(await right.retry(1), timeout=30)
        both = await left.merge("right", into="both")
        assert [(each.seq, each.retried_as) for each in await both.dead_letters()] == [(1, None)]
        number = await both.retry(1)
        assert (await both.reply(number, timeout=30)).text == "re: poison"
        assert [each.retried_as for each in await both.dead_letters()] == [number]


async def test_the_wakes_say_which_inputs_each_has_processed(url: str) -> None:
    """Every attempt, in order, or the newest first; a dead letter was processed by the wake that has recorded it."""
    handler = Poisoned()
    async with stage(url, handler.handle, retry=RetryPolicy(max_attempts=2, initial_interval=0.01)) as on:
        talk = on.talk()
        assert await talk.wakes() == []
        seqs = [await talk.send(UserMessage(text)) for text in ("one", "poison")]
        await until(lambda: status(talk, "failed"))
        reply = await talk.ask(UserMessage("two"), timeout=30)
        found = await talk.wakes()
        by_input = {seq: [each.outcome for each in found if each.base < seq <= each.processed] for seq in seqs}
        assert by_input[seqs[1]] == ["failed"]
        assert [each.outcome for each in found][-4:] == ["retried", "failed", "failed", "done"]
        assert [each.attempt for each in found][-4:-2] == [1, 2]
        last = found[-1]
        assert (last.wake_id, last.reason, last.error) == (reply.wake_id, "end_turn", None)
        assert last.base < reply.seq <= last.processed
        assert found[-2].error is not None
        assert found[-2].error.type == "ValueError"
        assert await talk.wakes(newest_first=True, limit=1) == [last]
        assert await talk.wakes(after=found[-2].seq) == [last]
        with pytest.raises(InvalidInput):
            await talk.wakes(limit=0)
        entries = await talk.history()
        expected = {seq: each.wake_id for each in found for seq in seqs if each.base < seq <= each.processed}
        own = {reply.seq: reply.wake_id}
        assert await talk.processed_by(entries) == expected | own
        assert await talk.processed_by([each for each in entries if each.seq == reply.seq]) == own
        assert await talk.processed_by([]) == {}


async def test_resume_tries_the_same_inputs_again(url: str) -> None:
    handler = Poisoned()
    async with stage(url, handler.handle, retry=ONCE) as on:
        talk = on.talk()
        seq = await talk.send(UserMessage("poison"))
        await until(lambda: status(talk, "failed"))
        handler.broken = False
        assert await talk.resume()
        assert (await talk.reply(seq, timeout=30)).text == "re: poison"
        assert await talk.dead_letters() == []


async def test_a_second_poisoned_input_becomes_a_second_dead_letter(url: str) -> None:
    handler = Poisoned()
    async with stage(url, handler.handle, retry=ONCE) as on:
        talk = on.talk()
        for number in range(2):
            with pytest.raises(WakeFailed):
                await talk.ask(UserMessage("poison"), event_id=f"p{number}", timeout=30)
        await talk.ask(UserMessage("one"), timeout=30)
        assert len(await talk.dead_letters()) == 2
        assert [len(each.event.inputs) for each in await _records(talk)] == [1, 1]


async def test_a_revisit_that_fails_holds_up_no_later_input(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.due:
            raise ValueError("cannot come back")
        wake.append(AgentMessage("here"))
        if wake.events == [UserMessage("come back")]:
            wake.revisit(0.01, key="nudge")

    async with stage(url, handler, retry=ONCE) as on:
        talk = on.talk()
        await talk.ask(UserMessage("come back"), timeout=30)
        await until(lambda: status(talk, "failed"))
        assert (await talk.ask(UserMessage("two"), timeout=30)).text == "here"
        (record,) = await _records(talk)
        assert (record.event.inputs, record.event.revisits) == ([], ["nudge"])
        assert await talk.revisits() == []


async def test_a_revisit_that_a_part_of_the_failed_wake_has_requested_stays(url: str) -> None:
    """Under the key of the one that the wake was given."""
    fails = True

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if not wake.due:
            wake.revisit(0.01, key="nudge")
        elif fails:
            wake.revisit(0.01, key="nudge")
            await wake.commit()
            raise ValueError("not yet")
        else:
            wake.append(AgentMessage("came back"))

    async with stage(url, handler, retry=ONCE) as on:
        talk = on.talk()
        await talk.ask(UserMessage("come back"), timeout=30)
        await until(lambda: status(talk, "failed"))
        fails = False
        await until(lambda: talk.history(kinds=[AgentMessage]))
        assert await _records(talk) == []


async def test_the_end_of_a_child_that_cannot_be_read_is_a_dead_letter_too(url: str) -> None:
    """The conversation has settled then; sent again, it is read."""
    broken = True

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        wake.append(AgentMessage("done"))

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ChildEnded):
                if broken:
                    raise ValueError("cannot read this")
                wake.append(AgentMessage(f"child: {event.result}"))
            elif event == UserMessage("work"):
                await wake.delegate(child, "c/one", event)

    async with stage(url, handler, child, retry=ONCE) as on:
        talk = on.talk()
        await talk.send(UserMessage("work"))
        await until(lambda: status(talk, "failed"))
        await talk.ask(UserMessage("go on"), timeout=30, until="settled")
        (letter,) = await talk.dead_letters()
        broken = False
        number = await talk.retry(letter.seq)
        assert (await talk.reply(number, timeout=30)).text == "child: done"


async def test_an_interrupt_that_cannot_be_read_reaches_the_children(url: str) -> None:
    """A wake that fails drops what it would have sent them."""
    entered = anyio.Event()
    interrupts: list[str] = []

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is not None:
            interrupts.append(wake.interrupt.reason)
            return
        entered.set()
        wake.revisit(600)

    child = make(work, kind="child")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if wake.interrupt is not None:
            raise ValueError("cannot read this")
        if wake.events == [UserMessage("work")]:
            await wake.delegate(child, "c/one", UserMessage("work"))

    async with stage(url, handler, child, retry=ONCE) as on:
        talk = on.talk()
        await talk.ask(UserMessage("work"), timeout=30)
        await entered.wait()
        await talk.interrupt(cascade=True, reason="stop")
        await until(lambda: status(talk, "failed"))
        assert interrupts == []
        await talk.ask(UserMessage("go on"), timeout=30)
        await until(lambda: _length(interrupts))
        assert interrupts == ["stop"]
        assert len(await talk.dead_letters()) == 1


async def _length(found: list[str]) -> int:
    return len(found)


async def test_a_delegation_that_has_failed_is_not_taken_up_again(url: str) -> None:
    """The parent was notified of its failure: the child goes on with the next one."""
    poisoned = Poisoned()
    child = make(poisoned.handle, kind="child", retry=ONCE)
    ends: list[str] = []

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ChildEnded):
                ends.append(f"{event.outcome} {event.result}")
            else:
                await wake.delegate(child, "c/one", event)

    async with stage(url, handler, child) as on:
        talk = on.talk()
        for text in ("poison", "one"):
            await talk.ask(UserMessage(text), timeout=30, until="settled")
        assert ends == ["failed None", "completed re: one"]
        assert len(await on.talk("c/one", child).dead_letters()) == 1


async def _records(talk: affinity.ConversationHandle) -> Any:
    return await talk.history(kinds=[DeadLetters])
