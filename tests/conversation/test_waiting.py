"""What a conversation waits for while it has nothing to do: children that work for it, and revisits. Their requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest

from affinity import ConversationHandle, RetryPolicy, Wake
from affinity.conversation import AgentMessage, ChildEnded, ConfirmationAnswer, ToolConfirmation, UserMessage
from affinity.errors import NotAParent, RequestNotPending, UnknownConversation
from tests.conversation.application import Chat, Stage, make, stage, status, until

pytestmark = pytest.mark.anyio

PATIENCE = 30


@dataclass
class Family:
    """A root that gives work to a child, which gives it to its own child, which asks a person."""

    root: Any = field(init=False)
    middle: Any = field(init=False)
    leaf: Any = field(init=False)

    def __post_init__(self) -> None:
        self.leaf = make(self._ask, kind="leaf")
        self.middle = make(partial(self._delegate, "leaf"), kind="middle")
        self.root = make(partial(self._delegate, "middle"))

    async def _ask(self, wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ConfirmationAnswer):
                wake.append(AgentMessage(f"paid: {event.allowed}"))
            else:
                wake.require(ToolConfirmation("pay"))

    async def _delegate(self, to: str, wake: Wake, chat: Chat) -> None:
        for event in wake.events:
            if isinstance(event, ChildEnded):
                wake.append(AgentMessage(f"{event.result}"))
            elif isinstance(event, UserMessage):
                await wake.delegate(getattr(self, to), f"{wake.conversation_id}/{to}", event)

    def stage(self, url: str) -> Any:
        """With workers for all kinds."""
        return stage(url, self.root, self.middle, self.leaf)

    async def begin(self, on: Stage, name: str = "c") -> ConversationHandle:
        """A root whose leaf waits for a person."""
        talk = on.talk(name)
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        await until(partial(talk.requests, deep=True))
        return talk


async def test_it_waits_for_a_child_and_says_so(url: str) -> None:
    """The child is named, with its status, and what it waits for itself. What is made from it waits for no child."""
    family = Family()
    async with family.stage(url) as on:
        talk = await family.begin(on)
        assert [await talk.status(), await on.talk("c/middle", family.middle).status()] == ["waiting", "waiting"]
        found = await talk.explain()
        assert found is not None
        assert (found.code, found.path) == ("request", ("c", "c/middle", "c/middle/leaf"))
        assert found.sentence.startswith("'c/middle/leaf' waits for the answer to the request ")
        assert found.sentence.endswith("; 'c' waits for its child 'c/middle' (waiting), which waits for it")
        assert [each.conversation_id async for each in on.client.list_conversations(status="waiting")] == [
            "c/middle",
            "c",
        ]
        assert await talk.resume() is False
        copy = on.talk("copy")
        await copy.import_([line async for line in talk.export()], without=["delegations"])
        for made in (copy, await talk.fork("fork"), await talk.merge("copy", into="merged")):
            assert await made.status() == "idle"
        (request,) = await on.talk("c/middle/leaf", family.leaf).requests()
        await talk.answer(request.request_id, allowed=True, conversation_id="c/middle/leaf")
        await until(partial(status, talk, "idle"))
        assert (await talk.history(kinds=[AgentMessage]))[-1].event == AgentMessage("paid: True")


async def test_it_waits_no_more_for_a_child_that_is_removed(url: str) -> None:
    """Also when its parent is notified of no end: it goes on with its next event, and its own parent is notified."""
    family = Family()
    async with family.stage(url) as on:
        talk = await family.begin(on)
        middle = on.talk("c/middle", family.middle)
        await on.client.delete("c/middle/leaf", force=True)
        found = await talk.explain()
        assert found is not None
        assert (found.code, found.instance_id) == ("child", "c/middle")
        assert found.sentence == (
            "'c/middle' waits for its child 'c/middle/leaf' (idle); 'c' waits for its child 'c/middle' (waiting)"
        )
        await on.client.journals.delete(["c/middle/leaf"])
        assert await middle.status() == "idle"
        await middle.interrupt()
        await until(partial(status, talk, "idle"))


async def test_it_waits_for_a_revisit_and_says_so(url: str) -> None:
    async def handler(wake: Wake, chat: Chat) -> None:
        wake.revisit(3_600)

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        assert await talk.status() == "waiting"
        found = await talk.explain()
        assert found is not None
        assert (found.code, "waits for a revisit, due at " in found.sentence) == ("revisit", True)
        await talk.interrupt()
        (pending,) = await until(talk.revisits)
        assert pending.due_at is not None


async def test_an_end_of_a_delegation_that_is_set_aside_was_an_end(url: str) -> None:
    async def work(wake: Wake, chat: Chat) -> None:
        wake.append(AgentMessage("done"))

    child = make(work, kind="child")

    async def handler(wake: Wake, chat: Chat) -> None:
        match wake.events:
            case [UserMessage(text="go") as event]:
                await wake.delegate(child, "c/child", event)
            case [ChildEnded()]:
                raise ValueError("no")

    async with stage(url, make(handler, retry=RetryPolicy(max_attempts=1)), child) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        await until(partial(status, talk, "failed"))
        await talk.ask(UserMessage("on"), timeout=PATIENCE)
        assert await talk.status() == "idle"


async def test_requests_of_children_are_seen_and_answered_at_the_parent(url: str) -> None:
    """Oldest first, each with its conversation; no request of other conversations is."""
    family = Family()
    async with family.stage(url) as on:
        talk = await family.begin(on)
        other = await family.begin(on, "d")
        assert await talk.requests() == []
        (request,) = await talk.requests(deep=True)
        asked = ToolConfirmation("pay", request_id=request.request_id)
        assert (request.conversation_id, request.event) == ("c/middle/leaf", asked)
        assert [request] == await on.talk("c/middle/leaf", family.leaf).requests()
        assert [each.conversation_id for each in await on.talk("c/middle/leaf").requests(deep=True)] == [
            "c/middle/leaf"
        ]
        for name in ("d", "d/middle/leaf"):
            with pytest.raises(NotAParent, match="is not below 'c'"):
                await talk.answer(request.request_id, allowed=True, conversation_id=name)
        with pytest.raises(UnknownConversation):
            await talk.answer(request.request_id, allowed=True, conversation_id="c/none")
        with pytest.raises(RequestNotPending):
            await talk.answer("none", allowed=True, conversation_id="c/middle/leaf")
        with pytest.raises(UnknownConversation):
            await on.talk("none").answer(request.request_id, allowed=True, conversation_id="c/middle/leaf")
        assert len(await other.requests(deep=True)) == 1
        seq = await talk.answer(
            request.request_id, allowed=False, event_id="a", conversation_id=request.conversation_id
        )
        reply = await on.talk("c/middle/leaf", family.leaf).reply(seq, timeout=PATIENCE)
        assert reply.text == "paid: False"
        assert await talk.requests(deep=True) == []
        assert len(await other.requests(deep=True)) == 1


async def test_own_requests_are_among_the_deep_ones(url: str) -> None:
    entered = anyio.Event()
    family = Family()

    async def both(wake: Wake, chat: Chat) -> None:
        if not entered.is_set():
            entered.set()
            wake.require(ToolConfirmation("own"))
            await wake.delegate(family.leaf, "c/leaf", UserMessage("go"))

    async with stage(url, both, family.leaf) as on:
        talk = on.talk()
        await talk.ask(UserMessage("go"), timeout=PATIENCE)
        await until(partial(status, on.talk("c/leaf", family.leaf), "requires_action"))
        found = await talk.requests(deep=True)
        assert [each.conversation_id for each in found] == ["c", "c/leaf"]
        assert [found[0]] == await talk.requests()
        assert await talk.status() == "requires_action"
        await talk.answer(found[0].request_id, allowed=True, conversation_id="c")
        await until(partial(status, talk, "waiting"))
