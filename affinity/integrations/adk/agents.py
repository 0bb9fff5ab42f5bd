"""Conversations whose handler runs an agent of ADK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from google.adk.agents import BaseAgent, RunConfig
from google.adk.apps import App
from pydantic import Field, JsonValue

from affinity.conversation import Conversations, Wake
from affinity.integrations.adk.runs import adk_run
from affinity.integrations.agent_runs import (
    AgentService,
    RecordedRun,
    StepOptions,
    WaitingState,
    answer_messages,
    append_answer,
    served,
)
from affinity.orchestration import RetryPolicy


class ADKState(WaitingState):
    """The state of a conversation with an agent. It stays in the memory of the worker that holds the conversation."""

    events: list[dict[str, JsonValue]] = Field(default_factory=list)  # of the session, of all runs that have ended
    values: dict[str, JsonValue] = Field(default_factory=dict)  # the state of the session


def adk_conversations(
    agent: BaseAgent | App,
    /,
    *,
    kind: str | None = None,
    stream: bool = False,
    expires_in: float | timedelta | None = None,
    steps: Mapping[str, StepOptions] | None = None,
    run_config: RunConfig | None = None,
    services: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | timedelta | None = None,
    transcript: bool = True,
    **options: Any,
) -> Conversations[ADKState]:
    """Return conversations in which the agent answers each message, with the events before it.

    The text of its last answer is an `AgentMessage`. Messages that come while the agent waits for an answer are read by
    its next run, together.

    Args:
        agent: see `ADKRun.run`.
        kind: of the conversations; by default the name of the agent.
        stream: readers see the model's text as it comes. The model has to stream.
        expires_in: seconds, or a timedelta, after which a confirmation counts as refused. None: it waits forever.
        steps: options of the steps of tools, by their names.
        run_config: see ``Runner.run_async``.
        services: of ``Runner``, such as ``artifact_service`` and ``memory_service``.
        retry: when the handler raises; see `affinity.Conversations.on_wake`.
        timeout: seconds, or a timedelta, of one attempt of a wake.
        transcript: see `adk_run`.
        options: of `affinity.Conversations`.

    Raises:
        InvalidOptions, InvalidLimit: see `affinity.Conversations`.
    """
    conversations = Conversations(ADKState, kind=kind or agent.name, **options)

    async def respond(wake: Wake, state: ADKState) -> None:
        async def answer(inputs: Sequence[tuple[int, str]]) -> RecordedRun:
            async with adk_run(wake, transcript=transcript, inputs=inputs) as run:
                if not run.numbers:  # the run that waited is gone, such as by an import without it
                    return run
                result = await run.run(
                    agent,
                    run.prompt,
                    state=state,
                    stream=stream,
                    expires_in=expires_in,
                    steps=steps,
                    run_config=run_config,
                    **(services or {}),
                )
                append_answer(wake, result.text)
            return run

        await answer_messages(wake, state, answer)

    conversations.on_wake(retry=retry, timeout=timeout)(respond)
    return conversations


@asynccontextmanager
async def adk_service(agent: BaseAgent | App, url: str, /, **options: Any) -> AsyncIterator[AgentService[ADKState]]:
    """Run a worker for the agent in this process, with a client: the shortest way to a durable agent.

    ::

        async with adk_service(agent, "sqlite:///clerk.db") as clerk:
            print((await clerk.ask("chat-7", "Where is my order?")).text)

    Args:
        agent: see `ADKRun.run`.
        url: of the database, which is migrated if it has to be.
        options: of `adk_conversations`.

    Raises:
        InvalidOptions, InvalidLimit: see `adk_conversations`.
        ProviderError: the database cannot be reached; see `affinity.Worker`.
    """
    async with served(adk_conversations(agent, **options), url) as service:
        yield service
