"""The orchestration of a conversation: waits for signals, and runs one wake after the other.

States of a conversation's instance (`State`), with what leads from one to the next::

    waiting ──an input, a revisit that is due, resume──► waking      waking ──done──► idle, or waiting
    idle    ──an input──► waking                                            ──failed──► retrying
    failed  ──an input, resume──► waking                                    ──failed for good──► failed
    retrying ──the pause is over, resume──► waking                   waking, retrying ──interrupt──► as before, and due
    all ──terminate──► ending ──the parent and the children are notified──► ended

The journal is authoritative for pending inputs. A signal is a hint that there may be one: a wake reads the journal, and
a wake that finds nothing changes nothing. A signal whose input a wake has processed already is dropped.

Where nothing will be due, the next wake is scheduled when one ends, parked: the next input queues it in its own
transaction, and sends no signal (`affinity.provider.contract.NewWorkItem.parked`). So an input costs the instance no
turn of its own. The status that clients see does not depend on this state: it is derived from the journal's rows, which
commit with it (`affinity.conversation.journal.ConversationStatus`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from affinity.conversation.admission import NO_GATE, wait_at
from affinity.conversation.kinds import SIGNAL
from affinity.errors import ActivityError, ActivityPoisoned
from affinity.limits import MAX_TIMER_SECONDS, MAX_WAKE_SIGNALS, truncate
from affinity.orchestration import (
    ActivityFuture,
    DurableFuture,
    OrchestrationCancelledSignal,
    OrchestrationContext,
    RetryPolicy,
)
from affinity.orchestration.events import LATEST

WAKES_PER_EXECUTION: Final = 200
"""Wakes after which the instance continues as new: a replay reads about a thousand events."""

SIGNALS_PER_EXECUTION: Final = 5_000
"""Signals after which it does so too, before the next wake."""

CLOSING: Final = RetryPolicy(max_interval=600.0)
"""Pauses between the attempts to record the failure of a wake."""

TIMER_MARGIN: Final = 0.005
"""Seconds by which a timer fires later than a revisit is due: one that fires earlier costs a wake for nothing."""


class Delegation(TypedDict):
    """Work that the parent has given to this conversation, and that has not ended."""

    id: str
    parent: str
    parent_kind: str
    parent_journal: int | None  # journal id
    max_cycles: int
    cycles: int  # wakes so far


class Failure(TypedDict):
    """The error of a wake that could not record it itself."""

    type: str
    message: str
    stack: str
    final: bool  # it is not retried


class ChildrenDone(TypedDict):
    """Progress of interrupting or terminating children, when they are too many for one step."""

    seq: int  # of the interrupt; 0: of the termination
    after: tuple[str, str]  # time of creation and id of the last child, newest first


class Alone(TypedDict):
    """The inputs of a wake that has failed for good with several: they are tried one by one, each in a wake of its own.
    Those that fail again become dead letters.
    """

    wake: str  # id of that wake
    read: int  # number of its last input
    due: list[str]  # keys of its due revisits, which follow


class Outstanding(TypedDict, total=False):
    """Facts that one wake, or one execution, leaves to the next, for the activity and the orchestration."""

    delegations: list[Delegation]
    # Ids of cancelled wakes whose trace may be open. In a task: of wakes that were cancelled since the last result. One
    # of them may have committed; its result is dropped.
    cancelled_wakes: list[str]
    was_parked: bool  # the first cancelled wake was parked, and has not run, unless there are inputs
    children: ChildrenDone  # the next wake continues behind these children
    alone: Alone  # until each of these inputs has had its wake


class WakeTask(Outstanding):
    """The input of the activity."""

    wake: str  # id
    gate: NotRequired[str]  # at which it has waited; see `affinity.conversation.admission`
    gate_was_read: NotRequired[bool]  # an attempt of this wake has returned the gate: it stays
    processed: NotRequired[int]  # the watermark that the orchestration knows
    attempts: NotRequired[int]  # of this wake before this run
    failures: NotRequired[int]  # attempts that ended in an error
    elapsed: NotRequired[float]  # seconds of the failed attempts, with the pauses after them
    failed: NotRequired[Failure]  # close the trace of the wake, which has ended with this error
    aside: NotRequired[bool]  # the last wake has failed for good: its inputs become dead letters
    terminated: NotRequired[bool]  # the conversation is terminated; True: terminate its children too


class WakeOutcome(Outstanding):
    """The result of the activity."""

    outcome: Literal["done", "nothing", "failed"]
    processed: NotRequired[int]  # the watermark
    more: NotRequired[bool]  # inputs are left
    next_due: NotRequired[float]  # seconds until a revisit is due, or a request expires
    home: NotRequired[str]  # the wake is to run on this session's lease
    gate: NotRequired[str]  # the wake is to wait at this gate, and runs again then
    closed: NotRequired[bool]  # the journal is closed: no later wake processes anything
    # Of a failed wake:
    attempt: NotRequired[int]
    read: NotRequired[int]  # number of the last input that it was given
    retry_after: NotRequired[float]  # seconds; without it, the wake has failed for good
    put_off: NotRequired[bool]  # it has not failed: it has raised `RetryAfter`
    elapsed: NotRequired[float]  # with ``retry_after``: for the task of the next attempt


class Start(Outstanding):
    """The input of the orchestration: salt and bound, and the facts that one execution leaves to the next."""

    salt: str  # makes the ids of wakes unique
    home: NotRequired[str]  # session on whose lease the wakes run; by default the conversation's own
    gate: NotRequired[str]  # at which the wakes wait, as a wake has found; by default that of the code
    processed: NotRequired[int]
    signalled: NotRequired[int]
    state: NotRequired[str]
    next_due: NotRequired[float | None]


class State(StrEnum):
    """The state of a conversation's instance."""

    IDLE = "idle"
    """The next wake is parked: the next input queues it."""
    WAITING = "waiting"
    """Waits for a signal, or until a wake is due (`Program.next_due`)."""
    WAKING = "waking"
    """A wake runs."""
    RETRYING = "retrying"
    """A wake has failed, and waits for its next attempt."""
    FAILED = "failed"
    """Like `WAITING`, behind a wake that has failed for good."""
    ENDING = "ending"
    """The conversation is terminated: the parent and the children are to be notified."""
    ENDED = "ended"
    """The conversation is terminated, and nothing is left to do."""


