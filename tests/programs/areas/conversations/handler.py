"""The handler of the conversations: it does what the events say that it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, Literal, Protocol
from uuid import uuid4

import anyio
from pydantic import BaseModel, Field

import affinity
from affinity import Client, ConversationLimits, Conversations
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    CallEnded,
    CallStarted,
    ChildDelegated,
    ChildEnded,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    JournalEntry,
    JournalEvent,
    RunEnded,
    RunStarted,
    ToolConfirmation,
    UserInterrupt,
)
from affinity.conversation.attempt import ATTEMPTS, EPOCHS
from affinity.errors import ClientError, InvalidInput, ProviderError, StepInterrupted
from tests.programs import calls
from tests.programs.areas.conversations.script import FOR_GOOD

NAME: Final = "conversations"
CHILD: Final = f"{NAME}.child"

WAKES_OF_RUN: Final = 4
WITH_RUNS: Final = f"{NAME}-1"
"""Beginning of the ids of conversations with runs, which an import refuses unless it leaves them out."""

LIMITS: Final = ConversationLimits(inputs=4, requests=3, revisits=3)
WAKES: Final = affinity.Limit("wakes", concurrency=3)
OWNERS: Final = affinity.Limit("owners", concurrency=2, keyed=True)


class Chat(BaseModel):
    """The state."""

    wakes: int = 0
    tokens: int = 0
    number: int = 0
    digest: str = ""  # of all inputs, in order
    waiting: dict[str, list[Any]] = Field(default_factory=dict)  # steps by the id of the request for which they wait
    at_wake: str = ""  # the wake that has committed a part, while it has not ended
    done: dict[str, int] = Field(default_factory=dict)  # how many steps it has begun, by their source
    run: list[str] = Field(default_factory=list)  # its id, and the id of the run that goes on in the next wake
    adds_again: bool = False  # its next attempt adds again what is committed
    withdraws: bool = False  # its end withdraws all requests


class Script(JournalEvent):
    """Steps for the handler."""

    steps: list[Any]
    kind: Literal["user.script"] = "user.script"


class Seen(JournalEvent):
    """The inputs of an attempt of a wake: its first entry."""

    attempt: int  # also in the ids that it makes, if it goes on where another one has ended
    inputs: list[int]  # numbers
    expired: list[str]  # ids of requests
    due: list[list[Any]]  # key, source and steps of each revisit
    before: Chat
    has_parts: bool = False  # an earlier attempt has committed something: its trace, if it took long
    kind: Literal["agent.seen"] = "agent.seen"


class Noted(JournalEvent):
    """A step that has no other effect."""

    text: str
    kind: Literal["agent.noted"] = "agent.noted"


class Refused(JournalEvent):
    """A step that was refused."""

    what: str
    error: str
    place: str
    kind: Literal["agent.refused"] = "agent.refused"


class Kept(JournalEvent):
    """The state behind a wake, or behind a part of it: the last entry."""

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

    name: str
    """Of the conversation."""
    place: str
    """Of the step."""

    async def emit(self, event: JournalEvent) -> None: ...
    async def stream(self, parts: int) -> None: ...
    async def require(self, kind: str, expires_in: float | None) -> str | None: ...
    async def withdraw(self) -> Sequence[str]: ...
    async def revisit(self, delay: float, key: str | None, steps: list[Any]) -> None: ...
    async def delegate(self, child: str, cycles: int, steps: list[Any]) -> None: ...
    async def make(self, what: str, name: str, other: int) -> None: ...
    async def call(self, what: str, to: int, steps: list[Any]) -> None: ...
    async def step(self, number: int, once: bool) -> None: ...
    async def group(self, attempts: int, final: bool) -> None: ...
    async def start(self, what: str, number: int) -> None: ...
    async def run(self, number: int, known: str | None) -> str: ...
    async def commit(self) -> None: ...
    async def fail(self, attempts: int, final: bool) -> None: ...
    def finish(self, result: int) -> None: ...
    def span(self) -> Any: ...


class Place:
    """How far an attempt has come with the steps of one source: an input, or a revisit that is due."""

    def __init__(self, chat: Chat, source: str) -> None:
        self._done, self._key = chat.done, sha256(source.encode()).hexdigest()[:6]
        self._committed = self._done.get(self._key, 0)
        self._number = 0

    def __str__(self) -> str:
        """The same in all attempts."""
        return f"{self._key}.{self._number}"

    def begin(self) -> bool:
        """Begin the next step; False: an earlier attempt has committed it."""
        self._number += 1
        if self._number <= self._committed:
            return False
        self._done[self._key] = self._number
        return True


async def perform(
    port: Port, chat: Chat, wake_id: str, due: Sequence[Sequence[Any]], events: Sequence[tuple[str, JournalEvent]]
) -> None:
    """Do what the revisits that are due, and the inputs, say; each input comes with its source. What an earlier attempt
    has committed is left out.
    """
    if chat.at_wake != wake_id:
        chat.at_wake, chat.done = wake_id, {}
        chat.wakes += 1
    for key, source, steps in due:
        place = Place(chat, source)
        if place.begin():
            _digest(chat, f"due {key}")
        await _do(port, chat, place, steps)
    for source, event in events:
        await _read(port, chat, source, event)
    if port.name.startswith(WITH_RUNS):
        is_known = chat.run[:1] == [port.name] and not any(isinstance(event, UserInterrupt) for _, event in events)
        number = chat.wakes % WAKES_OF_RUN
        run = await port.run(number, chat.run[1] if is_known else None)
        chat.run = [port.name, run] if number < WAKES_OF_RUN - 1 else []
    if chat.withdraws:
        for request_id in await port.withdraw():
            chat.waiting.pop(request_id, None)
    chat.at_wake, chat.done, chat.adds_again, chat.withdraws = "", {}, False, False
    await port.emit(Kept(chat.model_copy(deep=True)))


async def _read(port: Port, chat: Chat, source: str, event: JournalEvent) -> None:
    place = Place(chat, source)
    if place.begin():
        _digest(chat, source if is_expired(event) else event.model_dump_json())
        if isinstance(event, UserInterrupt):
            chat.waiting.clear()
        if (note := _note_of(event)) is not None:
            await port.emit(Noted(note))
    if isinstance(event, Script):
        await _do(port, chat, place, event.steps)
    elif isinstance(event, ConfirmationAnswer | CustomToolResult):
        if is_allowed(event):
            await _do(port, chat, place, chat.waiting.get(event.request_id, []))
        chat.waiting.pop(event.request_id, None)


def is_allowed(event: ConfirmationAnswer | CustomToolResult) -> bool:
    """Whether the steps that wait for this answer are to be done."""
    return event.allowed if isinstance(event, ConfirmationAnswer) else not event.is_error


def _note_of(event: JournalEvent) -> str | None:
    match event:
        case ConfirmationAnswer() | CustomToolResult():
            return f"answered {event.request_id} {is_allowed(event)}"
        case UserInterrupt():
            return "interrupted"
        case ChildEnded():
            return f"{event.child} {event.outcome} {event.result}"
        case RunEnded() | CallEnded():
            return f"{event.kind} {event.result} {event.error and event.error.type}"
        case _:
            return None


def may_fail(steps: Sequence[Sequence[Any]]) -> bool:
    """Whether a wake may fail for good that does these steps."""
    for what, *args in steps:
        if what == "span" and may_fail(args[0]):
            return True
        if what in {"fail", "group"} and (args[1] or args[0] >= FOR_GOOD):
            return True
    return False


def _digest(chat: Chat, text: str) -> None:
    chat.digest = sha256(f"{chat.digest} {text}".encode()).hexdigest()[:12]


async def _do(port: Port, chat: Chat, place: Place, steps: Sequence[Any]) -> None:
    for step in steps:
        is_new = place.begin()
        port.place = str(place)
        match step:
            case ["span", inner]:
                with port.span():
                    await _do(port, chat, place, inner)
            case ["finish", number]:  # not durable before the end
                port.finish(number)
            case _ if is_new and not await _do_simply(port, chat, step):
                await _do_more(port, chat, step)


async def _do_simply(port: Port, chat: Chat, step: Sequence[Any]) -> bool:
    """Do a step that has no steps in it; False: it is another one."""
    match step:
        case ["say", number]:
            chat.tokens += number
            await port.emit(AgentMessage(f"said {number} at {port.place}", usage={"tokens": number}))
        case ["note", number]:
            await port.emit(Noted(f"note {number}"))
        case ["add", number]:
            chat.number += number
        case ["commit", adds_again]:
            chat.adds_again = adds_again
            await port.emit(Kept(chat.model_copy(deep=True)))
            await port.commit()
        case ["step", number, once]:
            await port.step(number, once)
        case ["stream", number]:
            await port.stream(number)
        case [("sleep" | "withdraw") as what]:
            chat.withdraws |= what == "withdraw"
            await port.stream(0)
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
        case [("confirm" | "tool") as kind, expires_in, inner]:
            if (request_id := await port.require(kind, expires_in)) is not None:
                chat.waiting[request_id] = list(inner)
        case ["group", attempts, final]:
            await port.group(attempts, final)
        case ["start", what, number]:
            await port.start(what, number)
        case ["revisit", delay, key, inner]:
            await port.revisit(delay, key, list(inner))
        case ["delegate", child, cycles, inner]:
            await port.delegate(child, cycles, list(inner))
        case [("tell" | "ask" | "meet") as what, to, inner]:
            await port.call(what, to, list(inner))
        case _:
            raise AssertionError(f"unknown step {step!r}")


class WakePort:
    """The effects of a wake."""

    def __init__(self, wake: affinity.Wake, children: Conversations[Chat]) -> None:
        self._wake, self._children = wake, children
        self.name = wake.conversation_id
        self.place = ""

    async def add_again(self) -> None:
        """Add what earlier attempts have committed: nothing is there twice."""
        for event in [each.event for each in self._wake.committed]:
            if isinstance(event, ToolConfirmation | CustomToolUse):
                again = self._wake.require(event).request_id
                assert again == event.request_id, f"{event.request_id}, required again, is {again}"
            elif isinstance(event, ChildDelegated):
                begun = await self._wake.delegate(self._children, event.child, Script([]), max_cycles=event.max_cycles)
                assert begun == event.delegation, f"{event.delegation}, delegated again, is {begun}"
            elif isinstance(event, RunStarted | CallStarted):
                again = self._start(id_of_run(event)[0], event.input)
                assert again == id_of_run(event)[1], f"{event}, started again, is {again}"
            else:
                self._wake.append(event)

    async def start(self, what: str, number: int) -> None:
        self._start(what, number)

    def _start(self, what: str, number: Any) -> str:
        return self._wake.start(double, number) if what == "run" else self._wake.call(halve, number)

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

    async def withdraw(self) -> Sequence[str]:
        found = [request.request_id for request in self._wake.requests]
        for request_id in found:
            self._wake.withdraw(request_id)
        self._wake.append(Noted(f"withdrew {' '.join(found)}"))
        return found

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
        unique = f"{self._wake.id}/{self.place}"
        outcome = await calls.call(what, to, unique, steps, self._wake.conversation_id)
        self._wake.append(Noted(f"{what} {to} at {self.place}: {outcome}"))

    async def step(self, number: int, once: bool) -> None:
        await self._step(self.place, _new_result, once=once)
        await self.emit(Noted(f"step {number}"))

    async def group(self, attempts: int, final: bool) -> None:
        """Three at the same time, the second of which fails, by keys; and two that are equal, without keys."""

        async def failing() -> str:
            await self.fail(attempts, final)
            return await _new_result()

        place = self.place
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(self._step, f"{place}/{number}", failing if number == 1 else _new_result)
            tasks.start_soon(self._equal_steps, place)
        await self.emit(Noted("group"))

    async def _equal_steps(self, place: str) -> None:
        """The one may have the result of the other."""
        results: list[str] = []

        async def step() -> None:
            results.append(await self._wake.step(f"equal at {place}", _new_result))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
            tasks.start_soon(step)
        self._note(f"{place}/equal", " ".join(sorted(results)))

    async def run(self, number: int, known: str | None) -> str:
        """Go on in a run over several wakes: each adds a step, and gets the results of those before."""
        async with self._wake.run("over wakes") as run:
            for each in range(number + 1):
                result = await run.step("part", _new_part, each)
                of = f"{self._wake.conversation_id} {run.id} {each}"
                assert calls.note_step(of, result), f"step {each} of run {run.id} has a second result"
            self._wake.append(Noted(f"run {run.id}"))
            if number < WAKES_OF_RUN - 1:
                await run.pause()
        return run.id

    async def _step(self, place: str, work: Callable[[], Awaitable[str]], once: bool = False) -> None:
        """It gives another result each time it runs: an attempt that has one must have that of the attempt before."""
        try:
            result = await self._wake.step("work", work, key=place, repeat="never" if once else "always")
        except StepInterrupted:
            assert once, f"step {place} was interrupted, and may be repeated"
        else:
            self._note(place, result)

    def _note(self, place: str, result: str) -> None:
        wake = self._wake._parts.tried_with or self._wake.id  # of all its inputs, which are tried one by one
        assert calls.note_step(f"{wake} {place}", result), f"step {place} has a second result"

    async def commit(self) -> None:
        await self._wake.commit()

    async def fail(self, attempts: int, final: bool) -> None:
        if final or attempts >= FOR_GOOD or self._wake.attempt <= attempts:
            raise Broken("for good") if final else OSError("the model is down")

    def finish(self, result: int) -> None:
        self._wake.finish(result)

    @contextmanager
    def span(self) -> Iterator[None]:
        with self._wake.span("part"):
            yield

    def _refuse(self, what: str, error: Exception) -> None:
        self._wake.append(Refused(what, type(error).__name__, self.place))


work: Final = affinity.App(f"{NAME}.work")
"""What wakes start."""


@work.activity
async def halve(ctx: affinity.ActivityContext, number: int) -> int:
    """Half of an even number."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number // 2


