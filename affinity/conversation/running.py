"""The activity of a wake: reads the pending work, runs the handler, and enlists its additions to the journal.

The handler runs within the opened state of the session. Its outcome is one of these:

* it returns: entries, state, watermark and result commit together;
* it raises: the state's change is dropped, and the closed trace commits, with the watermark as it was. The result has
  the time after which the orchestration tries again;
* the run ends otherwise (its process, its lease, a conflict, an interrupt): nothing commits.

A `RetryAfter` is as an error, and counts as no failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, proxy

import anyio

from affinity.conversation import events as ev
from affinity.conversation.access import journals_in
from affinity.conversation.admission import NO_GATE, waits_at
from affinity.conversation.attempt import Attempt, Runnable
from affinity.conversation.journal import (
    Entry,
    JournalAccess,
    JournalAppend,
    JournalQuery,
    NewEntry,
    PendingWork,
    WakeFailure,
)
from affinity.conversation.kept_state import KeptState
from affinity.conversation.kinds import terminate_message
from affinity.conversation.known_wakes import (
    USER_INTERRUPT,
    as_given,
    drop_ended_wakes,
    left_alone,
    task_of_execution,
    unchanged,
    work_of_task,
)
from affinity.conversation.lineage import CreationPlanner
from affinity.conversation.program import WakeOutcome, WakeTask
from affinity.conversation.reading import all_entries
from affinity.conversation.shown_trace import TraceShown
from affinity.conversation.steps import PART
from affinity.conversation.stream import Streams, StreamWriter
from affinity.conversation.trace import TRACE_KINDS, error_of
from affinity.conversation.views import request_of, revisit_of
from affinity.conversation.wake import Wake, handled
from affinity.conversation.wake_parts import WakeInputs, WakeParts, handling
from affinity.conversation.wake_span import wake_span
from affinity.errors import (
    InvalidOptions,
    NotSerializable,
    PayloadUnreadable,
    SessionLoadFailed,
    SessionRecordTooNew,
    SessionWriteConflict,
    decisive_error,
    errors_in,
)
from affinity.flow.charging import limits_in
from affinity.headers import NO_HEADERS, enter_headers
from affinity.limits import MAX_NOTED_ERROR_BYTES, MAX_PAGE, MAX_REASON_BYTES, MAX_WAKE_ENTRIES, truncate
from affinity.orchestration import ActivityContext
from affinity.orchestration.signals import RetryAfter
from affinity.records import raise_unreadable
from affinity.redaction import redacted
from affinity.tasks import run_code
from affinity.user_code import describe_error

S = TypeVar("S")

logger: logging.Logger = logging.getLogger("affinity.conversation")

DONE: Final = frozenset({"end_turn", "truncated"})
"""Reasons for which a wake ends that leave nothing to do."""

RETRACT_SECONDS: Final = 2.0
"""Time that a cancelled run may take to retract its streamed parts."""


class WakeRunner(Generic[S]):
    """Runs the wakes of the conversations of one kind."""

    def __init__(self, conversations: Runnable[S]) -> None:
        self._conversations = conversations
        self._streams: WeakKeyDictionary[JournalAccess, Streams] = WeakKeyDictionary()  # they keep no key alive

    async def run(self, ctx: ActivityContext, task: WakeTask) -> WakeOutcome:
        """Run one attempt of a wake.

        Raises:
            SessionWriteConflict, SessionRecordTooNew: of the conversation's own state; the worker repeats the run.
            InvalidOptions: the context has no journals.
        """
        if (journals := journals_in(ctx)) is None:
            raise InvalidOptions("a wake runs on a worker, whose database has journals")
        task = task_of_execution(task, ctx.execution_id)
        read_at, asked_at = time.monotonic(), journals.monotonic()
        is_last = "terminated" in task
        limit = MAX_WAKE_ENTRIES if is_last else self._conversations.spec.limits.inputs
        work = await journals.get_pending(ctx.instance_id, limit)
        if is_last and work is not None and not work.closed:
            await _close_journal(work, ctx.instance_id, journals)
            work = await journals.get_pending(ctx.instance_id, limit)
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
            # The instance was recreated, or the journal is a fork's. The orchestration must know the watermark before
            # the wake begins. Otherwise it would treat an interrupt as one that came too late, and would lose the
            # inputs that a wake had read which ended before it was cancelled.
            return unchanged(task, work) | {"more": True}
        streams, alone = self._streams_of(journals), None
        if not is_last and "aside" not in task:
            alone, work = left_alone(task, work, behind=1), work_of_task(task, work)
        if is_ordinary and "aside" not in task:
            work = as_given(task, work)
        attempt = _HandlerAttempt(self._conversations, ctx, journals, task, work, alone, read_at, asked_at, streams)
        return await attempt.run()

    def _streams_of(self, journals: JournalAccess) -> Streams:
        found = self._streams.get(journals)
        if found is None:
            found = self._streams[journals] = Streams(proxy(journals))
        return found


async def _close_journal(work: PendingWork, session_id: str, journals: JournalAccess) -> None:
    """Close the journal of an instance that an operator has cancelled.

    No wake would read a later entry, and the sender of a delegation would wait for its end. The message is for an
    instance that was reset since then.
    """
    event = ev.ConversationStatusChanged("terminated", "its instance was cancelled")
    entry = NewEntry(kind=event.kind, payload=ev.EventTypes().encode(event), event_id=f"{event.kind}/{work.journal_id}")
    await journals.append(
        JournalAppend(
            session_id=session_id,
            kind=work.kind,
            entry=entry,
            message=terminate_message(),
            journal_id=work.journal_id,
            closes=True,
            drops=True,
        )
    )


@dataclass(eq=False)
class _HandlerAttempt(Attempt[S]):
    """An attempt that runs the handler, if there is something for it."""

    async def run(self) -> WakeOutcome:
        enter_headers(self.headers)
        if "terminated" in self.task:
            return await self._end_children(self.task["terminated"])
        if "failed" in self.task:
            return await self._record_failure(self.task["failed"])
        if "aside" in self.task and (outcome := await self._set_aside()) is not None:
            return outcome
        expired = [request for request in self.work.requests if request.expired]
        if not (self.work.inputs or self.work.due or expired):
            outcome = self._outcome("nothing")
            return outcome | {"more": True} if self.work.more else outcome
        self._check_readable()
        return self._end_step() if await self._interrupt_children() else await self._wake()

    def _check_readable(self) -> None:
        """Refuse work of which something cannot be decoded: it waits for a worker with the key, and nothing of it runs.

        Raises:
            SessionLoadFailed: from `PayloadUnreadable`.
        """
        work = self.work
        texts = [
            *(item.payload for item in work.inputs),
            *(request.payload for request in work.requests),
            *(text for revisit in work.due for text in (revisit.note, revisit.reason)),
            *(text for step in work.steps for text in (step.arguments, step.result)),
        ]
        try:
            for text in texts:
                raise_unreadable(text)
        except NotSerializable as error:
            raise SessionLoadFailed(self.writing.session_id, str(error)) from error

    async def _wake(self) -> WakeOutcome:
        """Run the handler, and record its end; unless the wake should have waited at another gate."""
        try:
            gate = await self._other_gate()
        except Exception as raised:  # of a function of the application
            self._note_begin()
            return await self._fail(decisive_error(raised))
        if gate is not None:
            return unchanged(self.task, self.work) | {"gate": gate}
        of = self.writing
        stream = self.streams.open(of.session_id, self.work.journal_id, of.wake_id, of.attempt, read=self.read)
        try:
            wake = await self._handle(stream)
        except Exception as raised:
            await stream.retract()
            if asked := [each for each in errors_in(raised) if isinstance(each, RetryAfter)]:
                return await self._put_off(asked)
            error = decisive_error(raised)
            if isinstance(error, SessionWriteConflict | SessionRecordTooNew) and error.session_id == of.session_id:
                raise error from None
            if isinstance(error, SessionLoadFailed) and isinstance(error.__cause__, PayloadUnreadable):
                raise error from error.__cause__  # its key may come
            return await self._fail(error)
        except BaseException:
            with anyio.move_on_after(RETRACT_SECONDS, shield=True):
                await stream.retract()
            raise
        await stream.end()
        return await self._succeed(wake)

    async def _handle(self, stream: StreamWriter) -> Wake:
        """Run the handler; its additions are collected, and its change of the state is staged."""
        entries = [self.spec.types.read(item) for item in self.work.inputs]
        committed = await self._read_committed()
        self._note_begin()
        pending = [*entries, *self._expire()]
        self.writing.processed = self.read
        self.writing.ended_revisits += [revisit.key for revisit in self.work.due]
        self.writing.is_interrupted = self.work.more and bool(await self._last_interrupt(self.read))
        wake = Wake(self._parts(pending, stream, committed))
        try:
            await run_code(partial(self._run_handler, wake), self._time_left())
        finally:
            await self.parts.end()
        self.writing.check_known()  # the handler may have caught it
        return wake

    async def _run_handler(self, wake: Wake) -> None:
        """Run the handler within the open state, which a handler that is left behind keeps from others."""
        senders = [meta.trace for meta in self.metas]
        with wake_span(self.spec.name, wake, senders, self.task.get("elapsed", 0.0)):
            self.parts.opening = opening = self.conversations._open_state(self.ctx, self.work)
            async with opening as state:
                await self.parts.kept.begin(opening)
                wake.pending = await self._drop_cleared(wake.pending)
                with handling(self.parts), handled(wake):
                    async with TraceShown(self.parts):
                        handle = partial(self.conversations._handle, wake, state)
                        await self.parts.around("wake", self.spec.name, wake.events, handle)()
                self.parts.kept.add_rest()

    async def _read_committed(self) -> Sequence[Entry]:
        """Return the entries that earlier attempts of this wake have committed, without its trace."""
        wake = self.task["wake"]
        if not any(step.wake_id == wake and step.key == PART for step in self.work.steps):
            return []
        query = JournalQuery(session_id=self.writing.session_id, wake_id=wake, limit=MAX_PAGE)
        found = [entry async for entry in all_entries(self.journals.read, query)]
        return [entry for entry in found if not entry.kind.startswith(TRACE_KINDS)]

    async def _drop_cleared(self, pending: Sequence[ev.JournalEntry]) -> Sequence[ev.JournalEntry]:
        """Return the inputs without the answers that an interrupt has cleared before any wake had read them.

        The interrupt need not be among the inputs of this wake: it may stand behind them, or have come since the read.
        """
        answers = [entry.seq for entry in pending if isinstance(entry.event, ev.AnswerEvent) and entry.seq <= self.read]
        if not answers:
            return pending
        last = await self._last_interrupt(answers[0])
        return [entry for entry in pending if entry.seq not in answers or entry.seq > last]

    async def _last_interrupt(self, after: int) -> int:
        """Return the number of the last interrupt behind an entry that no wake has processed; 0: no interrupt has come.

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
        """Return the seconds that this attempt may take; None: there is no bound."""
        own, total = self.conversations.wake_timeout, self.conversations.retry.total_timeout
        if total is None:
            return own
        left = total - self.task.get("elapsed", 0.0)
        return left if own is None else min(own, left)

    def _parts(self, pending: Sequence[ev.JournalEntry], stream: StreamWriter, committed: Sequence[Entry]) -> WakeParts:
        inputs = WakeInputs(
            pending=pending,
            due=[revisit_of(revisit) for revisit in self.work.due],
            requests=[
                request_of(request, self.spec.types, self.ctx.instance_id, self.spec.name)
                for request in self.work.open_requests
            ],
            revisits={revisit.key for revisit in self.work.revisits if revisit not in self.work.due},
            parent=self.work.parent,
            committed=committed,
        )
        self.parts = WakeParts(
            context=self.ctx,
            headers=self.headers or NO_HEADERS,
            wake_id=self.task["wake"],
            attempt=self.number,
            kind=self.spec,
            readable=self.conversations.readable,
            inputs=inputs,
            writing=self.writing,
            stream=stream,
            trace=self.trace,
            journals=self.journals,
            tried_with=self.task["alone"]["wake"] if self.is_alone else None,
            lineage=CreationPlanner(self.spec, self.journals, self.conversations, self._store(), in_wake=True),
            kept=KeptState(self.ctx.instance_id, self.task["wake"], self.work.steps),
            take_inputs=None if self.alone is not None or "alone" in self.task else self._take_inputs,
        )
        return self.parts

    def _take_inputs(self, entries: Sequence[Entry]) -> None:
        """Process inputs that have come since the wake began, the next ones in the journal."""
        self.work = self.writing.work = replace(self.work, inputs=[*self.work.inputs, *entries])
        self.writing.processed = self.read

    def _expire(self) -> list[ev.JournalEntry]:
        """Answer the requests that have expired, as refused."""
        found = []
        for number, request in enumerate([request for request in self.work.requests if request.expired], 1):
            answer = self.spec.types.expired_answer(request.kind, request.request_id)
            entry = self.writing.note(answer)
            self.writing.held.append(entry)
            self.writing.ended_requests.append(request.request_id)
            # The commit gives the number; for now it stands behind all entries of the journal.
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

    async def _succeed(self, wake: Wake) -> WakeOutcome:
        self.writing.is_over = True
        wake._end_runs()
        self.work = self.work.without(self.writing.ended_requests)
        if self.writing.is_interrupted:
            self._drop_requests()
        reason = self._stop_reason(wake)
        ends_own = self.alone is not None and self._stop_reason(wake, more=False) in DONE
        await self._count_cycles(reason, ends_own)
        reason = self._stop_reason(wake)  # delegations that have ended may have dropped revisits
        self._end("done", reason=reason)
        requests = {"requests": [request.request_id for request in wake.requests]} if wake.requests else {}
        self.writing.record("conversation.idle", {"stop_reason": reason, **requests})
        self.ctx._enlist(self.writing)
        outcome = self._outcome("done")
        if self.work.more:
            outcome["more"] = True
        return outcome

    def _drop_requests(self) -> None:
        """Drop the requests and revisits of this wake: an interrupt has come that a later wake reads.

        The commit would drop them too, unless the interrupt is a copy from another journal.
        """
        own = self.writing.requested
        pending = self.parts.inputs.requests
        pending[:] = [request for request in pending if request.request_id not in own]
        self.writing.requests.clear()
        self.writing.revisits.clear()

    def _stop_reason(self, wake: Wake, *, more: bool = True) -> ev.StopReason:
        """Return the reason why the wake ends. ``more``: inputs behind it are a reason."""
        if self.work.more and more:
            return "more"
        if wake.requests:
            return "requires_action"
        has_revisit = self.writing.revisits or self.writing.has_later_revisit
        if has_revisit or self.work.next_due is not None:
            return "revisit"
        return "truncated" if self.parts.is_truncated else "end_turn"

    async def _count_cycles(self, reason: ev.StopReason, ends_own: bool) -> None:
        """Count this wake for the delegations; end each that is done or has used up its cycles. ``ends_own``: the
        delegation of its only input is done, even if others stay open.
        """
        if not self.delegations:
            return
        finish = self.parts.finish
        has_open = self.writing.has_open_delegations
        is_done = finish.is_set or (reason in DONE and not has_open)
        done = {delegation["id"] for delegation in self.delegations if is_done}
        done |= {meta.delegation or "" for meta in self.metas if ends_own and not has_open}
        for delegation in self.delegations:
            delegation["cycles"] += 1
        ended = [
            delegation
            for delegation in self.delegations
            if delegation["id"] in done or delegation["cycles"] >= delegation["max_cycles"]
        ]
        self.delegations = [delegation for delegation in self.delegations if delegation not in ended]
        for delegation in ended:
            self._notify_parent(
                delegation, "completed" if delegation["id"] in done else "max_cycles", result=finish.result
            )
        if ended and not is_done and not self.delegations:  # it may not run again
            self.writing.revisits.clear()
            pending = await self.journals.get_pending(self.writing.session_id, 0)  # the wake's parts have added some
            self.writing.ended_revisits = [revisit.key for revisit in pending.revisits] if pending else []
            if not any(request.expires_at is not None for request in self.parts.inputs.requests):
                self.work = replace(self.work, next_due=None)
                self.writing.later.clear()
                self.writing.has_later_revisit = False

    async def _put_off(self, asked: Sequence[RetryAfter]) -> WakeOutcome:
        """Close the limits that the handler has named, and let the wake run again when its time has come."""
        pause = 0.0
        for signal in asked:
            closes = signal.limit is not None and await self._close_limit(signal, signal.limit._place)
            pause = pause if closes else max(pause, signal.seconds)
        logger.info(
            "wake %s of conversation %s is put off: %s", self.task["wake"], self.writing.session_id, redacted(asked[0])
        )
        self.elapsed = self.task.get("elapsed", 0.0) + self._passed() + pause
        total = self.conversations.retry.total_timeout
        is_over = total is not None and self.elapsed > total
        self.ctx._withdraw(asked[0], retried=not is_over or self.alone is not None or self._has_several)
        self.writing.discard(self.trace.entries)
        if is_over:
            self._note_failure(asked[0])
        outcome = await self._close_trace(error_of(asked[0]), None if is_over else pause)
        return outcome if is_over else outcome | {"put_off": True}

    async def _close_limit(self, signal: RetryAfter, place: tuple[str, str]) -> bool:
        """Close a limit; return whether the wake waits there."""
        if (limits := limits_in(self.ctx)) is None:
            return False
        cause = signal.__cause__ or signal.__context__
        why = "" if cause is None else ": " + ": ".join(describe_error(cause))
        reason = truncate(f"a wake of {self.spec.name}{why}", MAX_REASON_BYTES)
        await limits.close_limit(place, signal.seconds, reason)
        return waits_at(self.task.get("gate", NO_GATE), *place)

    async def _fail(self, error: BaseException) -> WakeOutcome:
        """Record that the handler has raised."""
        described = describe_error(error)
        pause = self._pause(described[0], error)
        logger.warning(
            "wake %s of conversation %s failed%s (attempt %d): %s: %s",
            self.task["wake"],
            self.writing.session_id,
            "" if pause is None else f" and is retried in {pause:.1f} s",
            self.number,
            *describe_error(redacted(error)),
            exc_info=redacted(error) if pause is None else None,
            extra={"session_id": self.writing.session_id, "wake_id": self.task["wake"], "attempt": self.number},
        )
        # The state may be staged already: the error may come from a step behind the handler.
        self.ctx._withdraw(error, retried=pause is not None or self.alone is not None or self._has_several)
        self.writing.discard(self.trace.entries)
        self._note_failure(error)
        return await self._close_trace(error_of(error), pause)

    def _note_failure(self, error: BaseException) -> None:
        """Let the attempt be among the failures of the instance: its activity has a result, and does not fail."""
        error_type, message = describe_error(error)
        self.writing.failure = WakeFailure(
            execution_id=self.ctx.execution_id,
            activity_id=self.ctx.activity_id,
            attempt=self.ctx.attempt,
            name=self.ctx.name,
            error_type=error_type,
            error=truncate(f"{error_type}: {message}", MAX_NOTED_ERROR_BYTES),
        )
