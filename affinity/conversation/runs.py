"""Orchestrations and activities that wakes start: `Wake.start` and `Wake.call`.

A run is an instance of its own, which the commit of the wake creates, so it needs no lease and no turn of the
conversation. It does the work, and reports the end to the conversation, as a child does the end of a delegation. Until
a wake has processed that input, the conversation has an `affinity.conversation.journal.OpenDelegation` for it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from itertools import count
from typing import Any, Final, Literal, NotRequired, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import JsonValue
from pydantic_core import from_json

from affinity.conversation.access import journals_in
from affinity.conversation.admission import NO_GATE, wait_at
from affinity.conversation.events import CallEnded, CallStarted, JournalEvent, RunEnded, RunStarted, SpanError
from affinity.conversation.journal import InstanceStart, JournalAppend
from affinity.conversation.kinds import ConversationKind, start_message
from affinity.conversation.program import CLOSING
from affinity.conversation.writing import end_of_delegation
from affinity.errors import (
    ActivityError,
    AffinityError,
    InvalidOptions,
    OrchestrationCancelled,
    OrchestrationMisuse,
    PayloadTooLarge,
    ReportedError,
    WakeMisuse,
)
from affinity.headers import sent_headers
from affinity.limits import check_id, check_labels, truncate
from affinity.orchestration import ActivityContext, DurableFuture, OrchestrationContext, RetryPolicy
from affinity.orchestration.context import (
    ActivityOptions,
    NewInstanceOptions,
    OrchestrationFunction,
    OrchestrationWithoutInput,
    target_reference,
)
from affinity.orchestration.definitions import (
    AS_DEFINED,
    MISSING,
    ActivityDefaults,
    ActivityDefinition,
    Definition,
    OrchestrationDefinition,
    options_of,
)
from affinity.orchestration.gates import (
    DEFAULT_PRIORITY,
    HasLimitUse,
    add_uses,
    check_declared,
    check_priority,
    check_uses,
    gate_of,
)
from affinity.orchestration.signals import OrchestrationCancelledSignal
from affinity.records import Labels
from affinity.tracing import current_context

logger: logging.Logger = logging.getLogger("affinity.conversation")

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type

GONE: Final = "unknown"
"""Outcome of an append if the conversation, or its instance, does not exist."""


class RunSource(TypedDict):
    """The conversation that a run reports to, and the work."""

    conversation: str
    kind: str
    journal: int
    run: str  # id
    does: Literal["orchestration", "activity"]
    name: str


class RunTask(RunSource):
    """The input of the orchestration of a run."""

    input: JsonValue
    instance_id: NotRequired[str]  # of an orchestration
    version: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    session_id: NotRequired[str]  # of an activity
    retry: NotRequired[dict[str, Any]]
    timeout: NotRequired[float]
    tag: NotRequired[str]
    gate: NotRequired[str]  # at which the activity waits; see `affinity.conversation.admission`


class RunEnd(RunSource):
    """The input of the activity that reports."""

    result: NotRequired[JsonValue]
    error: NotRequired[dict[str, str]]


class CallOptions(ActivityOptions, total=False):
    """Options of `Wake.call`."""

    session_id: str | None
    limits: Sequence[HasLimitUse]
    priority: int


class RunCalls:
    """The calls of a wake that start a run."""

    @overload
    def start(
        self, orchestration: OrchestrationFunction[I, Any], input: I, /, **options: Unpack[NewInstanceOptions]
    ) -> str: ...
    @overload
    def start(self, orchestration: OrchestrationWithoutInput[Any], /, **options: Unpack[NewInstanceOptions]) -> str: ...
    @overload
    def start(self, orchestration: str, input: Any = ..., /, **options: Unpack[NewInstanceOptions]) -> str: ...
    def start(
        self,
        orchestration: Callable[..., Any] | str,
        input: Any = MISSING,
        /,
        *,
        instance_id: str | None = None,
        version: str | None = None,
        labels: Labels | None = None,
    ) -> str:
        """Start an orchestration, with the next commit of the wake: its end, or `commit`. A wake whose attempt fails
        before starts nothing, and one that comes again after `commit` does not start it a second time.

        Its end is an input of this conversation, `RunEnded`, until which the conversation is "waiting". It does not end
        with the conversation, and an interrupt leaves it alone; the end of one that has outlived the conversation is
        dropped. `Client.cancel` of the run's id cancels it. A fork waits for no run of its origin.

        Args:
            orchestration: a registered function, or its name.
            input: its input, if it takes one.
            instance_id: of the orchestration, by which clients find it. If it is taken, the run ends with an error of
                type ``InstanceExists``. By default derived from the run's id.
            version: to start; by default the latest one.
            labels: of the orchestration, as of `Client.start`; none by default.

        Returns:
            The id of the run, an instance whose child the orchestration is.

        Raises:
            WakeMisuse: the orchestration is not registered, or its input is missing.
            InvalidId, InvalidInput, NotSerializable, PayloadTooLarge: an argument is refused.
            SessionError: the handler has ended.
        """
        name, given = _reference(orchestration, input, OrchestrationDefinition, "wake.start")
        started = RunStarted(run="", orchestration=name, input=given, instance_id=instance_id)
        options: dict[str, Any] = {}
        if instance_id is not None:
            options["instance_id"] = check_id(instance_id, "instance id")
        if version is not None:
            options["version"] = version
        if labels is not None:
            options["labels"] = check_labels(labels)
        return self._start_run(started, "run", {"does": "orchestration", "name": name, "input": given, **options})

    @overload
    def call(
        self, activity: Callable[[ActivityContext, I], Any], input: I, /, **options: Unpack[CallOptions]
    ) -> str: ...
    @overload
    def call(self, activity: Callable[[ActivityContext], Any], /, **options: Unpack[CallOptions]) -> str: ...
    @overload
    def call(self, activity: str, input: Any = ..., /, **options: Unpack[CallOptions]) -> str: ...
    def call(
        self,
        activity: Callable[..., Any] | str,
        input: Any = MISSING,
        /,
        *,
        retry: RetryPolicy | None = AS_DEFINED,
        timeout: float | timedelta | None = AS_DEFINED,
        session_id: str | None = None,
        limits: Sequence[HasLimitUse] | None = None,
        priority: int = DEFAULT_PRIORITY,
    ) -> str:
        """Call an activity without waiting for it: it runs, on any worker, when the wake has committed. Otherwise it is
        like `start`; its end is an input of type `CallEnded`.

        Options that are left out are those of `App.activity`. An activity that is given by name has none of these.

        Args:
            activity: a registered function, or its name.
            input: its input, if it takes one.
            retry: the retry policy; None: one attempt.
            timeout: seconds, or a timedelta, that one attempt may take; None: any time.
            session_id: the session on whose holder it runs: of this conversation, or another one.
            limits: where it waits for room before it runs: see `ActivityFuture.limited`.
            priority: see `ActivityFuture.with_priority`.

        Returns:
            The id of the call, an instance that waits for the activity.

        Raises:
            WakeMisuse: the activity is not registered, or its input is missing.
            InvalidOptions: an option is out of range.
            InvalidLimit: a limit is refused, or no app declares it.
            InvalidId, InvalidInput, NotSerializable, PayloadTooLarge, SessionError: see `start`.
        """
        name, given = _reference(activity, input, ActivityDefinition, "wake.call")
        options = _options(options_of(activity, retry, timeout), limits, priority)
        if session_id is not None:
            options["session_id"] = check_id(session_id, "session id")
        called = CallStarted(call="", activity=name, input=given)
        return self._start_run(called, "call", {"does": "activity", "name": name, "input": given, **options})

    def _start_run(self, event: JournalEvent, name: str, work: dict[str, Any]) -> str:
        """Start a run with the next commit. ``name``: the event's field that gets the id of the run."""
        raise NotImplementedError


