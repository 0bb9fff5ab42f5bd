"""The handler of the conversations: it does what the events say that it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, Literal, Protocol
from uuid import uuid4

import anyio
from pydantic import BaseModel, Field

import affinity
from affinity.client import Client
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    ChildEnded,
    ConfirmationAnswer,
    ConversationLimits,
    Conversations,
    CustomToolResult,
    CustomToolUse,
    JournalEntry,
    JournalEvent,
    ToolConfirmation,
    UserInterrupt,
)
from affinity.errors import ClientError, InvalidInput, ProviderError, StepInterrupted
from tests.programs import calls
from tests.programs.areas.conversations.script import FOR_GOOD

NAME: Final = "conversations"
CHILD: Final = f"{NAME}.child"

LIMITS: Final = ConversationLimits(inputs=4, requests=3, revisits=3)


class Chat(BaseModel):
    """The state."""

    wakes: int = 0
    tokens: int = 0
    number: int = 0
    digest: str = ""  # of all inputs, in order
    waiting: dict[str, list[Any]] = Field(default_factory=dict)  # steps by the id of the request for which they wait


class Script(JournalEvent):
    """Steps for the handler."""

    steps: list[Any]
    kind: Literal["user.script"] = "user.script"


class Seen(JournalEvent):
    """The inputs of a wake: its first entry."""

    inputs: list[int]  # numbers
    expired: list[str]  # ids of requests
    due: list[list[Any]]  # key and steps of each revisit
    before: Chat
    kind: Literal["agent.seen"] = "agent.seen"


class Noted(JournalEvent):
    """A step that has no other effect."""

    text: str
    kind: Literal["agent.noted"] = "agent.noted"


class Refused(JournalEvent):
    """A step that was refused."""

    what: str
    error: str
    kind: Literal["agent.refused"] = "agent.refused"


class Kept(JournalEvent):
    """The state behind a wake: its last entry."""

    chat: Chat
    kind: Literal["agent.kept"] = "agent.kept"


class Broken(Exception):
    """An error without a second attempt."""


RETRY: Final = affinity.RetryPolicy(
    max_attempts=FOR_GOOD, initial_interval=60, max_interval=60, non_retryable=(Broken,)
)

OWN_EVENTS: Final = (Script, Seen, Noted, Refused, Kept)


class Port(Protocol):
    """Where the steps have their effects: a wake, or the oracle, which compares them with the entries of one."""

    async def emit(self, event: JournalEvent) -> None: ...
    async def stream(self, parts: int) -> None: ...
    async def require(self, kind: str, expires_in: float | None) -> str | None: ...
    async def revisit(self, delay: float, key: str | None, steps: list[Any]) -> None: ...
    async def delegate(self, child: str, cycles: int, steps: list[Any]) -> None: ...
    async def make(self, what: str, name: str, other: int) -> None: ...
    async def call(self, what: str, to: int, steps: list[Any]) -> None: ...
    async def step(self, number: int, once: bool) -> None: ...
    async def fail(self, attempts: int, final: bool) -> None: ...
    def finish(self, result: int) -> None: ...
    def span(self) -> Any: ...


async def perform(port: Port, chat: Chat, due: Sequence[Sequence[Any]], events: Sequence[JournalEvent]) -> None:
    """Do what the revisits that are due, and the inputs, say."""
    chat.wakes += 1
    for key, steps in due:
        _digest(chat, f"due {key}")
        await _do(port, chat, steps)
    for event in events:
        _digest(chat, event.model_dump_json())
        match event:
            case Script():
                await _do(port, chat, event.steps)
            case ConfirmationAnswer() | CustomToolResult():
                allowed = event.allowed if isinstance(event, ConfirmationAnswer) else not event.is_error
                steps = chat.waiting.pop(event.request_id, [])
                await port.emit(Noted(f"answered {event.request_id} {allowed}"))
                if allowed:
                    await _do(port, chat, steps)
            case UserInterrupt():
                chat.waiting.clear()
                await port.emit(Noted("interrupted"))
            case ChildEnded():
                await port.emit(Noted(f"{event.child} {event.outcome} {event.result}"))


def _digest(chat: Chat, text: str) -> None:
    chat.digest = sha256(f"{chat.digest} {text}".encode()).hexdigest()[:12]


async def _do(port: Port, chat: Chat, steps: Sequence[Any]) -> None:
    for step in steps:
        if not await _do_simply(port, chat, step):
            await _do_more(port, chat, step)


async def _do_simply(port: Port, chat: Chat, step: Sequence[Any]) -> bool:
    """Do a step that has no steps in it; False: it is another one."""
    match step:
        case ["say", number]:
            chat.tokens += number
            await port.emit(AgentMessage(f"said {number}", usage={"tokens": number}))
        case ["note", number]:
            await port.emit(Noted(f"note {number}"))
        case ["add", number]:
            chat.number += number
        case ["step", number, once]:
            await port.step(number, once)
        case ["stream", number]:
            await port.stream(number)
        case ["sleep"]:
            await port.stream(0)
        case ["finish", number]:
            port.finish(number)
        case ["fail", attempts, final]:
            await port.fail(attempts, final)
        case [("fork" | "detach" | "compress") as what, name]:
            await port.make(what, name, 0)
        case ["merge", name, other]:
            await port.make("merge", name, other)
        case [("raise" | "question") as what, to]:
            await port.call(what, to, [])
        case _:
            return False
    return True


async def _do_more(port: Port, chat: Chat, step: Sequence[Any]) -> None:
    match step:
        case ["span", inner]:
            with port.span():
                await _do(port, chat, inner)
        case [("confirm" | "tool") as kind, expires_in, inner]:
            if (request_id := await port.require(kind, expires_in)) is not None:
                chat.waiting[request_id] = list(inner)
        case ["revisit", delay, key, inner]:
            await port.revisit(delay, key, list(inner))
        case ["delegate", child, cycles, inner]:
            await port.delegate(child, cycles, list(inner))
        case [("tell" | "ask") as what, to, inner]:
            await port.call(what, to, list(inner))
        case _:
            raise AssertionError(f"unknown step {step!r}")


class WakePort:
    """The effects of a wake."""

    def __init__(self, wake: affinity.Wake, children: Conversations[Chat]) -> None:
        self._wake, self._children = wake, children
        self._calls: Counter[str] = Counter()
        self._steps: Counter[int] = Counter()

    async def emit(self, event: JournalEvent) -> None:
        self._wake.append(event)

    async def stream(self, parts: int) -> None:
        for number in range(parts):
            self._wake.stream(f"{number} ")
            await anyio.sleep(0.002)
        await anyio.sleep(0.002)

    async def require(self, kind: str, expires_in: float | None) -> str | None:
        request = ToolConfirmation("tool") if kind == "confirm" else CustomToolUse("tool")
        try:
            return self._wake.require(request, expires_in=expires_in).request_id
        except InvalidInput as error:
            self._refuse("require", error)
            return None

    async def revisit(self, delay: float, key: str | None, steps: list[Any]) -> None:
        try:
            self._wake.revisit(delay, key=key, note=steps)
        except InvalidInput as error:
            self._refuse("revisit", error)

    async def delegate(self, child: str, cycles: int, steps: list[Any]) -> None:
        name = f"{self._wake.conversation_id}/{child}"
        try:
            await self._wake.delegate(self._children, name, Script(steps), max_cycles=cycles)
        except ClientError as error:
            self._refuse("delegate", error)

    async def make(self, what: str, name: str, other: int) -> None:
        new_id = f"{self._wake.conversation_id}~{name}"
        try:
            await self._make(what, new_id, other)
        except (ClientError, InvalidInput, ProviderError) as error:
            self._refuse(what, error)
        else:
            self._wake.append(Noted(f"{what} {new_id}"))

    async def _make(self, what: str, new_id: str, other: int) -> None:
        wake = self._wake
        match what:
            case "fork":
                await wake.fork(new_id)
            case "detach":
                await wake.detach(new_id)
            case "merge":
                await wake.merge(wake.conversation_id, talk_id(other), into=new_id, keep="left")
            case _:
                await wake.compress(into=new_id, summarise=summarised)

    async def call(self, what: str, to: int, steps: list[Any]) -> None:
        """The same call has the same id in all attempts, which may have other revisits before it."""
        about = sha256(f"{what} {to} {steps}".encode()).hexdigest()[:12]
        self._calls[about] += 1
        unique = f"{self._wake.id}/{about}/{self._calls[about]}"
        outcome = await calls.call(what, to, unique, steps, self._wake.conversation_id)
        self._wake.append(Noted(f"{what} {to}: {outcome}"))

    async def step(self, number: int, once: bool) -> None:
        """It gives another result each time it runs: an attempt that has one must have that of the attempt before."""
        self._steps[number] += 1
        key = f"{number}/{self._steps[number]}"
        try:
            result = await self._wake.step("work", _new_result, key=key, repeat="never" if once else "always")
        except StepInterrupted:
            assert once, f"step {key} was interrupted, and may be repeated"
        else:
            assert calls.note_step(f"{self._wake.id} {key}", result), f"step {key} has a second result"
        await self.emit(Noted(f"step {number}"))

    async def fail(self, attempts: int, final: bool) -> None:
        wake = self._wake
        lasts = (final or attempts >= FOR_GOOD) and len(wake.pending) + len(wake.due) == 1
        if lasts or (wake.attempt <= attempts and not final and attempts < FOR_GOOD):
            raise Broken("for good") if final else OSError("the model is down")

    def finish(self, result: int) -> None:
        self._wake.finish(result)

    @contextmanager
    def span(self) -> Iterator[None]:
        with self._wake.span("part"):
            yield

    def _refuse(self, what: str, error: Exception) -> None:
        self._wake.append(Refused(what, type(error).__name__))


async def _new_result() -> str:
    await anyio.sleep(0.001)
    return uuid4().hex


def talk_id(number: int) -> str:
    """Of a conversation that clients begin."""
    return f"{NAME}-{number}"


async def summarised(_: Any) -> str:
    """A summary."""
    return "what was said"


def is_expired(event: JournalEvent) -> bool:
    """The answer of the conversation itself to a request that has expired."""
    return isinstance(event, ConfirmationAnswer | CustomToolResult) and event.expired


def rebuilt(entries: Sequence[JournalEntry]) -> Chat:
    """The state that entries lead to."""
    return next((each.event.chat for each in reversed(entries) if isinstance(each.event, Kept)), Chat())


def make() -> tuple[Conversations[Chat], Conversations[Chat]]:
    """The conversations that clients begin, and their children. Each call makes others: their states in memory are of
    one database.
    """
    made = [Conversations(Chat, kind=kind, events=OWN_EVENTS, limits=LIMITS, rebuild=rebuilt) for kind in (NAME, CHILD)]
    roots, children = made

    async def handle(wake: affinity.Wake, chat: Chat) -> None:
        events = wake.events
        answers = [each for each in events if isinstance(each, AnswerEvent)]
        seen = Seen(
            inputs=[each.seq for each in wake.pending if not is_expired(each.event)],
            expired=[each.request_id for each in answers if is_expired(each)],
            due=[[each.key, each.note] for each in wake.due],
            before=chat.model_copy(deep=True),
        )
        wake.append(seen)
        await perform(WakePort(wake, children), chat, seen.due, events)
        wake.append(Kept(chat.model_copy(deep=True)))

    for each in made:
        each.on_wake(retry=RETRY, max_cycles=3)(handle)
    return roots, children


def calls_of(client: Client) -> calls.Calls:
    """For what handlers and activities call themselves."""
    roots, _ = make()
    return calls.Calls(client, lambda number: client.conversation(roots, talk_id(number)), Script)
