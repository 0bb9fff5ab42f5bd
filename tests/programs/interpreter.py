"""The code of the orchestrations and activities that statements describe."""

from __future__ import annotations

import decimal
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import anyio
from pydantic import Field

import affinity
from affinity.errors import ActivityError, OrchestrationCancelled, OrchestrationFailed
from affinity.orchestration.scheduler import DurableFuture
from tests.programs import bodies, calls, payments, slots, values
from tests.programs.bodies import Body, Job, Statement
from tests.programs.names import ASK, LABELS, NAME, child_id, event_name, instance_id, session_id

TAG: Final = "gpu"
TIMEOUT: Final = 0.02
"""Real seconds for an attempt that hangs."""

SOFT_SECONDS: Final = 40.0
IMPATIENT_SECONDS: Final = 70.0
HOLD_SECONDS: Final = 90.0
LIMIT_SECONDS: Final = 12.0

PICKY: Final = Annotated[str, Field(pattern="[0-7]$")]
"""The type of a wait that half of the events fit: they are random ids."""

app: Final = affinity.App(NAME, limits=slots.LIMITS)


@dataclass
class Kept:
    """The state of a session: the marks of its activities, in order."""

    marks: list[str] = field(default_factory=list)


sessions: Final = affinity.Sessions(Kept, kind=NAME)
app.include(sessions)
app.include(values.app)


class Planned(Exception):
    """The error that a program raises."""


# -- context variables: the code of an execution, or of a run of an activity, sees what it has set itself

_OWNER: Final[ContextVar[str]] = ContextVar(f"{NAME}.owner", default="nobody")

leaks: Final[list[str]] = []
"""What code has seen of other code, in this process."""


def _begin_code(owner: str) -> None:
    """Note what the code begins with, and leave something set."""
    _check_code("nobody", owner)
    _OWNER.set(owner)
    decimal.getcontext().prec = 3


def _check_code(expected: str, owner: str) -> None:
    precision = decimal.DefaultContext.prec if expected == "nobody" else 3
    if (found := (_OWNER.get(), decimal.getcontext().prec)) != (expected, precision):
        leaks.append(f"{owner} sees {found}")


def _owner_of(ctx: affinity.OrchestrationContext) -> str:
    return f"{ctx.instance_id}/{ctx.execution_id}"


# -- activities


HEADERS = {"program": NAME}


@app.middleware
async def check_headers(call: affinity.MiddlewareCall, next: affinity.Next) -> Any:
    """The headers are those of the clients, or none, and code inside sends the same ones on."""
    assert dict(call.headers) in ({}, HEADERS)
    assert dict(affinity.current_headers()) == dict(call.headers)
    return await next()


@app.activity(name=f"{NAME}.work")
async def work(ctx: affinity.ActivityContext, task: bodies.Activity) -> int:
    """Returns the attempt, or the place of its mark in the state of its session, from 1."""
    _begin_code(mark_of(ctx))
    with calls.running(mark_of(ctx), task.places, is_bound=task.session is not None or task.tagged):
        return await _work(ctx, task)


async def _work(ctx: affinity.ActivityContext, task: bodies.Activity) -> int:
    place = ctx.attempt
    await calls.begin_attempt(mark_of(ctx), ctx.attempt)
    for _ in range(task.slow):
        await anyio.sleep(0)
    if task.keeps:
        opening = sessions.open(ctx)
        async with opening as kept:
            if task.keeps == "checkpoint":
                if (early := f"{mark_of(ctx)}/early") not in kept.marks:
                    kept.marks.append(early)
                await opening.checkpoint()
            kept.marks.append(mark_of(ctx))
            place = len(kept.marks)
            await anyio.sleep(0)
    if task.consumes:
        await ctx.consume(slots.RATED, task.consumes)
    if task.pays:
        payments.pay(ctx, mark_of(ctx))
    _ask_again(ctx, task)
    _fail_if_due(ctx, task)
    if task.hangs:
        await anyio.sleep_forever()
    return place


@app.activity(name=f"{NAME}.threaded")
def threaded(ctx: affinity.ActivityContext, task: bodies.Activity) -> int:
    """The same on a thread."""
    _begin_code(mark_of(ctx))
    with calls.running(mark_of(ctx), task.places, is_bound=task.session is not None or task.tagged):
        return _threaded(ctx, task)


