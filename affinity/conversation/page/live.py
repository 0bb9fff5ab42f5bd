"""The text that running wakes stream, sent to browsers as it comes.

A conversation on screen has one feed, however many browsers show it. The feed waits for notices of changes with all
other readers of the client, and shares their poll once a second. Each browser gets the text that it does not have yet.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio

from affinity.console.pages.base import Pieces, Query, Silence
from affinity.console.payloads import MAX_SHOWN, Payloads
from affinity.console.rendering import visible
from affinity.conversation import Retracted
from affinity.conversation.client import ConversationCalls
from affinity.conversation.follow import FeedItem
from affinity.conversation.page.reads import handle_of, part_text
from affinity.conversation.stream import StreamItem
from affinity.errors import AffinityError, PayloadUnreadable, UnknownConversation

PAUSE: Final = 0.05
"""Seconds between two pieces for one browser; faster output is merged."""

RETRY_SECONDS: Final = 1.0
"""The delay after an error of the feed."""


class Said:
    """The text that the wake of one conversation streams."""

    def __init__(self) -> None:
        self.text: str = ""
        """Redacted, as it is shown."""
        self.state: str = "said"
        """Or "replaced" by entries, or "retracted" without."""
        self.number: int = 0
        """Count of changes."""
        self.followers: int = 0
        self.task: asyncio.Task[None]
        self._raw = ""
        self._changed = asyncio.Event()

    async def follow(self, client: ConversationCalls, conversation_id: str, payloads: Callable[[], Payloads]) -> None:
        """Read the feed until the task is cancelled, the conversation has ended, or something cannot be decoded."""
        while True:
            try:
                await self._read(client, conversation_id, payloads)
            except UnknownConversation:
                return
            except PayloadUnreadable as error:  # this process has not its key
                self._replace(f"({error})")
                return
            except AffinityError:  # a failover, retention, a database that does not answer: begin again
                await anyio.sleep(RETRY_SECONDS)
            else:
                return

    async def _read(self, client: ConversationCalls, conversation_id: str, payloads: Callable[[], Payloads]) -> None:
        found = await client.get_conversation(conversation_id)
        show = partial(_show, payloads, found.kind)
        talk = handle_of(client, conversation_id, found.kind)
        async with talk.events(after=found.last_seq, follow=True) as feed:
            async for item in feed:
                self.take(item, show)

    def take(self, item: FeedItem, show: Callable[[str], str]) -> None:
        """Add the next item of the feed; ``show`` redacts."""
        if isinstance(item, Retracted):
            self.state = "replaced" if item.replaced else "retracted"
        elif isinstance(item, StreamItem):
            self._raw = part_text(item) if self.state != "said" else self._raw + part_text(item)[:MAX_SHOWN]
            self._raw, self.state = self._raw[: MAX_SHOWN + 1], "said"
            self.text = show(self._raw)
        else:
            return
        self._notify()

    def _replace(self, text: str) -> None:
        self.state, self.text, self._raw = "said", text, ""
        self._notify()

    def _notify(self) -> None:
        self.number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for the next change, at most this long."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()


def _show(payloads: Callable[[], Payloads], kind: str, text: str) -> str:
    return str(visible(payloads().show("stream", "stream", kind, text).text))


class SaidPieces:
    """The pieces of the text for one browser."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._number = 0
        self._text: str | None = None  # that the browser has

    async def during(self, seconds: float) -> AsyncIterator[str]:
        """Return the pieces that come in this time, as server-sent events."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while (left := until - clock()) > 0:
            if self._said.number == self._number:
                await self._said.wait(left)
            else:
                yield f"event: stream\ndata: {json.dumps(self._piece(self._said))}\n\n"
                await anyio.sleep(min(PAUSE, left))

    def _piece(self, said: Said) -> dict[str, str]:
        known, self._text, self._number = self._text, said.text, said.number
        if known is not None and said.text.startswith(known):
            return {"state": said.state, "more": said.text[len(known) :]}
        return {"state": said.state, "text": said.text}


class SaidNow:
    """The texts of all conversations on screen."""

    def __init__(self, payloads: Callable[[], Payloads]) -> None:
        self._payloads = payloads
        self._found: dict[str, Said] = {}

    @asynccontextmanager
    async def follow(self, client: ConversationCalls, query: Query) -> AsyncIterator[Pieces]:
        """Follow the conversation that the address names, within the block."""
        conversation_id = query.get("id")
        if not conversation_id:
            yield Silence()
            return
        said = self._found.get(conversation_id)
        if said is None:
            said = self._found[conversation_id] = Said()
            said.task = asyncio.create_task(said.follow(client, conversation_id, self._payloads))
        said.followers += 1
        try:
            yield SaidPieces(said)
        finally:
            said.followers -= 1
            if not said.followers:
                del self._found[conversation_id]
                said.task.cancel()
