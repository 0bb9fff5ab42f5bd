"""Removing session records with their descendants, in steps.

A step reads one page, or is one transaction of at most `limits.DELETE_STEP` records, which locks nothing but records
that it may remove. Descendants go before their parents: an interrupted removal is continued by repeating it.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from affinity.errors import InvalidInput
from affinity.limits import DELETE_STEP, MAX_PAGE, check_age
from affinity.records import ChildCursor, SessionFilter, SessionStore, SessionSummary, child_cursor
from affinity.session.transfer import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of `SessionManager.prune`: records that it removed, or would remove."""

    removed: Sequence[str]  # session ids
    left: Sequence[str]  # old enough, but held, with queued work, or written since they were listed


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """Which records to remove: old records, or records that are not among the newest."""

    older_than: float | None  # seconds
    keep: int | None  # so many of the newest stay
    either: bool  # with both: a record that is old or beyond ``keep``; False: it must be both

    def __post_init__(self) -> None:
        """Refuse a rule that would remove everything, or has a negative number.

        Raises:
            InvalidInput: neither is set, or the number is negative.
        """
        if self.older_than is None and self.keep is None:
            raise InvalidInput("prune needs older_than, keep, or both: it does not remove everything by itself")
        if self.keep is not None and (type(self.keep) is not int or self.keep < 0):
            raise InvalidInput(f"keep = {self.keep!r}: must be a whole number of records, 0 or more")

    @property
    def needs_age(self) -> bool:
        """Whether only old records are removed."""
        return self.older_than is not None and (self.keep is None or not self.either)

    def removes(self, idle: float, *, is_kept: bool) -> bool:
        """Whether the rule removes a family; ``idle``: seconds since its last write; ``is_kept``: one of the newest."""
        is_old = self.older_than is not None and idle >= self.older_than
        is_behind = self.keep is not None and not is_kept
        both_asked = self.older_than is not None and self.keep is not None
        return (is_old and is_behind) if both_asked and not self.either else (is_old or is_behind)


async def read_pages(store: SessionStore, where: SessionFilter) -> AsyncIterator[Sequence[SessionSummary]]:
    """All records that match, newest first, page by page."""
    check_age("idle_for", where.idle_for)
    while True:
        rows = await store.list(where, MAX_PAGE)
        yield rows
        if len(rows) < MAX_PAGE:
            return
        where = replace(where, after=page_cursor(rows[-1]))


def page_cursor(last: SessionSummary) -> tuple[datetime, str]:
    """`SessionFilter.after` of the page behind this row."""
    return last.updated_at, last.session_id


async def descendants(
    store: SessionStore, session_ids: Collection[str], known: Collection[str] = ()
) -> AsyncIterator[Sequence[SessionSummary]]:
    """The records below some sessions, in pages: each once, and behind its parent. Leaves out the ``known`` records and
    the records below them.
    """
    seen = {*session_ids, *known}
    level = sorted(session_ids)
    while level:
        below: list[str] = []
        for parents in _steps(level, MAX_PAGE):
            after: ChildCursor | None = None
            while True:
                rows = await store.children(parents, MAX_PAGE, after=after)
                new = [row for row in rows if row.session_id not in seen]
                names = [row.session_id for row in new]
                seen.update(names)
                below += names
                yield new
                if len(rows) < MAX_PAGE:
                    break
                after = child_cursor(rows[-1])
        level = sorted(below)


async def delete_tree(store: SessionStore, session_id: str, *, dry_run: bool, progress: Progress) -> Sequence[str]:
    """Remove a record with all its descendants, also new ones; returns their ids, its own first."""
    if not await store.delete([session_id], dry_run=True):
        return []
    found = [session_id, *await _names_below(store, [session_id])]
    if dry_run:
        return found
    left, removed = list(found), set[str]()
    while left:
        step = left[-DELETE_STEP:]
        gone = await store.delete(step, families=dict.fromkeys(step, session_id))
        if not gone:
            if added := await _names_below(store, step, left):  # children that were added since
                found += added
                left += added
                continue
            gone = await store.delete(step)  # each other's ancestors, as far as they are there
        del left[-len(step) :]
        removed.update(gone)
        progress(len(removed))
    return [name for name in found if name in removed]


async def _names_below(store: SessionStore, session_ids: Collection[str], known: Collection[str] = ()) -> list[str]:
    return [row.session_id async for rows in descendants(store, session_ids, known) for row in rows]


@dataclass(slots=True)
class _Family:
    """A head with its descendants, as far as it is judged."""

    head: str
    idle: float
    updated_at: datetime
    members: dict[str, tuple[int, str]] = field(default_factory=dict)  # version and generation; each behind its parent

    def add(self, row: SessionSummary) -> None:
        self.members[row.session_id] = (row.version, row.generation)
        self.idle = min(self.idle, row.idle)
        self.updated_at = max(self.updated_at, row.updated_at)


