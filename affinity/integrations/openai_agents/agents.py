"""Conversations whose handler runs an agent of the SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from agents import Agent, RunConfig
from pydantic import Field, JsonValue

from affinity.conversation import Conversations, Wake
from affinity.integrations.agent_runs import (
    AgentService,
    RecordedRun,
    StepOptions,
    WaitingState,
    answer_messages,
    append_answer,
    served,
)
from affinity.integrations.openai_agents.copies import called
from affinity.integrations.openai_agents.runs import openai_run
from affinity.integrations.openai_agents.session import StateSession
from affinity.orchestration import RetryPolicy
from affinity.user_code import check_function


class OpenAIState(WaitingState):
    """The state of a conversation with an agent. It stays in the memory of the worker that holds the conversation."""

    items: list[dict[str, JsonValue]] = Field(default_factory=list)  # of all runs that have ended


def openai_conversations(
    agent: Agent[Any],
    /,
    *,
    kind: str | None = None,
    context: Callable[[Wake], Any] | None = None,
    stream: bool = False,
    expires_in: float | timedelta | None = None,
    steps: Mapping[str, StepOptions] | None = None,
    run_config: RunConfig | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | timedelta | None = None,
    transcript: bool = True,
    **options: Any,
) -> Conversations[OpenAIState]:
    """Return conversations in which the agent answers each message, with the items before it.

    The output is an `AgentMessage`: as it is if it is text, else as JSON, which is the result for a parent too
    (`affinity.Wake.finish`). Messages that come while the agent waits for an answer are read by its next run, together.

    Args:
        agent: see `OpenAIRun.run`.
        kind: of the conversations; by default the name of the agent.
        context: returns the context of the agent, for each wake; async or sync.
        stream: readers see the model's text as it comes. The model has to stream.
        expires_in: seconds, or a timedelta, after which an approval counts as refused. None: it waits forever.
        steps: options of the steps of tools, by their names.
        run_config: see ``Runner.run``.
        retry: when the handler raises; see `affinity.Conversations.on_wake`.
        timeout: seconds, or a timedelta, of one attempt of a wake.
        transcript: see `openai_run`.
        options: of `affinity.Conversations`.

    Raises:
        InvalidOptions, InvalidLimit: see `affinity.Conversations`.
    """
    if context is not None:
        check_function(context, "context", "wake")
    conversations = Conversations(OpenAIState, kind=kind or agent.name, **options)

    async def respond(wake: Wake, state: OpenAIState) -> None:
        async def answer(inputs: Sequence[tuple[int, str]]) -> RecordedRun:
            async with openai_run(wake, transcript=transcript, inputs=inputs) as run:
                if not run.numbers:  # the run that waited is gone, such as by an import without it
                    return run
                result = await run.run(
                    agent,
                    run.prompt,
                    stream=stream,
                    expires_in=expires_in,
                    steps=steps,
                    run_config=run_config,
                    session=StateSession(wake.conversation_id, state),
                    context=None if context is None else await called(context, wake),
                )
                append_answer(wake, result.final_output)
            return run

        await answer_messages(wake, state, answer)

    conversations.on_wake(retry=retry, timeout=timeout)(respond)
    return conversations


@asynccontextmanager
async def openai_service(agent: Agent[Any], url: str, /, **options: Any) -> AsyncIterator[AgentService[OpenAIState]]:
    """Run a worker for the agent in this process, with a client: the shortest way to a durable agent.

    ::

        async with openai_service(agent, "sqlite:///clerk.db") as clerk:
            print((await clerk.ask("chat-7", "Where is my order?")).text)

    Args:
        agent: see `OpenAIRun.run`.
        url: of the database, which is migrated if it has to be.
        options: of `openai_conversations`.

    Raises:
        InvalidOptions, InvalidLimit: see `openai_conversations`.
        ProviderError: the database cannot be reached; see `affinity.Worker`.
    """
    async with served(openai_conversations(agent, **options), url) as service:
        yield service
