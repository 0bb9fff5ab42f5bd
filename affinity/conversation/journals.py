"""The verbs on journals, as clients use them: calls that are made together share one round trip."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import ClassVar, Final, cast

from cachetools import LRUCache

from affinity.client import KernelClient
from affinity.client.calls import client_batcher, retry_on
from affinity.client.changes import AllChanges, ChangeScope
from affinity.client.parts import ClientPart, ClientServices
from affinity.conversation import journal as j
from affinity.conversation.store.contract import JournalProvider, keeps_journals
from affinity.errors import ProviderError
from affinity.flow.store.contract import limits_of
from affinity.limits import MAX_ADMISSIONS, MAX_PAGE, PRUNE_EVENTS, check_condition
from affinity.provider.contract import Hint, Provider
from affinity.provider.hint_sender import HintSender

logger: logging.Logger = logging.getLogger("affinity.client")

NOTIFY_SECONDS: Final = 0.05
"""Notices of appends within this time are sent together. A notice is not sent if a hint of its journal has come in that
time: the wake that the append leads to notifies readers too, mostly sooner.
"""

KNOWN: Final = 10_000
"""Journals that a client remembers, so that an event for one of them does not carry what would create it."""

_THERE: Final = frozenset({"appended", "repeated"})
"""Outcomes of entries that are there."""


@dataclass(slots=True)
class _KnownJournal:
    holder: str | None = None  # of its session, at the last append that unparked an item
    is_quiet: bool = False  # a wake has written since the last append: the next one is probably parked


class Journals(ClientPart):
    """Appends to journals and reads them, for one client. It belongs to the event loop on which it is made.

    An id that no store can keep is refused with `InvalidId`.
    """

    def __init__(self, services: ClientServices) -> None:
        self._provider = cast(JournalProvider, services.provider)  # see `is_wanted`
        self._hints = services.hints
        self._retry = partial(retry_on, asyncio.get_running_loop(), "client")
        self._appends = client_batcher(self._append, _size_of_append)
        self._reads = client_batcher(self._provider.read_journal)
        self._changes = services.changes
        self._changes.listen(self._on_hint)
        self._known = LRUCache[str, _KnownJournal](KNOWN)
        self._event_ids = map((secrets.token_hex(8) + "-{:x}").format, count())
        self._notices = HintSender(services.provider, delay=NOTIFY_SECONDS)

    @classmethod
    def is_wanted(cls, provider: Provider) -> bool:
        """Return whether the provider keeps journals."""
        return keeps_journals(provider)

    async def run(self) -> None:
        """Send appends, reads and notices until cancelled."""
        async with self._appends, self._reads:
            await self._notices.run()

    @property
    def timeline(self) -> str:
        """See `ProviderConnection.timeline`."""
        return self._provider.timeline

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        return self._provider.database

    def append(self, append: j.JournalAppend) -> asyncio.Future[j.Appended]:
        """Append an input, and notify the worker of its instance. The entry has an event id, so that it may be repeated
        after a lost reply; see `Batcher.submit` for the errors of the future.
        """
        entry = append.entry
        _check(append.session_id, append.kind, *(() if entry is None else (entry.kind, entry.event_id, entry.wake_id)))
        return self._appends.submit(append)

    def new_event_id(self) -> str:
        """Return a new event id. Its random part is the client's, so an event costs no randomness."""
        return next(self._event_ids)

    def is_known(self, session_id: str) -> bool:
        """Return whether this client has seen a journal of this session, which probably still exists."""
        return session_id in self._known

    def read(self, query: j.JournalQuery) -> asyncio.Future[j.JournalPage | None]:
        """Read a page of a journal; None: it does not exist. See `Batcher.submit` for the errors of the future."""
        _check(query.session_id, query.wake_id, query.event_id, *query.kinds)
        return self._reads.submit(query)

    def changes(self, session_id: str, *, only_major: bool = False) -> ChangeScope:
        """Return the changes of a journal from now on; see `Changes.of`."""
        _check(session_id)
        return self._changes.of(session_id, only_major=only_major)

    async def all_changes(self) -> AllChanges:
        """Return the changes of all journals from now on; see `Changes.of_all`."""
        return await self._changes.of_all()

    async def prune(self, retention: j.JournalRetention, after: int, *, dry_run: bool) -> j.JournalPruning:
        """See `JournalProvider.prune_journals`; no journal is left out."""
        prune = partial(self._provider.prune_journals, retention, limit=PRUNE_EVENTS, after=after, everything=True)
        return await self._retry(partial(prune, dry_run=dry_run))

    async def list(self, where: j.JournalFilter, limit: int) -> Sequence[j.JournalInfo]:
        """See `JournalProvider.list_journals`."""
        return await self._retry(partial(self._provider.list_journals, where, limit))

    async def requests(self, where: j.RequestFilter, limit: int) -> j.OpenRequestPage:
        """See `JournalProvider.list_requests`."""
        return await self._retry(partial(self._provider.list_requests, where, limit))

    async def all_requests(self, where: j.RequestFilter) -> tuple[Sequence[j.Request], int, str | None]:
        """Return all requests, the number of their pages, and `OpenRequestPage.mark` as it was before."""
        found = deque[j.Request]()
        pages, mark = 0, None
        while not pages or where.after is not None:
            page = await self.requests(where, MAX_PAGE)
            found += page.requests
            pages, mark = pages + 1, mark or page.mark
            where = replace(where, after=page.after, mark=None)
        return found, pages, mark

    async def pending(self, session_id: str) -> j.PendingWork | None:
        """Return the requests and revisits of a session, without its inputs; see `JournalProvider.get_pending`."""
        _check(session_id)
        (work,) = await self._retry(partial(self._provider.get_pending, [session_id], limit=0))
        return work

    async def create(self, creation: j.JournalCreation) -> j.CreationResult:
        """See `JournalProvider.create_journals`."""
        _check(creation.session_id, creation.kind, creation.operator, creation.home, *creation.parents)
        (result,) = await self._retry(partial(self._provider.create_journals, [creation]))
        if result.outcome == "created":
            self._hints.notify_all()
            self._notices.notify_changes({creation.session_id: True})
        return result

    async def describe(self, session_id: str, kind: str, changes: j.Description) -> bool:
        """See `JournalProvider.describe_journal`."""
        _check(session_id, kind, changes)
        found = await self._retry(partial(self._provider.describe_journal, session_id, kind, changes))
        self._notices.notify_changes({session_id: True})
        return found

    async def lineage(self, session_id: str) -> Sequence[j.JournalLineage]:
        """See `JournalProvider.get_lineage`."""
        _check(session_id)
        return await self._retry(partial(self._provider.get_lineage, session_id))

    async def held_epochs(self, session_ids: Collection[str]) -> Mapping[str, int]:
        """Return the epochs of the sessions that a worker holds."""
        _check(*session_ids)
        rows = await self._retry(partial(self._provider.list_sessions, list(session_ids)))
        return {row.session_id: row.epoch for row in rows if row.held}

    async def wakes(
        self, session_id: str, after: int = 0, *, newest_first: bool = False, limit: int = MAX_PAGE
    ) -> Sequence[j.JournalWake]:
        """See `JournalProvider.get_wakes`."""
        _check(session_id)
        get = self._provider.get_wakes
        return await self._retry(partial(get, session_id, after=after, newest_first=newest_first, limit=limit))

    async def delete(self, session_ids: Sequence[str]) -> Sequence[bool]:
        """See `JournalProvider.delete_journal`."""
        _check(*session_ids)
        deleted = await self._retry(partial(self._provider.delete_journal, session_ids), idempotent=False)
        self._notices.notify_changes(dict.fromkeys(session_ids, True))
        return deleted

    async def _append(self, appends: Sequence[j.JournalAppend]) -> Sequence[j.Appended]:
        expected = self._expect_holder(appends)
        notify: Mapping[str | None, Hint] = {} if expected is None else {expected: Hint(only_own=True)}
        found = await self._provider.append_journal(appends, notify=notify)
        for append, appended in zip(appends, found, strict=True):
            if not appended.journal_id:
                self._known.pop(append.session_id, None)
                continue
            known = self._known.setdefault(append.session_id, _KnownJournal())
            if appended.unparked:
                known.holder = appended.holder
        there = [(append, done) for append, done in zip(appends, found, strict=True) if done.outcome in _THERE]
        if any(appended.created for appended in found):
            self._hints.notify_all()
        else:
            for appended in found:
                is_known = expected is not None and appended.holder == expected
                if appended.unparked and not (is_known or appended.is_gated):
                    self._hints.notify_holder(appended.holder)
            sent = [append for append, done in there if not done.unparked]
            self._hints.notify_owners([append.session_id for append in sent if append.message is not None])
        if any(appended.is_gated for appended in found):
            await self._open_gates()
        for append, _ in there:
            is_input = append.entry is not None and append.entry.is_input
            self._notices.notify_changes({append.session_id: not is_input})
        return found

    async def _open_gates(self) -> None:
        """Admit the wakes that have room at their limits. If it fails, a worker does it within about a second."""
        with suppress(ProviderError):
            await limits_of(self._provider).admit(most=MAX_ADMISSIONS)
        self._hints.notify_all()

    def _expect_holder(self, appends: Sequence[j.JournalAppend]) -> str | None:
        """Return the worker for which a lone append will probably queue an item: its hint need not wait for the reply.
        A hint for nothing costs that worker three fetches.
        """
        expected = None
        for append in appends:
            if (known := self._known.get(append.session_id)) is not None:
                if len(appends) == 1 and known.is_quiet and append.entry is not None and append.entry.is_input:
                    expected = known.holder
                known.is_quiet = False
        return expected

    def _on_hint(self, changed: Mapping[str, bool]) -> None:
        for session_id, of_wake in changed.items():
            if of_wake:
                self._notices.forget_change(session_id)
                if (known := self._known.get(session_id)) is not None:
                    known.is_quiet = True


def _check(*texts: object) -> None:
    for text in texts:
        check_condition(text, "what names a journal or an entry")


def _size_of_append(append: j.JournalAppend) -> int:
    return len(append.entry.payload) if append.entry is not None else 0


class JournalCalls(KernelClient):
    """The journals of a client."""

    _PART: ClassVar = Journals

    @property
    def journals(self) -> Journals:
        """The journals of this database, for the calls of conversations."""
        return self._part(Journals)
