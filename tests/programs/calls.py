"""The calls that handlers and activities make with a client, while their own code runs.

A call has an id that is the same in all attempts of the code that makes it: it has its effect once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from affinity.client import Client, ExternalEvent
from affinity.conversation import ConversationHandle, Reply
from affinity.conversation.follow import EntryNumber
from affinity.errors import (
    AffinityError,
    ConversationTerminated,
    EntriesRemoved,
    InstanceFinished,
    NoReply,
    UnknownConversation,
    UnknownInstance,
    WaitTimeout,
    WakeFailed,
    WakeMisuse,
)
from tests.programs.names import ASK, event_name, instance_id

SECONDS: Final = 0.2
"""Real ones for which code waits for a reply: the worker that would make it may wait for this very code."""

REPEATED_SECONDS: Final = 0.01
"""Real ones that a later attempt of an activity takes."""

NOT_CALLED: Final = "not called"

_TALK: Final = (ConversationTerminated, UnknownConversation, EntriesRemoved, WakeFailed, WaitTimeout, WakeMisuse)
_INSTANCE: Final = (UnknownInstance, InstanceFinished, NoReply, WaitTimeout)


@dataclass(eq=False)
class TalkCall:
    """An event that code has sent to a conversation."""

    name: str
    steps: Sequence[Any]
    event_id: str
    seq: EntryNumber | None = None
    reply: Reply | None = None
    error: AffinityError | None = None


@dataclass(eq=False)
class Calls:
    """What the code of one program calls, and what came of it.

    Args:
        client: of the database.
        find: the handle of a conversation that clients begin, by number.
        event: that makes a handler do these steps.
    """

    client: Client
    find: Callable[[int], ConversationHandle]
    event: Callable[[list[Any]], Any]
    talks: list[TalkCall] = field(default_factory=list)
    delivered: dict[str, int] = field(default_factory=dict)
    """The data of events, with the number of the instance that has taken it."""
    asked: set[str] = field(default_factory=set)
    """Keys of questions."""
    replies: dict[str, str] = field(default_factory=dict)
    """By the key of the question."""
    attempts: dict[str, int] = field(default_factory=dict)
    """The last attempt of each activity that has begun."""
    steps: dict[str, str] = field(default_factory=dict)
    """The result of each step of a wake that an attempt was given."""
    on_repeated: Callable[[], None] = lambda: None
    """Called when an activity begins that may still run elsewhere."""

    async def call(self, what: str, to: int, unique: str, steps: Sequence[Any] = (), own: str = "") -> str:
        """Make a call, and return what came of it.

        Args:
            what: ``tell`` or ``ask`` a conversation; ``raise`` an event for an instance, or ask it a ``question``.
            to: number of the conversation, or of the instance.
            unique: the id of the call.
            steps: for the handler of the conversation.
            own: the conversation whose handler makes the call.
        """
        try:
            match what:
                case "tell" | "ask":
                    return await self._talk(to, unique, steps, own, waits=what == "ask")
                case "raise":
                    return await self._raise(to, unique)
                case _:
                    return await self._question(to, unique)
        except (*_TALK, *_INSTANCE) as error:
            return type(error).__name__

    async def _talk(self, to: int, unique: str, steps: Sequence[Any], own: str, *, waits: bool) -> str:
        talk, event = self.find(to), self.event([*steps])
        call = TalkCall(talk.conversation_id, steps, unique)
        self.talks.append(call)
        try:
            if not waits or call.name != own:  # what a handler asks its own conversation is refused before it is sent
                call.seq = _number(await talk.send(event, event_id=unique))
            if waits:
                call.reply = await talk.ask(event, event_id=unique, timeout=SECONDS)
        except AffinityError as error:
            call.error = error
            raise
        return "replied" if waits else "sent"

    async def _raise(self, to: int, unique: str) -> str:
        event = ExternalEvent(instance_id(to), event_name(0), unique, unique)
        (delivery,) = await self.client.raise_events([event])
        assert delivery in {"delivered", "repeated", "unknown", "finished"}, delivery
        if delivery == "delivered":
            self.delivered[unique] = to
        return "raised"

    async def _question(self, to: int, unique: str) -> str:
        self.asked.add(unique)
        reply = await self.client.ask(instance_id(to), ASK(unique), idempotency_key=unique, timeout=SECONDS)
        first = self.replies.setdefault(unique, reply)
        assert first == reply, f"the question {unique}, asked again: {reply}, not {first}"
        return "replied"


def _number(seq: int) -> EntryNumber:
    assert isinstance(seq, EntryNumber)
    return seq


_CURRENT: Final[list[Calls]] = []
"""Of the program that runs in this process."""


@contextmanager
def used(calls: Calls) -> Iterator[None]:
    """In the block, `call` makes the calls of this program."""
    _CURRENT.append(calls)
    try:
        yield
    finally:
        _CURRENT.remove(calls)


async def begin_attempt(name: str, attempt: int) -> None:
    """Note that an attempt of an activity begins. A later one takes a while: an earlier one may end meanwhile."""
    for calls in _CURRENT:
        calls.attempts[name] = max(attempt, calls.attempts.get(name, 0))
        if attempt > 1:
            calls.on_repeated()
            await anyio.sleep(REPEATED_SECONDS)


def note_step(name: str, result: str) -> bool:
    """Note the result of a step of a wake; False: an earlier attempt was given another one."""
    return all(calls.steps.setdefault(name, result) == result for calls in _CURRENT)


async def call(what: str, to: int, unique: str, steps: Sequence[Any] = (), own: str = "") -> str:
    """See `Calls.call`. In the process of a worker nothing is called."""
    return await _CURRENT[0].call(what, to, unique, steps, own) if _CURRENT else NOT_CALLED
