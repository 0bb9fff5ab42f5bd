"""Runs of the agents of other libraries over several wakes, which the plugs for these libraries share.

The result of a step is kept with the id of the wake in which it was made. So what belongs to a wake, its entries and
its streamed text, is made again by each attempt of that wake, and by no later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import anyio
from pydantic import BaseModel, Field, JsonValue
from pydantic_core import from_json, to_json, to_jsonable_python

from affinity.composed.app import App
from affinity.composed.client import Client
from affinity.composed.worker import Worker
from affinity.conversation import (
    AgentMessage,
    ConversationHandle,
    Conversations,
    CustomToolUse,
    JournalEvent,
    Reply,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserInterrupt,
    UserMessage,
    Wake,
    WakeRun,
)
from affinity.orchestration import RetryPolicy

__all__ = [
    "AgentService",
    "StepOptions",
]

S = TypeVar("S", bound="WaitingState")
R = TypeVar("R", bound="RecordedRun")

WAKE: Final = "wake"
VALUE: Final = "value"
"""Fields of the recorded result of a step: the wake in which it was made, and the result."""

PROMPT: Final = "prompt"
"""Name of the step that records which messages a run answers."""

MAX_SHOWN_RESULT: Final = 64 * 1024
"""Bytes of the JSON of a tool's result in the journal: of a longer one, its beginning. The model reads all of it."""

REFUSED: Final = "a person has refused it"
"""What the journal says of a call that was refused without a reason."""

_ENTRIES: Final = (AgentMessage, CustomToolUse, ToolConfirmation, ToolResult, ToolUse)
"""What a wake of a run has in the journal."""

_INTERRUPTED: Final = "an interrupt came before the call had a result"

ToolErrorKind: TypeAlias = Literal["refused", "outcome_unknown"]

Input = tuple[int, str]
"""Number and text of a message."""


class StepOptions(TypedDict, total=False):
    """Options of the step of a tool: see `affinity.Wake.step`.

    ``repeat="never"``: the tool runs once; a call whose process ended has no known outcome, as the model is told.
    """

    repeat: Literal["always", "never"]
    timeout: float | timedelta
    retry: RetryPolicy


@dataclass
class ToolCall:
    """The call of a tool that runs in this task."""

    tool: str
    tool_use_id: str
    arguments: dict[str, Any]
    made_in: str = ""
    """The wake in which its result was made; empty: its tool is not a step."""


class Unit(NamedTuple):
    """The function of a step, which runs in this task."""

    wake: Wake
    is_model: bool


class Operation(NamedTuple):
    """An operation of an agent, as a step."""

    name: str
    identity: Sequence[str]
    options: Mapping[str, Any]
    is_model: bool = False


current_run: Final[ContextVar[RecordedRun | None]] = ContextVar("affinity.integrations.run", default=None)
"""The run whose agent runs in this task, outside of the functions of its steps."""

current_call: Final[ContextVar[ToolCall | None]] = ContextVar("affinity.integrations.call", default=None)

current_unit: Final[ContextVar[Unit | None]] = ContextVar("affinity.integrations.unit", default=None)

current_number: Final[ContextVar[int]] = ContextVar("affinity.integrations.number", default=0)
"""Which of the runs of an agent, of those within one `RecordedRun`."""


