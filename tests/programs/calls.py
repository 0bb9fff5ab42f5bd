"""The calls that handlers and activities make with a client, while their own code runs.

A call has an id that is the same in all attempts of the code that makes it: it has its effect once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio

from affinity import Client, ConversationHandle, ExternalEvent
from affinity.conversation import Reply
from affinity.conversation.follow import EntryNumber
from affinity.conversation.wake_parts import _handling
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
from tests.programs.slots import Begun, Places

SECONDS: Final = 0.2
"""Real ones for which code waits for a reply: the worker that would make it may wait for this very code."""

CIRCLE_SECONDS: Final = 10.0
"""Real ones in which one of the waits of a circle is refused."""

REPEATED_SECONDS: Final = 0.01
"""Real ones that a later attempt of an activity takes."""

MORE_THAN_ANY: Final = 100
"""More attempts than a task gives back; in the process of a worker none is counted."""

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
class Wait:
    """Code of an instance waits for another one."""

    by: str
    to: str
    is_for_reply: bool
    """Of a conversation, to a handler."""
    began: float = field(default_factory=time.monotonic)
    ended: float = float("inf")


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
    waits: list[Wait] = field(default_factory=list)
    begun: Begun = field(default_factory=Begun)
    """The activities with limits."""
    now: Callable[[], float] = time.time
    """The time of the database."""
    on_repeated: Callable[[], None] = lambda: None
    """Called when an activity begins that may still run elsewhere."""

    async def call(self, what: str, to: int, unique: str, steps: Sequence[Any] = (), own: str = "") -> str:
        """Make a call, and return what came of it.

        Args:
            what: ``tell`` or ``ask`` a conversation, or ``meet`` it: ask as code of another process does, whose waits
                only the database knows; ``raise`` an event for an instance, or ask it a ``question``.
            to: number of the conversation, or of the instance.
            unique: the id of the call.
            steps: for the handler of the conversation.
            own: the conversation whose handler makes the call, or the instance whose activity does.
        """
        try:
            match what:
                case "tell" | "ask" | "meet":
                    return await self._talk(what, to, unique, steps, own)
                case "raise":
                    return await self._raise(to, unique)
                case _:
                    return await self._question(to, unique, own)
        except (*_TALK, *_INSTANCE) as error:
            return type(error).__name__

    async def _talk(self, what: str, to: int, unique: str, steps: Sequence[Any], own: str) -> str:
        talk, event = self.find(to), self.event([*steps])
        call = TalkCall(talk.conversation_id, steps, unique)
        self.talks.append(call)
        try:
            if what != "ask" or call.name != own:  # a handler that asks its own conversation sends nothing
                call.seq = _number(await talk.send(event, event_id=unique))
            if what != "tell":
                ask = partial(talk.ask, event, event_id=unique)
                call.reply = await self._ask(ask if what == "ask" else elsewhere(ask), own, call.name)
        except AffinityError as error:
            call.error = error
            raise
        return "sent" if what == "tell" else "replied"

    async def _ask(self, ask: Callable[..., Awaitable[Reply]], own: str, to: str) -> Reply:
        """Ask, and wait for the reply. A wait in a circle lasts until it is refused, and no other one is refused."""
        timeout, last = SECONDS, CIRCLE_SECONDS / 2
        with self._waiting(own, to, is_for_reply=_handling.get() is not None):
            while True:
                try:
                    return await ask(timeout=timeout)
                except WaitTimeout:
                    if not self._has_circle(own, to, lasts=0 if timeout == SECONDS else last):
                        raise
                    assert timeout == SECONDS, f"{own} waits for {to} in a circle: {self.waits}"
                    timeout = CIRCLE_SECONDS
                except WakeMisuse:
                    found = own == to or self._has_circle(own, to, ended=last)
                    assert found, f"{own} may not wait for {to}, and there is no circle: {self.waits}"
                    raise

    @contextmanager
    def _waiting(self, by: str, to: str, *, is_for_reply: bool = False) -> Iterator[None]:
        self.waits.append(wait := Wait(by, to, is_for_reply))
        try:
            yield
        finally:
            wait.ended = time.monotonic()

    def _has_circle(self, own: str, to: str, *, lasts: float = 0.0, ended: float | None = None) -> bool:
        """Whether ``to`` waits for ``own``, directly or through others.

        Args:
            own: an instance.
            to: another one.
            lasts: seconds for which each of these waits has lasted.
            ended: None: of handlers that wait for replies, and have not ended. Else all, also those that have ended so
                many seconds ago.
        """
        now, found = time.monotonic(), [to]
        waits = [each for each in self.waits if each.began <= now - lasts and each.ended >= now - (ended or 0.0)]
        for at in found:
            after = [each.to for each in waits if each.by == at and (each.is_for_reply or ended is not None)]
            found += [each for each in after if each not in found]
        return own in found

    async def _raise(self, to: int, unique: str) -> str:
        event = ExternalEvent(instance_id(to), event_name(0), unique, unique)
        (delivery,) = await self.client.raise_events([event])
        assert delivery in {"delivered", "repeated", "unknown", "finished"}, delivery
        if delivery == "delivered":
            self.delivered[unique] = to
        return "raised"

    async def _question(self, to: int, unique: str, own: str) -> str:
        self.asked.add(unique)
        with self._waiting(own, instance_id(to)):
            reply = await self.client.ask(instance_id(to), ASK(unique), idempotency_key=unique, timeout=SECONDS)
        first = self.replies.setdefault(unique, reply)
        assert first == reply, f"the question {unique}, asked again: {reply}, not {first}"
        return "replied"


def elsewhere(ask: Callable[..., Coroutine[Any, Any, Reply]]) -> Callable[..., Awaitable[Reply]]:
    """The same call, whose waits are not known in this process."""
    context = copy_context()
    context.run(_handling.set, None)
    return lambda **options: asyncio.create_task(ask(**options), context=context)


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


@contextmanager
def running(mark: str, places: Places, *, is_bound: bool) -> Iterator[None]:
    """Note that an attempt of an activity with limits runs in the block; see `Begun.running`."""
    with ExitStack() as stack:
        for calls in _CURRENT:
            stack.enter_context(calls.begun.running(mark, places, now=calls.now(), is_bound=is_bound))
        yield


def count_again(mark: str) -> int:
    """Count the attempts of an activity that have come so far, in this process."""
    return _CURRENT[0].begun.count(mark) if _CURRENT else MORE_THAN_ANY


def note_step(name: str, result: str) -> bool:
    """Note the result of a step of a wake; False: an earlier attempt was given another one."""
    return all(calls.steps.setdefault(name, result) == result for calls in _CURRENT)


async def call(what: str, to: int, unique: str, steps: Sequence[Any] = (), own: str = "") -> str:
    """See `Calls.call`. In the process of a worker nothing is called."""
    return await _CURRENT[0].call(what, to, unique, steps, own) if _CURRENT else NOT_CALLED