def _threaded(ctx: affinity.ActivityContext, task: bodies.Activity) -> int:
    place = ctx.attempt
    if task.keeps:
        opening = sessions.open_sync(ctx)
        with opening as kept:
            if task.keeps == "checkpoint":
                if (early := f"{mark_of(ctx)}/early") not in kept.marks:
                    kept.marks.append(early)
                opening.checkpoint()
            kept.marks.append(mark_of(ctx))
            place = len(kept.marks)
    if task.consumes:
        anyio.from_thread.run(ctx.consume, slots.RATED, task.consumes)
    if task.pays:
        payments.pay(ctx, mark_of(ctx))
    _ask_again(ctx, task)
    _fail_if_due(ctx, task)
    if task.hangs:
        ctx.wait_cancelled(TIMEOUT * 50)
        ctx.raise_if_cancelled()
    time.sleep(0)
    return place


@app.activity(name=f"{NAME}.talk")
async def talk(ctx: affinity.ActivityContext, task: bodies.SendToConversation) -> None:
    """The conversation gets one event, however often this runs."""
    _begin_code(mark_of(ctx))
    await calls.call("ask" if task.waits else "tell", task.to, mark_of(ctx), [("say", 1)], ctx.instance_id)


def _ask_again(ctx: affinity.ActivityContext, task: bodies.Activity) -> None:
    """Give the work back, as often as the task says, and close its limit for everybody."""
    if calls.count_again(mark_of(ctx)) <= task.again:
        closed = slots.PLACES[task.places][0] if task.places else None
        raise affinity.RetryAfter(5.0, limit=closed)


def _fail_if_due(ctx: affinity.ActivityContext, task: bodies.Activity) -> None:
    if ctx.attempt <= task.fails:
        raise Planned(f"attempt {ctx.attempt}")


def mark_of(ctx: affinity.ActivityContext) -> str:
    """Names a run of an activity, in all its attempts; behind the # is what tells instances of one id apart."""
    return f"{ctx.instance_id}|{ctx.execution_id}|{ctx.activity_id}#{ctx.instance_generation}"


# -- orchestrations


@app.orchestration(name=f"{NAME}.body")
async def body(ctx: affinity.OrchestrationContext, job: Job) -> list[Any]:
    """Carries the statements out, and returns what each has given."""
    _begin_code(_owner_of(ctx))
    found = await _all(ctx, job.body)
    if job.rounds:
        ctx.continue_as_new(replace(job, rounds=job.rounds - 1, heard=_heard(found)))
    return found


def _heard(found: list[Any]) -> tuple[str, ...]:
    """The texts that statements have given, and selects among them: the data of events are some of these."""
    values = [each[1] if isinstance(each, list) and len(each) == 2 else each for each in found]
    return tuple(each for each in values if isinstance(each, str))


async def _all(ctx: affinity.OrchestrationContext, statements: Body) -> list[Any]:
    return [await _one(ctx, statement) for statement in statements]


async def _one(ctx: affinity.OrchestrationContext, statement: Statement) -> Any:
    try:
        return await _perform(ctx, statement)
    except (ActivityError, OrchestrationFailed, OrchestrationCancelled, affinity.errors.InstanceExists) as error:
        return type(error).__name__
    finally:
        _check_code(_owner_of(ctx), _owner_of(ctx))


async def _perform(ctx: affinity.OrchestrationContext, statement: Statement) -> Any:
    match statement:
        case bodies.Select():
            chosen = await ctx.select(*[_begin(ctx, part) for part in statement.parts])
            return [chosen.index, _plain(chosen.value)]
        case bodies.Gather():
            futures = [_begin(ctx, part) for part in statement.parts]
            found = await ctx.gather(*futures, return_exceptions=statement.keep_errors, limit=statement.limit)
            return [type(each).__name__ if isinstance(each, Exception) else _plain(each) for each in found]
        case bodies.WaitAny():
            futures = [_future(ctx, part) for part in statement.parts if _is_leaf(part)]
            if futures:
                await ctx.wait_any(*futures)
            return [_plain(each) for each in await ctx.gather(*futures)]
        case bodies.Block():
            try:
                return await _all(ctx, statement.body)
            finally:
                await _all(ctx, statement.cleanup)
        case bodies.Detached():
            named = None if statement.named is None else child_id(statement.named)
            labels = _labels_of(statement)
            await ctx.start_detached(body, Job(statement.body), instance_id=named, labels=labels)  # a random id
        case bodies.Raise():
            ctx.raise_event(instance_id(statement.to), event_name(statement.name), await ctx.new_guid())
        case bodies.Release() | bodies.SetLabels():
            _change(ctx, statement)
        case bodies.Value() | bodies.Carry():
            return await _value(ctx, statement)
        case bodies.Fail():
            raise Planned("as it says")
        case _:
            return _plain(await _future(ctx, statement))


