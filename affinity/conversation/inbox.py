"""The inbox of a client: the requests of all conversations that wait for an answer, and a feed of its changes."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack

import anyio

from affinity.async_block import ClosedBlock
from affinity.client.changes import SAFETY_SECONDS, AllChanges
from affinity.client.conditions import conditions_of
from affinity.conversation.journal import META_FIELD, Request, RequestCursor, RequestFilter
from affinity.conversation.journals import JournalCalls, Journals
from affinity.errors import ClientError, NotSerializable
from affinity.limits import MAX_BATCH
from affinity.paging import Page, Pages, not_a_cursor, read_cursor, read_number, read_with_async_for
from affinity.records import copied, frozen, parse_stored

E = TypeVar("E")

PAUSE_SECONDS: Final = 0.05
"""The time between two reads of a feed; changes in that time are read together."""

_Key: TypeAlias = tuple[int, str, datetime]


@frozen(kw_only=True)
class PendingRequest(Generic[E]):
    """A request that waits for an answer."""

    conversation_id: str
    conversation_kind: str
    request_id: str
    kind: str  # of the request, such as "agent.tool_confirmation"
    # From `Client.requests` the JSON object of its event. From a conversation a `RequestEvent`, unless this code does
    # not know its kind.
    event: E
    wake_id: str | None  # the wake that made it
    created_at: datetime
    expires_at: datetime | None  # then it counts as refused
    # Of its conversation; a wake does not give them.
    title: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@frozen(kw_only=True)
class RequestChange:
    """A change of the inbox."""

    change: Literal["asked", "gone"]  # it waits from now on; it is answered, or no longer waits
    request: PendingRequest[Mapping[str, Any]]


class RequestConditions(TypedDict, total=False):
    """The requests to list; all conditions hold."""

    kinds: str | Collection[str]
    """A kind of requests, such as "agent.tool_confirmation", or several."""
    owner: str | None
    """Owner of their conversations."""
    labels: Mapping[str, str]
    """Labels that their conversations have, among others."""
    prefix: str | None
    """Beginning of the ids of their conversations."""
    below: str | None
    """Only requests of this conversation and its descendants; of `limits.MAX_BELOW` conversations at most, the nearest
    first.
    """


class RequestCalls(JournalCalls):
    """The part of `affinity.Client` for requests of all conversations."""

    def requests(
        self, *, by_expiry: bool = False, **where: Unpack[RequestConditions]
    ) -> Pages[PendingRequest[Mapping[str, Any]]]:
        """List the requests that wait for an answer, oldest first.

        Args:
            by_expiry: first the requests that expire first, last those that do not expire.
            where: conditions; see `affinity.conversation.inbox.RequestConditions`.

        Raises:
            InvalidInput: a condition that does not exist, kinds that are not texts, or a text that no store can keep.
        """
        filtered = replace(_filter(where), by_expiry=by_expiry)

        async def read(after: str | None, limit: int) -> Page[PendingRequest[Mapping[str, Any]]]:
            wanted = filtered if after is None else replace(filtered, after=_read_cursor(after))
            items: list[Request] = []
            while True:
                page = await self.journals.requests(wanted, limit - len(items))
                items += page.requests
                if page.after is None or len(items) == limit:
                    return Page(items=[*map(_request_of, items)], next=page.after and _cursor_text(page.after))
                wanted = replace(wanted, after=page.after)

        return Pages(read)

    def watch_requests(self, **where: Unpack[RequestConditions]) -> RequestFeed:
        """Return a feed of the requests that wait for an answer, oldest first, then of each change; see `RequestFeed`.

        Args:
            where: conditions; see `requests`.

        Raises:
            InvalidInput: see `requests`.
        """
        return RequestFeed(self.journals, _filter(where))


@read_with_async_for
class RequestFeed(ClosedBlock, AsyncIterator[RequestChange]):
    """Requests that wait for an answer as they come and go: `Client.watch_requests`. For one task at a time. It has no
    end, and can be left at any time.

    ::

        async for change in client.watch_requests(labels={"team": "eu"}):
            if change.change == "asked":
                show(change.request)
            else:
                hide(change.request)

    A request comes once, and goes once: when it is answered, dropped, or expired, when its conversation ends, or no
    longer fits the conditions. A request that comes and goes between two reads is left out. The wait for a change may
    be cancelled, as by a timeout, and begun again.

    Only conversations whose journals have changed are read. With SQLite a commit of another process does not say which:
    all requests are read if a request was added or removed. About once a second, and with 1,000 requests for each page
    less often, all are read in any case: hints of changes may be lost, and say nothing of a request that expires.
    """

    def __init__(self, journals: Journals, where: RequestFilter) -> None:
        """Called by `Client.watch_requests`."""
        self._journals = journals
        self._where = where
        self._known: dict[str, dict[_Key, Request]] = {}  # by conversation
        self._items = deque[RequestChange]()
        self._wanted: set[str] = set()  # conversations to read
        self._all_wanted = True
        self._read_at = self._all_read_at = -math.inf
        self._pages = 1  # at the last read of all
        self._mark: str | None = None  # then: `OpenRequestPage.mark`
        self._changes: AllChanges | None = None
        self._is_reading = False
        self._has_ended = False

    async def __anext__(self) -> RequestChange:
        """Wait for the next change.

        Raises:
            ProviderError: the database has failed for `affinity.client.calls.RETRY_SECONDS`; the feed may be read on.
            ClientError: the client was closed, or another task waits for an item of this feed.
        """
        if self._is_reading:
            raise ClientError("another task waits for an item of this feed: use a feed for each task")
        self._is_reading = True
        try:
            while not self._items:
                if self._has_ended:
                    raise StopAsyncIteration
                await self._read_on()
            return self._items.popleft()
        finally:
            self._is_reading = False

    async def aclose(self) -> None:
        """Close the feed."""
        self._has_ended = True
        changes, self._changes = self._changes, None
        if changes is not None:
            changes.leave()

    def __del__(self) -> None:
        if self._changes is not None:  # it was left without `aclose`, as by a ``break``
            self._changes.leave_soon()

    async def _read_on(self) -> None:
        """Wait for changes, and read them. A cancelled wait loses no change."""
        if self._changes is None:
            self._changes = await self._journals.all_changes()
        if not self._all_wanted and not self._wanted:
            await self._changes.wait()
        self._note(self._changes.take())
        await self._changes.opened()
        now = asyncio.get_running_loop().time()
        is_due = now - self._all_read_at >= SAFETY_SECONDS * self._pages
        if self._all_wanted or is_due:
            await self._pause(max(self._all_read_at + PAUSE_SECONDS * self._pages, self._read_at + PAUSE_SECONDS))
            await self._read_all(None if is_due else self._mark)
        elif self._wanted:
            await self._pause(self._read_at + PAUSE_SECONDS)
            await self._read_some(sorted(self._wanted)[:MAX_BATCH])

    def _note(self, changed: Mapping[str, bool] | None) -> None:
        """Note the conversations that may have changed; None: any. An input alone adds no request."""
        if changed is None:
            self._all_wanted = True
            return
        prefix = self._where.prefix or ""
        fitting = [(name, of_wake) for name, of_wake in changed.items() if name.startswith(prefix)]
        self._wanted.update(name for name, of_wake in fitting if of_wake or name in self._known)

    async def _pause(self, until: float) -> None:
        await anyio.sleep(max(0.0, until - asyncio.get_running_loop().time()))

    async def _read_all(self, known_mark: str | None) -> None:
        """Read all requests; with a mark, only if one was added or removed since."""
        found, pages, mark = await self._read(replace(self._where, mark=known_mark))
        self._all_wanted = False
        if mark is None or mark != known_mark:
            self._pages, self._mark, self._all_read_at = pages, mark, self._read_at
            self._wanted.clear()
            self._compare(found, [*self._known])

    async def _read_some(self, session_ids: Sequence[str]) -> None:
        found, *_ = await self._read(replace(self._where, session_ids=session_ids))
        self._wanted.difference_update(session_ids)
        self._compare(found, session_ids)

    async def _read(self, where: RequestFilter) -> tuple[Sequence[Request], int, str | None]:
        """See `Journals.all_requests`."""
        found = await self._journals.all_requests(where)
        self._read_at = asyncio.get_running_loop().time()
        return found

    def _compare(self, found: Iterable[Request], session_ids: Iterable[str]) -> None:
        """Add the changes of these conversations, and of others in ``found``."""
        now: defaultdict[str, dict[_Key, Request]] = defaultdict(dict)
        for row in found:
            now[row.session_id][row.journal_id, row.request_id, row.created_at] = row
        known = self._known
        gone = [row for name in session_ids for key, row in known.get(name, {}).items() if key not in now.get(name, {})]
        asked = [row for name, rows in now.items() for key, row in rows.items() if key not in known.get(name, {})]
        asked.sort(key=lambda row: row.cursor)
        for name in session_ids:
            known.pop(name, None)
        known.update(now)
        self._items += [RequestChange(change="gone", request=_request_of(row)) for row in gone]
        self._items += [RequestChange(change="asked", request=_request_of(row)) for row in asked]


def _filter(where: RequestConditions) -> RequestFilter:
    return RequestFilter(**conditions_of(where, RequestConditions))


def _request_of(row: Request) -> PendingRequest[Mapping[str, Any]]:
    """Return a row as a view."""
    try:
        read = parse_stored(row.payload)
    except NotSerializable as error:  # the others are shown
        read = {"unreadable": str(error)}
    except (ValueError, RecursionError):  # a stored value may be anything
        read = None
    event = {name: value for name, value in read.items() if name != META_FIELD} if isinstance(read, dict) else {}
    return copied(
        PendingRequest,
        row,
        conversation_id=row.session_id,
        conversation_kind=row.journal_kind,
        event={**event, "kind": row.kind},
    )


def _cursor_text(cursor: RequestCursor) -> str:
    created_at, journal_id, place, request_id = cursor
    return f"{created_at.isoformat()}/{journal_id}/{place}/{request_id}"


def _read_cursor(text: str) -> RequestCursor:
    try:
        created_at, journal_id, place, request_id = text.split("/", 3)
    except ValueError:
        raise not_a_cursor(text) from None
    at, _ = read_cursor(created_at)
    return at, read_number(journal_id, text), read_number(place, text), request_id
