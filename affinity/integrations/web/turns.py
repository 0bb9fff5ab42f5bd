"""What belongs to some inputs of a conversation, in order, and the place up to which a browser has read it.

A place is a text that the browser keeps: the id of a server-sent event. It has all that another web process needs to go
on: the inputs, the state of the translation, and the position in the journal and its streams. Nothing is kept here.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from affinity import ConversationHandle
from affinity.conversation import JournalEntry, ReplyItem
from affinity.errors import InvalidInput, UnknownEntry

MAX_INPUTS: Final = 100
"""Inputs that one stream follows: the newest ones, such as the answers to all requests of a message."""

_PLACE: Final = re.compile(r"([0-9]{1,19}(?:,[0-9]{1,19})*)~([012][-epc][-tr])~([0-9]{1,6})~([!-~]{1,2000})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a browser in a turn."""

    inputs: tuple[int, ...]  # numbers; the first of them is not answered yet
    state: str  # of `affinity.integrations.web.ui_chunks.UiChunks`
    skip: int  # chunks of the next item that the browser has
    position: str  # of `ReplyStream`

    def __str__(self) -> str:
        """Return the text that `read_place` reads: ASCII, without blanks."""
        inputs = ",".join(map(str, self.inputs))
        return f"{inputs}~{self.state}~{self.skip}~{quote(self.position, safe='@.-')}"


def read_place(text: str) -> Place:
    """Return the place with this text.

    Raises:
        InvalidInput: there is none.
    """
    found = _PLACE.fullmatch(text)
    if found is None or (numbers := found[1].split(","))[MAX_INPUTS:]:
        raise InvalidInput(f"{text!r:.80} is no place in a stream: give the id of an event of that stream")
    inputs = tuple(map(int, numbers))
    return Place(inputs=inputs, state=found[2], skip=int(found[3]), position=unquote(found[4]))


@dataclass(frozen=True, slots=True)
class Input:
    """An input that a turn follows."""

    seq: int  # its number
    event_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnItem:
    """An item of a turn."""

    item: ReplyItem
    inputs: tuple[int, ...]  # those that are not answered before it
    before: str  # position before the item
    after: str


async def follow(
    talk: ConversationHandle, inputs: Sequence[Input], *, after: str = "0", heartbeat: float
) -> AsyncGenerator[TurnItem, None]:
    """Yield what the wakes write that read these inputs, up to the `Reply` to the last of them.

    Args:
        talk: the conversation.
        inputs: oldest first.
        after: position of an earlier item, or "0".
        heartbeat: seconds after which a wait gives a `Heartbeat`.

    Raises:
        ClientError: see `ConversationHandle.stream_reply`.
    """
    position = after
    for number, wanted in enumerate(inputs):
        left = tuple([each.seq for each in inputs[number:]])
        async with talk.stream_reply(event_id=wanted.event_id, after=position, heartbeat=heartbeat) as stream:
            async for item in stream:
                before, position = position, stream.position
                yield TurnItem(item=item, inputs=left, before=before, after=position)


async def inputs_at(talk: ConversationHandle, numbers: Sequence[int]) -> Sequence[Input]:
    """Return the inputs with these numbers.

    Raises:
        UnknownEntry: an entry is gone, or is not an input that a client has sent.
        InvalidInput: a number is out of range.
    """
    found: list[Input] = []
    for number in numbers:
        entries = await talk.history(after=max(number - 1, 0), limit=1)
        if not entries or entries[0].seq != number or entries[0].wake_id or entries[0].event_id is None:
            raise UnknownEntry(talk.conversation_id, f"its journal has no input {number}")
        found += _inputs(entries)
    return found


async def pending_inputs(talk: ConversationHandle) -> Sequence[Input]:
    """Return the inputs that no wake has processed, oldest first, and the newest `MAX_INPUTS` at most."""
    return _inputs(await talk.history(pending=True, last=MAX_INPUTS))


def _inputs(entries: Sequence[JournalEntry]) -> list[Input]:
    return [Input(entry.seq, entry.event_id) for entry in entries if entry.event_id is not None]


async def check_position(talk: ConversationHandle, position: str) -> None:
    """Read one item behind a position, so that one that cannot be read is refused before a stream begins.

    Raises:
        InvalidInput: it is no position.
        UnknownEntry: it is of another conversation, or what follows it is gone.
    """
    async with talk.events(after=position) as feed:
        await anext(feed, None)
