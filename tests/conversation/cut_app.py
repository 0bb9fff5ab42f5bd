"""Conversations whose worker dies where a message says: before or after one particular call of the database."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Final

from affinity import App, Conversations, Wake
from affinity.conversation import AgentMessage, ChildEnded, JournalEntry, ToolConfirmation, UserMessage, program
from affinity.provider.postgres.provider import PostgresProvider
from affinity.provider.sqlite.provider import SqliteProvider
from tests.conversation.application import Chat

KIND: Final = "cut"

MATCHES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "fetch": ("fetch_work_item", lambda found: bool(found.items)),
    "commit": ("commit_turn", lambda turns: any(turn.parts for turn in turns)),
    "ack": ("ack_work_item", lambda acks: any(ack.parts for ack in acks)),
    "continue": ("commit_turn", lambda turns: any(turn.update and turn.update.continued for turn in turns)),
}
"""By name: a call, and a condition on its result (of a fetch) or its requests (of the others)."""

conversations = Conversations(Chat, kind=KIND)
armed: list[str] = []
"""Where this process ends."""


@conversations.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    """Answer; a message "cut NAME before" or "cut NAME after" sets where this process ends, unless it has done so.
    With " all" behind it, the wake does all that it can.
    """
    for event in wake.events:
        if isinstance(event, ChildEnded):
            wake.append(AgentMessage("the child has ended"))
        if not isinstance(event, UserMessage):
            continue
        chat.received.append(event.text)
        wake.append(AgentMessage(f"re: {event.text}"))
        if event.text.startswith("cut ") and wake.context.attempt == 1:
            armed.append(event.text.removeprefix("cut ").removesuffix(" all"))
        if event.text.endswith(" all"):
            await do_everything(wake)
    for revisit in wake.due:
        wake.append(AgentMessage(f"due: {revisit.key}"))


async def do_everything(wake: Wake) -> None:
    """All that commits with a wake."""
    await wake.fork("fork")
    await wake.fork("beside", beside=True)
    await wake.detach("detached")
    await wake.merge("left", "right", into="merged")
    await wake.compress(into="short", summarise=summarise)
    await wake.delegate(conversations, "child", UserMessage("work"))
    wake.revisit(0.05, key="soon")
    wake.require(ToolConfirmation(tool="t", arguments={}))


async def summarise(entries: Sequence[JournalEntry]) -> str:
    """How much there was."""
    return f"{len(entries)} entries"


def cut(provider: type, name: str) -> None:
    """Have this call of this provider end the process when that is armed."""
    verb, matches = MATCHES[name]
    original = getattr(provider, verb)

    async def call(self: Any, identity: Any, requests: Any, *args: Any, **options: Any) -> Any:
        if f"{name} before" in armed and matches(requests):
            os.kill(os.getpid(), signal.SIGKILL)
        result = await original(self, identity, requests, *args, **options)
        if f"{name} after" in armed and matches(result if name == "fetch" else requests):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(provider, verb, call)


for each in MATCHES:
    cut(PostgresProvider, each)
    cut(SqliteProvider, each)
program.WAKES_PER_EXECUTION = 3  # type: ignore[misc]

app = App("cut")
app.include(conversations)
