"""Listings that are read page by page (`Pages`), and other async iterators.

None of them ends silently when the wait for an item is cancelled, as an async generator does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Final, Generic, ParamSpec, TypeVar

from affinity.errors import InvalidInput, IterationInterrupted
from affinity.limits import MAX_PAGE, check_limit
from affinity.operators import refuse_operators

_BIGINT: Final = 2**63
_DIGITS: Final = 19

C = TypeVar("C")
I = TypeVar("I")  # noqa: E741 - the usual letter for an iterator
P = ParamSpec("P")
T = TypeVar("T")


def _not_plain(items: object) -> TypeError:
    as_list = "`await`" if isinstance(items, Pages) else "`[item async for item in ...]`"
    return TypeError(
        f"{type(items).__name__} is read with `async for`, or as a list with {as_list}; sync code uses `affinity.sync`"
    )


def read_with_async_for(of: type[I]) -> type[I]:
    """Decorates a class of async iterators: a plain loop over one, or an index, raises an error that says so."""
    refuse_operators(of, ("__getitem__", "__next__"), _not_plain)
    return of


@read_with_async_for
class PageIterator(AsyncIterator[T], Generic[C, T]):
    """Items that are read page by page. The wait for an item may be cancelled, or fail: the next one reads the page
    again, and no item is lost or given twice.

    Args:
        read: reads the page at a cursor; gives its items, and the cursor of the next page or None.
        first: the cursor of the first page.
    """

    def __init__(self, read: Callable[[C], Awaitable[tuple[Iterable[T], C | None]]], first: C) -> None:
        self._read = read
        self._next: C | None = first
        self._items = deque[T]()
        self._reading = asyncio.Lock()

    async def __anext__(self) -> T:
        if not self._items and not await self._read_on():
            raise StopAsyncIteration
        return self._items.popleft()

    async def move_to(self, items: deque[T]) -> None:
        """Append the items that are left of a page, or else those of the next page that has any; none at the end."""
        await self._read_on()
        items.extend(self._items)
        self._items.clear()

    async def _read_on(self) -> bool:
        """Read pages until there are items; False: there are none."""
        while not self._items:
            async with self._reading:
                if not self._items:
                    if self._next is None:
                        return False
                    items, self._next = await self._read(self._next)
                    self._items.extend(items)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Some items of a listing, in its order."""

    items: Sequence[T]
    next: str | None  # the cursor of the page after this one; None at the end


@read_with_async_for
class Pages(AsyncIterator[T]):
    """A listing, read page by page: ``async for`` gives its items, ``await`` a list of them all, `page` some of them.

    ::

        async for entry in client.audit(user="ann"):
            print(entry.action, entry.target)
        entries = await client.audit(target="chat-17")
        page = await client.audit().page(limit=20)
        older = await client.audit().page(page.next, limit=20)

    Nothing is read before. One ``async for`` goes on where another one has stopped; a list and a page do not depend on
    it. The wait for an item may be cancelled, or fail, and begun again.
    """

    def __init__(self, read: Callable[[str | None, int], Awaitable[Page[T]]], *, largest: int | None = None) -> None:
        """Called by the methods that list.

        Args:
            read: reads the page after a cursor, with this many items at most.
            largest: how many it may read at a time; by default `limits.MAX_PAGE`.
        """
        self._read = read
        self._largest = largest
        self._items = self._all_items()

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self._items.__anext__()

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._list().__await__()

    async def page(self, after: str | None = None, *, limit: int = 100) -> Page[T]:
        """Read one page.

        Args:
            after: `Page.next` of the page before; None: the first page.
            limit: items on the page, from 1 to `limits.MAX_PAGE`.

        Raises:
            InvalidInput: a limit out of range, or a cursor that is none of this listing.
        """
        check_limit(limit)
        return await self._read(after, limit)

    async def _list(self) -> list[T]:
        return [item async for item in self._all_items()]

    async def _move_to(self, items: deque[T]) -> None:
        """See `PageIterator.move_to`."""
        await self._items.move_to(items)

    def _all_items(self) -> PageIterator[str, T]:
        async def read(after: str) -> tuple[Sequence[T], str | None]:
            page = await self._read(after or None, self._largest or MAX_PAGE)
            return page.items, page.next

        return PageIterator(read, "")


def next_cursor(rows: Sequence[Any], limit: int, at: str, name: str) -> str | None:
    """Return the cursor of the page behind these rows, whose fields ``at`` and ``name`` identify each; None: there is
    none.
    """
    return f"{getattr(rows[-1], at).isoformat()}/{getattr(rows[-1], name)}" if len(rows) == limit else None


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """Return the time and the name in a cursor.

    Raises:
        InvalidInput: it is not what `Page.next` gave.
    """
    at, _, name = cursor.partition("/")
    try:
        return datetime.fromisoformat(at).astimezone(UTC), name
    except (ValueError, OverflowError):
        raise not_a_cursor(cursor) from None


def read_number(text: str, cursor: str) -> int:
    """Return a number in a cursor.

    Raises:
        InvalidInput: it is not what `Page.next` gave.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not is_number or int(text) >= _BIGINT:
        raise not_a_cursor(cursor)
    return int(text)


def not_a_cursor(text: str) -> InvalidInput:
    """Return the error for a text that is no cursor of a listing."""
    return InvalidInput(f"{text!r} is not a cursor of this listing")


def uninterrupted(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """Decorates an async generator that cannot go on after a cancelled wait: it raises `IterationInterrupted` then."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _Uninterrupted(function(*args, **kwargs), function.__name__)

    return wrapped


@read_with_async_for
class _Uninterrupted(AsyncIterator[T]):
    def __init__(self, items: AsyncIterator[T], name: str) -> None:
        self._items = items
        self._name = name
        self._was_interrupted = False

    async def __anext__(self) -> T:
        if self._was_interrupted:
            raise IterationInterrupted(
                f"{self._name}() was cancelled, or failed, in the wait for an item, and cannot go on: begin it again"
            )
        self._was_interrupted = True
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            self._was_interrupted = False
            raise
        self._was_interrupted = False
        return item
