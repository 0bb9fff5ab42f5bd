"""The routes of AG-UI: a run in, its events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field, JsonValue
from starlette.requests import Request
from starlette.responses import Response

from affinity import ConversationHandle, errors
from affinity.audit import acting_where_kept
from affinity.conversation import CustomToolUse, Heartbeat, JournalEntry, Reply, ToolConfirmation, UserMessage
from affinity.integrations.web.access import ChatAccess
from affinity.integrations.web.ag_ui_events import (
    MESSAGES,
    SNAPSHOT,
    AgUiEvents,
    Event,
    finished,
    interrupts_of,
    messages_of,
)
from affinity.integrations.web.answers import PostedAnswer, send_answers
from affinity.integrations.web.http import KEEP_ALIVE, EventStream, Refused, event_line, read_body
from affinity.integrations.web.service import ChatService, check_action, conversation_id, problem_for_reader
from affinity.integrations.web.turns import Input, follow, pending_inputs
from affinity.limits import MAX_PAGE
from affinity.tasks import call_here

StateFunction: TypeAlias = Callable[[ConversationHandle], JsonValue | Awaitable[JsonValue]]
"""Gives the state of a conversation for the browser; None: it has none."""

PROTOCOL: Literal["1.0"] = "1.0"


class RunMessage(BaseModel):
    """A message of a run; messages of a user are read, the last one alone."""

    id: str
    role: str
    content: str | list[dict[str, Any]] | None = None


class ResumeEntry(BaseModel):
    """The answer to an interrupt."""

    interruptId: str  # noqa: N815 -- a name of AG-UI, as those below
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class RunInput(BaseModel):
    """The body that ``HttpAgent`` sends."""

    threadId: str  # noqa: N815
    runId: str  # noqa: N815
    messages: list[RunMessage] = Field(default_factory=list)
    resume: list[ResumeEntry] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run that is streamed."""

    talk: ConversationHandle
    name: str
    inputs: Sequence[Input]
    is_whole: bool  # begin with a snapshot: the browser may have some of it already


class AgUiRoutes:
    """Answers the requests of AG-UI's client. ``state``: see `affinity.integrations.web.create_chat`."""

    def __init__(self, service: ChatService, state: StateFunction | None) -> None:
        self._service, self._state = service, state

    async def run(self, request: Request) -> Response:
        """Take a message, or answers to interrupts, and stream the run. Without either, stream the run under way."""
        access = await self._service.access(request, "read")
        body = await read_body(request, RunInput)
        if body.resume:
            return await self._resume(request, access, body)
        last = body.messages[-1] if body.messages else None
        if last is not None and last.role == "user":
            return await self._say(request, access, body, last)
        if last is not None and last.role == "tool":
            raise Refused(422, "results of tools come as resume entries: each is the answer to an interrupt")
        talk = await self._service.known(request, access, body.threadId)
        return self._stream(_Run(talk=talk, name=body.runId, inputs=await pending_inputs(talk), is_whole=True))

    async def attach(self, request: Request) -> Response:
        """Stream all messages, and the run under way: for a page that was loaded again."""
        access = await self._service.access(request, "read")
        talk = await self._service.known(request, access, conversation_id(request))
        inputs = await pending_inputs(talk)
        name = request.query_params.get("runId") or f"run-{inputs[-1].seq if inputs else 0}"
        return self._stream(_Run(talk=talk, name=name, inputs=inputs, is_whole=True))

    async def _say(self, request: Request, access: ChatAccess, body: RunInput, message: RunMessage) -> Response:
        check_action(access, "converse")
        event = UserMessage(_content(message))
        talk = await self._service.open(request, access, body.threadId)
        is_whole = await _is_known(talk, message.id)
        sent = Input(int(await talk.send(event, event_id=message.id)), message.id)
        return self._stream(_Run(talk=talk, name=body.runId, inputs=[sent], is_whole=is_whole))

    async def _resume(self, request: Request, access: ChatAccess, body: RunInput) -> Response:
        check_action(access, "answer")
        talk = await self._service.known(request, access, body.threadId)
        requests = {each.request_id: each.event for each in await talk.requests()}
        answers = [_answer(entry, requests.get(entry.interruptId)) for entry in body.resume]
        with acting_where_kept(await self._service.client(request), access.user, source="web"):
            inputs = await send_answers(talk, answers)
        return self._stream(_Run(talk=talk, name=body.runId, inputs=inputs, is_whole=False))

    def _stream(self, run: _Run) -> Response:
        return EventStream(self._lines(run))

    async def _lines(self, run: _Run) -> AsyncGenerator[str, None]:
        about = {"threadId": run.talk.conversation_id, "runId": run.name}
        yield event_line({"type": "RUN_STARTED", **about, "protocolVersion": PROTOCOL})
        events = AgUiEvents(show_errors=self._service.show_errors)
        try:
            async with aclosing(self._events(run, events)) as found:
                async for event in found:
                    yield KEEP_ALIVE if event is None else event_line(event)
        except (errors.ConversationTerminated, errors.UnknownConversation):
            for event in events.close():
                yield event_line(event)
            yield event_line({"type": "RUN_FINISHED", **about, "outcome": {"type": "cancelled"}})
        except errors.AffinityError as error:
            text = problem_for_reader(error, show_errors=self._service.show_errors)
            yield event_line({"type": "RUN_ERROR", "message": text, "code": type(error).__name__})

    async def _events(self, run: _Run, events: AgUiEvents) -> AsyncGenerator[Event | None, None]:
        """Yield the events of a run behind its start; None where nothing has come for a while."""
        last = run.inputs[0].seq if run.inputs else None  # number of the last entry that the browser has
        reply: Reply | None = None
        if run.is_whole:
            yield await self._snapshot(run.talk, last)
        state = await self._read_state(run.talk)
        if state is not None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": state}
        async with aclosing(follow(run.talk, run.inputs, heartbeat=self._service.heartbeat)) as turn:
            async for step in turn:
                match step.item:
                    case Heartbeat():
                        yield None
                    case Reply():
                        reply = step.item
                    case item:
                        for event in events.read(item):
                            yield await self._snapshot(run.talk, last) if event is SNAPSHOT else event
                        last = max(item.seq, last or 0) if isinstance(item, JournalEntry) else last
        before, state = state, await self._read_state(run.talk)
        if state is not None and state != before:
            yield {"type": "STATE_SNAPSHOT", "snapshot": state}
        waits = reply is None or reply.requires_action
        requests = await run.talk.requests() if waits else []
        yield finished(run.talk.conversation_id, run.name, reply, interrupts_of(requests))

    async def _snapshot(self, talk: ConversationHandle, last: int | None) -> Event:
        """Return all messages up to an entry, and all that were sent; None: up to the end."""
        entries = await talk.history(kinds=MESSAGES, last=MAX_PAGE)
        known = [entry for entry in entries if last is None or entry.wake_id is None or entry.seq <= last]
        messages = [*messages_of(known, show_errors=self._service.show_errors)]
        return {"type": "MESSAGES_SNAPSHOT", "messages": messages}

    async def _read_state(self, talk: ConversationHandle) -> JsonValue:
        return None if self._state is None else await call_here(self._state, talk)


