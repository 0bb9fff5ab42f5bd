"""The routes of the AI SDK: messages in, the UI message stream out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from affinity import ConversationHandle, errors
from affinity.audit import acting_where_kept
from affinity.conversation import (
    CustomToolUse,
    FeedItem,
    Heartbeat,
    JournalEntry,
    Reply,
    ToolConfirmation,
    ToolUse,
    UserMessage,
)
from affinity.integrations.web.answers import send_answers
from affinity.integrations.web.content import content_of
from affinity.integrations.web.http import KEEP_ALIVE, EventStream, Refused, event_line, read_body
from affinity.integrations.web.service import ChatService, check_action, conversation_id, problem_for_reader
from affinity.integrations.web.turns import (
    Input,
    Place,
    TurnItem,
    check_position,
    follow,
    inputs_at,
    pending_inputs,
    read_place,
)
from affinity.integrations.web.ui_chunks import GOES_ON, Chunk, UiChunks
from affinity.integrations.web.ui_messages import Message, Post, answers_in, read_turns, whole_turns
from affinity.limits import MAX_PAGE

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}

DONE: Final = event_line("[DONE]")

_DIGITS: Final = 20
"""Fewer digits than this has the number of an entry."""

_CALLS: Final = (ToolUse, CustomToolUse, ToolConfirmation)


class UiRoutes:
    """Answers the requests of the AI SDK's client."""

    def __init__(self, service: ChatService) -> None:
        self._service = service

    async def send(self, request: Request) -> Response:
        """Take a message, or the answers in one, and stream what belongs to it."""
        access = await self._service.access(request, "read")
        post = await read_body(request, Post)
        try:
            message = post.message
        except ValidationError:
            raise Refused(422, "the last message has no role, or a part without a type") from None
        if post.trigger == "regenerate-message":
            check_action(access, "converse")
            return await self._try_again(await self._service.known(request, access, post.id))
        if message.role == "user":
            check_action(access, "converse")
            event = _message_of(message)
            talk = await self._service.open(request, access, post.id)
            sent = Input(int(await talk.send(event, event_id=message.id)), message.id)
            return self._stream(talk, [sent], UiChunks(show_errors=self._service.show_errors))
        if message.role != "assistant" or not (answers := answers_in(message)):
            raise Refused(422, "the last message is not of the user, and has no answer to a request")
        check_action(access, "answer")
        talk = await self._service.known(request, access, post.id)
        with acting_where_kept(await self._service.client(request), access.user, source="web"):
            inputs = await send_answers(talk, answers)
        start = {"type": "start", "messageId": message.id}
        chunks = UiChunks(GOES_ON, show_errors=self._service.show_errors)
        return self._stream(talk, inputs, chunks, before=[start if message.id else {"type": "start"}])

    async def _try_again(self, talk: ConversationHandle) -> Response:
        """Let a conversation that has failed try again: all that a journal, which keeps what was said, has for it."""
        if await talk.status() != "failed":
            raise Refused(409, "an answer stays as it was given: fork the conversation to have another one")
        inputs = await pending_inputs(talk)
        await talk.resume()
        return self._stream(talk, inputs, UiChunks(show_errors=self._service.show_errors))

    async def resume(self, request: Request) -> Response:
        """Go on at a place; without one, give the message that is being written, from its beginning, or a 204."""
        access = await self._service.access(request, "read")
        talk = await self._service.known(request, access, conversation_id(request))
        if place := request.query_params.get("after") or request.headers.get("last-event-id"):
            return await self._go_on(talk, read_place(place))
        inputs = await pending_inputs(talk)
        if not inputs:
            return Response(status_code=204)
        return await self._replay(talk, inputs)

    async def _go_on(self, talk: ConversationHandle, place: Place) -> Response:
        inputs = await inputs_at(talk, place.inputs)
        await check_position(talk, place.position)
        calls = await talk.history(after=max(place.inputs[0] - 1, 0), kinds=_CALLS, limit=MAX_PAGE)
        chunks = UiChunks(place.state, calls=calls, show_errors=self._service.show_errors)
        return self._stream(talk, inputs, chunks, after=place.position, skip=place.skip)

    async def _replay(self, talk: ConversationHandle, inputs: Sequence[Input]) -> Response:
        """Stream a message from its beginning: entries of earlier wakes, if the inputs are answers, come first."""
        (first,) = await talk.history(after=inputs[0].seq - 1, limit=1)
        if isinstance(first.event, UserMessage):
            return self._stream(talk, inputs, UiChunks(show_errors=self._service.show_errors))
        entries = await talk.history(before=inputs[0].seq, limit=MAX_PAGE)
        turns = await read_turns(talk, entries, show_errors=self._service.show_errors)
        if not turns or turns[-1].role == "user":
            return self._stream(talk, inputs, UiChunks(show_errors=self._service.show_errors))
        message = turns[-1]
        before = [{"type": "start", "messageId": message.id}, *message.chunks, {"type": "finish-step"}]
        return self._stream(talk, inputs, UiChunks(GOES_ON, show_errors=self._service.show_errors), before=before)

    async def stop(self, request: Request) -> Response:
        """Interrupt the answer that is being given."""
        access = await self._service.access(request, "converse")
        talk = await self._service.known(request, access, conversation_id(request))
        with acting_where_kept(await self._service.client(request), access.user, source="web"):
            seq = await talk.interrupt(cancel_running=True)
        return JSONResponse({"seq": int(seq)}, 202)

    async def messages(self, request: Request) -> Response:
        """Return the messages of the newest entries, ``limit`` at most; or of those before the entry ``before``, as the
        ``next`` of a page says it.
        """
        access = await self._service.access(request, "read")
        talk = await self._service.known(request, access, conversation_id(request))
        before, limit = _number(request, "before", 0), _number(request, "limit", MAX_PAGE)
        found = await talk.history(before=before, limit=limit) if before else await talk.history(last=limit)
        entries = whole_turns(found)
        turns = await read_turns(talk, entries, show_errors=self._service.show_errors)
        next_before = entries[0].seq if entries and entries[0].seq > 1 else None
        return JSONResponse({"messages": [turn.to_message() for turn in turns], "next": next_before})

    def _stream(
        self,
        talk: ConversationHandle,
        inputs: Sequence[Input],
        chunks: UiChunks,
        *,
        before: Iterable[Chunk] = (),
        after: str = "0",
        skip: int = 0,
    ) -> Response:
        lines = self._lines(talk, inputs, chunks, before, after=after, skip=skip)
        return EventStream(lines, HEADERS)

    async def _lines(
        self,
        talk: ConversationHandle,
        inputs: Sequence[Input],
        chunks: UiChunks,
        before: Iterable[Chunk],
        *,
        after: str,
        skip: int,
    ) -> AsyncGenerator[str, None]:
        for chunk in before:
            yield event_line(chunk)
        try:
            async with aclosing(follow(talk, inputs, after=after, heartbeat=self._service.heartbeat)) as turn:
                async for step in turn:
                    if isinstance(step.item, Heartbeat):
                        yield KEEP_ALIVE
                    elif not isinstance(step.item, Reply):
                        for line in _lines_of(chunks, step, step.item, skip):
                            yield line
                        skip = 0
                    elif len(step.inputs) == 1:
                        for chunk in chunks.finish(step.item):
                            yield event_line(chunk)
        except errors.AffinityError as error:
            for chunk in _ended_by(error, show_errors=self._service.show_errors):
                yield event_line(chunk)
        yield DONE


