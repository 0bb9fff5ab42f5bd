"""A run of an agent over several wakes: its steps, its stream, and its part of the journal.

The result of a step is kept with the id of the wake in which it was made. So what belongs to a wake, its entries and
its streamed text, is made again by each attempt of that wake, and by no later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic import JsonValue
from pydantic_ai.durable_exec import external_event_scope, record_durable_unit, replay_scope
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_core import from_json, to_json

from affinity.conversation import AgentMessage, JournalEvent, ToolResult, ToolUse, UserMessage, Wake, WakeRun
from affinity.integrations.pydantic_ai.requests import RequestWaiter

WAKE: Final = "wake"
VALUE: Final = "value"
"""Fields of the recorded result of a step: the wake in which it was made, and the result in pydantic-ai's JSON."""

PROMPT: Final = "prompt"
"""Name of the step that records which messages a run answers."""

STARTED: Final = "started"
"""Name of the step that records when a run of the agent began, from which its ``timeout`` counts."""

MAX_SHOWN_RESULT: Final = 64 * 1024
"""Bytes of the JSON of a tool's result in the journal: of a longer one, its beginning. The model reads all of it."""

Input = tuple[int, str]
"""Number and text of a message."""


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
    is_streamed: bool = False


current_run: Final[ContextVar[AgentRun | None]] = ContextVar("affinity.integrations.pydantic_ai.run", default=None)
"""The run whose agent runs in this task, outside of the functions of its steps."""

current_call: Final[ContextVar[ToolCall | None]] = ContextVar("affinity.integrations.pydantic_ai.call", default=None)

current_unit: Final[ContextVar[Unit | None]] = ContextVar("affinity.integrations.pydantic_ai.unit", default=None)

current_number: Final[ContextVar[int]] = ContextVar("affinity.integrations.pydantic_ai.number", default=0)
"""Which of the runs of an agent, of those within one `AgentRun`."""


class AgentRun:
    """A run of an agent over one wake, or several: see `agent_run`.

    Attributes:
        wake: in which it goes on now.
        prompt: the text of the messages that it answers, recorded when it began.
        numbers: of the entries of these messages.
    """

    def __init__(self, wake: Wake, run: WakeRun, *, transcript: bool) -> None:
        """Called by `agent_run`."""
        self.wake: Wake = wake
        self.prompt: str = ""
        self.numbers: Sequence[int] = ()
        self._run = run
        self._has_transcript = transcript
        self._counts: Counter[str] = Counter()
        self._responses: dict[int, bool] = {}
        """Whether the last response of the model was made in this wake, by `current_number`."""

    @property
    def id(self) -> str:
        """The same in each wake in which it goes on."""
        return self._run.id

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

    async def _start_time(self, run_id: str) -> datetime:
        async def now(_: str) -> str:
            return datetime.now(UTC).isoformat()

        return datetime.fromisoformat(await self._run.step(STARTED, now, run_id))

    async def _operate(self, operation: Operation, body: Callable[[], Awaitable[object]]) -> object:
        """Return the result of an operation. One that is recorded is returned without running it."""
        has_run = False

        async def run(*_: str) -> dict[str, Any]:
            nonlocal has_run
            has_run = True
            with _set(current_run, None), _set(current_unit, Unit(self.wake, operation.is_model)), self._shown_tool():
                return {WAKE: self.wake.id, VALUE: await body()}

        recorded = await self._run.step(operation.name, run, *operation.identity, **operation.options)
        record_durable_unit(executed=has_run)
        is_of_wake = recorded[WAKE] == self.wake.id
        if (call := current_call.get()) is not None and not operation.is_model:
            call.made_in = recorded[WAKE]
        if operation.is_streamed and is_of_wake and not has_run:
            self._show_again(recorded[VALUE])
        if operation.is_model:
            self._responses[current_number.get()] = is_of_wake
        return recorded[VALUE]

    def _shown_tool(self) -> Any:
        call = current_call.get()
        return nullcontext() if call is None else self.wake.stream_tool(call.tool, call.tool_use_id, call.arguments)

    def _show_again(self, response: Any) -> None:
        """Stream the text of a response that an earlier attempt of this wake has streamed: it was retracted."""
        for part in response["parts"]:
            if part["part_kind"] == "text" and part["content"]:
                self.wake.stream(part["content"])

    # -- the journal

    @property
    def _is_response_of_wake(self) -> bool:
        """Whether the last response of the model was made in this wake, and by a step."""
        return self._responses.get(current_number.get(), False)

    def _append(self, event: JournalEvent) -> None:
        if self._has_transcript:
            self.wake.append(event)

    def _note_response(self, parts: Sequence[object], tools: set[str]) -> None:
        """Append what a response of this wake says before it calls tools, and the calls. Its last text is appended by
        the handler.
        """
        calls = [part for part in parts if isinstance(part, ToolCallPart) and part.tool_name in tools]
        text = "".join(part.content for part in parts if isinstance(part, TextPart))
        if calls and text:
            self._append(AgentMessage(text))
        for call in calls:
            self._append(ToolUse(call.tool_name, arguments_of(call), tool_use_id=call.tool_call_id))

    def _note_result(self, call_id: str, result: object, *, is_error: bool) -> None:
        self._append(ToolResult(call_id, shown(result), is_error=is_error))


@asynccontextmanager
async def agent_run(
    wake: Wake,
    name: str = "agent",
    /,
    *,
    transcript: bool = True,
    inputs: Sequence[tuple[int, str]] | None = None,
) -> AsyncIterator[AgentRun]:
    """Run an agent in the block, durably: what it has done is not done again, neither after a crash nor in the wake
    that goes on when a person has answered.

    ::

        async with agent_run(wake) as run:
            result = await agent.run(run.prompt)
            wake.append(AgentMessage(result.output))

    An agent with `AffinityDurability` runs its operations as steps of ``wake.run(name)``. When it waits for an answer,
    the block is left, and the wake goes on behind it (`AgentRun.is_paused`).

    Args:
        wake: of the handler.
        name: of the run; see `affinity.Wake.run`.
        transcript: whether calls of tools, their results, and what the model says beside them become entries of the
            journal.
        inputs: number and text of each message that a new run answers; None: the pending messages of the wake.

    Raises:
        InvalidId, WakeMisuse, SessionError: see `affinity.Wake.run`.
        SessionWriteConflict, InvalidInput: see `affinity.Wake.step`.
    """
    async with wake.run(name) as run:
        found = AgentRun(wake, run, transcript=transcript)
        await found._begin(messages_of(wake) if inputs is None else inputs)
        waiter = RequestWaiter(wake.conversation_id, run)
        with _set(current_run, found), external_event_scope(waiter), replay_scope():
            yield found


def messages_of(wake: Wake) -> list[Input]:
    """Return number and text of the pending messages."""
    return [(entry.seq, entry.event.text) for entry in wake.pending if isinstance(entry.event, UserMessage)]


def arguments_of(call: ToolCallPart) -> dict[str, JsonValue]:
    """Return the arguments of a call; empty if the model gave no JSON object, which pydantic-ai has it correct."""
    try:
        return call.args_as_dict()
    except (ValueError, AssertionError):
        return {}


def shown(result: object) -> JsonValue:
    """Return the JSON form of a tool's result, for readers; of a long one, the beginning of its text."""
    text = to_json(result, fallback=str, inf_nan_mode="strings")
    return from_json(text) if len(text) <= MAX_SHOWN_RESULT else text[:MAX_SHOWN_RESULT].decode(errors="ignore") + " …"


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
