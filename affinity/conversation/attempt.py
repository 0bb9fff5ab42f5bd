"""An attempt of a wake without its handler: how it begins and ends, and the ends that need no handler.

These are a failure of the activity itself, dead letters, the steps in which many children are interrupted or
terminated, and the end of the conversation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar

from affinity.conversation import events as ev
from affinity.conversation import journal as j
from affinity.conversation.admission import NO_GATE, WakeGates
from affinity.conversation.client import info_of
from affinity.conversation.events import kind_of, meta_of
from affinity.conversation.kept_state import is_kept, is_of_step, put_last
from affinity.conversation.kinds import ConversationKind, interrupt_message, start_of, terminate_message
from affinity.conversation.known_wakes import USER_INTERRUPT, delegation_of
from affinity.conversation.lineage import LineageState
from affinity.conversation.program import Alone, ChildrenDone, Delegation, Failure, WakeOutcome, WakeTask
from affinity.conversation.reading import all_entries
from affinity.conversation.run_rows import OF_RUN, rows_of_runs
from affinity.conversation.stream import Streams
from affinity.conversation.trace import CANCELLED, WAKE_SPAN, Trace
from affinity.conversation.wake import Wake
from affinity.conversation.writing import WakeWriting, end_of_delegation
from affinity.limits import MAX_BATCH_BYTES, MAX_PAGE, MAX_STEP_CHILDREN
from affinity.orchestration import ActivityContext, RetryPolicy
from affinity.records import SessionStore, parse_stored
from affinity.session import OpenSession

S = TypeVar("S")

EPOCHS: Final = 2**40
ATTEMPTS: Final = 2**10
"""Moduli of an attempt's number in streams: the session's epoch is above the attempt. An attempt that a drain
interrupts does not count; the next one has a greater epoch, so its number is greater. Every JSON reader is exact up to
2**53.
"""

IDLE: Final = kind_of(ev.ConversationIdle)

TOO_MANY_ENDS: Final = (
    f"the ends of other delegations by the same wake have its result, and as many bytes as they may: "
    f"{MAX_BATCH_BYTES // 2}. Make results smaller, or delegate less at a time"
)


class Runnable(LineageState, Protocol[S]):
    """The parts of `affinity.Conversations` that the activity needs."""

    @property
    def spec(self) -> ConversationKind:
        """Names, events and bounds."""
        ...

    @property
    def retry(self) -> RetryPolicy:
        """The policy for handlers that raise."""
        ...

    @property
    def wake_timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        ...

    @property
    def readable(self) -> frozenset[str]:
        """Other kinds that tools may read."""
        ...

    @property
    def gates(self) -> WakeGates:
        """The gates at which wakes wait."""
        ...

    async def _handle(self, wake: Wake, state: S) -> None:
        """Run the handler."""
        ...

    def _open_state(self, ctx: ActivityContext, work: j.PendingWork) -> OpenSession[S]:
        """Return the state of the conversation, for the run."""
        ...


@dataclass(eq=False)
class Attempt(Generic[S]):
    """One attempt of a wake that has read the pending work."""

    conversations: Runnable[S]
    ctx: ActivityContext
    journals: j.JournalAccess
    task: WakeTask
    work: j.PendingWork
    alone: Alone | None
    """The inputs and revisits that later wakes try one by one; this wake tries one of them."""
    read_at: float
    """The time when it began, in real monotonic seconds."""
    asked_at: float
    """The time when it began, by the clock that goes as the database's."""
    streams: Streams
    spec: ConversationKind = field(init=False)
    number: int = field(init=False)
    writing: WakeWriting = field(init=False)
    delegations: list[Delegation] = field(init=False)
    headers: Mapping[str, str] | None = field(init=False)
    """The headers of the first input that has some."""
    children: ChildrenDone | None = None
    elapsed: float = 0.0
    """Seconds of the attempts that have failed, with the pauses."""
    end_bytes: int = 0
    """Characters of the ends of delegations."""

    def __post_init__(self) -> None:
        self.spec = self.conversations.spec
        self.number = self.task.get("attempts", 0) + self.ctx.attempt
        self.metas: list[ev.EventMeta] = [meta_of(item.payload) for item in self.work.inputs]
        self.headers = next((meta.headers for meta in self.metas if meta.headers), None)
        self.delegations = [*self.task.get("delegations", [])]
        self.delegations += [delegation_of(meta) for meta in self.metas if meta.delegation and not self._has(meta)]
        self.trace: Trace = Trace(f"{self.spec.name}.wake", self.number, self.ctx.worker_id)
        due: dict[str, Any] = {"revisits": [revisit.key for revisit in self.work.due]} if self.work.due else {}
        self.begun: dict[str, Any] = self.trace.started(read=self.read, **due)
        self.writing = WakeWriting(
            session_id=self.ctx.instance_id,
            wake_id=self.task["wake"],
            attempt=(self.ctx.session_epoch or 0) % EPOCHS * ATTEMPTS + min(self.number, ATTEMPTS - 1),
            work=self.work,
            types=self.spec.types,
            journals=self.journals,
            max_entries=self.spec.limits.entries,
            processed=self.work.processed,
            home=self._lease(),
        )
        is_interrupted = any(item.kind == USER_INTERRUPT for item in self.work.inputs)
        self.writing.run_steps = rows_of_runs(self.work.steps, self.task["wake"] if is_interrupted else None)
        if self.alone is not None:
            self.writing.kept_steps += self._steps_before(self.alone["wake"])

    def _steps_before(self, together: str) -> Iterable[j.Step]:
        """Return the rows of the steps of earlier wakes, one for each key: that of the wake which has failed with
        several inputs, ``together``, or else of a wake before it, which had them too.
        """
        mine = {self.task["wake"], OF_RUN}
        rows = [row for row in self.work.steps if row.wake_id not in mine and is_of_step(row)]
        return {row.key: row for row in sorted(rows, key=lambda row: row.wake_id == together)}.values()

    def _store(self) -> SessionStore:
        assert self.ctx.session_store is not None
        return self.ctx.session_store

    def _lease(self) -> j.HomeLease | None:
        """Return the lease of the conversation's home, if the wake runs on it."""
        if self.work.home is None or self.work.home != self.ctx.session_id:
            return None
        return j.HomeLease(self.work.home, self.ctx.session_epoch or 0)

    @property
    def read(self) -> int:
        """Number of the last input that was read."""
        return self.work.inputs[-1].seq if self.work.inputs else self.work.processed

    def _note_begin(self) -> None:
        for cancelled in self.task.get("cancelled_wakes", []):
            closed = {"span": WAKE_SPAN, "name": self.trace.name, "result": "cancelled"}
            # With an event id, so that it is written once: a part of this wake may commit it, and the next attempt adds
            # it again.
            event_id = f"{CANCELLED}{cancelled}"
            entry = replace(self.writing.record("span.completed", closed), wake_id=cancelled, event_id=event_id)
            self.writing.entries[-1] = entry
            self.trace.entries.append(entry)
        self.trace.entries.append(self.writing.record("span.started", self.begun))

    def _close(self, error: ev.SpanError | None = None) -> None:
        """Close the trace."""
        self.writing.record("span.completed", self.trace.completed(self.begun, self.read_at, error))

    def _end(self, outcome: j.EndOutcome, error: ev.SpanError | None = None, reason: str = "") -> None:
        """Close the trace, and end the attempt."""
        self._close(error)
        text = None if error is None else error.model_dump_json()
        self.writing.end = j.WakeEnd(outcome=outcome, reason=reason, read=self.read, attempt=self.number, error=text)

    def _outcome(self, outcome: str) -> WakeOutcome:
        result = WakeOutcome(outcome=outcome, processed=self.writing.processed)  # type: ignore[typeddict-item]
        if (next_due := self._next_due()) is not None:
            result["next_due"] = next_due
        if self.task.get("delegations") or self.delegations:
            result["delegations"] = self.delegations
        if outcome == "nothing" and (cancelled := self.task.get("cancelled_wakes")):
            result["cancelled_wakes"] = cancelled
        if self.alone is not None:
            result["alone"] = self.alone
        return result

    @property
    def is_alone(self) -> bool:
        """True if the wake tries one input alone that has failed together with others."""
        return "alone" in self.task and len(self.work.inputs) + len(self.work.due) == 1

    def _passed(self) -> float:
        """Return the seconds since the attempt began, by the database's clock."""
        return self.journals.monotonic() - self.asked_at

    def _next_due(self) -> float | None:
        """Return the seconds until something is due that this wake has not processed."""
        times = [] if self.work.next_due is None else [max(0.0, self.work.next_due - self._passed())]
        times += [max(0.0, at - self.journals.monotonic()) for at in self.writing.later]
        times += [revisit.delay for revisit in self.writing.revisits]
        times += [request.expires_in for request in self.writing.requests if request.expires_in is not None]
        return min(times, default=None)

    async def _other_gate(self) -> str | None:
        """Return the gate at which this wake should have waited; None: it has.

        Raises:
            InvalidLimit, InvalidInput, Exception: see `WakeGates.of`.
        """
        if self.task.get("gate_was_read"):
            return None
        gate = self.conversations.gates.fixed
        if gate is None:
            rows = await self.journals.list(j.JournalFilter(session_id=self.writing.session_id), 1)
            if not rows:  # the journal was deleted in this moment: the commit finds out
                return None
            gate = self.conversations.gates.of(info_of(rows[0]))
        return None if gate == self.task.get("gate", NO_GATE) else gate

    async def _interrupt_children(self) -> bool:
        """Interrupt the next children, if the last interrupt is for them too. Return whether more may be left."""
        last = next((item for item in reversed(self.work.inputs) if item.kind == USER_INTERRUPT), None)
        event = None if last is None else self.spec.types.read(last).event
        if last is None or not (isinstance(event, ev.UserInterrupt) and event.cascade):
            return False
        entry = j.NewEntry(
            kind=event.kind,
            payload=ev.EventTypes().encode(event),
            event_id=f"interrupt/{self.work.journal_id}/{last.seq}",
            is_input=True,
        )
        return await self._send_to_children(last.seq, entry, message=interrupt_message(cancel=event.cancel), drops=True)

    async def _send_to_children(self, seq: int, entry: j.NewEntry, **options: Any) -> bool:
        """Send an entry to the next children, as many as one transaction takes. Return whether more may be left.

        Args:
            seq: as in `ChildrenDone`.
            entry: its event id is the same in all steps.
            options: of the appends.
        """
        done = self.task.get("children")
        after = done["after"] if done is not None and done["seq"] == seq else None
        where = j.JournalFilter(
            parent=self.writing.session_id,
            parent_journal=self.work.journal_id,
            closed=False,
            after=None if after is None else (datetime.fromisoformat(after[0]), after[1]),
        )
        limit = max(1, min(MAX_STEP_CHILDREN, MAX_BATCH_BYTES // 2 // len(entry.payload.encode())))
        page = await self.journals.list(where, limit)
        sender = self.writing.session_id
        self.writing.appends += [
            j.JournalAppend(
                session_id=row.session_id,
                kind=row.kind,
                entry=entry,
                start=start_of(row.kind, sender),  # for one whose instance an operator has deleted
                journal_id=row.journal_id,
                sender=sender,
                **options,
            )
            for row in page
        ]
        if len(page) < limit:
            return False
        self.children = ChildrenDone(seq=seq, after=(page[-1].created_at.isoformat(), page[-1].session_id))
        return True

    def _end_step(self) -> WakeOutcome:
        """Commit only the messages to some of the children: the next wake goes on."""
        assert self.children is not None
        self.ctx._enlist(self.writing)
        outcome = self._outcome("nothing")
        outcome["more"], outcome["children"] = True, self.children
        return outcome

    def _has(self, meta: ev.EventMeta) -> bool:
        return any(delegation["id"] == meta.delegation for delegation in self.delegations)

    def _notify_parent(
        self, ended: Delegation, outcome: ev.ChildOutcome, *, result: Any = None, error: ev.SpanError | None = None
    ) -> None:
        event = ev.ChildEnded(
            child=self.writing.session_id,
            delegation=ended["id"],
            outcome=outcome,
            result=result,
            cycles=ended["cycles"],
            error=error,
        )
        append = end_of_delegation(event, ended["parent"], ended["parent_kind"], ended["parent_journal"])
        size = self.end_bytes + (len(append.entry.payload) if append.entry else 0)
        if result is not None and size > MAX_BATCH_BYTES // 2:
            error = ev.SpanError(type="PayloadTooLarge", message=TOO_MANY_ENDS)
            self._notify_parent(ended, "failed", error=error)
            return
        self.end_bytes = size
        self.writing.appends.append(append)

    async def _record_failure(self, failure: Failure) -> WakeOutcome:
        """Record that an activity of the wake has failed, which could not do so itself."""
        self._note_begin()
        error = ev.SpanError(type=failure["type"], message=failure["message"], stack=failure["stack"])
        return await self._close_trace(error, None if failure["final"] else self._pause(failure["type"], None))

    def _pause(self, name: str, error: BaseException | None) -> float | None:
        """Return the seconds until the next attempt; None: the wake is not tried again."""
        policy, failures = self.conversations.retry, self.task.get("failures", 0) + 1
        pause = policy.delay(failures, self.task["wake"])
        self.elapsed = self.task.get("elapsed", 0.0) + self._passed() + pause
        if name in policy.non_retryable or not policy.retries(error or Exception(), failures, self.elapsed):
            return None
        return pause

    async def _close_trace(self, error: ev.SpanError, pause: float | None) -> WakeOutcome:
        if pause is None and self.alone is not None:
            return await self._set_aside_alone(error)
        if pause is None and self._has_several:
            return self._try_alone(error)
        self._end("failed" if pause is None else "retried", error)
        if pause is None:
            requests, revisits = (
                [request.request_id for request in self.work.requests],
                [revisit.key for revisit in self.work.due],
            )
            self.writing.note(ev.ConversationIdle("failed", requests, error, revisits))
            for delegation in self.delegations:
                self._notify_parent(delegation, "failed", error=error)
            self.delegations = []
        else:
            self.delegations = [*self.task.get("delegations", [])]  # the next attempt reads the others again
            self.writing.note(ev.ConversationStatusChanged("rescheduling", f"{error.type}: {error.message}", pause))
        self.ctx._enlist(self.writing)
        outcome = self._outcome("failed")
        outcome["attempt"], outcome["read"] = self.number, self.read
        if pause is not None:
            outcome["retry_after"], outcome["elapsed"] = pause, self.elapsed
        elif self.work.more:
            outcome["more"] = True  # announced before this wake began
        return outcome

    @property
    def _has_several(self) -> bool:
        has_interrupt = any(item.kind == USER_INTERRUPT for item in self.work.inputs)
        return len(self.work.inputs) + len(self.work.due) > 1 and not has_interrupt

    def _try_alone(self, error: ev.SpanError) -> WakeOutcome:
        """Let the next wakes try one input each: the wake has failed for good, perhaps for one of its inputs only."""
        self._end("retried", error)
        self.delegations = [*self.task.get("delegations", [])]  # the next wakes read the others again
        reason = f"{error.type}: {error.message}: the inputs are tried one by one"
        self.writing.note(ev.ConversationStatusChanged("rescheduling", reason, 0.0))
        self.alone = Alone(wake=self.task["wake"], read=self.read, due=[revisit.key for revisit in self.work.due])
        return self._enlist_more()

    async def _set_aside_alone(self, error: ev.SpanError) -> WakeOutcome:
        """Set the only input of the wake aside as a dead letter: it has failed for good, and others are to be tried."""
        own = [delegation for delegation in self.delegations if delegation not in self.task.get("delegations", [])]
        self.delegations = [delegation for delegation in self.delegations if delegation not in own]
        for delegation in own:
            self._notify_parent(delegation, "failed", error=error)
        await self._put_last()
        self._note_dead_letters(error)
        return self._enlist_more()

    async def _put_last(self) -> None:
        """Put the state that was committed for inputs that are set aside in place."""
        if any(is_kept(row) for row in self.work.steps):
            opening = self.conversations._open_state(self.ctx, self.work)
            async with opening:
                await put_last(opening, self.writing.session_id, self.work.steps)

    def _note_dead_letters(self, error: ev.SpanError) -> None:
        """Go on behind the inputs and due revisits of the wake."""
        self.writing.processed = self.read
        self.writing.ended_revisits += [revisit.key for revisit in self.work.due]
        self.writing.is_over = True
        inputs, due = [item.seq for item in self.work.inputs], [revisit.key for revisit in self.work.due]
        self.writing.note(ev.DeadLetters(inputs, due, error))
        self._end("failed", error)

    def _enlist_more(self) -> WakeOutcome:
        self.ctx._enlist(self.writing)
        outcome = self._outcome("done")
        outcome["more"] = True
        return outcome

    async def _set_aside(self) -> WakeOutcome | None:
        """Record the inputs of the last wake, which has failed for good, as dead letters. The next wake begins behind
        them. None: the last wake has not failed, or had no inputs and no revisits.
        """
        last = next(iter(await self.journals.wakes(self.writing.session_id, newest_first=True, limit=1)), None)
        if last is None or last.outcome != "failed":
            return None
        keys = await self._revisits_of(last.wake_id)
        inputs = [item for item in self.work.inputs if item.seq <= last.read]
        # Not the revisits that the failed wake has requested itself, under the same keys, and committed with a part.
        due = [revisit for revisit in self.work.due if revisit.key in keys and revisit.wake_id != last.wake_id]
        if not inputs and not due:
            return None
        self.work = replace(self.work, inputs=inputs, due=due)
        if await self._interrupt_children():
            return self._end_step()
        await self._put_last()
        self.delegations = [*self.task.get("delegations", [])]  # the delegations of these inputs have ended
        self.begun = self.trace.started(read=self.read)
        self._note_begin()
        self._note_dead_letters(ev.SpanError.model_validate_json(last.error or "{}"))
        return self._enlist_more()

    async def _revisits_of(self, wake_id: str) -> Collection[str]:
        """Return the keys of the revisits that a failed wake was given."""
        me = self.writing.session_id
        query = j.JournalQuery(session_id=me, wake_id=wake_id, kinds=[IDLE], newest_first=True, limit=1)
        page = await self.journals.read(query)
        return {
            key for entry in (page.entries if page else ()) for key in parse_stored(entry.payload).get("revisits", ())
        }

    async def _end_children(self, cascade: bool) -> WakeOutcome:
        """Notify the parent that the conversation is terminated. With ``cascade`` terminate the children too."""
        if cascade:
            event = ev.ConversationStatusChanged("terminated", "its parent was terminated")
            entry = j.NewEntry(kind=event.kind, payload=ev.EventTypes().encode(event), event_id=f"{event.kind}/parent")
            message = terminate_message(cascade=True)
            if await self._send_to_children(0, entry, message=message, closes=True, drops=True):
                return self._end_step()
        self._note_begin()
        await self._read_delegations()
        for delegation in self.delegations:
            self._notify_parent(delegation, "terminated")
        if not (self.writing.appends or self.task.get("cancelled_wakes") or self.work.steps):
            return self._outcome("nothing")
        self.writing.is_over = True
        self.writing.run_steps.clear()
        self._close()
        self.ctx._enlist(self.writing)
        return self._outcome("done")

    async def _read_delegations(self) -> None:
        """Add the delegations of inputs that did not fit into the first read."""
        if self.work.more:
            rest = j.JournalQuery(session_id=self.writing.session_id, after=self.read, pending=True, limit=MAX_PAGE)
            async for entry in all_entries(self.journals.read, rest):
                meta = meta_of(entry.payload)
                if meta.delegation and not self._has(meta):
                    self.delegations.append(delegation_of(meta))
