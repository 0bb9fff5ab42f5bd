"""Async iterators that do not end silently when the wait for an item is cancelled, as an async generator does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

from affinity.errors import IterationInterrupted
from affinity.limits import MAX_PAGE
from affinity.operators import refuse_operators

C = TypeVar("C")
I = TypeVar("I")  # noqa: E741 - the usual letter for an iterator
P = ParamSpec("P")
T = TypeVar("T")


def _not_plain(items: object) -> TypeError:
    return TypeError(
        f"{type(items).__name__} is read with `async for`, or as a list with `[item async for item in ...]`; "
        "sync code uses `affinity.sync`"
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
        while not self._items:
            async with self._reading:
                if not self._items:
                    if self._next is None:
                        raise StopAsyncIteration
                    items, self._next = await self._read(self._next)
                    self._items.extend(items)
        return self._items.popleft()


def all_items(read: Callable[..., Awaitable[Any]]) -> PageIterator[str, Any]:
    """All items of a listing. ``read`` takes ``after`` and ``limit``, and returns a page: ``items``, and ``next``."""

    async def read_page(after: str) -> tuple[Iterable[Any], str | None]:
        page = await read(after=after or None, limit=MAX_PAGE)
        return page.items, page.next

    return PageIterator(read_page, "")


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
