"""The activity of a wake: reads the pending work, runs the handler, and enlists its additions to the journal.

The handler runs within the opened state of the session. Its outcome is one of these:

* it returns: entries, state, watermark and result commit together;
* it raises: the state's change is dropped, and the closed trace commits, with the watermark as it was. The result has
  the time after which the orchestration tries again;
* the run ends otherwise (its process, its lease, a conflict, an interrupt): nothing commits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio
from pydantic_core import from_json

from affinity.conversation import events as ev
from affinity.conversation.events import kind_of, meta_of
from affinity.conversation.kinds import ConversationKind, interrupt_message, start_of, terminate_message
from affinity.conversation.known_wakes import delegation_of, drop_ended_wakes, task_of_execution, unchanged
from affinity.conversation.lineage import CreationPlanner, LineageState
from affinity.conversation.program import ChildrenDone, Delegation, Failure, WakeOutcome, WakeTask
from affinity.conversation.reading import all_entries
from affinity.conversation.shown_trace import trace_shown
from affinity.conversation.steps import PART
from affinity.conversation.stream import Streams, StreamWriter
from affinity.conversation.trace import TRACE_KINDS, WAKE_SPAN, Trace, error_of, root_span
from affinity.conversation.views import request_of, revisit_of
from affinity.conversation.wake import Wake
from affinity.conversation.wake_parts import WakeInputs, WakeParts, handling
from affinity.conversation.writing import WakeWriting, end_of_delegation
from affinity.errors import InvalidOptions, SessionRecordTooNew, SessionWriteConflict
from affinity.journal import (
    EndOutcome,
    Entry,
    HomeLease,
    JournalAccess,
    JournalAppend,
    JournalFilter,
    JournalQuery,
    NewEntry,
    PendingWork,
    WakeEnd,
)
from affinity.limits import MAX_BATCH_BYTES, MAX_PAGE, MAX_STEP_CHILDREN, MAX_WAKE_ENTRIES
from affinity.orchestration import ActivityContext, RetryPolicy
from affinity.records import SessionStore
from affinity.session import OpenSession

S = TypeVar("S")

logger: logging.Logger = logging.getLogger("affinity.conversation")

EPOCHS: Final = 2**40
ATTEMPTS: Final = 2**10
"""Moduli of an attempt's number in streams: the session's epoch is above the attempt. An attempt that a drain
interrupts does not count; the next one has a greater epoch, so its number is greater. Every JSON reader is exact up to
2**53.
"""

USER_INTERRUPT: Final = kind_of(ev.UserInterrupt)
IDLE: Final = kind_of(ev.ConversationIdle)

TOO_MANY_ENDS: Final = (
    f"the ends of other delegations by the same wake have its result, and as many bytes as they may: "
    f"{MAX_BATCH_BYTES // 2}. Make results smaller, or delegate less at a time"
)

RETRACT_SECONDS: Final = 2.0
"""How long a run that is cancelled takes to retract what it has streamed."""


class Runnable(LineageState, Protocol[S]):
    """The parts of `affinity.Conversations` that the activity needs."""

    @property
    def spec(self) -> ConversationKind:
        """Names, events and bounds."""
        ...

    @property
    def retry(self) -> RetryPolicy:
        """Of handlers that raise."""
        ...

    @property
    def wake_timeout(self) -> float | None:
        """Seconds that one attempt may take."""
        ...

    @property
    def readable(self) -> frozenset[str]:
        """Other kinds that tools may read."""
        ...

    async def handle(self, wake: Wake, state: S) -> None:
        """Run the handler."""
        ...

    def open_state(self, ctx: ActivityContext, work: PendingWork) -> OpenSession[S]:
        """The state of the conversation, for the run."""
        ...


class WakeRunner(Generic[S]):
    """Runs the wakes of the conversations of one kind."""

    def __init__(self, conversations: Runnable[S]) -> None:
        self._conversations = conversations
        self._streams: WeakKeyDictionary[JournalAccess, Streams] = WeakKeyDictionary()

    async def run(self, ctx: ActivityContext, task: WakeTask) -> WakeOutcome:
        """One attempt of a wake.

        Raises:
            SessionWriteConflict, SessionRecordTooNew: of the conversation's own state; the worker repeats the run.
            InvalidOptions: the context has no journals.
        """
        if ctx.journals is None:
            raise InvalidOptions("a wake runs on a worker, whose database has journals")
        task = task_of_execution(task, ctx.execution_id)
        read_at, asked_at = time.monotonic(), ctx.journals.monotonic()
        is_last = "terminated" in task
        limit = MAX_WAKE_ENTRIES if is_last else self._conversations.spec.limits.inputs
        work = await ctx.journals.get_pending(ctx.instance_id, limit)
        if is_last and work is not None and not work.closed:
            await _close_journal(work, ctx.instance_id, ctx.journals)
            work = await ctx.journals.get_pending(ctx.instance_id, limit)
        if work is None:
            return WakeOutcome(outcome="nothing", processed=0)
        had_cancelled, task = "cancelled_wakes" in task, await drop_ended_wakes(task, work, ctx)
        if work.closed and not is_last:
            return unchanged(task, work) | {"closed": True}
        is_ordinary = not is_last and "failed" not in task
        if work.home not in {None, ctx.session_id} and is_ordinary:  # its instance was created again
            return unchanged(task, work) | {"more": True, "home": work.home or ""}
        known = task.get("processed", work.processed)
        if not is_last and (known > work.processed or (known < work.processed and not had_cancelled)):
            # The journal was recreated, or the instance was, or the journal is a fork's. The orchestration must know
            # the watermark before the wake: an interrupt would pass for one that came too late, and it would be lost
            # what was read by a wake that has ended before it was cancelled.
            return unchanged(task, work) | {"more": True}
        streams = self._streams_of(ctx.journals)
        attempt = _Attempt(self._conversations, ctx, ctx.journals, task, work, read_at, asked_at, streams)
        return await attempt.run()

    def _streams_of(self, journals: JournalAccess) -> Streams:
        found = self._streams.get(journals)
        if found is None:
            found = self._streams[journals] = Streams(journals)
        return found


async def _close_journal(work: PendingWork, session_id: str, journals: JournalAccess) -> None:
    """An operator has cancelled the instance: nothing may come behind what its last wake reads, since nothing would
    read it, and the sender of a delegation would wait for its end.
    """
    event = ev.ConversationStatusChanged("terminated", "its instance was cancelled")
    entry = NewEntry(kind=event.kind, payload=ev.EventTypes().encode(event), event_id=f"{event.kind}/{work.journal_id}")
    await journals.append(
        JournalAppend(
            session_id=session_id,
            kind=work.kind,
            entry=entry,
            message=None,
            journal_id=work.journal_id,
            closes=True,
            drops=True,
        )
    )


@dataclass(eq=False)
class _Attempt(Generic[S]):
    """One attempt of a wake that has read the pending work."""

    conversations: Runnable[S]
    ctx: ActivityContext
    journals: JournalAccess
    task: WakeTask
    work: PendingWork
    read_at: float
    """When it began, in real monotonic seconds."""
    asked_at: float
    """When it began, by the clock that goes as the database's."""
    streams: Streams
    spec: ConversationKind = field(init=False)
    number: int = field(init=False)
    writing: WakeWriting = field(init=False)
    delegations: list[Delegation] = field(init=False)
    children: ChildrenDone | None = None
    elapsed: float = 0.0
    """Seconds of the attempts that have failed, with the pauses."""
    end_bytes: int = 0
    """Characters of the ends of delegations."""

    def __post_init__(self) -> None:
        self.spec = self.conversations.spec
        self.number = self.task.get("attempts", 0) + self.ctx.attempt
        self.metas = [meta_of(each.payload) for each in self.work.inputs]
        self.delegations = [*self.task.get("delegations", [])]
        self.delegations += [delegation_of(each) for each in self.metas if each.delegation and not self._has(each)]
        self.trace = Trace(f"{self.spec.name}.wake", self.number, self.ctx.worker_id)
        due: dict[str, Any] = {"revisits": [each.key for each in self.work.due]} if self.work.due else {}
        self.begun = self.trace.started(read=self.read, **due)
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

    def _store(self) -> SessionStore:
        assert self.ctx.session_store is not None
        return self.ctx.session_store

    def _lease(self) -> HomeLease | None:
        """The lease of the conversation's home, if the wake runs on it."""
        if self.work.home is None or self.work.home != self.ctx.session_id:
            return None
        return HomeLease(self.work.home, self.ctx.session_epoch or 0)

    @property
    def read(self) -> int:
        """Number of the last input that was read."""
        return self.work.inputs[-1].seq if self.work.inputs else self.work.processed

    async def run(self) -> WakeOutcome:
        if "terminated" in self.task:
            return await self._end_children(self.task["terminated"])
        if "failed" in self.task:
            return self._record_failure(self.task["failed"])
        if "aside" in self.task and (outcome := await self._set_aside()) is not None:
            return outcome
        expired = [each for each in self.work.requests if each.expired]
        if not (self.work.inputs or self.work.due or expired):
            return self._outcome("nothing")
        return self._end_step() if await self._interrupt_children() else await self._wake()

    async def _wake(self) -> WakeOutcome:
        """Run the handler, and record its end."""
        of = self.writing
        stream = self.streams.open(of.session_id, self.work.journal_id, of.wake_id, of.attempt, read=self.read)
        try:
            wake = await self._handle(stream)
        except (SessionWriteConflict, SessionRecordTooNew) as error:
            await stream.retract()
            if error.session_id == self.writing.session_id:
                raise
            return self._fail(error)
        except Exception as error:
            await stream.retract()
            return self._fail(error)
        except BaseException:
            with anyio.move_on_after(RETRACT_SECONDS, shield=True):
                await stream.retract()
            raise
        await stream.end()
        return await self._succeed(wake)

    # -- the handler

    async def _handle(self, stream: StreamWriter) -> Wake:
        """Run the handler; its additions are collected, and its change of the state is staged."""
        entries = [self.spec.types.read(each) for each in self.work.inputs]
        committed = await self._read_committed()
        self._note_begin()
        pending = [*entries, *self._expire()]
        self.writing.processed = self.read
        self.writing.ended_revisits += [each.key for each in self.work.due]
        self.writing.is_interrupted = self.work.more and bool(await self._last_interrupt(self.read))
        wake = Wake(self._parts(pending, stream, committed))
        about = {
            "affinity.session_id": wake.conversation_id,
            "affinity.wake_id": wake.id,
            "affinity.attempt": self.number,
        }
        senders = [each.trace for each in self.metas if each.trace is not None]
        async with asyncio.timeout(self._time_left()):
            with root_span(self.trace.name, about, senders):
                self.parts.opening = opening = self.conversations.open_state(self.ctx, self.work)
                async with opening as state:
                    wake.pending = await self._drop_cleared(wake.pending)
                    with handling(self.parts):
                        async with trace_shown(self.parts):
                            await self.conversations.handle(wake, state)
        self.writing.check_known()  # the handler may have caught it
        return wake

    async def _read_committed(self) -> Sequence[Entry]:
        """What earlier attempts of this wake have committed, without its trace."""
        wake = self.task["wake"]
        if not any(each.wake_id == wake and each.key == PART for each in self.work.steps):
            return []
        query = JournalQuery(session_id=self.writing.session_id, wake_id=wake, limit=MAX_PAGE)
        found = [each async for each in all_entries(self.journals.read, query)]
        return [each for each in found if not each.kind.startswith(TRACE_KINDS)]

    async def _drop_cleared(self, pending: Sequence[ev.JournalEntry]) -> Sequence[ev.JournalEntry]:
        """The inputs without the answers that an interrupt has cleared, which came before any wake had read them. The
        interrupt may be behind the inputs of this wake, or have come since these were read.
        """
        answers = [each.seq for each in pending if isinstance(each.event, ev.AnswerEvent) and each.seq <= self.read]
        if not answers:
            return pending
        last = await self._last_interrupt(answers[0])
        return [each for each in pending if each.seq not in answers or each.seq > last]

    async def _last_interrupt(self, after: int) -> int:
        """Number of the last interrupt behind an entry that no wake has processed; 0: there is none.

        Raises:
            SessionWriteConflict: this attempt is out of date.
        """
        query = JournalQuery(
            session_id=self.writing.session_id,
            after=after,
            kinds=(USER_INTERRUPT,),
            pending=True,  # one that a merge has copied was processed there
            newest_first=True,
            limit=1,
        )
        page = await self.journals.read(query)
        if page is not None and page.processed > self.work.processed:  # it may have processed an interrupt too
            text = "another wake has processed what this one was given"
            raise SessionWriteConflict(self.writing.session_id, None, None, text)
        return page.entries[0].seq if page is not None and page.entries else 0

    def _time_left(self) -> float | None:
        """Seconds that this attempt may take; None: any number."""
        own, total = self.conversations.wake_timeout, self.conversations.retry.total_timeout
        if total is None:
            return own
        left = total - self.task.get("elapsed", 0.0)
        return left if own is None else min(own, left)

    def _parts(self, pending: Sequence[ev.JournalEntry], stream: StreamWriter, committed: Sequence[Entry]) -> WakeParts:
        inputs = WakeInputs(
            pending=pending,
            due=[revisit_of(each) for each in self.work.due],
            requests=[request_of(each, self.spec.types, self.ctx.instance_id) for each in self.work.open_requests],
            revisits={each.key for each in self.work.revisits if each not in self.work.due},
            parent=self.work.parent,
            committed=committed,
        )
        self.parts = WakeParts(
            context=self.ctx,
            wake_id=self.task["wake"],
            attempt=self.number,
            kind=self.spec,
            readable=self.conversations.readable,
            inputs=inputs,
            writing=self.writing,
            stream=stream,
            trace=self.trace,
            journals=self.journals,
            lineage=CreationPlanner(self.spec, self.journals, self.conversations, self._store(), in_wake=True),
        )
        return self.parts

    def _note_begin(self) -> None:
        for cancelled in self.task.get("cancelled_wakes", []):
            closed = {"span": WAKE_SPAN, "name": self.trace.name, "result": "cancelled"}
            # Once, though a part of this wake may commit it, and the next attempt find it open again.
            event_id = f"cancelled/{cancelled}"
            entry = replace(self.writing.record("span.completed", closed), wake_id=cancelled, event_id=event_id)
            self.writing.entries[-1] = entry
            self.trace.entries.append(entry)
        self.trace.entries.append(self.writing.record("span.started", self.begun))

    def _expire(self) -> list[ev.JournalEntry]:
        """Answer the requests that have expired, as refused."""
        found = []
        for number, request in enumerate([each for each in self.work.requests if each.expired], 1):
            answer = self.spec.types.expired_answer(request.kind, request.request_id)
            entry = self.writing.note(answer)
            self.writing.held.append(entry)
            self.writing.ended_requests.append(request.request_id)
            # Its number is not known yet: it stands behind all that is there.
            found.append(
                ev.JournalEntry(
                    seq=self.work.last_seq + number,
                    event=answer,
                    event_id=None,
                    wake_id=self.task["wake"],
                    recorded_at=request.expires_at or request.created_at,
                    payload=entry.payload,
                )
            )
        return found

    async def _interrupt_children(self) -> bool:
        """Interrupt children, if the last interrupt is for them too; whether there are more of them."""
        last = next((each for each in reversed(self.work.inputs) if each.kind == USER_INTERRUPT), None)
        event = None if last is None else self.spec.types.read(last).event
        if last is None or not (isinstance(event, ev.UserInterrupt) and event.cascade):
            return False
        entry = NewEntry(
            kind=event.kind,
            payload=ev.EventTypes().encode(event),
            event_id=f"interrupt/{self.work.journal_id}/{last.seq}",
            is_input=True,
        )
        return await self._send_to_children(last.seq, entry, message=interrupt_message(cancel=event.cancel), drops=True)

    async def _send_to_children(self, seq: int, entry: NewEntry, **options: Any) -> bool:
        """Send an entry to the next children, as many as one transaction takes; whether there may be more of them.

        Args:
            seq: as in `ChildrenDone`.
            entry: its event id is the same in all steps.
            options: of the appends.
        """
        done = self.task.get("children")
        after = done["after"] if done is not None and done["seq"] == seq else None
        where = JournalFilter(
            parent=self.writing.session_id,
            parent_journal=self.work.journal_id,
            closed=False,
            after=None if after is None else (datetime.fromisoformat(after[0]), after[1]),
        )
        limit = max(1, min(MAX_STEP_CHILDREN, MAX_BATCH_BYTES // 2 // len(entry.payload.encode())))
        page = await self.journals.list(where, limit)
        sender = self.writing.session_id
        self.writing.appends += [
            JournalAppend(
                session_id=each.session_id,
                kind=each.kind,
                entry=entry,
                start=start_of(each.kind, sender),  # for one whose instance an operator has deleted
                journal_id=each.journal_id,
                sender=sender,
                **options,
            )
            for each in page
        ]
        if len(page) < limit:
            return False
        self.children = ChildrenDone(seq=seq, after=(page[-1].created_at.isoformat(), page[-1].session_id))
        return True

    def _end_step(self) -> WakeOutcome:
        """Commit what was sent to some of the children, and nothing else: the next wake goes on."""
        assert self.children is not None
        self.ctx.enlist(self.writing)
        outcome = self._outcome("nothing")
        outcome["more"], outcome["children"] = True, self.children
        return outcome

    def _has(self, meta: ev.EventMeta) -> bool:
        return any(each["id"] == meta.delegation for each in self.delegations)

    # -- a good end

    async def _succeed(self, wake: Wake) -> WakeOutcome:
        self.writing.is_over = True
        if self.writing.is_interrupted:
            self._drop_requests()
        reason = self._stop_reason(wake)
        await self._count_cycles(reason)
        reason = self._stop_reason(wake)  # without the revisits that these have ended
        self._end("done", reason=reason)
        requests = {"requests": [each.request_id for each in wake.requests]} if wake.requests else {}
        self.writing.record("conversation.idle", {"stop_reason": reason, **requests})
        self.ctx.enlist(self.writing)
        outcome = self._outcome("done")
        if self.work.more:
            outcome["more"] = True
        return outcome

    def _drop_requests(self) -> None:
        """An interrupt that the next wakes read drops what this one has requested. The commit drops it too, unless the
        interrupt is one that the journal has from another.
        """
        own = self.writing.requested
        pending = self.parts.inputs.requests
        pending[:] = [each for each in pending if each.request_id not in own]
        self.writing.requests.clear()
        self.writing.revisits.clear()

    def _stop_reason(self, wake: Wake) -> ev.StopReason:
        if self.work.more:
            return "more"
        if wake.requests:
            return "requires_action"
        has_revisit = self.writing.revisits or self.writing.has_later_revisit
        if has_revisit or self.work.next_due is not None:
            return "revisit"
        return "truncated" if self.parts.is_truncated else "end_turn"

    async def _count_cycles(self, reason: ev.StopReason) -> None:
        """Count this wake for the delegations; end each that is done or has used up its cycles."""
        finish = self.parts.finish
        is_done = finish.is_set or (reason in {"end_turn", "truncated"} and not self.writing.has_open_delegations)
        for each in self.delegations:
            each["cycles"] += 1
        ended = [each for each in self.delegations if is_done or each["cycles"] >= each["max_cycles"]]
        self.delegations = [each for each in self.delegations if each not in ended]
        for each in ended:
            self._notify_parent(each, "completed" if is_done else "max_cycles", result=finish.result)
        if ended and not is_done and not self.delegations:  # it may run no more
            self.writing.revisits.clear()
            pending = await self.journals.get_pending(self.writing.session_id, 0)  # the wake's parts have added some
            self.writing.ended_revisits = [each.key for each in pending.revisits] if pending else []
            if not any(each.expires_at is not None for each in self.parts.inputs.requests):
                self.work = replace(self.work, next_due=None)
                self.writing.later.clear()
                self.writing.has_later_revisit = False

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

    # -- a bad end

    def _fail(self, error: BaseException) -> WakeOutcome:
        """Record that the handler has raised."""
        logger.warning(
            "wake %s of conversation %s failed (attempt %d)",
            self.task["wake"],
            self.writing.session_id,
            self.number,
            exc_info=error,
            extra={"session_id": self.writing.session_id, "wake_id": self.task["wake"], "attempt": self.number},
        )
        pause = self._pause(type(error).__name__, error)
        # The state may be staged: what has failed may have come behind the handler.
        self.ctx.withdraw(error, retried=pause is not None)
        self.writing.discard(self.trace.entries)
        return self._close_trace(error_of(error), pause)

    def _record_failure(self, failure: Failure) -> WakeOutcome:
        """Record that an activity of the wake has failed, which could not do so itself."""
        self._note_begin()
        error = ev.SpanError(type=failure["type"], message=failure["message"], stack=failure["stack"])
        return self._close_trace(error, None if failure["final"] else self._pause(failure["type"], None))

    def _pause(self, name: str, error: BaseException | None) -> float | None:
        """Seconds until the next attempt; None: there is none."""
        policy, failures = self.conversations.retry, self.task.get("failures", 0) + 1
        pause = policy.delay(failures, self.task["wake"])
        self.elapsed = self.task.get("elapsed", 0.0) + self._passed() + pause
        if name in policy.non_retryable or not policy.retries(error or Exception(), failures, self.elapsed):
            return None
        return pause

    def _close_trace(self, error: ev.SpanError, pause: float | None) -> WakeOutcome:
        self._end("failed" if pause is None else "retried", error)
        if pause is None:
            requests, revisits = [each.request_id for each in self.work.requests], [each.key for each in self.work.due]
            self.writing.note(ev.ConversationIdle("failed", requests, error, revisits))
            for each in self.delegations:
                self._notify_parent(each, "failed", error=error)
            self.delegations = []
        else:
            self.delegations = [*self.task.get("delegations", [])]  # the next attempt reads the others again
            self.writing.note(ev.ConversationStatusChanged("rescheduling", f"{error.type}: {error.message}", pause))
        self.ctx.enlist(self.writing)
        outcome = self._outcome("failed")
        outcome["attempt"], outcome["read"] = self.number, self.read
        if pause is not None:
            outcome["retry_after"], outcome["elapsed"] = pause, self.elapsed
        return outcome

    async def _set_aside(self) -> WakeOutcome | None:
        """Record as dead letters what the last wake was given, which has failed for good: the next wake goes on behind
        it. None: nothing of it is left.
        """
        last = next(iter(await self.journals.wakes(self.writing.session_id, newest_first=True, limit=1)), None)
        if last is None or last.outcome != "failed":
            return None
        keys = await self._revisits_of(last.wake_id)
        inputs = [each for each in self.work.inputs if each.seq <= last.read]
        # A part of it may have requested a later one under a key that it was given: what it has committed stays.
        due = [each for each in self.work.due if each.key in keys and each.wake_id != last.wake_id]
        if not inputs and not due:
            return None
        self.work = replace(self.work, inputs=inputs, due=due)
        if await self._interrupt_children():
            return self._end_step()
        self.delegations = [*self.task.get("delegations", [])]  # the ones of these inputs have ended
        self.begun = self.trace.started(read=self.read)
        self._note_begin()
        self.writing.processed = self.read
        self.writing.ended_revisits += [each.key for each in due]
        self.writing.is_over = True
        error = ev.SpanError.model_validate_json(last.error or "{}")
        self.writing.note(ev.DeadLetters([each.seq for each in inputs], [each.key for each in due], error))
        self._end("failed", error)
        self.ctx.enlist(self.writing)
        outcome = self._outcome("done")
        outcome["more"] = True
        return outcome

    async def _revisits_of(self, wake_id: str) -> Collection[str]:
        """Keys of the revisits that a wake was given, which has failed."""
        me = self.writing.session_id
        query = JournalQuery(session_id=me, wake_id=wake_id, kinds=[IDLE], newest_first=True, limit=1)
        page = await self.journals.read(query)
        return {key for each in (page.entries if page else ()) for key in from_json(each.payload).get("revisits", ())}

    # -- the end of the conversation

    async def _end_children(self, cascade: bool) -> WakeOutcome:
        """The conversation is terminated: notify the parent, and terminate the children, if they are to be."""
        if cascade:
            event = ev.ConversationStatusChanged("terminated", "its parent was terminated")
            entry = NewEntry(kind=event.kind, payload=ev.EventTypes().encode(event), event_id=f"{event.kind}/parent")
            message = terminate_message(cascade=True)
            if await self._send_to_children(0, entry, message=message, closes=True, drops=True):
                return self._end_step()
        self._note_begin()
        await self._read_delegations()
        for each in self.delegations:
            self._notify_parent(each, "terminated")
        if not (self.writing.appends or self.task.get("cancelled_wakes") or self.work.steps):
            return self._outcome("nothing")
        self.writing.is_over = True
        self._close()
        self.ctx.enlist(self.writing)
        return self._outcome("done")

    async def _read_delegations(self) -> None:
        """Add delegations of further inputs, which were too many or too large to be read with the others."""
        if self.work.more:
            rest = JournalQuery(session_id=self.writing.session_id, after=self.read, pending=True, limit=MAX_PAGE)
            async for entry in all_entries(self.journals.read, rest):
                meta = meta_of(entry.payload)
                if meta.delegation and not self._has(meta):
                    self.delegations.append(delegation_of(meta))

    # --

    def _end(self, outcome: EndOutcome, error: ev.SpanError | None = None, reason: str = "") -> None:
        """Close the trace, and end the attempt."""
        self._close(error)
        text = None if error is None else error.model_dump_json()
        self.writing.end = WakeEnd(outcome=outcome, reason=reason, read=self.read, attempt=self.number, error=text)

    def _close(self, error: ev.SpanError | None = None) -> None:
        """Close the trace."""
        completed = self.trace.completed(self.begun, self.read_at, error)
        seqs = {"processed": self.writing.processed, "read": self.read, "base": self.work.processed}
        self.writing.record("span.completed", completed | seqs)

    def _outcome(self, outcome: str) -> WakeOutcome:
        result = WakeOutcome(outcome=outcome, processed=self.writing.processed)  # type: ignore[typeddict-item]
        if (next_due := self._next_due()) is not None:
            result["next_due"] = next_due
        if self.task.get("delegations") or self.delegations:
            result["delegations"] = self.delegations
        if outcome == "nothing" and (cancelled := self.task.get("cancelled_wakes")):
            result["cancelled_wakes"] = cancelled
        return result

    def _passed(self) -> float:
        """Seconds since the attempt began, as the database counts them."""
        return self.journals.monotonic() - self.asked_at

    def _next_due(self) -> float | None:
        """Seconds until something is due that this wake has not processed."""
        times = [] if self.work.next_due is None else [max(0.0, self.work.next_due - self._passed())]
        times += [max(0.0, each - self.journals.monotonic()) for each in self.writing.later]
        times += [each.delay for each in self.writing.revisits]
        times += [each.expires_in for each in self.writing.requests if each.expires_in is not None]
        return min(times, default=None)
