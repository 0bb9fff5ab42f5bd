"""Conversations whose handler runs an agent of pydantic-ai."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation

from affinity.conversation import Conversations, Wake
from affinity.errors import InvalidOptions
from affinity.integrations.agent_runs import (
    AgentService,
    RecordedRun,
    WaitingState,
    answer_messages,
    append_answer,
    served,
)
from affinity.integrations.pydantic_ai.durability import AffinityDurability
from affinity.integrations.pydantic_ai.runs import agent_run
from affinity.orchestration import RetryPolicy
from affinity.user_code import check_function

Deps = TypeVar("Deps")


class AgentState(WaitingState):
    """The state of a conversation with an agent. It stays in the memory of the worker that holds the conversation."""

    conversation: Conversation | None = None  # the messages and the usage of all runs that have ended


def agent_conversations(
    agent: Agent[Deps, Any],
    /,
    *,
    kind: str | None = None,
    deps: Callable[[Wake], Deps | Awaitable[Deps]] | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | timedelta | None = None,
    transcript: bool = True,
    **options: Any,
) -> Conversations[AgentState]:
    """Return conversations in which the agent answers each message, with the messages before it.

    The output is an `AgentMessage`: as it is if it is text, else as JSON, which is the result for a parent too
    (`affinity.Wake.finish`). Messages that come while the agent waits for an answer are read by its next run, together.

    Args:
        agent: has the capability `AffinityDurability`.
        kind: of the conversations; by default the name of the agent.
        deps: returns the dependencies of the agent, for each wake; async or sync.
        retry: when the handler raises; see `affinity.Conversations.on_wake`.
        timeout: seconds, or a timedelta, of one attempt of a wake.
        transcript: see `agent_run`.
        options: of `affinity.Conversations`.

    Raises:
        InvalidOptions: the agent is not durable, or see `affinity.Conversations`.
        InvalidLimit: see `affinity.Conversations`.
    """
    durability: AffinityDurability[Any] | None = AffinityDurability.from_agent(agent)
    if durability is None:
        raise InvalidOptions("the agent is not durable: Agent(..., capabilities=[AffinityDurability()])")
    if deps is not None:
        check_function(deps, "deps", "wake")
    conversations = Conversations(AgentState, kind=kind or durability.name, **options)

    async def respond(wake: Wake, state: AgentState) -> None:
        async def answer(inputs: Sequence[tuple[int, str]]) -> RecordedRun:
            async with agent_run(wake, transcript=transcript, inputs=inputs) as run:
                if not run.numbers:  # the run that waited is gone, such as by an import without it
                    return run
                given = {} if deps is None else {"deps": await _deps_of(deps, wake)}
                before = state.conversation or Conversation(conversation_id=wake.conversation_id)
                result = await agent.run(run.prompt, conversation=before, **given)
                state.conversation = result.conversation
                append_answer(wake, result.output)
            return run

        await answer_messages(wake, state, answer)

    conversations.on_wake(retry=retry, timeout=timeout)(respond)
    return conversations


@asynccontextmanager
async def agent_service(agent: Agent[Any, Any], url: str, /, **options: Any) -> AsyncIterator[AgentService[AgentState]]:
    """Run a worker for the agent in this process, with a client: the shortest way to a durable agent.

    ::

        async with agent_service(agent, "sqlite:///clerk.db") as clerk:
            print((await clerk.ask("chat-7", "Where is my order?")).text)

    Args:
        agent: has the capability `AffinityDurability`.
        url: of the database, which is migrated if it has to be.
        options: of `agent_conversations`.

    Raises:
        InvalidOptions, InvalidLimit: see `agent_conversations`.
        ProviderError: the database cannot be reached; see `affinity.Worker`.
    """
    async with served(agent_conversations(agent, **options), url) as service:
        yield service


async def _deps_of(deps: Callable[[Wake], Any], wake: Wake) -> Any:
    found = deps(wake)
    return await found if inspect.isawaitable(found) else found
