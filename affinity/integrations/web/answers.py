"""Answers to requests: approvals, and results of tools that the browser runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from affinity import ConversationHandle
from affinity.conversation import ConfirmationAnswer, CustomToolResult, CustomToolUse, PendingRequest
from affinity.errors import RequestNotPending, UnknownEntry
from affinity.integrations.web.content import call_of
from affinity.integrations.web.turns import Input


@dataclass(frozen=True, slots=True)
class PostedAnswer:
    """An answer that a message has."""

    request: str  # its id, or the id of the call that the browser has run
    answer: Mapping[str, Any]  # arguments of `ConversationHandle.answer`

    @property
    def event_id(self) -> str:
        """The id under which it is one answer. Ids of requests may leave no room for more."""
        return f"web/{sha256(self.request.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


async def send_answers(talk: ConversationHandle, answers: Sequence[PostedAnswer]) -> Sequence[Input]:
    """Send the answers to requests that wait for one. One that was sent before is not sent again.

    Returns:
        The inputs, oldest first.

    Raises:
        RequestNotPending: no request waits for one of these answers, or was answered by it.
        ClientError: see `ConversationHandle.answer`.
    """
    waiting = {name: request for request in await talk.requests() for name in _names(request)}
    found: list[Input] = []
    for posted in answers:
        if (request := waiting.get(posted.request)) is not None:
            seq = await talk.answer(request.request_id, event_id=posted.event_id, **posted.answer)
            found.append(Input(int(seq), posted.event_id))
        elif (sent := await _sent_before(talk, posted)) is not None:
            found.append(Input(sent, posted.event_id))
    if not found:
        raise RequestNotPending(talk.conversation_id, "no request waits for these answers: load the messages again")
    return sorted(found, key=lambda each: each.seq)


def _names(request: PendingRequest[Any]) -> Sequence[str]:
    """Return the names of a request in a message: its id, and that of the call that the browser runs."""
    return [request.request_id, *([call_of(request.event)] if isinstance(request.event, CustomToolUse) else [])]


async def _sent_before(talk: ConversationHandle, posted: PostedAnswer) -> int | None:
    """Return the number of the answer if it was sent before; None: it was not."""
    try:
        (entry,) = await talk.history(around=posted.event_id, limit=1)
    except UnknownEntry:
        return None
    event = entry.event
    same = isinstance(event, ConfirmationAnswer) and event.allowed == posted.answer.get("allowed")
    return entry.seq if same or isinstance(event, CustomToolResult) else None