@work.orchestration
async def double(ctx: affinity.OrchestrationContext, number: int) -> int:
    """Half of the double, later."""
    await ctx.schedule_timer(60.0 * number)
    return await ctx.schedule_activity(halve, 2 * number)


def id_of_run(event: RunStarted | RunEnded | CallStarted | CallEnded) -> tuple[str, str]:
    """What it is, and its id."""
    return ("run", event.run) if isinstance(event, RunStarted | RunEnded) else ("call", event.call)


def end_of_run(what: str, number: int) -> tuple[int | None, str | None]:
    """The result and the type of the error."""
    return (None, "ValueError") if what == "call" and number % 2 else (number // (1 if what == "run" else 2), None)


async def _new_result() -> str:
    await anyio.sleep(0.001)
    return uuid4().hex


async def _new_part(number: int) -> str:
    return f"{number} {await _new_result()}"


def talk_id(number: int) -> str:
    """Of a conversation that clients begin."""
    return f"{NAME}-{number}"


async def summarised(_: Any) -> str:
    """A summary."""
    return "what was said"


def is_expired(event: JournalEvent) -> bool:
    """The answer of the conversation itself to a request that has expired."""
    return isinstance(event, ConfirmationAnswer | CustomToolResult) and event.expired


def source_of(entry: JournalEntry) -> str:
    """Names an input, in all attempts: the number of the answer to a request that has expired is not known before."""
    event = entry.event
    return expired_source(event.request_id) if isinstance(event, AnswerEvent) and is_expired(event) else str(entry.seq)


def expired_source(request_id: str) -> str:
    """Names the answer of the conversation itself to this request."""
    return f"expired {request_id}"


def seen_of(wake: affinity.Wake, chat: Chat) -> Seen:
    """What an attempt is given. A revisit that a part of the wake requests has the same key, and another time."""
    answers = [each for each in wake.events if isinstance(each, AnswerEvent)]
    return Seen(
        attempt=(wake.context.session_epoch or 0) % EPOCHS * ATTEMPTS + wake.attempt,
        inputs=[each.seq for each in wake.pending if not is_expired(each.event)],
        expired=[each.request_id for each in answers if is_expired(each)],
        due=[[each.key, f"due {each.key} {each.due_at.isoformat()}", each.note] for each in wake.due],
        before=chat.model_copy(deep=True),
        has_parts=wake._steps.has_parts,
    )


def rebuilt(entries: Sequence[JournalEntry]) -> Chat:
    """The state that entries lead to."""
    return next((each.event.chat for each in reversed(entries) if isinstance(each.event, Kept)), Chat())


def make() -> tuple[Conversations[Chat], Conversations[Chat]]:
    """The conversations that clients begin, and their children. Each call makes others: their states in memory are of
    one database.
    """
    owner = OWNERS.by(lambda info: info.conversation_id[-1:])
    made = [
        Conversations(
            Chat, kind=kind, events=OWN_EVENTS, limits=[LIMITS, WAKES, owner], priority=priority, rebuild=rebuilt
        )
        for kind, priority in ((NAME, 0), (CHILD, 2))
    ]
    roots, children = made

    async def handle(wake: affinity.Wake, chat: Chat) -> None:
        port = WakePort(wake, children)
        assert chat.at_wake != wake.id, f"begins with the state of an earlier attempt: {chat!r}"
        committed = [each.event for each in wake.committed]  # the state is that of the last commit from here on
        if chat.at_wake == wake.id:
            last = committed[-1:]
            assert last == [Kept(chat)], f"the last of what is committed is {last}, not {chat!r}"
            if chat.adds_again:
                await port.add_again()
        else:
            assert not committed, f"{committed} is committed, without the state"
        seen = seen_of(wake, chat)
        wake.append(seen)
        await perform(port, chat, wake.id, seen.due, [(source_of(each), each.event) for each in wake.pending])

    for each in made:
        each.on_wake(retry=RETRY, max_cycles=3)(handle)
    return roots, children


def calls_of(client: Client) -> calls.Calls:
    """For what handlers and activities call themselves."""
    roots, _ = make()
    return calls.Calls(client, lambda number: client.conversation(roots, talk_id(number)), Script)
