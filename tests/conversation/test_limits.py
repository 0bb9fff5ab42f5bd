"""The limits at which wakes wait, and their priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest

import affinity
from affinity import ConversationLimits, Limit, RetryPolicy
from affinity.conversation import AgentMessage, ChildEnded, UserMessage
from affinity.conversation.client import ConversationInfo
from affinity.errors import InvalidLimit, InvalidOptions, WakeFailed
from affinity.flow.worker import LimitLoops
from tests.conversation.application import Chat, Stage, make, stage, until

pytestmark = pytest.mark.anyio

ONCE = RetryPolicy(max_attempts=1)


def tenant() -> Limit:
    return Limit("tenant", concurrency=1, keyed=True)


def fail(info: ConversationInfo) -> str:
    raise RuntimeError(f"no key of {info.conversation_id}")


def other_limit(info: ConversationInfo) -> Any:
    return Limit("other", keyed=True).key("acme")


ODD: list[tuple[Callable[[ConversationInfo], Any], str, str]] = [
    (fail, "RuntimeError", "no key of c"),
    (lambda info: info.owner, "InvalidLimit", "function of limit 'tenant' has returned no key"),
    (lambda info: 7, "InvalidLimit", "function of limit 'tenant' has returned no key"),
    (lambda info: "x" * 300, "InvalidLimit", "function of limit 'tenant' has returned no key"),
    (other_limit, "InvalidLimit", "has returned a key of limit 'other'"),
]


@pytest.mark.parametrize(("function", "name", "text"), ODD)
async def test_a_key_that_cannot_be_had_fails_the_wake(
    url: str, function: Callable[[ConversationInfo], Any], name: str, text: str
) -> None:
    """As an error of the handler does; with code that returns one, a resume goes on."""
    given = make(limits=[tenant().by(function)], retry=ONCE)
    async with stage(url, given) as on:
        with pytest.raises(WakeFailed) as caught:
            await on.talk().ask(UserMessage("one"), timeout=30)
        assert name in str(caught.value)
        assert text in str(caught.value)
        assert await on.talk().status() == "failed"
        assert (await on.client.activities("c"))[-1].status == "completed"


@pytest.mark.parametrize("priority", [lambda info: None, lambda info: -1, lambda info: 1001, lambda info: True])
async def test_a_priority_that_cannot_be_had_fails_the_wake(
    sqlite_url: str, priority: Callable[[ConversationInfo], Any]
) -> None:
    async with stage(sqlite_url, make(priority=priority, retry=ONCE)) as on:
        with pytest.raises(WakeFailed, match="a priority is an integer from 0 to 1000"):
            await on.talk().ask(UserMessage("one"), timeout=30)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"limits": [tenant()]}, InvalidLimit, "has keys"),
        ({"limits": ["tenant"]}, InvalidLimit, "a limit is a Limit"),
        ({"limits": "tenant"}, InvalidLimit, "a list of limits"),
        ({"limits": 5}, InvalidLimit, "a list of limits"),
        ({"limits": [Limit("model")] * 2}, InvalidLimit, "named twice"),
        ({"limits": [Limit(f"l{n}") for n in range(9)]}, InvalidLimit, "at most 8 limits"),
        ({"limits": [ConversationLimits(), ConversationLimits()]}, InvalidLimit, "twice"),
        ({"priority": -1}, InvalidOptions, "an integer from 0 to 1000"),
        ({"priority": "high"}, InvalidOptions, "or a function of the conversation"),
    ],
)
def test_what_is_refused_where_it_is_written(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        affinity.Conversations(Chat, **options)


def test_bounds_and_limits_stand_in_one_list() -> None:
    model, bounds = Limit("model"), ConversationLimits(inputs=2)
    both: list[list[ConversationLimits | Limit]] = [[bounds, model], [model, bounds]]
    for given in both:
        made = affinity.Conversations(Chat, limits=given)
        assert (made.spec.limits, made.gates.limits) == (bounds, (model,))
    assert affinity.Conversations(Chat, limits=bounds).spec.limits == bounds


def test_an_app_declares_the_limits_of_its_conversations() -> None:
    app, model = affinity.App("a"), Limit("model")
    app.include(make(limits=[model, tenant().by(lambda info: info.owner)]))
    assert app.limits == {"model": model, "tenant": tenant()}


async def test_wakes_have_the_priority_of_their_kind(url: str) -> None:
    """All attempts, and the wakes that are parked, have it; nothing waits for it."""
    async with stage(url, make(priority=5)) as on:
        for text in ("one", "two"):
            await on.talk().ask(UserMessage(text), timeout=30)
        assert await _priorities(on.client) == [5, 5, 5]


async def test_wakes_have_the_priority_of_their_conversation(url: str) -> None:
    """The first wake finds it; the priority of a conversation that has changed counts from the next wake on."""
    given = make(priority=lambda info: int(info.labels.get("level", 0)))
    async with stage(url, given) as on:
        await on.talk().ask(UserMessage("one"), timeout=30)
        assert await _priorities(on.client) == [0, 0]
        await on.talk().describe(labels={"level": "7"})
        await on.talk().ask(UserMessage("two"), timeout=30)
        assert await _priorities(on.client) == [0, 0, 7, 7]
        assert (await on.state()).wakes == 2


async def _priorities(client: affinity.Client) -> list[int]:
    history = await client.history("c")
    return [each.fields.get("priority", 0) for each in history if each.type == "activity_scheduled"]


@dataclass
class Watched:
    """A handler whose wakes of messages "wait" hold their slots until `go`, and which notes how many run by owner."""

    running: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    ran: list[tuple[str, list[str]]] = field(default_factory=list)
    """Conversations, and what their wakes were given."""
    go: anyio.Event = field(default_factory=anyio.Event)

    async def respond(self, wake: affinity.Wake, chat: Chat) -> None:
        owner = wake.conversation_id.partition("/")[0]
        self.running[owner] += 1
        self.most[owner] = max(self.most[owner], self.running[owner])
        try:
            texts = [event.text for event in wake.events if isinstance(event, UserMessage)]
            self.ran.append((wake.conversation_id, texts))
            if "wait" in texts:
                await self.go.wait()
            if "step" in texts:
                await wake.step("pause", anyio.sleep, 0.05)
                await wake.commit()
                await anyio.sleep(0.05)
            chat.wakes += 1
            wake.append(AgentMessage(f"re: {' '.join(texts)}"))
        finally:
            self.running[owner] -= 1

    def of(self, conversation_id: str) -> list[list[str]]:
        return [texts for name, texts in self.ran if name == conversation_id]


def by_owner(watched: Watched, **options: Any) -> affinity.Conversations[Chat]:
    return make(watched.respond, limits=[tenant().by(lambda info: info.conversation_id.partition("/")[0])], **options)


async def waits(on: Stage, name: str) -> bool:
    return any(item.state == "limited" for item in await on.client._provider.list_work_items(name, 10))


async def hold(on: Stage, watched: Watched, name: str) -> None:
    """A conversation whose wake has the slot of its owner."""
    await on.talk(name).send(UserMessage("wait"))
    await until(lambda: _began(watched, name))


async def _began(watched: Watched, name: str) -> bool:
    return any("wait" in texts for texts in watched.of(name))


async def test_wakes_of_one_owner_run_one_after_the_other(url: str) -> None:
    """The first wake of each conversation too, and those that were parked; steps and commits keep the slot. Another
    owner does not wait.
    """
    watched = Watched()
    async with stage(url, by_owner(watched), workers=2) as on:
        async with anyio.create_task_group() as group:
            for name in ("acme/1", "acme/2", "acme/3"):
                group.start_soon(partial(ask, on, name, "step", "step"))
        assert watched.most == {"acme": 1}
        await hold(on, watched, "acme/1")
        await on.talk("acme/2").send(UserMessage("later"))
        await until(lambda: waits(on, "acme/2"))
        await ask(on, "other/1", "now")
        assert watched.of("acme/2") == [["step"], ["step"]]
        watched.go.set()
        await until(lambda: _has(watched, "acme/2", ["later"]))
        assert watched.most == {"acme": 1, "other": 1}


async def test_what_comes_while_a_wake_waits_belongs_to_that_wake(url: str) -> None:
    """A parked wake that waits, and a first one, take all inputs that have come by then; no second wake follows."""
    watched = Watched()
    async with stage(url, by_owner(watched)) as on:
        await ask(on, "acme/old", "one")
        await hold(on, watched, "acme/1")
        for name in ("acme/old", "acme/new"):
            for text in "abc":
                await on.talk(name).send(UserMessage(text))
            await until(partial(waits, on, name))
            await on.talk(name).send(UserMessage("d"))
        watched.go.set()
        for name in ("acme/old", "acme/new"):
            await until(partial(_has, watched, name, ["a", "b", "c", "d"]))
            await ask(on, name, "last")
        assert watched.of("acme/old") == [["one"], ["a", "b", "c", "d"], ["last"]]
        assert watched.of("acme/new") == [["a", "b", "c", "d"], ["last"]]


@pytest.mark.parametrize("ends", ["interrupt", "terminate", "cancel"])
async def test_a_wake_that_waits_can_be_ended(url: str, ends: str) -> None:
    """The end of the conversation waits for nothing; an interrupt is read by the wake that waits next, and its slot is
    not lost.
    """
    watched = Watched()
    async with stage(url, by_owner(watched)) as on:
        talk = on.talk("acme/2")
        await ask(on, "acme/2", "one")
        await hold(on, watched, "acme/1")
        await talk.send(UserMessage("two"))
        await until(lambda: waits(on, "acme/2"))
        if ends == "interrupt":
            await talk.interrupt(cancel_running=True)
        elif ends == "terminate":
            await talk.terminate()
            await on.client.wait_finished("acme/2", timeout=30)
        else:
            await on.client.cancel("acme/2")
            await on.client.wait_finished("acme/2", timeout=30)
        watched.go.set()
        await ask(on, "acme/3", "three")
        if ends == "interrupt":
            await until(lambda: _has(watched, "acme/2", ["two"]))
        else:
            assert watched.of("acme/2") == [["one"]]


async def test_a_fork_waits_for_its_own_wakes_alone(url: str) -> None:
    """The wake that waits stays with the conversation that was forked. The fork has its input too, and its own places,
    by its id.
    """
    watched = Watched()
    async with stage(url, by_owner(watched)) as on:
        await ask(on, "acme/2", "one")
        await hold(on, watched, "acme/1")
        await on.talk("acme/2").send(UserMessage("two"))
        await until(lambda: waits(on, "acme/2"))
        await on.talk("acme/2").fork("other/2")
        await ask(on, "other/2", "there")
        await on.talk("acme/2").fork("acme/3")
        await on.talk("acme/3").send(UserMessage("three"))
        await until(lambda: waits(on, "acme/3"))
        assert watched.of("acme/2") == [["one"]]
        watched.go.set()
        await until(lambda: _has(watched, "acme/2", ["two"]))
        await until(lambda: _has(watched, "acme/3", ["two", "three"]))
        assert watched.most == {"acme": 1, "other": 1}


async def test_a_parent_that_has_given_work_to_its_child_has_no_slot(url: str) -> None:
    """Its wake has ended. So both may wait at one limit of one slot."""
    one = Limit("one", concurrency=1)
    child = make(kind="child", limits=[one])

    async def parent(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "the child", UserMessage(event.text))
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.outcome}: {event.result}"))

    async with stage(url, make(parent, limits=[one]), child) as on:
        reply = await on.talk().ask(UserMessage("x"), until="settled", timeout=30)
        assert reply.text == "completed: re: x"


async def test_a_wake_runs_with_a_slot_of_its_present_owner(url: str) -> None:
    """A wake that was parked for the former owner waits again, at the key of the present one."""
    watched = Watched()
    given = make(watched.respond, limits=[tenant().by(lambda info: info.owner or "nobody")])
    async with stage(url, given) as on:
        await ask(on, "c", "one")
        await on.talk("d").send(UserMessage("first"), owner="acme")
        await hold(on, watched, "d")
        await on.talk("c").describe(owner="acme")
        await on.talk("c").send(UserMessage("two"))
        await until(lambda: waits(on, "c"))
        assert watched.of("c") == [["one"]]
        watched.go.set()
        await until(lambda: _has(watched, "c", ["two"]))
        assert watched.most["c"] == 1


async def test_a_wake_that_is_put_off_closes_the_limit_for_others(url: str) -> None:
    """It has not failed: it runs again, when the limit is open, with the only attempt that its policy allows."""
    model, times = Limit("model", concurrency=5), list[float]()

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        times.append(anyio.current_time())
        if len(times) == 1:
            raise affinity.RetryAfter(1.0, limit=model)
        wake.append(AgentMessage("done"))

    async with stage(url, make(handler, limits=[model], retry=ONCE)) as on:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ask, on, "c", "one"))
            await until(lambda: _is_true(len(times) == 1))
            assert await on.talk().status() in {"rescheduling", "running"}
            await ask(on, "d", "two")
        assert len(times) == 3
        assert times[1] - times[0] > 0.9
        assert [each.outcome for each in await on.client.journals.wakes("c")] == ["retried", "done"]


async def ask(on: Stage, name: str, *texts: str) -> None:
    for text in texts:
        await on.talk(name).ask(UserMessage(text), timeout=30)


async def _has(watched: Watched, name: str, texts: list[str]) -> bool:
    return texts in watched.of(name)


async def _is_true(value: bool) -> bool:
    return value


async def test_a_wake_that_has_room_waits_for_no_look_of_a_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that a client's input queues, nor a child's that another wake has sent an input to."""
    monkeypatch.setattr(LimitLoops, "on_due", lambda self, seconds: None)  # no sweep admits anything
    child = make(kind="child", limits=[Limit("one", concurrency=9)])

    async def parent(wake: affinity.Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                await wake.delegate(child, "the child", UserMessage(event.text))
            elif isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.outcome}: {event.result}"))

    async with stage(url, make(parent, limits=[Limit("other", concurrency=9)]), child) as on:
        for text in "ab":
            reply = await on.talk().ask(UserMessage(text), until="settled", timeout=10)
            assert reply.text == f"completed: re: {text}"
