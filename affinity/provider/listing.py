"""Listings of journals by a condition that no index has, in portions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from affinity.journal import JournalFilter, JournalInfo
from affinity.limits import MAX_PAGE
from affinity.provider.rows import Time, to_journal_info

ReadPortion: TypeAlias = Callable[[JournalFilter, int, int], Awaitable[Sequence[Sequence[Any]]]]
"""Looks at the next journals in the order of the listing. Arguments: a filter, the number to look at, and the number of
rows at most. There is a row for each that has the filter's status, and for the last one that it may look at. A row has
its place, from 1, before what `to_journal_info` takes.
"""


async def list_portions(read: ReadPortion, where: JournalFilter, limit: int, time: Time) -> list[JournalInfo]:
    """A page of journals. For a status, `limits.MAX_PAGE` journals are looked at in each call."""
    limit = min(limit, MAX_PAGE)
    window = limit if where.status is None else MAX_PAGE
    found: list[JournalInfo] = []
    while len(found) < limit:
        rows = await read(where, window, limit - len(found))
        infos = [to_journal_info(columns, time) for _, *columns in rows]
        found += [each for each in infos if where.status in {None, each.status}]
        if max((place for place, *_ in rows), default=0) < window:
            break
        where = replace(where, after=(infos[-1].created_at, infos[-1].session_id))
    return found
