"""The verbs on journals, which workers and clients call.

A provider keeps the tables ``journals``, ``journal_entries``, ``journal_requests``, ``journal_revisits``,
``journal_delegations``, ``journal_steps``, ``journal_streams``, ``journal_wakes`` and ``journal_parents``. Easy to get
wrong:

* Journals. An entry gets its number under the lock of the journal's row. An entry, its message, the answer of a request
  and the creation of journal and instance are one transaction. A wake's entries pass only if the watermark is still the
  one that it read. A journal goes with the record of its session.
* Hints with a call. ``append_journal`` sends hints after its transaction, and ignores the failure of a hint.
* Streams. ``read_journal`` reads entries and parts in one snapshot. A paused worker's late part is not shown. Parts
  need not survive a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, cast

from affinity.conversation import journal as j
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import Hint, ProviderConnection
from affinity.provider.parts import check_part, missing_verbs


class JournalProvider(ProviderConnection, Protocol):
    """The journals of a provider. `WorkerProvider.commit_turn` and ``ack_work_item`` commit the entries of a wake, as a
    `JournalWrite` among their parts. `NewWorkItem.parked` items are wakes: an input of the journal with the instance's
    id queues them.

    A record of session state that has a journal stays (`Retention.records`), and a journal goes with the record of its
    session. `WorkerProvider.sweep` removes, by the bounds in `Retention.guests`:

    - ``age``, ``entries`` and ``size``, see `JournalRetention`: entries, as `prune_journals`.
    - ``resting``: journals that have been at rest for this many seconds, with the instances of the same ids and their
      children, and the records; entries that forks continue stay, see `delete_journal`. A journal is *at rest* while
      it has no request, no revisit, no delegation, no child that is left and no input that waits; nothing is delegated
      to it; its instance has ended, and not failed, or has no message and no work item, and no child that runs; and no
      worker holds its session. The next round looks again at the journals that had to stay, see `rounds`.
    """

    async def append_journal(
        self, appends: Sequence[j.JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
    ) -> Sequence[j.Appended]:
        """Append inputs, in order; create the journals and instances that are missing. Each is atomic: entry, answer,
        removal of requests, and message to the instance. It does not change the ``sessions`` row: no epoch ends.

        Of one batch, appends to one journal have increasing numbers, in the order of the batch.

        After the transaction the hints in ``notify`` are sent, as by `ProviderConnection.notify_workers`: whatever the
        outcomes. The call need not wait for that, and does not fail when it fails.
        """
        ...

    async def get_pending(
        self, session_ids: Sequence[str], *, limit: int, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[j.PendingWork | None]:
        """Return the work for the next wake of each session; None: it has no journal. Reads only.

        At most ``limit`` inputs are read for each session. Once the inputs of the call have ``max_bytes``, no more are
        read; but one input of each session is always read. With ``limit`` 0, only requests and revisits are read, and
        `PendingWork.more` has no meaning.
        """
        ...

    async def read_journal(
        self, queries: Sequence[j.JournalQuery], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[j.JournalPage | None]:
        """Return a page of each journal; None: the session has none. Reads only, by an index per condition, in one
        snapshot: an entry that replaces parts of a stream is not seen together with them.

        Once the entries of the call have ``max_bytes``, no more are read. At least one entry is read; later pages may
        be empty, with ``more``.
        """
        ...

    async def get_wakes(
        self, session_id: str, *, after: int = 0, newest_first: bool = False, limit: int
    ) -> Sequence[j.JournalWake]:
        """Return the ended wakes of a journal whose last entry is behind ``after``, in order; also those of the
        journals that it continues. Empty without such wakes, or without a journal. Reads only, by the key.
        """
        ...

    async def write_stream(self, parts: Sequence[j.StreamPart]) -> Collection[int]:
        """Add provisional parts. Parts of other wakes of the journal, and of lower attempts, are removed. Subscribers
        are notified. Parts need not survive a crash of the database: if it has none of an attempt, and the parts do not
        begin with `StreamPart.first`, they are not added, so that no reader sees a gap.

        Returns:
            The ids of the journals whose parts were not added for that reason: write all from ``first`` on again.

        These parts are ignored:

        - of another journal id, or with a number that is there;
        - of a lower attempt than a part of the same wake that is there;
        - of an attempt that is not greater than one that has committed (`JournalWrite.attempt`) or was retracted;
        - of a wake that has committed, unless it is the last one that has.
        """
        ...

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        """Remove the parts of this attempt and of lower ones; later ones are ignored. Subscribers are notified."""
        ...

    async def list_journals(self, where: j.JournalFilter, limit: int) -> Sequence[j.JournalInfo]:
        """Return one page, newest first; the cursor of the next page is the last row's (created_at, session_id)."""
        ...

    async def list_requests(self, where: j.RequestFilter, limit: int) -> j.OpenRequestPage:
        """Return one page of the requests that wait for an answer, over all journals, oldest first. Reads only, by an
        index of the requests: no other journal is read.

        At most `limits.MAX_PAGE` pending requests are looked at, so that a page may have fewer than ``limit``, or none,
        and others follow.
        """
        ...

    async def create_journals(self, creations: Sequence[j.JournalCreation]) -> Sequence[j.CreationResult]:
        """Create journals from others, with their instances and records of state. Each is atomic. The same creation
        again changes nothing.
        """
        ...

    async def get_lineage(self, session_id: str) -> Sequence[j.JournalLineage]:
        """Return the journal and its ancestors, nearest first, each once; empty without a journal. A deleted ancestor
        is among them as long as another journal names it.
        """
        ...

    async def describe_journal(self, session_id: str, kind: str, changes: j.Description) -> bool:
        """Change title, owner and labels, as far as ``changes`` has them; None removes. False: the session has no
        journal of this kind.
        """
        ...

    async def delete_journal(self, session_ids: Sequence[str]) -> Sequence[bool]:
        """Remove journals with their entries, wakes, requests, revisits, delegations and streams, except entries that a
        fork continues. Delegations to them from other journals end. False: the session has no journal. The instances
        stay: delete them first.
        """
        ...

    async def prune_journals(
        self,
        retention: j.JournalRetention,
        *,
        limit: int,
        after: int = 0,
        dry_run: bool = False,
        everything: bool = False,
    ) -> j.JournalPruning:
        """Prune one step of the journals that are over a bound, in the order of their ids, behind ``after``.

        A step ends after `limits.PRUNE_STEP_SECONDS`, `limits.PRUNE_WINDOW` of these journals, or ``limit`` of their
        entries; an index finds them. A journal that another call is changing may be left out.

        A journal of which nothing can be removed is put off: it is left out for a minute, then for twice as long each
        time, up to an hour. With ``everything`` it is not left out. When a fork is pruned, the next round looks again
        at the journal that it continues. With ``dry_run`` nothing changes, nothing is left out, and
        ``limit`` does not count.
        """
        ...


def journals_of(provider: ProviderConnection) -> JournalProvider:
    """Return the provider as one that keeps journals.

    Raises:
        InvalidOptions: it keeps none.
    """
    check_part(provider, JournalProvider)
    return cast(JournalProvider, provider)


def keeps_journals(provider: ProviderConnection) -> bool:
    """Return whether the provider keeps journals."""
    return not missing_verbs(provider, JournalProvider)
