"""Families of session records, and the removal of records or families by age or by number."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from affinity.errors import InvalidInput
from affinity.limits import MAX_PAGE
from affinity.records import SessionFilter, SessionStore, SessionSummary
from affinity.session.transfer import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFamily:
    """A record whose parent, if any, has no record, with all its descendants."""

    members: Sequence[SessionSummary]  # the head first, then by their creation

    @property
    def head(self) -> SessionSummary:
        """The record whose descendants the others are."""
        return self.members[0]

    @property
    def message_count(self) -> int | None:
        """Of all members together; None when none of them has one."""
        counts = [count for member in self.members if (count := member.metadata.message_count) is not None]
        return sum(counts) if counts else None

    @property
    def participants(self) -> Sequence[str]:
        """Of all members, each once, in their order."""
        return list(dict.fromkeys(name for member in self.members for name in member.metadata.participants))

    @property
    def updated_at(self) -> datetime:
        """The last write of any member."""
        return max(member.updated_at for member in self.members)

    @property
    def idle(self) -> float:
        """Seconds since that write, by the store's clock."""
        return min(member.idle for member in self.members)

    @property
    def size(self) -> int:
        """Bytes of all states as stored."""
        return sum(member.size for member in self.members)


Pages: TypeAlias = Callable[[SessionFilter], AsyncIterator[Sequence[SessionSummary]]]
"""All records that match a filter, page by page, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What `SessionManager.prune` removed, or would remove."""

    removed: Sequence[str]  # session ids
    left: Sequence[str]  # old enough, but held, with queued work, or written since they were listed


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """Which records to remove: those that are old, or not among the newest."""

    older_than: float | None  # seconds
    keep: int | None  # so many of the newest stay
    either: bool  # with both: a record that is old or beyond ``keep``, rather than only what is both

    def __post_init__(self) -> None:
        """Refuse a rule that would remove everything, or has a negative number.

        Raises:
            InvalidInput: neither is set, or the number is negative.
        """
        if self.older_than is None and self.keep is None:
            raise InvalidInput("prune needs older_than, keep, or both: it does not remove everything by itself")
        if self.keep is not None and self.keep < 0:
            raise InvalidInput(f"keep = {self.keep!r}: must be 0 or more")

    @property
    def needs_age(self) -> bool:
        """Whether only old records are removed."""
        return self.older_than is not None and (self.keep is None or not self.either)

    def removes(self, family: SessionFamily, kept: frozenset[str]) -> bool:
        """Whether a family is removed; ``kept`` are the heads of the newest families."""
        is_old = self.older_than is not None and family.idle >= self.older_than
        is_behind = self.keep is not None and family.head.session_id not in kept
        both_asked = self.older_than is not None and self.keep is not None
        return (is_old and is_behind) if both_asked and not self.either else (is_old or is_behind)


class Pruner:
    """Removes the records of a store that a rule selects."""

    def __init__(
        self, store: SessionStore, pages: Pages, rule: PruneRule, *, dry_run: bool, progress: Progress
    ) -> None:
        self._store, self._pages, self._rule = store, pages, rule
        self._dry_run, self._progress = dry_run, progress
        self._removed: dict[str, None] = {}
        self._left: dict[str, None] = {}

    async def records(self, where: SessionFilter) -> Pruned:
        """Judge and remove each record by itself."""
        keep, older_than = self._rule.keep, self._rule.older_than
        if not self._rule.needs_age and older_than is not None:
            await self._remove_records(replace(where, idle_for=older_than))
            older_than = None
        behind = where if keep is None else await self._past_newest(where, keep)
        if behind is not None:
            await self._remove_records(replace(behind, idle_for=older_than))
        return self._result()

    async def families(self, where: SessionFilter) -> Pruned:
        """Judge and remove each family as a whole, by its newest member; ``where`` applies to its head."""
        heads = replace(where, heads=True)
        kept = await self._newest_heads(heads, self._rule.keep or 0)
        if self._rule.needs_age:
            heads = replace(heads, idle_for=self._rule.older_than)  # a family is at least as new as its head
        async for families in self._families(heads):
            await self._remove_families([each for each in families if self._rule.removes(each, kept)])
        return self._result()

    def _result(self) -> Pruned:
        return Pruned(removed=list(self._removed), left=sorted(self._left.keys() - self._removed.keys()))

    async def _past_newest(self, where: SessionFilter, keep: int) -> SessionFilter | None:
        """The filter with a cursor after the newest ``keep`` records; None when there are no more."""
        while keep > 0:
            rows = await self._store.list(where, size := min(keep, MAX_PAGE))
            if len(rows) < size:
                return None
            where = replace(where, after=(rows[-1].updated_at, rows[-1].session_id))
            keep -= size
        return where

    async def _newest_heads(self, heads: SessionFilter, keep: int) -> frozenset[str]:
        if not keep:
            return frozenset()
        newest: list[tuple[datetime, str]] = []
        async for families in self._families(heads):
            for family in families:
                place = family.updated_at, family.head.session_id
                (heapq.heappush if len(newest) < keep else heapq.heappushpop)(newest, place)
        return frozenset(session_id for _, session_id in newest)

    async def _families(self, heads: SessionFilter) -> AsyncIterator[list[SessionFamily]]:
        async for rows in self._pages(heads):
            found = await self._store.families([row.session_id for row in rows])
            yield [SessionFamily(members=members) for members in found if members]

    async def _remove_records(self, where: SessionFilter) -> None:
        async for rows in self._pages(where):
            await self._remove([row.session_id for row in rows], rows)

    async def _remove_families(self, families: Sequence[SessionFamily]) -> None:
        members = [member for family in families for member in family.members]
        await self._remove([family.head.session_id for family in families], members, whole=True)

    async def _remove(self, names: Sequence[str], seen: Sequence[SessionSummary], *, whole: bool = False) -> None:
        """Remove these records, or families, unless they have changed since they were seen."""
        versions = {row.session_id: row.version for row in seen}
        births = {row.session_id: row.birth for row in seen}
        gone = await self._store.delete(
            names,
            cascade=whole,
            idle_only=True,
            versions=versions,
            births=births,
            whole=whole,
            dry_run=self._dry_run,
        )
        self._removed.update(dict.fromkeys(gone))
        self._left.update(dict.fromkeys(versions.keys() - set(gone)))
        self._progress(len(self._removed))
