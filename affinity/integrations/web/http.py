"""Requests and answers over HTTP: bodies, errors as JSON, and streams that a browser may leave at any time."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from affinity import errors
from affinity.limits import MAX_REQUEST_BYTES

M = TypeVar("M", bound=BaseModel)

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

BODY_SECONDS: Final = 30.0
"""Seconds within which a body arrives."""

KEEP_ALIVE: Final = ": keep-alive\n\n"
"""A comment, which clients of server-sent events skip."""

_STATUS: Final[Mapping[type[errors.AffinityError], int]] = {
    errors.PayloadTooLarge: 413,
    errors.InvalidInput: 422,
    errors.UnknownConversation: 404,
    errors.UnknownEntry: 410,
    errors.QuotaExceeded: 429,
    errors.ClientError: 409,
    errors.ProviderError: 503,
}
"""Status codes for errors of a client. The first class that fits decides."""


class Refused(errors.AffinityError):
    """The request is not answered."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Endpoint:
    """An ASGI application for one path: a handler for each method, and each refusal as JSON."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except ClientDisconnect:  # nobody reads an answer
            return
        except errors.AffinityError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        handler = self._handlers.get(request.method)
        if handler is None:
            allowed = ", ".join(sorted(self._handlers))
            raise Refused(405, f"{request.method} is not for this address: it takes {allowed}", {"allow": allowed})
        return await handler(request)


def error_response(error: errors.AffinityError) -> Response:
    """Return the answer to a request that was refused.

    Raises:
        AffinityError: the error itself, if it is not one of requests.
    """
    if isinstance(error, Refused):
        return _as_json(error.status, str(error), error.headers)
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            text = "the database does not answer" if isinstance(error, errors.ProviderError) else str(error)
            return _as_json(status, text, None)
    raise error


def _as_json(status: int, text: str, headers: Mapping[str, str] | None) -> Response:
    return JSONResponse({"error": text}, status, {"cache-control": "no-store", **(headers or {})})


async def read_body(request: Request, form: type[M]) -> M:
    """Return the body of a request, which is JSON of this form.

    Raises:
        Refused: it is no JSON, not of this form, too large, or takes too long.
        ClientDisconnect: the client has gone.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # a form of another site cannot send it without asking
        raise Refused(415, "send JSON, with the header content-type: application/json")
    try:
        with anyio.fail_after(BODY_SECONDS):
            body = await _read_bytes(request)
    except TimeoutError:
        raise Refused(408, "the body has not arrived in time") from None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    try:
        return form.model_validate(value)
    except ValidationError as error:
        raise Refused(422, f"the body does not fit: {_problems(error)}") from None


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join([f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found[:5]])


async def _read_bytes(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_REQUEST_BYTES:
            raise Refused(413, f"the body has more than {MAX_REQUEST_BYTES} bytes: send the last message alone")
    return bytes(body)


class EventStream(StreamingResponse):
    """Server-sent events. The lines are closed when the browser has gone, which is no error."""

    def __init__(self, lines: AsyncGenerator[str, None], headers: Mapping[str, str] | None = None) -> None:
        fixed = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(lines, headers={**fixed, **(headers or {})}, media_type="text/event-stream")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        try:
            await super().__call__(scope, receive, send)
        except ClientDisconnect:
            pass
        finally:
            with anyio.CancelScope(shield=True):
                await self._lines.aclose()


def event_line(data: Mapping[str, Any] | str, *, event: str | None = None, event_id: str | None = None) -> str:
    """Return a server-sent event: an object as JSON, or a text as it is, without line breaks."""
    text = data if isinstance(data, str) else to_json(data).decode()
    fields = (("id", event_id), ("event", event), ("data", text))
    return "".join([f"{name}: {value}\n" for name, value in fields if value is not None]) + "\n"
