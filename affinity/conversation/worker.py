"""Conversations in a worker: journals for activities, with reads that concurrent wakes share, and the hints after a
commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar, cast

from affinity.batching import Batcher
from affinity.conversation import journal as j
from affinity.conversation.store.contract import JournalProvider
from affinity.flow.declaring import declared_limits
from affinity.flow.store.contract import keeps_limits, limits_of
from affinity.limits import MAX_ADMISSIONS, MAX_PAGE
from affinity.orchestration import KernelApp
from affinity.provider.contract import Provider
from affinity.provider.parts import missing_verbs
from affinity.tasks import ignore_error
from affinity.worker.guests import GuestPart
from affinity.worker.services import WorkerServices

T = TypeVar("T")

READ_AHEAD_SECONDS: Final = 0.25
"""Greatest age of inputs that were read ahead: a commit takes less, and an activity that waits for longer reads again.
"""


class _Wanted(NamedTuple):
    """A read of the pending work of a session, with at most ``limit`` of its inputs."""

    session_id: str
    limit: int


class _Ahead(NamedTuple):
    """Pending work that is read ahead for one wake."""

    limit: int
    read_at: float  # real monotonic time
    due_from: float  # `PendingWork.next_due` counts from here, by the clock that goes as the database's
    answer: j.PendingWork | asyncio.Future[j.PendingWork | None]

    def is_old(self, now: float) -> bool:
        return now - self.read_at > READ_AHEAD_SECONDS


class WorkerJournals:
    """The `affinity.conversation.journal.JournalAccess` of a worker."""

    def __init__(self, services: WorkerServices, *, has_limits: bool = False) -> None:
        """``has_limits``: whether wakes of this app, and so perhaps of those that it sends to, wait at limits."""
        self._has_limits = has_limits
        self._gates = asyncio.Event()
        self._services = services
        self._provider = services.provider
        self._store = cast(JournalProvider, services.provider)
        self._retry = services.health.retry
        self.monotonic: Callable[[], float] = services.timing.monotonic
        self._notifier = services.notifier
        self._pending = Batcher(self._read_pending, self._retry_read, owner="worker")
        self._ahead: dict[str, _Ahead] = {}  # by session, oldest first

    async def open_gates(self) -> None:
        """Admit wakes at their limits when activities of this worker have queued some, until cancelled."""
        while True:
            await self._gates.wait()
            self._gates.clear()
            if self._services.lease.is_serving:
                admit = partial(limits_of(self._provider).admit, most=MAX_ADMISSIONS)
                if (await self._services.health.call(admit, self.open_gates)).admitted:
                    self._notifier.share()

    async def aclose(self) -> None:
        """End the reads for wakes: the worker has ended, so each repetition would fail."""
        await self._pending.aclose()

    def read_ahead(self, session_id: str, limit: int, found: j.PendingWork | None = None) -> None:
        """Begin to read the pending work for the next wake of a session, unless it has been ``found``.

        The read will see at least all commits up to now.
        """
        self._forget_old()
        self._ahead.pop(session_id, None)
        answer = found or self._submit(session_id, limit)
        self._ahead[session_id] = _Ahead(limit, time.monotonic(), self.monotonic(), answer)

    def _forget_old(self) -> None:
        """Forget inputs that were read for wakes that run elsewhere, or not at all."""
        now = time.monotonic()
        while self._ahead and next(iter(self._ahead.values())).is_old(now):
            del self._ahead[next(iter(self._ahead))]

    async def get_pending(self, session_id: str, limit: int) -> j.PendingWork | None:
        """Return the work for a wake; it may have been read ahead."""
        ahead, now = self._ahead.pop(session_id, None), time.monotonic()
        if ahead is None or ahead.limit != limit or ahead.is_old(now):
            return await self._submit(session_id, limit)
        if isinstance(ahead.answer, j.PendingWork):
            return ahead.answer
        work = await ahead.answer
        if work is None or work.next_due is None:
            return work
        return replace(work, next_due=max(0.0, work.next_due - (self.monotonic() - ahead.due_from)))

    def _submit(self, session_id: str, limit: int) -> asyncio.Future[j.PendingWork | None]:
        answer = self._pending.submit(_Wanted(session_id, limit))
        answer.add_done_callback(ignore_error)  # no wake may await it
        return answer

    async def _read_pending(self, wanted: Sequence[_Wanted]) -> Sequence[j.PendingWork | None]:
        """Read with one call for each limit; nearly always there is one."""
        by_limit: dict[int, dict[str, j.PendingWork | None]] = {}
        for session_id, limit in wanted:
            by_limit.setdefault(limit, {})[session_id] = None
        for limit, works in by_limit.items():
            found = await self._store.get_pending([*works], limit=limit)
            works.update(zip(works, found, strict=True))
        return [by_limit[limit][session_id] for session_id, limit in wanted]

    def _retry_read(self, verb: Callable[[], Awaitable[T]], *, unless: object) -> Awaitable[T]:
        return self._retry(verb)

    async def read(self, query: j.JournalQuery) -> j.JournalPage | None:
        """Return a page of a journal."""
        (page,) = await self._retry(partial(self._store.read_journal, [query]))
        return page

    async def wakes(
        self, session_id: str, after: int = 0, *, newest_first: bool = False, limit: int = MAX_PAGE
    ) -> Sequence[j.JournalWake]:
        """Return the ended attempts of wakes of a journal."""
        get = self._store.get_wakes
        return await self._retry(partial(get, session_id, after=after, newest_first=newest_first, limit=limit))

    async def list(self, where: j.JournalFilter, limit: int) -> Sequence[j.JournalInfo]:
        """Return one page of journals."""
        return await self._retry(partial(self._store.list_journals, where, limit))

    async def append_inputs(self, appends: Sequence[j.JournalAppend]) -> Sequence[j.Appended]:
        """Append inputs of other journals, with event ids."""
        appended = await self._retry(partial(self._store.append_journal, appends)) if appends else []
        for append in appends:
            self._notifier.notify_change(append.session_id)
        if appends:
            self._notifier.hint(None)  # whichever workers have the instances, or the sessions of parked wakes
        if any(found.is_gated for found in appended):
            self._gates.set()
        return appended

    async def lineage(self, session_id: str) -> Sequence[j.JournalLineage]:
        """Return a journal and its ancestors."""
        return await self._retry(partial(self._store.get_lineage, session_id))

    async def held_epochs(self, session_ids: Collection[str]) -> Mapping[str, int]:
        """Return the epochs of the sessions, among these, that a worker holds."""
        rows = await self._retry(partial(self._provider.list_sessions, list(session_ids)))
        return {row.session_id: row.epoch for row in rows if row.held}

    async def has_instance(self, session_id: str) -> bool:
        """Return whether an instance has the id."""
        (instance,) = await self._retry(partial(self._provider.get_instance, [session_id]))
        return instance is not None

    async def write_stream(self, parts: Sequence[j.StreamPart]) -> Collection[int]:
        """Add provisional parts."""
        return await self._store.write_stream(parts)

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        """Remove provisional parts."""
        await self._store.retract_stream(session_id, journal_id, wake_id, attempt)

    async def append(self, append: j.JournalAppend) -> j.Appended:
        """Append an entry with an event id, and notify its readers and the worker of its instance."""
        (found,) = await self._retry(partial(self._store.append_journal, [append]))
        self._notifier.notify_change(append.session_id)
        if found.is_gated:
            self._gates.set()
        elif found.unparked:
            self._notifier.hint(found.holder)
        elif append.message is not None:
            self._notifier.hint_owner(append.session_id)
        return found

    def note_written(self, write: j.JournalWrite) -> None:
        """Notify readers and workers of a committed write."""
        self._notifier.notify_change(write.session_id)
        for append in write.appends:
            self._notifier.notify_change(append.session_id)
            self._notifier.hint_owner(append.session_id)
            if append.if_refused is not None:  # it may have been
                self._notifier.hint_owner(append.if_refused.session_id)
        if write.appends and self._has_limits:
            self._gates.set()
        for creation in write.creations:
            self._notifier.notify_change(creation.session_id)
        if any(append.start is not None for append in write.appends) or write.creations or write.starts:
            self._notifier.hint(None)  # instances that no worker owns yet


class ConversationPart(GuestPart):
    """Journals for the activities of one worker."""

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services, app, code=code)
        self._has_limits = bool(declared_limits(app))
        self._journals = WorkerJournals(services, has_limits=self._has_limits)

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        return not missing_verbs(provider, JournalProvider)

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._journals.open_gates,) if keeps_limits(self._provider) else ()

    @property
    def access(self) -> WorkerJournals:
        return self._journals

    def read_ahead(self, instance_id: str, most: int, found: object | None = None) -> None:
        self._journals.read_ahead(instance_id, most, found if isinstance(found, j.PendingWork) else None)

    async def aclose(self) -> None:
        await self._journals.aclose()


PART: Final = ConversationPart
