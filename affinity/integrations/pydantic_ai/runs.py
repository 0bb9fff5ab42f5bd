"""A run of an agent of pydantic-ai over several wakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue
from pydantic_ai.durable_exec import external_event_scope, record_durable_unit, replay_scope
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart

from affinity.conversation import ToolResult, Wake, WakeRun
from affinity.integrations.agent_runs import (
    Operation,
    RecordedRun,
    ToolCall,
    current_number,
    current_run,
    error_value,
    opened,
    shown,
    shown_arguments,
)
from affinity.integrations.pydantic_ai.requests import RequestWaiter

STARTED: Final = "started"
"""Name of the step that records when a run of the agent began, from which its ``timeout`` counts."""


class AgentRun(RecordedRun):
    """A run of an agent over one wake, or several: see `agent_run`.

    Attributes:
        wake: in which it goes on now.
        prompt: the text of the messages that it answers, recorded when it began.
        numbers: of the entries of these messages.
    """

    def __init__(self, wake: Wake, run: WakeRun, *, transcript: bool) -> None:
        """Called by `agent_run`."""
        super().__init__(wake, run, transcript=transcript)
        self._responses: dict[int, bool] = {}
        """Whether the last response of the model was made in this wake, by `current_number`."""

    async def _start_time(self, run_id: str) -> datetime:
        async def now(_: str) -> str:
            return datetime.now(UTC).isoformat()

        return datetime.fromisoformat(await self._run.step(STARTED, now, run_id))

    async def _execute(self, operation: Operation, body: Callable[[], Awaitable[object]], *, streams: bool) -> object:
        """Return the result of an operation. A response that an earlier attempt of this wake has streamed was
        retracted, and is streamed again.
        """
        value, has_run, is_of_wake = await self._operate(operation, body)
        record_durable_unit(executed=has_run)
        if operation.is_model:
            self._responses[current_number.get()] = is_of_wake
        if streams and is_of_wake and not has_run:
            for part in value["parts"]:
                if part["part_kind"] == "text" and part["content"]:
                    self.wake.stream(part["content"])
        return value

    def _note_response(self, messages: Sequence[ModelMessage], response: ModelResponse, tools: set[str]) -> None:
        """Append the calls of a response to the journal, and results before it that are not there."""
        calls = [call_of(part) for part in response.parts if isinstance(part, ToolCallPart) and part.tool_name in tools]
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        is_of_wake = self._responses.get(current_number.get(), False)
        self._note_turn(_results_in(messages), text, calls, is_of_wake=is_of_wake)


def _results_in(messages: Sequence[ModelMessage]) -> list[ToolResult]:
    """Return the results of calls that stand behind the last response."""
    found: list[ToolResult] = []
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            break
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                if part.outcome == "denied":
                    result: JsonValue = error_value("refused", str(part.content))
                else:
                    result = shown(part.content)
                found.append(ToolResult(part.tool_call_id, result, is_error=part.outcome != "success"))
    return found


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
        inputs: number and text of each message that a new run answers; None: the pending messages of the wake, behind
            its last interrupt.

    Raises:
        InvalidId, WakeMisuse, SessionError: see `affinity.Wake.run`.
        SessionWriteConflict, InvalidInput: see `affinity.Wake.step`.
    """
    async with opened(AgentRun, wake, name, inputs, transcript=transcript) as run:
        with external_event_scope(RequestWaiter(wake.conversation_id, run._run)), replay_scope():
            yield run


def run_here() -> AgentRun | None:
    """Return the run whose agent runs in this task, outside of the functions of its steps."""
    run = current_run.get()
    return run if isinstance(run, AgentRun) else None


def call_of(part: ToolCallPart) -> ToolCall:
    """Return a call, without arguments if the model gave no JSON object, which pydantic-ai has it correct."""
    try:
        arguments: dict[str, JsonValue] = part.args_as_dict()
    except (ValueError, AssertionError):
        arguments = {}
    return ToolCall(part.tool_name, part.tool_call_id, shown_arguments(arguments))
