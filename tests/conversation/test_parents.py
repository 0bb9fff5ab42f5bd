"""A conversation that was deleted without its children, and another one that begins under its id.

A child belongs to the conversation whose wake has created it, not to its id: the later one cannot interrupt, terminate
or delete it, and hears nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import anyio
import pytest

import affinity
from affinity.conversation import ChildEnded, UserMessage
from affinity.errors import NotAParent, UnknownConversation
from tests.conversation.application import Chat, Stage, echo, make, stage, status, until

pytestmark = pytest.mark.anyio


@dataclass
class Family:
    """A parent whose wakes give each message to the child that it names, and what came of that."""

    on: Stage = field(init=False)
    child: affinity.Conversations[Chat] = field(default_factory=lambda: make(echo, kind="child"))
    refused: list[NotAParent] = field(default_factory=list)
    ended: list[ChildEnded] = field(default_factory=list)
    children: Sequence[str] = ()

    async def handle(self, wake: affinity.Wake, chat: Chat) -> None:
        self.children = await wake.children()
        for event in wake.events:
            if isinstance(event, ChildEnded):
                self.ended.append(event)
            elif isinstance(event, UserMessage) and event.text:
                try:
                    await wake.delegate(self.child, f"c/{event.text}", event)
                except NotAParent as error:
                    self.refused.append(error)

    def below(self, name: str) -> affinity.ConversationHandle:
        """A child."""
        return self.on.talk(f"c/{name}", self.child)

    async def say(self, text: str) -> None:
        """Send the parent a message, and wait until the child has ended, or was refused."""
        before = self.heard
        await self.on.talk().ask(UserMessage(text), timeout=30)
        await until(lambda: self._hears_more(before))

    @property
    def heard(self) -> int:
        """Ends and refusals so far."""
        return len(self.ended) + len(self.refused)

    async def _hears_more(self, before: int) -> bool:
        return self.heard > before

    async def waits_for_an_input(self) -> bool:
        """Whether that, and no child, is what the conversation c waits for."""
        explanation = await self.on.talk().explain()
        return explanation is not None and explanation.code == "input"

    async def listed(self) -> list[str]:
        """The children of the conversation c, as clients list them."""
        return sorted([each.conversation_id async for each in self.on.client.list_conversations(parent="c")])


@pytest.fixture
async def family(url: str) -> AsyncIterator[Family]:
    """A conversation c with the child c/old, which was deleted without it; and another c, with the child c/new."""
    found = Family()
    async with stage(url, found.handle, found.child) as found.on:
        await found.say("old")
        assert await found.listed() == ["c/old"]
        assert await found.on.talk().delete()
        assert await found.listed() == ["c/old"]  # while no conversation has the id
        await found.say("new")
        yield found


async def test_a_later_conversation_of_the_same_id_does_not_have_the_children(family: Family) -> None:
    await family.on.talk().ask(UserMessage(""), timeout=30)
    assert family.children == ["c/new"]
    assert await family.listed() == ["c/new"]
    await family.say("old")
    (refused,) = family.refused
    assert "earlier conversation with the id 'c', which was deleted without it: delete it" in str(refused)
    assert [each.child for each in family.ended] == ["c/old", "c/new"]
    await family.below("old").ask(UserMessage("from a client"), timeout=30)
    assert (await family.below("old").delete(), len(family.ended)) == (True, 2)
    await family.say("old")  # another child of that id
    assert [each.child for each in family.ended] == ["c/old", "c/new", "c/old"]


async def test_its_interrupts_and_its_end_do_not_reach_them(family: Family) -> None:
    await family.on.talk().interrupt(cascade=True)
    assert await until(lambda: family.below("new").history(kinds=["user.interrupt"]))
    await family.on.talk().terminate(cascade=True)
    assert await until(lambda: status(family.below("new"), "terminated"))
    await family.on.client.wait("c", timeout=30)
    assert await family.below("old").history(kinds=["user.interrupt"]) == []
    assert await family.below("old").status() == "idle"


async def test_its_deletion_does_not_remove_them(family: Family) -> None:
    for _ in range(2):  # also where the call is repeated, when no conversation has the id
        await family.on.talk().delete(cascade=True)
        with pytest.raises(UnknownConversation):
            await family.below("new").status()
        assert await family.below("old").status() == "idle"
    assert await family.listed() == ["c/old"]


async def test_what_the_later_one_waits_for_is_none_of_them(url: str) -> None:
    """Nor is it notified of their end, for which a deletion does not wait."""
    found, begun = Family(), anyio.Event()

    async def work(wake: affinity.Wake, chat: Chat) -> None:
        begun.set()
        await anyio.sleep_forever()

    found.child = make(work, kind="child")
    async with stage(url, found.handle, found.child) as found.on:
        await found.on.talk().ask(UserMessage("old"), timeout=30)
        await begun.wait()
        await found.on.talk().delete()
        await found.on.talk().ask(UserMessage(""), timeout=30)
        assert await until(found.waits_for_an_input)
    async with affinity.Client(url) as client:  # no worker ends the child
        assert await client.conversation(found.child, "c/old").delete(timeout=0.1)
        assert await client.conversation(found.on.conversations, "c").history(kinds=["child.ended"]) == []
