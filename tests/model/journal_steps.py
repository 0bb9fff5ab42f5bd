"""Steps that concern journals: inputs from outside, what a wake reads and writes, retention."""

from __future__ import annotations

from dataclasses import replace

from affinity.conversation.journal import (
    SEQ_MARK,
    Answer,
    Appended,
    JournalAppend,
    JournalQuery,
    JournalRetention,
    JournalStart,
    JournalWrite,
    NewEntry,
    NewRequest,
    NewRevisit,
    PendingWork,
    WakeEnd,
)
from affinity.conversation.store.contract import journals_of
from tests.model import steps as do
from tests.model.cluster_state import NAMES, ClusterState, SimulatedWorker, expect

KIND = "chat"
MANY = 10_000

# No sum of whole seconds, by which plans let time pass, comes near the end of one of these.
EXPIRES = 7.5
REVISIT = 7.5


class JournalSteps(ClusterState):
    """Carries out the steps on journals, which have the ids of instances."""

    async def _append(self, step: do.AppendInput) -> None:
        name = f"i{step.instance}"
        new = JournalAppend(
            session_id=name,
            kind=KIND,
            entry=NewEntry(
                kind="input",
                payload=f'"{self._tag("input")}"',
                event_id=None if step.event is None else f"e{step.event}",
                is_input=True,
            ),
            message=f"{self._tag('seq')} {SEQ_MARK}" if step.wakes else None,
            start=self._journal_start(name) if step.start else None,
            answers=None if step.answers is None else Answer(request_id=f"q{step.answers}", kind="confirm"),
            drops=step.drops,
            closes=step.closes,
        )
        for _ in range(2 if step.reply == "twice" else 1):
            wanted = self.model.append(new)
            (found,) = await journals_of(self.provider).append_journal([new])
            expect(f"input for {name}", _outcome(found), wanted)
            await self._look()

    def _journal_start(self, name: str) -> JournalStart:
        return JournalStart(name=NAMES[0], start=self._tag("start"), generation=self._tag(f"generation of {name}"))

    async def _read_pending(self, worker: SimulatedWorker, name: str) -> PendingWork | None:
        """Read the work with which a wake of the worker begins."""
        (work,) = await journals_of(self.provider).get_pending([name], limit=MANY)
        journal = self.model.journals.get(name)
        expect(f"{name} has a journal", work is not None, journal is not None)
        if work is None or journal is None:
            worker.pending.pop(name, None)
            return None
        now = self.model.now
        found = (
            (work.journal_id, work.processed, work.last_seq, work.closed),
            [(entry.seq, entry.payload, entry.event_id) for entry in work.inputs],
            {request.request_id: request.expired for request in work.requests},
            {revisit.key for revisit in work.due},
        )
        wanted = (
            (journal.journal_id, journal.processed, journal.last_seq, journal.closed),
            [(entry.seq, entry.text, entry.event_id) for entry in journal.pending],
            {name: request.is_expired(now) for name, request in journal.requests.items()},
            {key for key, due_at in journal.revisits.items() if due_at <= now},
        )
        expect(f"what {name} has to do", found, wanted)
        due = journal.find_next_due(now)
        soon = work.next_due is not None and due is not None and abs(work.next_due - due) < 0.5
        expect(f"{name}: {work.next_due} s until something is due, and {due}", soon or work.next_due is due, True)
        worker.pending[name] = work
        return work

    def _wake(self, worker: SimulatedWorker, step: do.TurnStep) -> list[JournalWrite]:
        """The write of a wake, by the worker's read, which may be long ago."""
        work = worker.pending.get(f"i{step.wake}")
        if work is None:
            return []
        wake_id = self._tag("wake")
        entries = [NewEntry(kind="output", payload=f'"{self._tag("output")}"', wake_id=wake_id)]
        if step.says is not None:
            entries.append(replace(entries[0], event_id=f"e{step.says}"))
        inputs = [entry.seq for entry in work.inputs][: step.consume]
        expires_in = EXPIRES if step.expires else None
        asks = [] if step.asks is None else [f"q{step.asks}"]
        revisits = [] if step.revisit is None else [f"r{step.revisit}"]
        return [
            JournalWrite(
                session_id=f"i{step.wake}",
                journal_id=work.journal_id,
                base=work.processed,
                processed=max([work.processed, *inputs]),
                wake_id=wake_id,
                end=WakeEnd(read=max([work.processed, *inputs])),
                entries=entries,
                requests=[
                    NewRequest(request_id=each, kind="confirm", payload="1", expires_in=expires_in) for each in asks
                ],
                revisits=[NewRevisit(key=key, delay=REVISIT) for key in revisits],
                ended_requests=[request.request_id for request in work.requests if request.expired],
                ended_revisits=[revisit.key for revisit in work.due],
            )
        ]

    async def _prune_journals(self, most: int) -> None:
        wanted = sum(journal.prune(most) for journal in self.model.journals.values())
        removed, after = 0, 0
        while True:
            done = await journals_of(self.provider).prune_journals(JournalRetention(entries=most), limit=3, after=after)
            removed += done.entries
            if done.after is None:
                break
            after = done.after
        expect("entries that are pruned", removed, wanted)
        await self._look()

    async def _delete_journal(self, name: str) -> None:
        (deleted,) = await journals_of(self.provider).delete_journal([name])
        expect(f"journal of {name} deleted", deleted, self.model.journals.pop(name, None) is not None)
        await self._look()

    async def _check_journals(self) -> None:
        """Entries and heads are what the reference says."""
        names = sorted(self.model.journals)
        pages = await journals_of(self.provider).read_journal(
            [JournalQuery(session_id=name, limit=MANY) for name in names]
        )
        works = await journals_of(self.provider).get_pending(names, limit=0)
        for name, page, work in zip(names, pages, works, strict=True):
            journal = self.model.journals[name]
            assert page is not None
            assert work is not None
            found = (page.processed, page.last_seq, page.closed, [(e.seq, e.payload) for e in page.entries])
            recorded = [(entry.seq, entry.text) for entry in journal.entries]
            expect(f"journal of {name}", found, (journal.processed, journal.last_seq, journal.closed, recorded))
            expect(f"wakes of {name}", await journals_of(self.provider).get_wakes(name, limit=MANY), journal.wakes)
            expect(f"revisits of {name}", {one.key for one in work.revisits}, set(journal.revisits))


def _outcome(found: Appended) -> tuple[str, int, bool]:
    return (found.outcome, found.seq, found.created)