def _number(request: Request, name: str, default: int) -> int:
    """Return a number that the address has.

    Raises:
        Refused: it is none.
    """
    given = request.query_params.get(name, "")
    if given and not (given.isascii() and given.isdigit() and len(given) < _DIGITS):
        raise Refused(422, f"{name}= is a number")
    return int(given or default)


def _lines_of(chunks: UiChunks, step: TurnItem, item: FeedItem, skip: int) -> Iterator[str]:
    """Yield the chunks of an item as server-sent events, each with the place behind it.

    Within an entry, a place is that before the entry, with the number of its chunks that were sent. Streamed output may
    be gone when a browser comes back, so there it is the state behind the chunk.
    """
    begin, is_entry = chunks.state, isinstance(item, JournalEntry)
    made = [(chunk, chunks.state) for chunk in chunks.read(item)]
    for number, (chunk, state) in enumerate(made, 1):
        if number <= skip:
            continue
        if number == len(made):
            place = Place(inputs=step.inputs, state=state, skip=0, position=step.after)
        elif is_entry:
            place = Place(inputs=step.inputs, state=begin, skip=number, position=step.before)
        else:
            place = Place(inputs=step.inputs, state=state, skip=0, position=step.before)
        yield event_line(chunk, event_id=str(place))


def _ended_by(error: errors.AffinityError, *, show_errors: bool) -> Iterator[Chunk]:
    """Yield the end of a stream that has no reply."""
    if isinstance(error, errors.ConversationTerminated | errors.UnknownConversation):
        yield {"type": "abort", "reason": problem_for_reader(error, show_errors=show_errors)}
    else:
        yield {"type": "error", "errorText": problem_for_reader(error, show_errors=show_errors)}


def _message_of(message: Message) -> UserMessage:
    """Return a message of the user.

    Raises:
        InvalidInput: it has no id, or something else than text and files.
    """
    if not message.id:
        raise errors.InvalidInput("the message has no id: by its id it is one message, however often it is sent")
    return UserMessage(content_of([part.model_dump() for part in message.parts]))
