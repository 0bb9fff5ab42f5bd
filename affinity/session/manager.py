"""`SessionManager`: lists, shows, deletes, prunes, exports and imports the records of a session store.

Only `SessionManager.delete`, `SessionManager.prune`, and workers with an option of retention, remove records.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from affinity.actions import action
from affinity.errors import SessionAmbiguous, SessionNotFound
from affinity.limits import MAX_PAGE, check_age, check_id
from affinity.paging import Page, Pages, next_cursor, read_cursor, uninterrupted
from affinity.records import SessionFilter, SessionRecord, SessionStore, SessionSummary, database_of, in_family_order
from affinity.session.removal import (
    Pruned,
    Pruner,
    PruneRule,
    delete_tree,
    descendants,
    read_pages,
)
from affinity.session.sessions import Sessions
from affinity.session.transfer import (
    Imported,
    ImportTimes,
    Lines,
    OnExists,
    Progress,
    exported_line,
    import_lines,
    no_progress,
)

_EVERYTHING: Final = SessionFilter()
_CANDIDATES: Final = 10  # ids that `SessionAmbiguous` lists
_INSTANT: Final = timedelta(microseconds=1)


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
        """Messages of all members together; None when no member has a count."""
        counts = [count for member in self.members if (count := member.metadata.message_count) is not None]
        return sum(counts) if counts else None

    @property
    def participants(self) -> Sequence[str]:
        """Participants of all members, each once, in their order."""
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


class SessionManager:
    """Lists, shows, deletes, prunes, exports and imports the records of a store.

    ::

        async with open_store("sqlite:///affinity.db") as store:
            manager = SessionManager(store)
            async for summary in manager.list(SessionFilter(kind="chat", idle_for=86_400)):
                print(summary.session_id, summary.metadata.name)
            await manager.prune(older_than=30 * 86_400, dry_run=True)

    Name a session by its whole id, or, except to delete it, by a prefix that no other id has. Every call raises a
    `ProviderError` when the store refuses or fails.
    """

    def __init__(self, store: SessionStore, sessions: Iterable[Sessions[Any]] = ()) -> None:
        """A manager of the records in ``store``; it loads records by the ``sessions`` of their kind to import them."""
        self._store = store
        self._sessions = tuple(sessions)

    @property
    def _database(self) -> str:
        return database_of(self._store)

    # -- listing

    def list(self, where: SessionFilter = _EVERYTHING) -> Pages[SessionSummary]:
        """List the records that match, newest first. A record that is written meanwhile may be missed.

        Raises:
            InvalidInput: a number of seconds out of range.
        """
        check_age("idle_for", where.idle_for)

        async def read(after: str | None, limit: int) -> Page[SessionSummary]:
            rows = await self._store.list(where if after is None else replace(where, after=read_cursor(after)), limit)
            return Page(items=rows, next=next_cursor(rows, limit, "updated_at", "session_id"))

        return Pages(read)

    async def count(self, where: SessionFilter = _EVERYTHING) -> int:
        """The number of records that match.

        Raises:
            InvalidInput: a number of seconds out of range.
        """
        check_age("idle_for", where.idle_for)
        return await self._store.count(where)

    async def family(self, text: str) -> SessionFamily:
        """The family of the session that ``text`` names: the ancestor whose parent has no record, with all its
        descendants; their messages and participants together. It is read page by page, so that a record that is written
        meanwhile may be missed.

        Raises:
            SessionNotFound, SessionAmbiguous, InvalidId: as for `resolve`.
        """
        line = await self._line(check_id(text, "session id"))
        if not line and (alone := await self._find_only_id(text)) is not None:
            line = await self._line(alone)
        if not line:
            raise _not_found(text)
        head = line[-1]
        below = [row async for rows in descendants(self._store, [head.session_id]) for row in rows]
        return SessionFamily(members=in_family_order([head, *below]))

    async def _line(self, session_id: str) -> Sequence[SessionSummary]:
        """The records of a session, of its parent, and so on; each once."""
        found: dict[str, SessionSummary] = {}
        at: str | None = session_id
        while at is not None and at not in found:
            rows = {row.session_id: row for row in await self._store.ancestors(at, MAX_PAGE)}
            while at in rows and at not in found:
                found[at] = rows[at]
                at = rows[at].metadata.parent
            if at not in found and len(rows) < MAX_PAGE:
                break
        return list(found.values())

    async def resolve(self, text: str) -> str:
        """The session id that equals ``text``, or the only one that begins with it.

        Raises:
            SessionNotFound: no record has this id, or one that begins with it.
            SessionAmbiguous: several begin with it; carries them.
            InvalidId: no session id can begin with it.
        """
        return (await self.show(text)).session_id

    async def show(self, text: str) -> SessionRecord:
        """The record of the session that ``text`` names; `affinity.session.transfer.readable` turns it into a readable
        document.

        Raises:
            SessionNotFound, SessionAmbiguous, InvalidId: as for `resolve`.
        """
        record = await self._store.load(check_id(text, "session id"))
        if record is None and (alone := await self._find_only_id(text)) is not None:
            record = await self._store.load(alone)
        if record is None:
            raise _not_found(text)
        return record

    async def _find_only_id(self, prefix: str) -> str | None:
        """The only id that begins with the prefix; None when none does."""
        rows = await self._store.list(SessionFilter(prefix=prefix), _CANDIDATES)
        if len(rows) > 1:
            raise SessionAmbiguous(prefix, sorted(row.session_id for row in rows))
        return rows[0].session_id if rows else None

    # -- removing

    @action("delete", "session", "session_id", each=True)
    async def delete(
        self,
        session_id: str,
        *,
        allow_prefix: bool = False,
        cascade: bool = True,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Remove the record of a session, also while the session is held.

        With ``cascade`` it is removed in steps of at most `limits.DELETE_STEP` records, each a transaction: descendants
        first, its own last. A deletion that was interrupted goes on when it is repeated.

        Args:
            session_id: the whole id.
            allow_prefix: accept a prefix of the id too, as `resolve` does. Not for code that may run twice: once the
                session is deleted, the same prefix can name another one.
            cascade: the records of its children too, and of theirs.
            dry_run: change nothing.
            progress: called after each step with the number of records removed.

        Returns:
            The ids of the records that were (or would be) removed, the session's own id first.

        Raises:
            SessionNotFound: no record has this id.
            SessionAmbiguous: with ``allow_prefix``, as for `resolve`.
            InvalidId: as for `resolve`.
        """
        named = await self.resolve(session_id) if allow_prefix else check_id(session_id, "session id")
        if cascade:
            removed = await delete_tree(self._store, named, dry_run=dry_run, progress=progress or no_progress)
        else:
            removed = await self._store.delete([named], dry_run=dry_run)
        if not removed:
            raise SessionNotFound(f"no session has the id {named!r}, and a deletion takes whole ids")
        return removed

    @action("prune", "session", "", "older_than", "keep")
    async def prune(
        self,
        *,
        older_than: float | None = None,
        keep: int | None = None,
        either: bool = False,
        family: bool = False,
        kind: str | None = None,
        labels: Mapping[str, str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Pruned:
        """Remove the records that are older than an age, or all but the newest.

        With both arguments, a record must match both, or, with ``either``, one of them. The record of a session stays
        if a live worker holds the session, if it has work in the queue, or if the record is written meanwhile.

        Each record is judged by itself, a child by its own age. With ``family``, a record is judged together with all
        its descendants, by the newest of them: all are removed or none, and none if one of them has to stay. (Records
        that are each other's parents belong to no family, and stay.)

        It reads page by page, and removes in steps of at most `limits.DELETE_STEP` records, each a transaction. A
        family of more records goes in several steps, descendants first. If one of them is used meanwhile, that step and
        the later steps are left. An interrupted call is continued by repeating it.

        Args:
            older_than: seconds since the last write, by the store's clock.
            keep: leave this many of the newest records, or families, that match.
            either: with both, remove records that are old, and also records that ``keep`` leaves out.
            family: judge and remove whole families; ``kind`` and ``labels`` then apply to their heads, and ``keep``
                counts families.
            kind: only records of this kind.
            labels: only records that have all of these.
            dry_run: change nothing.
            progress: called after each step with the number of records removed.

        Raises:
            InvalidInput: neither ``older_than`` nor ``keep`` is set, or one is out of range.
        """
        rule = PruneRule(older_than=older_than, keep=keep, either=either)
        check_age("older_than", older_than)
        pruner = Pruner(self._store, rule, dry_run=dry_run, progress=progress or no_progress)
        where = SessionFilter(kind=kind, labels=labels or {})
        return await (pruner.families(where) if family else pruner.records(where))

    # -- export and import

    @uninterrupted
    async def export(self, sessions: Iterable[str] | SessionFilter = _EVERYTHING) -> AsyncIterator[str]:
        """Records as lines of JSON, one per record, without the newline; `import_` reads them. The blobs that they name
        are kept, as by `Client.keep_blobs`.

        Args:
            sessions: texts as for `resolve`, which are all looked up before the first line; or a filter, newest first.
                Each record is read when its line is made: a record that is written meanwhile is not missed, a record
                that is deleted meanwhile is skipped.

        Raises:
            SessionNotFound, SessionAmbiguous, InvalidId: as for `resolve`.
            SessionLoadFailed: a state is damaged, or packed in a way that this version does not know.
            BlobStoreFailed: the blob store fails.
        """
        if isinstance(sessions, SessionFilter):
            async for session_id in self._every(sessions):
                if (record := await self._store.load(session_id)) is not None:
                    yield await exported_line(self._store, record)
            return
        for session_id in [await self.resolve(text) for text in sessions]:
            if (record := await self._store.load(session_id)) is not None:
                yield await exported_line(self._store, record)

    async def _every(self, where: SessionFilter) -> AsyncIterator[str]:
        """The ids of all records that match.

        A write moves a record to the front of the listing, past the page that is being read. So the records that were
        written since the first page are listed again, until they fit on one page, which is read in one call.
        """
        seen = set[str]()
        pages = new = 2
        while pages > 1 and new:
            pages = new = 0
            since = where
            async for rows in read_pages(self._store, where):
                if rows and not pages:
                    since = replace(where, updated_after=rows[0].updated_at - _INSTANT)
                pages += 1
                for row in rows:
                    if row.session_id not in seen:
                        seen.add(row.session_id)
                        new += 1
                        yield row.session_id
            where = since

    @action("import", "session", "", "on_exists")
    async def import_(
        self,
        lines: Lines,
        *,
        on_exists: OnExists = "refuse",
        times: ImportTimes = "kept",
        progress: Progress | None = None,
    ) -> Imported:
        """Write the records of an `export`, one by one; blank lines are skipped.

        Each line is checked before its record is written: it is JSON with a schema version, within the limits. If the
        manager has the code of the kind (``sessions``), a record that this code could not load is refused too.

        An import that fails in the middle keeps the written records. Repeat it with ``on_exists="skip"`` to continue.

        Args:
            lines: a file open for reading, an `export` of another store, …
            on_exists: for a record that the store has: fail there, skip the line, or replace the record.
            times: "kept" writes the times of the lines; a time in the future becomes now. "now" writes the time of the
                import, the oldest record first, so that the newest stays newest. That reads all lines before it writes,
                and keeps more than 16 MiB of them in a temporary file.
            progress: called after each line with the number of lines done.

        Raises:
            InvalidInput: a line is no record; the message has its number, and how many records were written before it.
            SessionRecordRefused: the code of its kind could not load a record; the message has the same.
            SessionWriteConflict: with "refuse", the store has such a record; the message has the same.
        """
        report = progress or no_progress
        return await import_lines(self._store, lines, self._sessions, on_exists=on_exists, times=times, progress=report)


def _not_found(text: str) -> SessionNotFound:
    return SessionNotFound(f"no session has the id {text!r}, or one that begins with it")
