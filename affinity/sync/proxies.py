"""The sync forms of the client and of what its calls return."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self

from affinity import client, conversation, flow, schedules, session
from affinity.client import ClientMiddleware
from affinity.composed.client import Client as AsyncClient
from affinity.payloads import Blobs, PayloadCodec
from affinity.records import SessionStore as AsyncSessionStore
from affinity.session.stores import RetryingStore
from affinity.sync.loop import Opening
from affinity.sync.proxy import Items, Proxy, sync_form

NOT_HERE: Final = frozenset({"from_provider", "journals"})
"""Members of `affinity.Client` that belong to its event loop, or to the layers above."""


class Client(Proxy, of=AsyncClient, without=NOT_HERE):
    """`affinity.Client` for code without an event loop of its own: each call waits for its result.

    ::

        client = affinity.sync.Client("sqlite:///affinity.db")
        run = client.start(conversation, Opening(topic="tea"), instance_id="chat-17")
        print(run.wait(timeout=60))

    The first call opens it, or the beginning of a ``with``. `close` ends it, or the end of the ``with``; or the garbage
    collector, when neither it nor a handle of it is in use; or the end of the process. Any thread may use it, also one
    that runs an event loop, which waits meanwhile. Ctrl-C ends a call that waits.

    A client that was not used before a fork opens in each process by its first call there. One that was open raises
    `ClientForked` in the child.
    """

    def __init__(
        self,
        url: str,
        *,
        codec: PayloadCodec | None = None,
        blobs: Blobs | None = None,
        middleware: Sequence[ClientMiddleware] = (),
    ) -> None:
        """A client of the database at ``url``, with this codec, blob store and middleware: see `affinity.Client`.

        Raises:
            InvalidOptions: ``codec`` is none.
            InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: by the first call, as `affinity.Client`.
        """
        opened = AsyncClient(url, codec=codec, blobs=blobs, middleware=middleware)
        super().__init__(Opening(opened, url), opened)

    def _target(self) -> Any:
        return self._opening.open()

    def __enter__(self) -> Self:
        self._opening.open()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; later calls raise `ClientError`. A second time nothing happens."""
        self._opening.close()


class Handle(Proxy, of=client.Handle):
    """`affinity.Handle`, of a sync client."""


class ConversationHandle(Proxy, of=conversation.ConversationHandle):
    """`affinity.ConversationHandle`, of a sync client."""


class EventFeed(Items, of=conversation.EventFeed):
    """`affinity.conversation.EventFeed`, of a sync client: for a plain ``for``."""


class ReplyStream(Items, of=conversation.ReplyStream):
    """`affinity.conversation.ReplyStream`, of a sync client: for a plain ``for``."""


class Limits(Proxy, of=flow.Limits):
    """`affinity.flow.Limits`, of a sync client."""


class Pages(Items, of=client.Pages):
    """`affinity.client.Pages`, of a sync client: for a plain ``for``, or `list`. Each page is read by one call."""

    def __init__(self, opening: Opening[Any], of: Any) -> None:
        super().__init__(opening, of)
        self._read = deque[Any]()

    def __next__(self) -> Any:
        if not self._read:
            self._run(self._of._move_to, self._read)
        if not self._read:
            raise StopIteration
        return sync_form(self._opening, self._read.popleft())


class RequestFeed(Items, of=conversation.RequestFeed):
    """`affinity.conversation.RequestFeed`, of a sync client: for a plain ``for``."""


class Schedules(Proxy, of=schedules.Schedules):
    """`affinity.schedules.Schedules`, of a sync client."""


class SessionManager(Proxy, of=session.SessionManager):
    """`affinity.SessionManager`, of a sync client."""


class SessionStore(Proxy, of=AsyncSessionStore):
    """`affinity.SessionStore`, of a sync client; also for `Sessions.open_sync` and `Sessions.update_sync`."""

    def on_loop(self) -> tuple[AsyncSessionStore, Callable[..., Any]]:
        """The async store, and what runs a function on its event loop."""
        return self._of, self._run


Proxy.forms[RetryingStore] = SessionStore  # which need not be declared as one


@contextmanager
def open_store(url: str, *, codec: PayloadCodec | None = None, blobs: Blobs | None = None) -> Iterator[SessionStore]:
    """`affinity.open_store` for sync code.

    ::

        with affinity.sync.open_store(url) as store, chats.open_sync("chat-17", store=store) as chat:
            chat.title = "Tea"

    Raises:
        InvalidUrl, ConnectionLost, AccessDenied, SchemaMismatch: as `affinity.open_store`.
    """
    opening = Opening(client.open_store(url, codec=codec, blobs=blobs), url)
    try:
        yield SessionStore(opening, opening.open())
    finally:
        opening.close()
