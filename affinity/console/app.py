"""The console as an ASGI application: pages, downloads, forms, live updates."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from affinity import errors
from affinity.async_block import ClosedBlock
from affinity.composed.client import Client
from affinity.console.access import Access, AccessFunction, read_only
from affinity.console.actions import NO_VERBS, Verb, do
from affinity.console.callbacks import call_async, check_result
from affinity.console.links import Links
from affinity.console.pages import Page, check_views, menu, pages, waiting
from affinity.console.pages.base import Pieces, Query, Silence, Waiting
from affinity.console.pages.sessions import EXPORT
from affinity.console.payloads import Payloads, Redact, show_all
from affinity.console.recent import SECONDS, Recent
from affinity.console.rendering import render, static_file, static_version
from affinity.console.requests import COOKIE, HEADERS, Refused, new_secret, read_form, token_of
from affinity.console.times import FIELD, keep_choice, to_last_choice, zone_of
from affinity.redaction import redacted
from affinity.user_code import check_function

logger: logging.Logger = logging.getLogger("affinity.console")

LATE_SECONDS: Final = 2.0
"""Seconds after which a live page is told that the database has not answered."""

MAX_LIVE: Final = 500
"""Live pages that are open; a further one is refused."""

NO_LINKS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Read:
    """What a page has read."""

    values: dict[str, Any]
    payloads: Payloads
    waiting: Mapping[str, Waiting]  # by the path of a page in the menu
    began: float  # by the clock of the event loop: the first of its statements
    made_at: datetime

    @property
    def age(self) -> float:
        """Seconds since its first statement."""
        return asyncio.get_running_loop().time() - self.began


_STATUS: Final = {
    errors.InvalidInput: 400,
    errors.UnknownInstance: 404,
    errors.UnknownConversation: 404,
    errors.UnknownEntry: 404,
    errors.UnknownWorker: 404,
    errors.UnknownLimit: 404,
    errors.UnknownSchedule: 404,
    errors.SessionNotFound: 404,
    errors.ClientError: 409,
    errors.ProviderError: 503,
}
"""Status codes for errors of a client. The first class that fits decides."""


def create(
    database: str | Client,
    *,
    access: AccessFunction = read_only,
    redact: Redact = show_all,
    origins: Collection[str] = (),
    links: Mapping[str, str] = NO_LINKS,
    views: Mapping[str, str] = NO_LINKS,
) -> Console:
    """The console as an ASGI application, to mount in another one behind its login.

    ::

        console = affinity.console.create(url, access=lambda request: Access(ALL, request.user.name))
        app = Starlette(routes=[Mount("/ops", app=console)], lifespan=console.lifespan)

    Args:
        database: a URL, opened with the first request; or an open client, which stays the caller's.
        access: what the user of a request may do, at each request; may be async. By default all may read.
        redact: is given each value of the application before it is shown; see `affinity.console.Redact`.
        origins: of pages whose forms are taken, as a browser names them, if a proxy changes the header Host:
            ``["https://ops.example"]``.
        links: addresses of other systems by the text of their link, with names in braces, as in ``{"logs":
            "https://logs.example/?q={instance_id}&from={since}"}``; the names are in `affinity.console.links.NAMES`.
        views: addresses of pages, below the console's prefix, by the name that the menu has for them, as in ``{"failed
            today": "/instances?status=failed&within=24h"}``.

    Raises:
        InvalidOptions: an address of a link is not absolute, or has a name that does not exist; or an address of a view
            is that of no page; or a function takes other arguments.
    """
    check_function(access, "access", "request")
    check_function(redact, "redact", "kind", "name", "value")
    return Console(database, access, redact, origins=origins, links=Links(links), views=check_views(views))


class Console(ClosedBlock):
    """An ASGI application; see `create`. It is closed by `aclose`, at the end of an ``async with``, or of its own
    lifespan where it is served alone.
    """

    def __init__(
        self,
        database: str | Client,
        access: AccessFunction,
        redact: Redact,
        *,
        origins: Collection[str],
        links: Links,
        views: Mapping[str, str],
        own_verbs: Mapping[str, Verb] = NO_VERBS,
    ) -> None:
        self._links, self._views, self._own_verbs = links, views, own_verbs
        self._database, self._access, self._redact, self._origins = database, access, redact, origins
        self._opening = asyncio.Lock()
        self._client: Client | None = None if isinstance(database, str) else database
        self._recent = Recent[_Read]()
        self._waiting = Recent[Mapping[str, Waiting]]()
        self._sources = {
            page.path: page.live(lambda: Payloads(redact)) for page in pages().values() if page.live is not None
        }
        self._live_pages = 0
        self._is_ready = False
        routes = [Route(page.path, partial(self._page, page=page)) for page in pages().values()]
        app = Starlette(
            routes=[
                *routes,
                Route("/download", self._download),
                Route("/do/{action}", self._do, methods=["POST"]),
                Route("/static/{name}", self._static),
            ],
            exception_handlers={
                errors.AffinityError: self._error,
                404: self._error,
                405: self._error,
                Exception: self._error,  # it is raised again, for the log of the server
            },
        )
        self._app = _Headers(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The lifespan of the application around it: at its end the console is closed."""
        async with self:
            yield

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        """Close the client that the console has opened."""
        client, self._client = self._client, None
        if client is not None and client is not self._database:
            await client.__aexit__(None, None, None)

    async def is_ready(self) -> bool:
        """Whether the console has read the database. It stays ready when the database does not answer later: then its
        pages say so.
        """
        if not self._is_ready:
            with suppress(TimeoutError, errors.AffinityError), anyio.fail_after(LATE_SECONDS):
                await self._recent.get(("ready",), self._read_once)
                self._is_ready = True
        return self._is_ready

    async def _read_once(self) -> _Read:
        client = await self._open()
        await client.workers()
        return _Read({}, Payloads(self._redact), {}, 0.0, datetime.now(UTC))

    async def _open(self) -> Client:
        async with self._opening:
            if self._client is None:
                assert isinstance(self._database, str)
                self._client = await Client(self._database).__aenter__()
            return self._client

    # -- requests

    async def _allowed(self, request: Request) -> Access:
        """The access of the user, who may read at least.

        Raises:
            Refused: the user may not, or the function that says so has failed.
        """
        access: Access = await call_async("access", self._access, request)
        check_result("access", access, Access)
        if not access.may("read"):
            raise Refused(403, "you may not see this")
        return access

    async def _read(self, page: Page, query: dict[str, str]) -> _Read:
        return await self._recent.get((page.path, *sorted(query.items())), partial(self._load, page, query))

    async def _load(self, page: Page, query: dict[str, str]) -> _Read:
        payloads, began, made_at = Payloads(self._redact), asyncio.get_running_loop().time(), datetime.now(UTC)
        values = await page.load(await self._open(), query, payloads)
        return _Read(values, payloads, await self._waiting.get((), self._count_waiting), began, made_at)

    async def _count_waiting(self) -> Mapping[str, Waiting]:
        return await waiting(await self._open())

    async def _page(self, request: Request, page: Page) -> Response:
        access = await self._allowed(request)
        zone_of(request.query_params)  # refused before a stream begins
        if request.headers.get("accept") == "text/event-stream":
            if self._live_pages >= MAX_LIVE:
                raise Refused(503, "too many live pages are open: close some")
            headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
            return StreamingResponse(self._live(request, page), media_type="text/event-stream", headers=headers)
        if (redirect := to_last_choice(request)) is not None:
            return redirect
        secret = request.cookies.get(COOKIE) or new_secret()
        read = await self._read(page, _query_of(request, page))
        html = self._render(request, page, read, access, secret=secret, made_at=read.made_at)
        response = HTMLResponse(html, headers={"cache-control": "no-store", "vary": "accept"})
        if COOKIE not in request.cookies:
            path, secure = request.scope.get("root_path") or "/", request.url.scheme == "https"
            response.set_cookie(COOKIE, secret, path=path, httponly=True, samesite="lax", secure=secure)
        keep_choice(request, response)
        return response

    def _render(
        self, request: Request, page: Page, read: _Read, access: Access, *, secret: str, made_at: datetime | None = None
    ) -> str:
        """The page; with ``made_at`` it says when it was made."""
        query = _all_of(request, page)
        values = {
            "data": read.values,
            **_frame(request),
            "page": page,
            "query_values": query,
            "access": access,
            "token": token_of(secret),
            "links": self._links.of,
            "views": self._views,
            "own_verbs": self._own_verbs,
            "waiting": read.waiting,
            "made_at": made_at,
        }
        return render(page.template, values, zone_of(query))

    async def _live(self, request: Request, page: Page) -> AsyncIterator[str]:
        """Send the page each time that it is another one, and what its source sends between two reads."""
        self._live_pages += 1
        try:
            async for event in self._live_events(request, page):
                yield event
        except Exception as error:  # the browser would connect again, and again
            logger.exception("the live page %s has failed", page.path, exc_info=redacted(error))
            yield _event("gone")
        finally:
            self._live_pages -= 1

    def _follow(self, page: Page, client: Client, query: Query) -> AbstractAsyncContextManager[Pieces]:
        source = self._sources.get(page.path)
        return nullcontext(Silence()) if source is None else source.follow(client, query)

    async def _live_events(self, request: Request, page: Page) -> AsyncIterator[str]:
        """After each read the page, if it is another one, and "current" with the age of the read in seconds; "stale",
        with the reason, while there is none; "gone" if the browser has to load the page, which says why.
        """
        query = _query_of(request, page)
        seen, pieces = request.headers.get("last-event-id"), None
        async with AsyncExitStack() as stack:
            while not await request.is_disconnected():
                try:
                    with anyio.fail_after(LATE_SECONDS):
                        access = await self._allowed(request)
                        read = await self._read(page, query)
                except TimeoutError:
                    yield _event("stale", json.dumps("The database does not answer."))
                except errors.ProviderError as error:
                    yield _event("stale", json.dumps(_why_stale(error)))
                except errors.AffinityError:
                    yield _event("gone")
                    return
                else:
                    html = self._render(request, page, read, access, secret=request.cookies.get(COOKIE, ""))
                    tag = hashlib.sha256(html.encode()).hexdigest()[:16]
                    if tag != seen:
                        seen = tag
                        lines = "".join([f"data: {line}\n" for line in html.splitlines()])
                        yield f"id: {tag}\n{lines}\n"
                    yield _event("current", f"{read.age:.1f}")
                    if pieces is None:
                        pieces = await stack.enter_async_context(self._follow(page, await self._open(), query))
                async for piece in (pieces or Silence()).during(SECONDS):
                    yield piece

    async def _download(self, request: Request) -> Response:
        """A whole value of a page, as a file."""
        await self._allowed(request)
        query = _query_of(request)
        page, part = pages().get(query.pop("page", "")), query.pop("part", "")
        if page is None:
            raise Refused(404, "there is no such page")
        payloads = (await self._read(page, query)).payloads
        name = part if part == EXPORT else "value.json"
        headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
        return Response(payloads.whole(part).encode("utf-8", "replace"), media_type="text/plain", headers=headers)

    async def _do(self, request: Request) -> Response:
        """Do what a form asks for, and show the page that it came from."""
        access = await self._allowed(request)
        form = await read_form(request, self._origins)
        back = await do(await self._open(), request.path_params["action"], form, access, self._own_verbs)
        self._recent.clear()
        self._waiting.clear()
        path, _, query = back.partition("?")
        target = path if path in pages() else "/"
        return RedirectResponse(request.scope.get("root_path", "") + target + (query and f"?{query}"), 303)

    async def _static(self, request: Request) -> Response:
        found = static_file(request.path_params["name"])
        if found is None:
            raise Refused(404, "there is no such file")
        content, kind = found
        return Response(content, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})

    async def _error(self, request: Request, error: Exception) -> Response:
        """What was wrong, as a page."""
        status = getattr(error, "status", None) or getattr(error, "status_code", None)
        status = status or next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        message = str(error) if isinstance(error, errors.AffinityError) else HTTPStatus(status).phrase
        again = status == HTTPStatus.SERVICE_UNAVAILABLE and request.method == "GET"
        html = render("error.html", {**_frame(request), "status": status, "message": message, "again": again})
        return HTMLResponse(html, status, headers={"cache-control": "no-store"})


def _event(name: str, data: str = "") -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {data}\n\n"


def _why_stale(error: errors.ProviderError) -> str:
    """Why a live page has not been read again, for its banner."""
    return "The database does not answer." if error.retryable and not error.misconfigured else f"{error}"


def _query_of(request: Request, page: Page | None = None) -> dict[str, str]:
    """The query of a page, without how it shows times: all browsers share one read."""
    return {name: value for name, value in _all_of(request, page).items() if name != FIELD}


def _all_of(request: Request, page: Page | None) -> dict[str, str]:
    """The query, with one value of each name; of a name that may stand several times all values, with commas."""
    params, several = request.query_params, () if page is None else page.several
    return {name: ",".join(dict.fromkeys(params.getlist(name))) if name in several else params[name] for name in params}


def _frame(request: Request) -> dict[str, Any]:
    """What each page has around its own."""
    return {"base": request.scope.get("root_path", ""), "version": static_version(), "menu": menu()}


class _Headers:
    """Adds `HEADERS` to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, with_headers)
