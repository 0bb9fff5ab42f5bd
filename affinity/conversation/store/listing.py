"""Listings of journals, and of their requests, by conditions that no index has, in portions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, LiteralString, TypeAlias

from affinity.conversation.journal import JournalFilter, JournalInfo, OpenRequestPage, RequestFilter
from affinity.conversation.store.rows import to_journal_info, to_request
from affinity.limits import MAX_BELOW, MAX_PAGE
from affinity.provider.rows import Time

REQUEST_WINDOW: Final = MAX_PAGE
"""Requests that one statement looks at for a filter."""

MOST_BELOW: Final = MAX_BELOW
"""Descendants of a journal that one statement looks at."""

ReadPortion: TypeAlias = Callable[[JournalFilter, int, int], Awaitable[Sequence[Sequence[Any]]]]
"""Looks at the next journals in the order of the listing. Arguments: a filter, the number of journals to look at, and
the largest number of rows. There is a row for each journal that passes the filter, and for the last journal that is
looked at. A row begins with the place of its journal, from 1; the columns of `to_journal_info` follow.
"""


async def list_portions(read: ReadPortion, where: JournalFilter, limit: int, time: Time) -> list[JournalInfo]:
    """Return a page of journals. For conditions without an index, each call looks at `limits.MAX_PAGE` journals."""
    limit = min(limit, MAX_PAGE)
    window = MAX_PAGE if where.looks else limit
    found: list[JournalInfo] = []
    looked = 0
    while len(found) < limit and (where.most is None or looked < where.most):
        rows = await read(where, window, limit - len(found))
        looked += window
        infos = [to_journal_info(columns, time) for _, *columns in rows]
        found += [info for info in infos if where.has(info)]
        if max((place for place, *_ in rows), default=0) < window:
            break
        where = replace(where, after=(infos[-1].created_at, infos[-1].session_id))
    return found


def part_of(where: RequestFilter) -> LiteralString:
    """Return the part of the statement that finds the requests to look at."""
    if where.below is not None:
        return "below"
    return "all" if where.session_ids is None else "some"


def request_window(where: RequestFilter, limit: int) -> int:
    """Return the number of requests that a statement looks at: a page, or more if not all of them fit the filter."""
    is_filtered = where.kinds or where.owner is not None or where.labels or where.prefix or where.below
    return REQUEST_WINDOW if is_filtered else min(limit, REQUEST_WINDOW)


def to_request_page(
    rows: Sequence[Sequence[Any]], where: RequestFilter, window: int, limit: int, time: Time
) -> OpenRequestPage:
    """Return a page of requests from the rows of a statement that has looked at ``window`` of them at most.

    There is a row for each request that passes the filter, and for the last request of the window. A row begins with
    the place of its request, from 1, and with whether it passes; the columns of `to_request` follow.
    """
    found = [to_request(columns, time) for _, _, *columns in rows]
    more = len(rows) == limit or max((place for place, *_ in rows), default=0) == window
    fitting = [each for each, (_, fits, *_) in zip(found, rows, strict=True) if fits]
    if not (more and found):
        return OpenRequestPage(requests=fitting, after=None)
    last = found[-1]
    return OpenRequestPage(requests=fitting, after=last.expiry_cursor if where.by_expiry else last.cursor)