def _content(message: RunMessage) -> str | list[dict[str, Any]]:
    """Return the content of a message of a user: text, or text and media at a URL or as data.

    Raises:
        InvalidInput: it has none, or a part of another kind.
    """
    if not message.content:
        raise errors.InvalidInput("the message has no content")
    if isinstance(message.content, str):
        return message.content
    return [_block(part) for part in message.content]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": str(kind), "source": {"type": "url", "value": str(url)}}:
            return _media(kind, url)
        case {"type": str(kind), "source": {"type": "data", "value": str(data), "mimeType": str(media_type)}}:
            return _media(kind, f"data:{media_type};base64,{data}")
    raise errors.InvalidInput(f"a message has parts of text, and media at a URL or as data, not {part!r:.80}")


def _media(kind: str, url: str) -> dict[str, Any]:
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"file_data": url, "filename": kind}}


async def _is_known(talk: ConversationHandle, event_id: str) -> bool:
    """Return whether the message was sent before."""
    try:
        await talk.history(around=event_id, limit=1)
    except (errors.UnknownConversation, errors.UnknownEntry):
        return False
    return True


def _answer(entry: ResumeEntry, event: object) -> PostedAnswer:
    """Return the answer that a resume entry stands for.

    Raises:
        InvalidInput: its payload does not fit the request, or the request is of the application's own kind.
    """
    is_cancelled = entry.status == "cancelled"
    if isinstance(event, CustomToolUse):
        result = {"result": "cancelled", "is_error": True} if is_cancelled else {"result": entry.payload}
        return PostedAnswer(entry.interruptId, result)
    if event is not None and not isinstance(event, ToolConfirmation):
        kind = getattr(event, "kind", "")
        raise errors.InvalidInput(
            f"a request of kind {kind!r} has answers of the application: send it by its own route"
        )
    match entry.payload:
        case _ if is_cancelled:
            return PostedAnswer(entry.interruptId, {"allowed": False, "reason": "cancelled"})
        case bool(allowed) | {"allowed": bool(allowed)} | {"approved": bool(allowed)}:
            reason = entry.payload.get("reason") if isinstance(entry.payload, dict) else None
            return PostedAnswer(entry.interruptId, {"allowed": allowed, "reason": str(reason or "")})
    raise errors.InvalidInput(
        'the payload of an approval is {"allowed": true}, or false, with a reason if there is one'
    )