class RecordedRun:
    """A run of an agent over one wake, or several.

    Attributes:
        wake: in which it goes on now.
        prompt: the text of the messages that it answers, recorded when it began.
        numbers: of the entries of these messages.
    """

    def __init__(self, wake: Wake, run: WakeRun, *, transcript: bool) -> None:
        """Called by `opened`."""
        self.wake: Wake = wake
        self.prompt: str = ""
        self.numbers: Sequence[int] = ()
        self._run = run
        self._has_transcript = transcript
        self._counts: Counter[str] = Counter()
        self._in_journal: dict[str, bool] = {}
        """Whether the journal has what earlier wakes have done, by their ids."""
        self._open: dict[tuple[int, str], JsonValue] = {}
        """Calls without a result, by `current_number` and id, of whichever wake; each with the error that it will have.
        """

    @property
    def id(self) -> str:
        """The same in each wake in which it goes on."""
        return self._run.id

    @property
    def open_calls(self) -> list[str]:
        """Ids of the calls in the journal that have no result there."""
        return [tool_use_id for _, tool_use_id in self._open] if self._has_transcript else []

    @property
    def is_paused(self) -> bool:
        """True: the block was left to wait for an answer, and a later wake goes on in it."""
        return self._run.is_paused

    async def _begin(self, inputs: Sequence[Input]) -> None:
        async def prompt() -> list[Input]:
            return list(inputs)

        recorded = await self._run.step(PROMPT, prompt)
        self.numbers = [number for number, _ in recorded]
        self.prompt = "\n".join(text for _, text in recorded)

    def _next(self, name: str) -> int:
        """Return the next number of this name, from 1, in the order of the calls."""
        self._counts[name] += 1
        return self._counts[name]

    async def _operate(self, operation: Operation, body: Callable[[], Awaitable[object]]) -> tuple[Any, bool, bool]:
        """Return the result of an operation, whether it has run now, and whether it was made in this wake. A result
        that is recorded is returned without running it.
        """
        has_run = False

        async def run(*_: str) -> dict[str, Any]:
            nonlocal has_run
            has_run = True
            with put(current_run, None), put(current_unit, Unit(self.wake, operation.is_model)), self._shown_tool():
                return {WAKE: self.wake.id, VALUE: await body()}

        recorded = await self._run.step(operation.name, run, *operation.identity, **operation.options)
        made_in = recorded[WAKE] if await self._has_entries_of(recorded[WAKE]) else self.wake.id
        if (call := current_call.get()) is not None and not operation.is_model:
            call.made_in = made_in
        return recorded[VALUE], has_run, made_in == self.wake.id

    async def _has_entries_of(self, wake_id: str) -> bool:
        """Return whether the journal has what a wake of this run has done: of one that has failed for good it has
        nothing, until a later wake of the run is committed.
        """
        if wake_id == self.wake.id:
            return True
        if wake_id not in self._in_journal:
            history, found = self.wake.history, True
            if last := await history(wake=wake_id, last=1):
                found = bool(
                    await history(wake=wake_id, kinds=_ENTRIES, limit=1)
                    or await history(after=last[0].seq, kinds=_ENTRIES, limit=1)
                )
            self._in_journal[wake_id] = found
        return self._in_journal[wake_id]

    def _shown_tool(self) -> Any:
        call = current_call.get()
        return nullcontext() if call is None else self.wake.stream_tool(call.tool, call.tool_use_id, call.arguments)

    # -- the journal

    def _append(self, event: JournalEvent) -> None:
        if self._has_transcript:
            self.wake.append(event)

    def _note_turn(
        self,
        results: Sequence[ToolResult],
        text: str,
        calls: Sequence[ToolCall],
        *,
        is_of_wake: bool,
        hands_over: bool = False,
    ) -> None:
        """Append what a response of the model has read and the journal lacks, what it says before it calls tools or
        hands over to another agent, and the calls, if the response was made in this wake. Its last text is appended by
        the handler.

        A call lacks its result if its tool has not run in a step: it was refused, or its arguments were.
        """
        number = current_number.get()
        append = self._append if is_of_wake else _ignore
        for result in results:
            if (key := (number, result.tool_use_id)) in self._open:
                error = self._open.pop(key)
                append(result if error is None else ToolResult(result.tool_use_id, error, is_error=True))
        if text and (calls or hands_over):
            append(AgentMessage(text))
        for call in calls:
            self._open[number, call.tool_use_id] = None
            append(ToolUse(call.tool, call.arguments, tool_use_id=call.tool_use_id))

    def _note_error(self, tool_use_id: str, kind: ToolErrorKind, message: str) -> None:
        """Have the journal show an error in place of the result that the model reads."""
        if (key := (current_number.get(), tool_use_id)) in self._open:
            self._open[key] = error_value(kind, message)

    def _note_result(self, call: ToolCall, result: object, *, is_error: bool) -> None:
        """Append the result of a step, if it was made in this wake."""
        if call.made_in:
            self._open.pop((current_number.get(), call.tool_use_id), None)
        if call.made_in == self.wake.id:
            self._append(ToolResult(call.tool_use_id, shown(result), is_error=is_error))


def error_value(kind: ToolErrorKind, message: str) -> JsonValue:
    """Return the result of a call that did not run, as `affinity.agent.run_loop` has it."""
    return {"error": {"kind": kind, "message": message}}


def _ignore(event: JournalEvent) -> None:
    """Append nothing: an earlier wake has."""


@asynccontextmanager
async def opened(
    kind: type[R], wake: Wake, name: str, inputs: Sequence[Input] | None, *, transcript: bool
) -> AsyncIterator[R]:
    """Open a run of the wake, and install it for the operations of agents in the block."""
    async with wake.run(name) as run:
        found = kind(wake, run, transcript=transcript)
        await found._begin(messages_of(wake) if inputs is None else inputs)
        with put(current_run, found):
            yield found