def _reference(target: object, input: Any, kind: type[Definition], where: str) -> tuple[str, JsonValue]:
    try:
        name, text, _ = target_reference(target, input, kind, where)
    except OrchestrationMisuse as error:
        raise WakeMisuse(str(error)) from None
    return name, from_json(text)


def _options(call: ActivityDefaults, limits: Sequence[HasLimitUse] | None, priority: int) -> dict[str, Any]:
    """Return the options of an activity as fields of a `RunTask`."""
    options: dict[str, Any] = {}
    if call.retry is not None:
        options["retry"] = asdict(call.retry)
    if call.timeout is not None:
        options["timeout"] = call.timeout
    if call.tag is not None:
        options["tag"] = call.tag
    uses = call.limits if limits is None else add_uses(call.limits, check_uses(limits))
    for limit in limits or ():
        check_declared(limit)
    if (gate := gate_of(uses, check_priority(priority))) is not None:
        options["gate"] = gate.text
    return options


def new_run(kind: ConversationKind, task: RunTask) -> InstanceStart:
    """Return the instance of a run."""
    message = start_message(kind.run, task, current_context(), sent_headers())
    return InstanceStart(instance_id=task["run"], name=kind.run, start=message, generation=secrets.token_hex(8))


# -- the orchestration


async def run_task(ctx: OrchestrationContext, report: str, task: RunTask) -> None:
    """Do the work of a run, and report its end through the activity ``report``.

    The run itself succeeds even if its work has failed: the conversation gets the error.
    """
    end = cast(RunEnd, {name: task[name] for name in RunSource.__annotations__})  # type: ignore[literal-required]
    work = None
    try:
        work = _schedule(ctx, task)
        end["result"] = await work
    except OrchestrationCancelledSignal:
        if work is not None:
            work.cancel()
        await _report(ctx, report, {**end, "error": _fields_of(OrchestrationCancelled("it was cancelled"))})
        raise
    except AffinityError as error:
        end["error"] = _fields_of(error)
    await _report(ctx, report, end)