class Pruner:
    """Removes the records of a store that a rule selects."""

    def __init__(self, store: SessionStore, rule: PruneRule, *, dry_run: bool, progress: Progress) -> None:
        self._store, self._rule = store, rule
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
            doomed = [each for each in families if self._rule.removes(each.idle, is_kept=each.head in kept)]
            for few in _batches(doomed):
                await self._remove_families(few)
        return self._result()

    def _result(self) -> Pruned:
        return Pruned(removed=list(self._removed), left=sorted(self._left.keys() - self._removed.keys()))

    async def _past_newest(self, where: SessionFilter, keep: int) -> SessionFilter | None:
        """The filter with a cursor after the newest ``keep`` records; None when there are no more."""
        while keep > 0:
            rows = await self._store.list(where, size := min(keep, MAX_PAGE))
            if len(rows) < size:
                return None
            where = replace(where, after=page_cursor(rows[-1]))
            keep -= size
        return where

    async def _newest_heads(self, heads: SessionFilter, keep: int) -> frozenset[str]:
        if not keep:
            return frozenset()
        newest: list[tuple[datetime, str]] = []
        async for families in self._families(heads):
            for family in families:
                place = family.updated_at, family.head
                (heapq.heappush if len(newest) < keep else heapq.heappushpop)(newest, place)
        return frozenset(session_id for _, session_id in newest)

    async def _families(self, heads: SessionFilter) -> AsyncIterator[Sequence[_Family]]:
        """The families of one page of heads after the other."""
        async for rows in read_pages(self._store, heads):
            of: dict[str, _Family] = {}
            for row in rows:
                of[row.session_id] = _Family(row.session_id, row.idle, row.updated_at)
                of[row.session_id].add(row)
            families = list(of.values())
            async for below in descendants(self._store, list(of)):
                for row in below:
                    of[row.session_id] = of[row.metadata.parent or ""]
                    of[row.session_id].add(row)
            yield families

    async def _remove_records(self, where: SessionFilter) -> None:
        async for rows in read_pages(self._store, where):
            seen = {row.session_id: (row.version, row.generation) for row in rows}
            for step in _steps(list(seen), DELETE_STEP):
                await self._remove({session_id: seen[session_id] for session_id in step})

    async def _remove_families(self, families: Sequence[_Family]) -> None:
        """Remove some families in one step; a larger one alone, its last descendants first."""
        seen = {session_id: fence for family in families for session_id, fence in family.members.items()}
        if len(seen) <= DELETE_STEP:
            await self._remove(seen, {name: family.head for family in families for name in family.members})
            return
        (head,) = [family.head for family in families]
        steps = [{name: seen[name] for name in step} for step in _steps(list(seen), DELETE_STEP)]
        for step in steps:  # nothing goes if one of them has to stay already
            if len(await self._delete(step, dry_run=True)) < len(step):
                self._left.update(dict.fromkeys(seen))
                return
        for step in reversed(steps):
            goes = await self._remove(step, None if self._dry_run else dict.fromkeys(step, head))
            if not goes:
                self._left.update(dict.fromkeys(seen))
                return

    async def _remove(self, seen: Mapping[str, tuple[int, str]], families: Mapping[str, str] | None = None) -> bool:
        """Remove records, or families, that have not changed since they were listed; whether any was removed."""
        gone = await self._delete(seen, families, dry_run=self._dry_run)
        self._removed.update(dict.fromkeys(gone))
        self._left.update(dict.fromkeys(seen.keys() - set(gone)))
        self._progress(len(self._removed))
        return bool(gone)

    async def _delete(
        self, seen: Mapping[str, tuple[int, str]], families: Mapping[str, str] | None = None, *, dry_run: bool
    ) -> Sequence[str]:
        return await self._store.delete(
            list(seen),
            idle_only=True,
            versions={session_id: version for session_id, (version, _) in seen.items()},
            generations={session_id: generation for session_id, (_, generation) in seen.items()},
            families=families,
            dry_run=dry_run,
        )


def _batches(families: Sequence[_Family]) -> Iterator[Sequence[_Family]]:
    """Families in batches of one step each. A family of more members than a step takes is a batch of its own."""
    few: list[_Family] = []
    size = 0
    for family in families:
        if few and size + len(family.members) > DELETE_STEP:
            yield few
            few, size = [], 0
        few.append(family)
        size += len(family.members)
    if few:
        yield few


def _steps(session_ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (session_ids[start : start + size] for start in range(0, len(session_ids), size))
