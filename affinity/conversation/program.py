"""The orchestration of a conversation: waits for signals, and runs one wake after the other.

States of a conversation's instance::

    idle ──an input, a revisit that is due, resume──► waking ──done──► idle, or waking and parked
                                                        │        parked ──an input──► it runs
                                                        │ ├──cancelled by an interrupt──► waking, as another wake
                                                        │ └──failed──► rescheduling ──the pause is over──► waking
                                                        └──failed for good──► failed ──an input, resume──► waking
    all ──terminate──► ended

The journal is authoritative for pending inputs. A signal is a hint that there may be one: a wake reads the journal, and
a wake that finds nothing changes nothing. A signal whose input a wake has processed already is dropped.

Where nothing will be due, the next wake is scheduled when one ends, parked: the next input queues it in its own
transaction, and sends no signal (`affinity.provider.contract.NewWorkItem.parked`). So an input costs the instance no
turn of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal, NotRequired, TypedDict

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
    """Up to where the children are interrupted, or terminated, when they are more than one step takes."""

    seq: int  # of the interrupt; 0: of the termination
    after: tuple[str, str]  # creation and id of the last one, newest first


class Outstanding(TypedDict, total=False):
    """What one wake, or one execution, leaves to the next; as the activity and the orchestration have it."""

    delegations: list[Delegation]
    # Ids of cancelled wakes whose trace may be open. In a task: of those since the last result; one of them may have
    # committed, and its result is dropped.
    cancelled_wakes: list[str]
    children: ChildrenDone  # the next wake goes on behind these


class WakeTask(Outstanding):
    """The input of the activity."""

    wake: str  # id
    processed: NotRequired[int]  # the watermark that the orchestration knows: to notice a journal that was recreated
    attempts: NotRequired[int]  # of this wake before this run
    failures: NotRequired[int]  # attempts that ended in an error
    elapsed: NotRequired[float]  # seconds that these took, with the pauses behind them
    failed: NotRequired[Failure]  # close the trace of the wake, which has ended with this error
    aside: NotRequired[bool]  # what the last wake was given, which has failed for good, becomes dead letters
    was_parked: NotRequired[bool]  # the first cancelled wake was parked, unless there are inputs
    terminated: NotRequired[bool]  # the conversation was; True: its children are to be


class WakeOutcome(Outstanding):
    """The result of the activity."""

    outcome: Literal["done", "nothing", "failed"]
    processed: NotRequired[int]  # the watermark
    more: NotRequired[bool]  # inputs are left
    next_due: NotRequired[float]  # seconds until a revisit is due, or a request expires
    home: NotRequired[str]  # the wake is to run on this session's lease
    closed: NotRequired[bool]  # the journal is: nothing is processed any more
    attempt: NotRequired[int]  # of the wake; of one that failed
    read: NotRequired[int]  # number of the last input that it was given; of one that failed
    retry_after: NotRequired[float]  # of one that failed: seconds; without it, it failed for good
    elapsed: NotRequired[float]  # with it: for the task of the next attempt


class Start(Outstanding):
    """The input of the orchestration; all but the salt and the bound is what one execution leaves to the next."""

    salt: str  # makes the ids of wakes unique
    home: NotRequired[str]  # session on whose lease the wakes run; by default the conversation's own
    processed: NotRequired[int]
    signalled: NotRequired[int]
    next_due: NotRequired[float]
    failed: NotRequired[bool]
    due: NotRequired[bool]


@dataclass(eq=False)
class Program:
    """One execution of a conversation's orchestration."""

    ctx: OrchestrationContext
    activity: str
    start: Start
    wakes: int = 0
    signals: int = 0
    received: int = 0
    """Signals since the last wake began."""
    processed: int = 0
    """The watermark, as far as known."""
    signalled: int = 0
    """The greatest number that a signal has announced."""
    announced: int = 0
    """The greatest number since the last wake began. It may be of a new journal, whose numbers are smaller."""
    is_due: bool = False
    """A wake is to run."""
    is_failed: bool = False
    """The last wake has failed for good."""
    terminated: bool | None = None
    """True: the children are terminated too."""
    is_unread: bool = True
    """There may be inputs that no result of a wake accounts for, and delegations among them."""
    is_interrupted: bool = False
    """The wake under way is to be cancelled."""
    is_resumed: bool = False
    """The pause before the next attempt is over."""
    cancelled: list[str] = field(default_factory=list)
    """Wakes that were cancelled since the last result."""
    was_parked: bool = False
    """The first of them was parked, unless an input has come."""
    is_parked: bool = False
    """The wake that is scheduled is parked, unless an input has come."""
    is_closed: bool = False
    """The journal was closed when a wake read it: the message that terminates the instance is on its way."""
    next_due: float | None = None
    delegations: list[Delegation] = field(default_factory=list)
    children: ChildrenDone | None = None
    signal: DurableFuture[Any] = field(init=False)

    def __post_init__(self) -> None:
        start = self.start
        self.processed, self.signalled = start.get("processed", 0), start.get("signalled", 0)
        self.next_due, self.is_failed = start.get("next_due"), start.get("failed", False)
        self.delegations, self.cancelled = start.get("delegations", []), start.get("cancelled_wakes", [])
        self.children, self.is_due = start.get("children"), start.get("due", False)
        self.signal = self.ctx.schedule_wait(SIGNAL)

    @property
    def home(self) -> str:
        """The session on whose lease the wakes run."""
        return self.start.get("home", self.ctx.instance_id)

    async def run(self) -> None:
        """Run until the conversation is terminated, or an operator cancels its instance."""
        try:
            while self.terminated is None:
                if self._is_long:
                    self.ctx.continue_as_new(self._rest(), version=LATEST)
                if self.is_due or self._may_park:
                    await self._wake()
                else:
                    await self._wait()
            await self._end()
        except OrchestrationCancelledSignal:
            await self._end()
            raise

    async def _end(self) -> None:
        """Notify the parent and the children, and close the traces of wakes that were cancelled. The journal takes no
        inputs any more; the wake closes it if an operator has cancelled the instance.
        """
        is_closed = self.terminated is False
        if is_closed and not (self.delegations or self.cancelled or self.is_unread):
            return
        is_first = True
        while is_first or self.children is not None:
            outcome = await self._attempt({**self._new_task(), "terminated": self.terminated is True})
            self.children = None if outcome is None else outcome.get("children")
            is_first = False

    @property
    def _may_park(self) -> bool:
        """The next wake is to be scheduled before there is something to do: not the first one, whose signal comes with
        the start, nor one that something else than an input may begin.
        """
        begun = self.processed > 0
        return begun and self.next_due is None and not (self.is_failed or self.is_closed)

    @property
    def _is_long(self) -> bool:
        """The execution is to continue as new."""
        return self.wakes >= WAKES_PER_EXECUTION or self.signals >= SIGNALS_PER_EXECUTION

    def _rest(self) -> Start:
        """The input of the next execution."""
        rest = Start(salt=self.start["salt"], processed=self.processed, signalled=self.signalled, due=self.is_due)
        self._add_outstanding(rest)
        if "home" in self.start:
            rest["home"] = self.start["home"]
        if self.next_due is not None:
            rest["next_due"] = self.next_due
        if self.is_failed:
            rest["failed"] = True
        return rest

    def _add_outstanding(self, to: Outstanding) -> None:
        if self.delegations:
            to["delegations"] = self.delegations
        if self.cancelled:
            to["cancelled_wakes"] = self.cancelled
        if self.children:
            to["children"] = self.children

    # -- signals

    async def _wait(self) -> None:
        """Wait for a signal, or until a revisit is due."""
        if self.next_due is None:
            return await self._receive()
        timer = self.ctx.schedule_timer(min(self.next_due + TIMER_MARGIN, MAX_TIMER_SECONDS))
        # The time is relative: a signal that leads to no wake leaves the timer as it is.
        while not (self.is_due or timer.settled or self.terminated is not None or self._is_long):
            await self.ctx.wait_any(self.signal, timer)
            if not timer.settled:
                await self._receive()
        if timer.settled:
            self.next_due, self.is_due = None, True
        else:
            timer.cancel()
            self.is_due |= self._is_long  # the next execution's timer would begin anew: a wake computes the rest

    async def _receive(self) -> None:
        """Take the signal that has come, and wait for the next one."""
        data = await self.signal
        self.signals += 1
        self.received += 1
        self.signal = self.ctx.schedule_wait(SIGNAL)
        match data:
            case {"type": "wake", "seq": int(seq)}:
                self._announce(seq)
            case {"type": "interrupt", "seq": int(seq), **more}:
                # One of an input that a wake has processed since then is too late to cancel anything.
                self.is_interrupted |= more.get("cancel") is True and seq > self.processed
                self._announce(seq)
            case {"type": "terminate", **more}:
                self.terminated = more.get("cascade") is True
                self.is_parked &= more.get("parked") is True
            case {"type": "resume"} if not self.is_parked:
                self.is_due = self.is_resumed = True
            case {"type": "resume"}:
                pass  # nothing is pending
            case _:
                self.ctx.logger.warning("conversation %s: unknown signal %r", self.ctx.instance_id, data)

    def _announce(self, seq: int) -> None:
        if seq <= self.signalled:  # signals of one journal come in order: this is a new one of the same id
            self.processed = 0
        self.signalled = self.announced = seq
        self.is_due |= seq > self.processed

    def _has_news(self, seq: int) -> bool:
        """Signals during the wake have announced inputs behind this number."""
        return (self.is_due and self.signalled > seq) or self.announced > seq

    # -- wakes

    def _new_task(self) -> WakeTask:
        self.wakes += 1
        wake = f"{self.start['salt']}-{self.ctx.execution_id}-{self.wakes}"
        task = WakeTask(wake=wake, processed=self.processed)
        self._add_outstanding(task)
        if self.cancelled and self.was_parked:
            task["was_parked"] = True
        return task

    async def _wake(self) -> None:
        """Run one wake, with all its attempts; parked until there is an input, unless it is due."""
        task = self._new_task()
        if self.is_failed and not self.is_resumed:
            task["aside"] = True
        self.is_parked = not self.is_due
        self.is_due = self.is_interrupted = self.is_resumed = False
        self.received = self.announced = 0
        while (outcome := await self._attempt(task)) is not None:
            if outcome["outcome"] != "failed":
                return self._succeed(outcome)
            if (pause := outcome.get("retry_after")) is None:
                return self._fail(outcome)
            task.pop("cancelled_wakes", None)
            self.cancelled, self.is_unread = [], True
            task["attempts"] = outcome.get("attempt", 0)
            task["failures"] = task.get("failures", 0) + 1
            task["elapsed"] = outcome.get("elapsed", 0.0)
            task["processed"] = outcome.get("processed", self.processed)
            # Also delegations of wakes that had ended before they were cancelled.
            if "delegations" in outcome:
                task["delegations"] = self.delegations = outcome["delegations"]
            if not await self._pause(pause):
                break
        self.is_due = True

    async def _attempt(self, task: WakeTask) -> WakeOutcome | None:
        """Run the activity once; None: the conversation was terminated, or interrupted, meanwhile."""
        activity = self._schedule(task)
        if self.is_parked:
            activity.park()
        is_last = "terminated" in task
        while True:
            receives = self._has_room and not is_last
            was_parked = self.is_parked
            if was_parked and not receives:  # resumed thousands of times; the next execution has room
                activity.cancel()
                self.is_parked = False
                return None
            try:
                await self.ctx.wait_any(activity, *([self.signal] if receives else []))
            except OrchestrationCancelledSignal:
                activity.cancel()
                self._note_cancelled(task, was_parked)
                raise
            if activity.settled:
                self.is_parked = False
                break
            await self._receive()
            if self.is_interrupted or self.terminated is not None:
                activity.cancel()
                if self.terminated is not None and self.is_parked:
                    self.is_unread = self.is_parked = False  # nothing has come since the last result
                else:
                    self._note_cancelled(task, was_parked)
                return None
        try:
            return await activity
        except ActivityError as error:
            return await self._close(task, error)

    def _note_cancelled(self, task: WakeTask, was_parked: bool) -> None:
        if "terminated" not in task:
            self.was_parked = self.was_parked if self.cancelled else was_parked
            self.cancelled = [*self.cancelled, task["wake"]]
        self.is_parked = False

    @property
    def _has_room(self) -> bool:
        """Whether the history has room for another signal during this wake."""
        return self.received < MAX_WAKE_SIGNALS

    def _schedule(self, task: WakeTask) -> ActivityFuture[WakeOutcome]:
        return self.ctx.schedule_activity(self.activity, task).on_session(self.home)

    async def _close(self, task: WakeTask, error: ActivityError) -> WakeOutcome | None:
        """Close the trace of a wake whose activity has failed, which the handler alone cannot make it do. It is tried
        until it succeeds, since clients and parents wait for it. None: another wake is to run, for what came meanwhile.
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
            self.is_unread = True
            self.wakes += 1  # counts as a wake: an execution has a bounded number
            if not await self._pause(CLOSING.delay(attempt), until_due=True) or self.is_due or self._is_long:
                return None
        raise AssertionError("endless")

    def _succeed(self, outcome: WakeOutcome) -> None:
        self.processed = outcome.get("processed", self.processed)
        self.next_due = outcome.get("next_due")
        self.delegations = outcome.get("delegations", self.delegations)
        self.cancelled = outcome.get("cancelled_wakes", [])
        self.is_failed &= outcome["outcome"] == "nothing"
        self.children = outcome.get("children")
        # A wake that finds its journal closed reads nothing: what ends the conversation reads the rest.
        self.is_closed = self.is_unread = outcome.get("closed", False)
        if "home" in outcome:
            self.start["home"] = outcome["home"]
        # A signal that came while the wake ran may be of an input that it has processed.
        self.is_due = outcome.get("more", False) or self._has_news(self.processed) or self.is_resumed

    def _fail(self, outcome: WakeOutcome) -> None:
        self.next_due = outcome.get("next_due")
        self.delegations = outcome.get("delegations", self.delegations)
        self.is_failed = self.is_unread = True
        # Signals that came meanwhile, of inputs that the wake was given, begin no other one.
        self.is_due = self._has_news(outcome.get("read", self.signalled))
        if "attempt" in outcome:
            self.cancelled = []

    async def _pause(self, seconds: float, *, until_due: bool = False) -> bool:
        """Wait before the next attempt, or until `resume`, or an input; False: interrupted, or terminated."""
        timer = self.ctx.schedule_timer(min(seconds, MAX_TIMER_SECONDS))
        while not (timer.settled or self.is_resumed or (until_due and self.is_due)):
            receives = self._has_room
            await self.ctx.wait_any(timer, *([self.signal] if receives else []))
            if receives and self.signal.settled:
                await self._receive()
            if self.terminated is not None or self.is_interrupted:
                break
        timer.cancel()
        going_on = self.terminated is None and not self.is_interrupted
        self.is_resumed = False
        return going_on
