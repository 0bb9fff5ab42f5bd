"""What the wakes of conversations say now, pushed as it comes to all browsers that look.

A conversation that is looked at has one feed, however many browsers look. It waits for notices of changes with all
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

from affinity.composed.client import Client
from affinity.console.pages.conversations import handle_of, part_text
from affinity.console.payloads import MAX_SHOWN, Payloads
from affinity.console.rendering import visible
from affinity.conversation import Retracted
from affinity.conversation.follow import FeedItem
from affinity.conversation.stream import StreamItem
from affinity.errors import AffinityError, UnknownConversation

PAUSE: Final = 0.05
"""Seconds between two pieces for one browser: faster output is sent together."""

RETRY_SECONDS: Final = 1.0
"""After an error of the feed."""


class Said:
    """What the wake of one conversation says."""

    def __init__(self) -> None:
        self.text: str = ""
        """As it is shown."""
        self.state: str = "said"
        """Or "replaced" by entries, or "retracted" without."""
        self.number: int = 0
        """Of changes."""
        self.followers: int = 0
        self.task: asyncio.Task[None]
        self._raw = ""
        self._changed = asyncio.Event()

    async def follow(self, client: Client, conversation_id: str, payloads: Callable[[], Payloads]) -> None:
        """Note what is said, until cancelled or the conversation has ended."""
        while True:
            try:
                await self._read(client, conversation_id, payloads)
            except UnknownConversation:
                return
            except AffinityError:  # a failover, retention, a database that does not answer: begin again
                await anyio.sleep(RETRY_SECONDS)
            else:
                return

    async def _read(self, client: Client, conversation_id: str, payloads: Callable[[], Payloads]) -> None:
        found = await client.get_conversation(conversation_id)
        show = partial(_show, payloads, found.kind)
        talk = handle_of(client, conversation_id, found.kind)
        async with talk.events(after=found.last_seq, follow=True) as feed:
            async for item in feed:
                self.take(item, show)

    def take(self, item: FeedItem, show: Callable[[str], str]) -> None:
        """Note the next item of the feed; ``show`` redacts."""
        if isinstance(item, Retracted):
            self.state = "replaced" if item.replaced else "retracted"
        elif isinstance(item, StreamItem):
            self._raw = part_text(item) if self.state != "said" else self._raw + part_text(item)[:MAX_SHOWN]
            self._raw, self.state = self._raw[: MAX_SHOWN + 1], "said"
            self.text = show(self._raw)
        else:
            return
        self.number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait(self, seconds: float) -> None:
        """Wait for the next change, so long at most."""
        with anyio.move_on_after(seconds):
            await self._changed.wait()


def _show(payloads: Callable[[], Payloads], kind: str, text: str) -> str:
    return str(visible(payloads().show("stream", "stream", kind, text).text))


class SaidPieces:
    """The pieces for one browser."""

    def __init__(self, said: Said | None) -> None:
        self._said = said
        self._number = 0
        self._text: str | None = None  # that the browser has

    async def during(self, seconds: float) -> AsyncIterator[str]:
        """The pieces that come in this time, as server-sent events."""
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        while (left := until - clock()) > 0:
            if self._said is None:
                await anyio.sleep(left)
            elif self._said.number == self._number:
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
    """What is said in all conversations that are looked at."""

    def __init__(self, payloads: Callable[[], Payloads]) -> None:
        self._payloads = payloads
        self._found: dict[str, Said] = {}

    @asynccontextmanager
    async def follow(self, client: Client, conversation_id: str | None) -> AsyncIterator[SaidPieces]:
        """The pieces of a conversation, within the block; None: there are none."""
        if conversation_id is None:
            yield SaidPieces(None)
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