async def _value(ctx: affinity.OrchestrationContext, statement: bodies.Value | bodies.Carry) -> Any:
    if isinstance(statement, bodies.Carry):
        return await values.carry(ctx, statement.value, back=statement.back)
    if statement.what == "guid":
        return await ctx.new_guid()
    if statement.what == "now":
        return (await ctx.utc_now()).isoformat()
    if statement.what == "status":
        ctx.set_custom_status({"execution": ctx.execution_id})
        return None
    return await _kept_value(ctx, statement)


async def _kept_value(ctx: affinity.OrchestrationContext, statement: bodies.Value) -> Any:
    if statement.what == "count":
        count = await ctx.values.get("count", int) or 0
        ctx.values.set("count", count + 1)
        ctx.values.set("by", [ctx.execution_id, count])
        return count
    if statement.what == "clear":
        ctx.values.clear("by")
        return await ctx.values.get("by")
    former = ctx.values.get("by")
    ctx.values.set("by", [])
    return await former


def _change(ctx: affinity.OrchestrationContext, statement: bodies.Release | bodies.SetLabels) -> None:
    if isinstance(statement, bodies.Release):
        ctx.release_session(session_id(statement.session))
    else:
        ctx.set_labels(LABELS[statement.labels])


def _labels_of(statement: bodies.Child | bodies.Detached) -> Mapping[str, str] | None:
    return None if statement.labels is None else LABELS[statement.labels]


def _begin(ctx: affinity.OrchestrationContext, statement: Statement) -> Any:
    """A future, or a coroutine."""
    return _future(ctx, statement) if _is_leaf(statement) else _one(ctx, statement)


def _is_leaf(statement: Statement) -> bool:
    return isinstance(
        statement,
        (
            bodies.Activity,
            bodies.Timer,
            bodies.Wait,
            bodies.Answer,
            bodies.SendToConversation,
            bodies.Moved,
            bodies.Child,
        ),
    )


def _future(ctx: affinity.OrchestrationContext, statement: Statement) -> DurableFuture[Any]:
    match statement:
        case bodies.Activity() | bodies.SendToConversation():
            return _activity(ctx, statement)
        case bodies.Timer():
            return ctx.schedule_timer(statement.seconds)
        case bodies.Wait():
            held = None if statement.hold is None else session_id(statement.hold)
            hold_for = None if held is None else HOLD_SECONDS
            wanted: Any = PICKY if statement.picky else Any
            return ctx.schedule_wait(event_name(statement.name), wanted, hold_session=held, hold_for=hold_for)
        case bodies.Answer():
            return ctx.schedule_wait(ASK)
        case bodies.Moved():
            return ctx.schedule_session_moved(session_id(statement.session))
        case bodies.Child():
            named = None if statement.named is None else child_id(statement.named)
            labels = _labels_of(statement)
            return ctx.schedule_sub_orchestration(body, Job(statement.body), instance_id=named, labels=labels)
    raise TypeError(statement)


def _activity(
    ctx: affinity.OrchestrationContext, task: bodies.Activity | bodies.SendToConversation
) -> DurableFuture[Any]:
    if isinstance(task, bodies.SendToConversation):
        return ctx.schedule_activity(talk, task)
    total = LIMIT_SECONDS if task.limited else None
    policy = affinity.RetryPolicy(max_attempts=task.attempts, initial_interval=5, total_timeout=total)
    retry = policy if task.attempts > 1 else None
    timeout = TIMEOUT if task.hangs else None
    name = f"{NAME}.{'threaded' if task.threaded else 'work'}"
    future = ctx.schedule_activity(name, task, retry=retry, timeout=timeout)
    if task.session is not None:
        wait = SOFT_SECONDS if task.soft else None
        fail_after = IMPATIENT_SECONDS if task.impatient else None
        future = future.on_session(session_id(task.session), ordered=task.ordered, wait=wait, fail_after=fail_after)
    if task.tagged:
        future = future.with_tag(TAG)
    if task.places:
        future = future.limited(*slots.PLACES[task.places])
    return future.with_priority(task.priority) if task.priority else future


def _plain(value: Any) -> Any:
    """A result as JSON; an event that wants a reply gets it here."""
    if isinstance(value, affinity.SessionMoved):
        return value.reason
    if isinstance(value, affinity.ReceivedEvent):
        value.reply(reply_to(value.data))
        return value.data
    return value


def reply_to(data: str) -> str:
    return f"re: {data}"