RESTING: Final = frozenset({State.WAITING, State.FAILED})
OVER: Final = frozenset({State.ENDING, State.ENDED})


@dataclass(eq=False)
class Program:
    """One execution of a conversation's orchestration."""

    ctx: OrchestrationContext
    activity: str
    start: Start
    gate: str = NO_GATE
    """At which the wakes wait."""
    state: State = State.WAITING
    next_due: float | None = None
    """Seconds until the next wake is due; 0: now. None: only a signal begins it."""
    left: Outstanding = field(default_factory=Outstanding)
    """The facts that the last wake has left to the next one."""
    wakes: int = 0
    signals: int = 0
    received: int = 0
    """Signals since the last wake began."""
    processed: int = 0
    """The watermark, as far as known; 0: no wake has read the journal."""
    signalled: int = 0
    """The greatest number that a signal has announced."""
    announced: int = 0
    """The greatest number since the last wake began."""
    is_resumed: bool = False
    """A `resume` has come that no wake accounts for."""
    cascade: bool = False
    """The children are terminated too."""
    signal: DurableFuture[Any] = field(init=False)

    def __post_init__(self) -> None:
        start = self.start
        self.processed, self.signalled = start.get("processed", 0), start.get("signalled", 0)
        self.gate = start.get("gate", self.gate)
        self.state, self.next_due = State(start.get("state", State.WAITING)), start.get("next_due")
        self._keep(start)
        self.signal = self.ctx.schedule_wait(SIGNAL)

    @property
    def home(self) -> str:
        """The session on whose lease the wakes run."""
        return self.start.get("home", self.ctx.instance_id)

    async def run(self) -> None:
        """Run until the conversation is terminated, or an operator cancels its instance."""
        try:
            while self.state not in OVER:
                if self._is_long:
                    self.ctx.continue_as_new(self._rest(), version=LATEST)
                if self.state is State.IDLE or self.next_due == 0:
                    await self._wake()
                else:
                    await self._wait()
            if self.state is State.ENDING:
                await self._end()
        except OrchestrationCancelledSignal:
            await self._end()
            raise

    async def _end(self) -> None:
        """Notify the parent and the children, and close the traces of wakes that were cancelled. The journal takes no
        more inputs; the wake closes it if an operator has cancelled the instance.
        """
        self.state = State.ENDING
        while True:
            outcome = await self._attempt({**self._new_task(), "terminated": self.cascade})
            self._keep(outcome or {}, "delegations", "cancelled_wakes", "was_parked")
            if "children" not in self.left:
                return

    @property
    def _is_long(self) -> bool:
        """True if the execution is to continue as new."""
        return self.wakes >= WAKES_PER_EXECUTION or self.signals >= SIGNALS_PER_EXECUTION

    def _rest(self) -> Start:
        """Return the input of the next execution."""
        about = {"salt": self.start["salt"], "home": self.home, "state": self.state, "next_due": self.next_due}
        if "gate" in self.start:
            about["gate"] = self.gate
        return cast(Start, {**about, "processed": self.processed, "signalled": self.signalled, **self.left})

    def _keep(self, found: Outstanding | WakeOutcome | Start, *stays: str) -> None:
        """Take over the facts for the next wake that ``found`` has; of the earlier facts only ``stays``."""
        before = {name: value for name, value in self.left.items() if name in stays}
        new = {name: value for name, value in found.items() if name in Outstanding.__annotations__}
        self.left = cast(Outstanding, {name: value for name, value in {**before, **new}.items() if value})

    # -- signals

    async def _wait(self) -> None:
        """Wait for a signal, or until a wake is due."""
        timer = None if self.next_due is None else self.ctx.schedule_timer(min(self.next_due, MAX_TIMER_SECONDS))
        # The time is relative: a signal that leads to no wake leaves the timer as it is.
        while self.state in RESTING and self.next_due != 0 and not self._is_long:
            if timer is not None:
                await self.ctx.wait_any(self.signal, timer)
            if timer is not None and timer.settled:
                self.next_due = 0.0
            else:
                await self._receive()
        if timer is not None and not timer.settled:
            timer.cancel()
            self.next_due = 0.0  # a new timer would have its full length: a wake computes the rest

    async def _await_end(self) -> None:
        """Wait for the end, because the journal is closed. The message that terminates the instance came into the queue
        in the same transaction, so it comes before a timer; or it came long ago, and an operator has reset the instance
        since then.
        """
        timer = self.ctx.schedule_timer(0.0)
        while self.state not in OVER and not timer.settled:
            await self.ctx.wait_any(self.signal, timer)
            if self.signal.settled:
                await self._receive()
        timer.cancel()
        self.state = State.ENDING

    async def _receive(self) -> dict[str, Any]:
        """Take the signal that has come, and wait for the next one. Return its data."""
        data = await self.signal
        self.signals, self.received = self.signals + 1, self.received + 1
        self.signal = self.ctx.schedule_wait(SIGNAL)
        match data:
            case {"type": "wake", "seq": int(seq)}:
                self._announce(seq)
            case {"type": "interrupt", "seq": int(seq), **more}:
                # One of an input that a wake has processed since then is too late to cancel anything.
                if more.get("cancel") is True and seq > self.processed and self.state not in RESTING:
                    self.state = State.WAITING
                self._announce(seq)
            case {"type": "terminate", **more}:
                self._terminate(cascade=more.get("cascade") is True, parked=more.get("parked") is True)
            case {"type": "resume"} if self.state is not State.IDLE:
                self._resume()
            case {"type": "resume"}:
                pass  # nothing is pending
            case _:
                self.ctx.logger.warning("conversation %s: unknown signal %r", self.ctx.instance_id, data)
        return cast(dict[str, Any], data)

    def _announce(self, seq: int) -> None:
        self.signalled = self.announced = seq
        if self.state in RESTING and seq > self.processed:
            self.next_due = 0.0

    def _terminate(self, *, cascade: bool, parked: bool) -> None:
        """``parked``: no input has queued the parked wake."""
        has_read_all = parked if self.state is State.IDLE else self.state is State.WAITING and self.next_due is not None
        has_work = cascade or "delegations" in self.left or "cancelled_wakes" in self.left
        self.cascade, self.state = cascade, State.ENDED if has_read_all and not has_work else State.ENDING

    def _resume(self) -> None:
        self.is_resumed = True
        if self.state in RESTING:
            self.next_due = 0.0
        elif self.state is State.RETRYING:
            self.state = State.WAKING

    # -- wakes

    def _new_task(self) -> WakeTask:
        self.wakes += 1
        wake = f"{self.start['salt']}-{self.ctx.execution_id}-{self.wakes}"
        return cast(WakeTask, {"wake": wake, "processed": self.processed, **self.left})

    async def _wake(self) -> None:
        """Run one wake, with all its attempts. It is parked until there is an input, unless it is due."""
        task, has_failed = self._new_task(), self.state is State.FAILED
        if has_failed and not self.is_resumed:
            task["aside"] = True
        if self.state is not State.IDLE:
            self.state = State.WAKING
        self.next_due, self.is_resumed = None, False
        self.received = self.announced = 0
        while (outcome := await self._attempt(task)) is not None:
            if "gate" in outcome:
                self.gate = self.start["gate"] = outcome["gate"]
                task["gate_was_read"] = True
                continue
            if outcome["outcome"] != "failed":
                self._succeed(outcome, stays_failed=has_failed and outcome["outcome"] == "nothing")
                return await self._await_end() if outcome.get("closed") else None
            if (pause := outcome.get("retry_after")) is None:
                return self._fail(outcome)
            task.pop("cancelled_wakes", None)
            task["attempts"] = outcome.get("attempt", 0)
            task["failures"] = task.get("failures", 0) + ("put_off" not in outcome)
            task["elapsed"] = outcome.get("elapsed", 0.0)
            task["processed"] = outcome.get("processed", self.processed)
            self._keep(outcome, "delegations", "children", "alone")
            task["delegations"] = self.left.get("delegations", [])  # also of wakes that had ended and were cancelled
            if not await self._pause(pause):
                break
        if self.state not in OVER:
            self.state, self.next_due = State.FAILED if has_failed else State.WAITING, 0.0

    async def _attempt(self, task: WakeTask) -> WakeOutcome | None:
        """Run the activity once; None: the conversation was terminated or interrupted during it."""
        activity = self._schedule(task)
        if self.state is State.IDLE:
            activity._park()
        is_last = "terminated" in task
        while True:
            receives, is_parked = self._has_room and not is_last, self.state is State.IDLE
            if is_parked and not receives:  # resumed thousands of times; the next execution has room
                activity.cancel()
                return None
            try:
                await self.ctx.wait_any(activity, *([self.signal] if receives else []))
            except OrchestrationCancelledSignal:
                activity.cancel()
                self._note_cancelled(task, is_parked)
                raise
            if activity.settled:
                break
            data = await self._receive()
            if self.state not in {State.IDLE, State.WAKING}:
                activity.cancel()
                if not (is_parked and data.get("parked") is True):  # nothing has come since the last result
                    self._note_cancelled(task, is_parked)
                return None
        if not is_last:
            self.state = State.WAKING
        try:
            return await activity
        except ActivityError as error:
            return await self._close(task, error)

    def _note_cancelled(self, task: WakeTask, was_parked: bool) -> None:
        if "terminated" not in task:
            before = self.left.get("cancelled_wakes", [])
            if was_parked and not before:
                self.left["was_parked"] = True
            self.left["cancelled_wakes"] = [*before, task["wake"]]

    @property
    def _has_room(self) -> bool:
        """True if the history has room for another signal during this wake."""
        return self.received < MAX_WAKE_SIGNALS

    def _schedule(self, task: WakeTask) -> ActivityFuture[WakeOutcome]:
        """Schedule the activity. It waits at its limits if it runs the handler: a failure, and the end of the
        conversation, are recorded immediately.
        """
        has_handler = "failed" not in task and "terminated" not in task
        if has_handler and self.gate != NO_GATE:
            task["gate"] = self.gate
        else:
            task.pop("gate", None)
        activity = self.ctx.schedule_activity(self.activity, task).on_session(self.home)
        if has_handler:
            wait_at(activity, self.gate)
        return activity

    async def _close(self, task: WakeTask, error: ActivityError) -> WakeOutcome | None:
        """Close the trace of a wake whose activity has failed. Tried until it succeeds, since clients and parents wait
        for it. None: new inputs came, and another wake is to run.
        """
        is_last = "terminated" in task
        failure = Failure(
            type=error.error_type,
            message=truncate(error.message),
            stack=error.stack,
            final=isinstance(error, ActivityPoisoned) or is_last,
        )
        for attempt in count(1):
            with suppress(ActivityError):
                return await self._schedule({**task, "failed": failure})
            if is_last:
                await self.ctx.schedule_timer(CLOSING.delay(attempt))
                continue
            self.wakes += 1  # counts as a wake: an execution has a bounded number
            if not await self._pause(CLOSING.delay(attempt), until_due=True) or self._is_long:
                return None
        raise AssertionError("endless")

    def _succeed(self, outcome: WakeOutcome, *, stays_failed: bool) -> None:
        self.processed = outcome.get("processed", self.processed)
        self._keep(outcome, "delegations")
        if "home" in outcome:
            self.start["home"] = outcome["home"]
        # A signal that came while the wake ran may be of an input that it has processed.
        self._set_due(outcome, outcome.get("more", False) or self.is_resumed or self.announced > self.processed)
        may_park = self.next_due is None and self.processed > 0  # its journal's first signal comes with the start
        self.state = State.FAILED if stays_failed else State.IDLE if may_park else State.WAITING

    def _fail(self, outcome: WakeOutcome) -> None:
        self.state = State.FAILED
        self._keep(outcome, "delegations", "children")
        # Signals that came during the wake, of inputs that it was given, begin no other wake.
        read = outcome.get("read", self.signalled)
        is_behind = self.announced > read or (self.is_resumed and self.signalled > read)
        self._set_due(outcome, outcome.get("more", False) or is_behind)

    def _set_due(self, outcome: WakeOutcome, is_due: bool) -> None:
        later = outcome.get("next_due")
        self.next_due = 0.0 if is_due else None if later is None else later + TIMER_MARGIN

    async def _pause(self, seconds: float, *, until_due: bool = False) -> bool:
        """Wait before the next attempt, or until `resume`; False: interrupted, or terminated, or, with ``until_due``,
        another wake is due.
        """
        timer = self.ctx.schedule_timer(min(seconds, MAX_TIMER_SECONDS))
        if not self.is_resumed:
            self.state = State.RETRYING
        while self.state is State.RETRYING and not (timer.settled or (until_due and self.announced > self.processed)):
            receives = self._has_room
            await self.ctx.wait_any(timer, *([self.signal] if receives else []))
            if receives and self.signal.settled:
                await self._receive()
        timer.cancel()
        if self.state is State.RETRYING:
            self.state = State.WAKING
        is_due = until_due and (self.is_resumed or self.announced > self.processed)
        self.is_resumed = False
        return self.state is State.WAKING and not is_due