def _schedule(ctx: OrchestrationContext, task: RunTask) -> DurableFuture[Any]:
    if task["does"] == "orchestration":
        return ctx.schedule_sub_orchestration(
            task["name"],
            task["input"],
            instance_id=task.get("instance_id"),
            version=task.get("version"),
            labels=task.get("labels"),
        )
    retry = RetryPolicy(**task["retry"]) if "retry" in task else None
    activity = ctx.schedule_activity(task["name"], task["input"], retry=retry, timeout=task.get("timeout"))
    wait_at(activity, task.get("gate", NO_GATE))
    if "tag" in task:
        activity.with_tag(task["tag"])
    return activity.on_session(task["session_id"]) if "session_id" in task else activity


def _fields_of(error: AffinityError) -> dict[str, str]:
    """Return the type and the message of an error; with a stack only if the history has it, since replay must give the
    same.
    """
    if isinstance(error, ReportedError):
        return {"type": error.error_type, "message": truncate(error.message), "stack": error.stack}
    return {"type": type(error).__name__, "message": truncate(str(error))}


async def _report(ctx: OrchestrationContext, report: str, end: RunEnd) -> None:
    """Report the end of a run. Tried until it succeeds: the conversation waits for it."""
    for attempt in count(1):
        try:
            await ctx.schedule_activity(report, end)
        except PayloadTooLarge as error:  # the result has no room beside the rest
            end = {**end, "result": None, "error": _fields_of(error)}
        except ActivityError:
            await ctx.schedule_timer(CLOSING.delay(attempt))
        else:
            return


# -- the activity


async def report_end(ctx: ActivityContext, end: RunEnd) -> None:
    """Append the end of a run to its conversation, if that takes events."""
    if (journals := journals_in(ctx)) is None:
        raise InvalidOptions("the end of a run is reported by a worker, whose database has journals")
    append = _append_of(end)
    outcome = (await journals.append(append)).outcome
    if outcome == GONE and append.if_refused is not None:
        outcome = (await journals.append(append.if_refused)).outcome
    if outcome not in {"appended", "repeated"}:
        text = "the end of the %s %s (run %s) is dropped: conversation %s takes no more events (%s)"
        logger.info(text, end["does"], end["name"], end["run"], end["conversation"], outcome)


def _append_of(end: RunEnd) -> JournalAppend:
    about: dict[str, Any] = {"result": end.get("result")}
    if "error" in end:
        about["error"] = SpanError(**end["error"])
    event = (
        RunEnded(run=end["run"], orchestration=end["name"], **about)
        if end["does"] == "orchestration"
        else CallEnded(call=end["run"], activity=end["name"], **about)
    )
    return end_of_delegation(event, end["conversation"], end["kind"], end["journal"])