def messages_of(wake: Wake) -> list[Input]:
    """Return number and text of the pending messages. An interrupt stops those before it: they have no answer."""
    said = [(entry.seq, entry.event.text) for entry in wake.pending if isinstance(entry.event, UserMessage)]
    stopped = max((entry.seq for entry in wake.pending if isinstance(entry.event, UserInterrupt)), default=0)
    return [each for each in said if each[0] > stopped]


def shown(result: object) -> JsonValue:
    """Return the JSON form of a tool's result, for readers; of a long one, the beginning of its text."""
    text = to_json(result, fallback=str, inf_nan_mode="strings")
    return from_json(text) if len(text) <= MAX_SHOWN_RESULT else text[:MAX_SHOWN_RESULT].decode(errors="ignore") + " …"


def shown_arguments(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the JSON form of a call's arguments, for readers: of a number that is not finite, its name."""
    found: dict[str, Any] = from_json(to_json(arguments, fallback=str, inf_nan_mode="strings"))
    return found


@contextmanager
def put(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give a context variable a value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all of them at the same time. The first error that is no signal is raised alone, or else the first signal of
    a run that waits: the libraries are not to see a group.
    """

    async def run(one: Coroutine[Any, Any, None]) -> None:
        await one

    try:
        async with anyio.create_task_group() as tasks:
            for one in work:
                tasks.start_soon(run, one)
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        raise next((error for error in errors if isinstance(error, Exception)), errors[0]) from None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


# -- conversations whose handler runs an agent


class WaitingState(BaseModel):
    """What the state of a conversation with an agent has, of whichever library."""

    waiting: list[Input] = Field(default_factory=list)  # messages that came while the agent waited
    is_paused: bool = False  # a run waits for an answer
    calls: list[str] = Field(default_factory=list)  # ids of its calls without a result
    taken: list[int] = Field(default_factory=list)  # numbers of messages that a run has, and that no wake has processed


async def answer_messages(
    wake: Wake, state: WaitingState, answer: Callable[[Sequence[Input]], Awaitable[RecordedRun]]
) -> None:
    """Have the agent answer the messages of a wake, and those that have come while it waited.

    ``answer`` opens a run with the messages that it is given, and leaves it. A run that was open before has other
    messages, so those that it has not answered go to the next one. An interrupt ends it; its calls get an error.
    """
    is_interrupted = wake.interrupt is not None
    left = messages_of(wake) if is_interrupted else [*state.waiting, *messages_of(wake)]
    taken = {*state.taken}
    left = [each for each in left if each[0] not in taken]
    is_paused = state.is_paused and not is_interrupted
    if is_interrupted:
        for tool_use_id in state.calls:
            wake.append(ToolResult(tool_use_id, error_value("outcome_unknown", _INTERRUPTED), is_error=True))
    state.calls = state.calls if is_paused else []
    while left or is_paused:
        run = await answer(left)
        taken.update(run.numbers)
        left = [each for each in left if each[0] not in taken]
        is_paused = run.is_paused
        state.calls = run.open_calls if is_paused else []
        if is_paused:
            break
    state.waiting, state.is_paused = left, is_paused
    state.taken = sorted(number for number in taken if number > wake.read_up_to)


def append_answer(wake: Wake, output: object) -> None:
    """Append the output of an agent: text as it is, else as JSON, which is the result for a parent too."""
    if isinstance(output, str):
        wake.append(AgentMessage(output))
    else:
        wake.append(AgentMessage(to_json(output).decode()))
        wake.finish(to_jsonable_python(output))


@dataclass(frozen=True, kw_only=True)
class AgentService(Generic[S]):
    """A durable agent that runs in this process: what `agent_service` of a plug yields."""

    client: Client
    conversations: Conversations[S]

    def talk(self, conversation_id: str, /) -> ConversationHandle:
        """Return the handle of a conversation with the agent, which need not exist yet.

        Raises:
            InvalidId: the id is refused.
        """
        return self.client.conversation(self.conversations, conversation_id)

    async def ask(self, conversation_id: str, text: str, /, *, event_id: str | None = None) -> Reply:
        """Return the agent's reply to a message. After a lost connection, repeat the call with the same ``event_id``.

        Raises:
            WakeFailed: the agent has failed for good.
            EventIdConflict, ConversationTerminated, InvalidInput: see `affinity.ConversationHandle.ask`.
        """
        return await self.talk(conversation_id).ask(UserMessage(text), event_id=event_id)


@asynccontextmanager
async def served(conversations: Conversations[S], url: str) -> AsyncIterator[AgentService[S]]:
    """Run a worker for the conversations in this process, with a client."""
    app = App(conversations.kind)
    app.include(conversations)
    async with Worker(app, url), Client(url) as client:
        yield AgentService(client=client, conversations=conversations)
