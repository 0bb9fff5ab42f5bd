"""A conversation whose handler does what its inputs say, for tests with workers in this process and others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel, Field

import affinity
from affinity.conversation import AgentMessage, UserMessage

Handler = Callable[[affinity.Wake, "Chat"], Awaitable[None]]


class Chat(BaseModel):
    """The state: what the handler was given, in order."""

    received: list[str] = Field(default_factory=list)
    wakes: int = 0


async def echo(wake: affinity.Wake, chat: Chat) -> None:
    """Answer each message."""
    chat.wakes += 1
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.received.append(event.text)
            wake.append(AgentMessage(f"re: {event.text}"))


@dataclass
class Stage:
    """A worker, a client, and the conversations of a test."""

    url: str
    client: affinity.Client
    app: affinity.App
    conversations: affinity.Conversations[Chat]
    workers: list[affinity.Worker] = field(default_factory=list)

    def talk(
        self, name: str = "c", conversations: affinity.Conversations[Any] | None = None
    ) -> affinity.ConversationHandle:
        """The handle of a conversation."""
        return self.client.conversation(conversations or self.conversations, name)

    async def state(self, name: str = "c") -> Chat:
        """The state that is stored."""
        async with self.conversations.open(name, store=self.client.session_store) as chat:
            return chat.model_copy(deep=True)


def make(handler: Handler = echo, *, kind: str = "chat", **options: Any) -> affinity.Conversations[Chat]:
    """Conversations with this handler; options that `on_wake` has go there."""
    of_wake = {name: options.pop(name) for name in ("retry", "max_cycles", "timeout") if name in options}
    conversations = affinity.Conversations(Chat, kind=kind, **options)
    conversations.on_wake(**of_wake)(handler)
    return conversations


@asynccontextmanager
async def stage(
    url: str,
    handler: Handler | affinity.Conversations[Chat] = echo,
    *others: affinity.Conversations[Any] | affinity.App,
    workers: int = 1,
    options: affinity.RuntimeOptions | None = None,
    **rest: Any,
) -> AsyncIterator[Stage]:
    """Workers with these conversations, and a client."""
    conversations = handler if isinstance(handler, affinity.Conversations) else make(handler, **rest)
    app = affinity.App("conversations")
    for each in (conversations, *others):
        app.include(each)
    async with affinity.Client(url) as client:
        found = Stage(url, client, app, conversations)
        async with anyio.create_task_group() as group:
            for number in range(workers):
                worker = affinity.Worker(app, url, options or affinity.RuntimeOptions(worker_node_id=f"w{number}"))
                found.workers.append(worker)
                ready = anyio.Event()
                group.start_soon(_serve, worker, ready)
                await ready.wait()
            yield found
            group.cancel_scope.cancel()


async def _serve(worker: affinity.Worker, ready: anyio.Event) -> None:
    async with worker:
        ready.set()
        await anyio.sleep_forever()


async def until(check: Callable[[], Awaitable[Any]], *, seconds: float = 30.0) -> Any:
    """Wait until the check returns something true."""
    with anyio.fail_after(seconds):
        while not (found := await check()):
            await anyio.sleep(0.02)
        return found


def kinds(entries: Any) -> list[str]:
    """The kinds of entries."""
    return [each.kind for each in entries]


async def status(talk: affinity.ConversationHandle, expected: str) -> bool:
    """Whether the conversation has this status."""
    return await talk.status() == expected
