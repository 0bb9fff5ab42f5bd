"""A run of agents of the SDK over several wakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from agents import Agent, RunConfig, Runner, RunResult, TResponseInputItem
from agents.items import ToolApprovalItem

from affinity.conversation import ToolConfirmation, Wake
from affinity.errors import WakeMisuse
from affinity.integrations.agent_runs import REFUSED, StepOptions, ToolCall, current_number, opened, put, together
from affinity.integrations.openai_agents.copies import AgentCopies, durable_config
from affinity.integrations.openai_agents.recording import StepsOfRun, arguments_of
from affinity.integrations.openai_agents.servers import Servers


class OpenAIRun(StepsOfRun):
    """A run of an agent over one wake, or several: see `openai_run`.

    Attributes:
        wake: in which it goes on now.
        prompt: the text of the messages that it answers, recorded when it began.
        numbers: of the entries of these messages.
    """

    async def run(
        self,
        agent: Agent[Any],
        input: str | list[TResponseInputItem],
        /,
        *,
        stream: bool = False,
        expires_in: float | timedelta | None = None,
        steps: Mapping[str, StepOptions] | None = None,
        run_config: RunConfig | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent to its end, as ``Runner.run`` does. For a tool that needs an approval, a person is asked by a
        `ToolConfirmation`; without an answer this leaves the block of the run.

        Args:
            agent: is not changed: a copy runs, with its tools, guardrails and handoffs.
            input: the same in each wake.
            stream: readers see the model's text as it comes. The model has to stream.
            expires_in: seconds, or a timedelta, after which an approval counts as refused. None: it waits forever.
            steps: options of the steps of tools, by their names.
            run_config: see ``Runner.run``.
            options: others of ``Runner.run``, such as ``session`` and ``context``.

        Raises:
            NotSerializable, PayloadTooLarge: a result cannot be recorded; the message names the tool.
            WakeMisuse: an agent that is a tool asks for an approval.
            Exception: of the SDK, or see `affinity.Wake.step`.
        """
        config, self._streams = durable_config(run_config), stream
        async with AsyncExitStack() as stack:
            copies = AgentCopies(self, steps or {}, Servers(self, stack))
            copy = copies.of(agent)
            stack.enter_context(put(current_number, self._next("run")))
            result = await self._to_end(copy, input, run_config=config, **options)
            while result.interruptions:
                state = result.to_state()
                answers = await self._ask_people(result.interruptions, copies, expires_in)
                for item, (is_allowed, reason) in zip(result.interruptions, answers, strict=True):
                    state.approve(item) if is_allowed else state.reject(item, rejection_message=reason or None)
                result = await self._to_end(copy, state, run_config=config, **options)
        return copies.restored(result)

    async def _to_end(self, agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        try:
            return await Runner.run(agent, input, **options)
        finally:
            if (fatal := self._fatal) is not None:
                self._fatal = None
                raise fatal

    async def _ask_people(
        self, items: Sequence[ToolApprovalItem], copies: AgentCopies, expires_in: float | timedelta | None
    ) -> list[tuple[bool, str]]:
        answers: dict[int, tuple[bool, str]] = {}

        async def ask(place: int, item: ToolApprovalItem) -> None:
            if not copies.has(item.agent):
                raise WakeMisuse(
                    f"agent {item.agent.name!r}, which is a tool, asks for an approval of {item.name!r}: its run is "
                    "one step, so make it a handoff"
                )
            call = ToolCall(item.name or "", _call_id(item.raw_item), arguments_of(item.arguments))
            request = ToolConfirmation(call.tool, call.arguments, tool_use_id=call.tool_use_id)
            answer = await self._run.require(request, expires_in=expires_in)
            answers[place] = (answer.allowed, answer.reason)
            if not answer.allowed:
                self._note_error(call.tool_use_id, "refused", answer.reason or REFUSED)

        await together([ask(place, item) for place, item in enumerate(items)])
        return [answers[place] for place in range(len(items))]


@asynccontextmanager
async def openai_run(
    wake: Wake,
    name: str = "agent",
    /,
    *,
    transcript: bool = True,
    inputs: Sequence[tuple[int, str]] | None = None,
) -> AsyncIterator[OpenAIRun]:
    """Run agents in the block, durably: what they have done is not done again, neither after a crash nor in the wake
    that goes on when a person has answered.

    ::

        async with openai_run(wake) as run:
            result = await run.run(agent, run.prompt)
            wake.append(AgentMessage(result.final_output))

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
    async with opened(OpenAIRun, wake, name, inputs, transcript=transcript) as run:
        yield run
        run._keep_sessions()


def _call_id(raw: Any) -> str:
    return str((raw.get("call_id") if isinstance(raw, dict) else getattr(raw, "call_id", None)) or "")
