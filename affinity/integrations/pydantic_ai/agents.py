"""Conversations whose handler runs an agent of pydantic-ai."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_core import to_json, to_jsonable_python

from affinity.composed.app import App
from affinity.composed.client import Client
from affinity.composed.worker import Worker
from affinity.conversation import AgentMessage, ConversationHandle, Conversations, Reply, UserMessage, Wake
from affinity.errors import InvalidOptions
from affinity.integrations.pydantic_ai.durability import AffinityDurability
from affinity.integrations.pydantic_ai.runs import agent_run, messages_of
from affinity.orchestration import RetryPolicy

Deps = TypeVar("Deps")


class AgentState(BaseModel):
    """The state of a conversation with an agent. It stays in the memory of the worker that holds the conversation."""

    conversation: Conversation | None = None  # the messages and the usage of all runs that have ended
    waiting: list[tuple[int, str]] = Field(default_factory=list)  # messages that came while the agent waited
    is_paused: bool = False  # a run waits for an answer


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
    conversations = Conversations(AgentState, kind=kind or durability.name, **options)

    async def respond(wake: Wake, state: AgentState) -> None:
        left = messages_of(wake) if wake.interrupt is not None else [*state.waiting, *messages_of(wake)]
        is_paused = state.is_paused and wake.interrupt is None
        while left or is_paused:
            async with agent_run(wake, transcript=transcript, inputs=left) as run:
                given = {} if deps is None else {"deps": await _deps_of(deps, wake)}
                before = state.conversation or Conversation(conversation_id=wake.conversation_id)
                result = await agent.run(run.prompt, conversation=before, **given)
                state.conversation = result.conversation
                _answer(wake, result.output)
            left = [each for each in left if each[0] not in run.numbers]
            is_paused = run.is_paused
            if is_paused:
                break
        state.waiting, state.is_paused = left, is_paused

    conversations.on_wake(retry=retry, timeout=timeout)(respond)
    return conversations


@dataclass(frozen=True, kw_only=True)
class AgentService:
    """A durable agent that runs in this process: see `agent_service`."""

    client: Client
    conversations: Conversations[AgentState]

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
async def agent_service(agent: Agent[Any, Any], url: str, /, **options: Any) -> AsyncIterator[AgentService]:
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
    conversations = agent_conversations(agent, **options)
    app = App(conversations.kind)
    app.include(conversations)
    async with Worker(app, url), Client(url) as client:
        yield AgentService(client=client, conversations=conversations)


async def _deps_of(deps: Callable[[Wake], Any], wake: Wake) -> Any:
    found = deps(wake)
    return await found if inspect.isawaitable(found) else found


def _answer(wake: Wake, output: object) -> None:
    if isinstance(output, str):
        wake.append(AgentMessage(output))
    else:
        wake.append(AgentMessage(to_json(output).decode()))
        wake.finish(to_jsonable_python(output))
