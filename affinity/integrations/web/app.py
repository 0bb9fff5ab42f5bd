"""The routes of a chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from affinity import errors
from affinity.conversation import EventFeed
from affinity.integrations.web.access import ChatAccessFunction
from affinity.integrations.web.ag_ui import AgUiRoutes, StateFunction
from affinity.integrations.web.http import KEEP_ALIVE, Endpoint, EventStream, event_line
from affinity.integrations.web.service import ChatService, ConversationsOf, Database, conversation_id
from affinity.integrations.web.turns import check_position
from affinity.integrations.web.ui import UiRoutes

HEARTBEAT = 15.0
"""Seconds after which a stream without news sends a comment: proxies close connections that are silent for a minute."""


def create_chat(
    conversations: ConversationsOf,
    database: Database,
    *,
    access: ChatAccessFunction,
    state: StateFunction | None = None,
    show_errors: bool = False,
    heartbeat: float = HEARTBEAT,
) -> WebChat:
    """Return the chat of one kind of conversations, for a web application.

    ::

        chat = create_chat(chats, url, access=lambda request: ChatAccess(MAY_CHAT, owner=request.user.id))
        app = Starlette(routes=chat.routes("/api/chat"), lifespan=chat.lifespan)

    Args:
        conversations: their kind.
        database: a URL, opened with the first request; or an open client, which stays the caller's; or a function that
            gives it for a request, as ``lambda request: request.state.client``.
        access: what the user of a request may do, and with whose conversations; may be async.
        state: gives the state of a conversation for AG-UI, a JSON value, or None for no state; may be async. Without
            it the browser gets none: the state of a conversation is not made for it.
        show_errors: whether the browser gets the messages of errors of the code, or only that there was one.
        heartbeat: seconds after which a stream without news sends a comment.

    Raises:
        InvalidOptions: the heartbeat is not a positive number.
    """
    return WebChat(conversations, database, access, state=state, show_errors=show_errors, heartbeat=heartbeat)


class WebChat:
    """The chat of one kind of conversations; see `create_chat`."""

    def __init__(
        self,
        conversations: ConversationsOf,
        database: Database,
        access: ChatAccessFunction,
        *,
        state: StateFunction | None,
        show_errors: bool,
        heartbeat: float,
    ) -> None:
        self._service = ChatService(conversations, database, access, show_errors=show_errors, heartbeat=heartbeat)
        self._ui, self._ag_ui = UiRoutes(self._service), AgUiRoutes(self._service, state)

    def routes(self, path: str) -> list[BaseRoute]:
        """Return the routes below a path, such as ``/api/chat``, for ``Starlette(routes=…)`` or ``FastAPI(routes=…)``.

        =========================  ==========================================================================
        ``POST {path}``            a message or answers in; the UI message stream out (``DefaultChatTransport``)
        ``GET {path}/ID/stream``   the stream goes on
        ``DELETE …/ID/stream``     stop the answer
        ``GET …/ID/messages``      the messages of the conversation
        ``POST {path}/ag-ui``      a run of AG-UI (``HttpAgent``)
        ``GET …/ID/ag-ui``         the run that is under way
        ``GET …/ID/events``        server-sent events of the journal
        =========================  ==========================================================================
        """
        one = f"{path}/{{conversation_id:path}}"
        return [
            Route(path or "/", Endpoint({"POST": self._ui.send})),
            Route(f"{path}/ag-ui", Endpoint({"POST": self._ag_ui.run})),
            Route(f"{one}/stream", Endpoint({"GET": self._ui.resume, "DELETE": self._ui.stop})),
            Route(f"{one}/messages", Endpoint({"GET": self._ui.messages})),
            Route(f"{one}/ag-ui", Endpoint({"GET": self._ag_ui.attach})),
            Route(f"{one}/events", Endpoint({"GET": self._events})),
        ]

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """The lifespan of the application around it: at its end the client of a URL is closed."""
        async with self._service.opened():
            yield

    async def aclose(self) -> None:
        """Close the client that was opened for a URL."""
        await self._service.aclose()

    async def _events(self, request: Request) -> Response:
        """Stream entries of the journal, and output as it comes; go on behind ``Last-Event-ID``."""
        access = await self._service.access(request, "events")
        talk = await self._service.known(request, access, conversation_id(request))
        after = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        with suppress(errors.UnknownEntry):  # the feed says `reset`; a refused `EventSource` stays away
            await check_position(talk, after)
        feed = talk.events(after=after, follow=True)
        return EventStream(_event_lines(feed, self._service.heartbeat))


async def _event_lines(feed: EventFeed, heartbeat: float) -> AsyncGenerator[str, None]:
    """Yield the items of a feed. An event ``reset`` says that the reader begins again from 0, and ``end`` that nothing
    follows.
    """
    async with feed:
        while True:
            try:
                with anyio.fail_after(heartbeat):
                    item = await anext(feed, None)
            except TimeoutError:
                yield KEEP_ALIVE
                continue
            except (errors.UnknownConversation, errors.UnknownEntry):  # it was deleted, or entries are gone
                yield event_line("null", event="reset", event_id="0")
                return
            if item is None:  # it has ended
                yield event_line("null", event="end", event_id=feed.position)
                return
            yield event_line(item.to_json(), event=item.kind, event_id=feed.position)
