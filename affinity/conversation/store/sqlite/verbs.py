"""Verbs on journals that make several calls, or send hints behind one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from affinity.conversation import journal as j
from affinity.conversation.store.listing import list_portions
from affinity.conversation.store.repeats import refuse_other_events
from affinity.conversation.store.sqlite import admin, journals, streams
from affinity.provider.contract import Hint, ProviderConnection
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.verbs import VerbRunner, reads


class _Provider(VerbRunner, ProviderConnection, Protocol):
    """The provider, which runs operations and sends hints."""


read_journal: Final = reads(journals.read)


async def append_journal(
    self: _Provider, appends: Sequence[j.JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
) -> Sequence[j.Appended]:
    appended = await self._act("append_journal", "journal", journals.append, appends)
    await self.notify_workers(notify or {})
    return await refuse_other_events(partial(read_journal, self), appends, appended)


async def write_stream(self: _Provider, parts: Sequence[j.StreamPart]) -> Collection[int]:
    lost = await self._writer.call(Database.write_unsynced, streams.write, parts)
    await self.notify_changes({part.session_id for part in parts}, minor=True)
    return lost


async def retract_stream(self: _Provider, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
    await self._write(streams.retract, session_id, journal_id, wake_id, attempt)
    await self.notify_changes([session_id])


_read_portion: Final = reads(admin.list_journals)


async def list_journals(self: _Provider, where: j.JournalFilter, limit: int) -> Sequence[j.JournalInfo]:
    return await list_portions(partial(_read_portion, self), where, limit, instant)


async def prune_journals(
    self: _Provider,
    retention: j.JournalRetention,
    *,
    limit: int,
    after: int = 0,
    dry_run: bool = False,
    everything: bool = False,
) -> j.JournalPruning:
    """Prune journals. Looks for them without the lock that writers need."""
    find = partial(admin.find_prunable, each=None if dry_run else 1, everything=everything or dry_run)
    found = await self._read(find, retention, after)
    if dry_run or not (found.entries or found.abandoned):
        return j.JournalPruning(entries=sum(found.entries.values()), after=found.after)
    return await self._act("prune_journals", "", admin.prune, found, retention, limit, after)
