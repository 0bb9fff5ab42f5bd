"""Limits as code writes them: what is refused, what is declared, and what a scheduled activity records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from affinity import ActivityContext, App, Limit, LimitKey, OrchestrationContext, Rate, RetryPolicy
from affinity.client.resets import _work_item
from affinity.errors import (
    AffinityError,
    InvalidApp,
    InvalidId,
    InvalidInput,
    InvalidLimit,
    InvalidOptions,
    Nondeterminism,
    OrchestrationMisuse,
)
from affinity.flow.declaring import declare_limits, declared_limits
from affinity.flow.store.contract import LimitSpec, RateBound
from affinity.limits import MAX_PRIORITY, PRIORITY_SECONDS
from affinity.orchestration import events as ev
from affinity.orchestration.gates import LimitUse, gate_of, read_gate
from affinity.orchestration.wire import decode_task
from affinity.provider.contract import Generation, InstanceInfo, NewWorkItem, WorkKey
from affinity.worker.turns import build_turn
from tests.orchestration.harness import Live, run

MODEL = Limit("model", concurrency=20, rate=Rate(600, per=60))
TENANT = Limit("tenant", concurrency=5, keyed=True)
SWITCH = Limit("switch")
APP = App("limited", limits=[MODEL, TENANT, SWITCH])

wrong: Any = "wrong"
number: Any = 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(""), "name of a limit must not be empty"),
        (lambda: Limit("é" * 129), "name of a limit has 258 bytes"),
        (lambda: Limit(number), "name of a limit must be a string"),
        (lambda: Limit("a\nb"), "control character"),
        (lambda: Limit("a", concurrency=-1), "concurrency of limit 'a' must be an integer from 0"),
        (lambda: Limit("a", concurrency=True), "concurrency of limit 'a'"),
        (lambda: Limit("a", concurrency=2**31), "concurrency of limit 'a'"),
        (lambda: Limit("a", rate=wrong), r"rate of limit 'a' is a Rate, as Rate\(600, per=60\), not 'wrong'"),
        (lambda: Limit("a", keyed=wrong), "keyed is True or False"),
        (lambda: Limit("a", aging=0), "aging must be at least 0.1 s"),
        (lambda: Limit("a", aging=float("nan")), "aging must be seconds"),
        (lambda: Rate(0, per=1), "count of a rate must be an integer from 1"),
        (lambda: Rate(-5, per=1), "count of a rate must be an integer from 1"),
        (lambda: Rate(5, per=0), "per must be at least 0.1 s"),
        (lambda: Rate(5, per=-1), "per must be at least 0.1 s"),
        (lambda: Rate(5, per=1e12), "is it milliseconds"),
        (lambda: Rate(5, per=1, burst=0), "burst of a rate must be an integer from 1"),
        (lambda: Rate(5, per=1, burst=6), "no more than the count of 5"),
        (lambda: Rate(5, per=1, burst=2, smooth=True), "leave one of the two out"),
        (lambda: Rate(5, per=1, smooth=wrong), "smooth is True or False"),
        (lambda: MODEL.key("acme"), "'model' has no keys: make it with keyed=True"),
        (lambda: TENANT.units(2), "'tenant' has keys: name one"),
        (lambda: TENANT.key(""), "key of limit 'tenant' must not be empty"),
        (lambda: TENANT.key("k" * 257), "key of limit 'tenant' has 257 bytes"),
        (lambda: TENANT.key(number), "key of limit 'tenant' must be a string"),
        (lambda: TENANT.key("acme", weight=0), "weight must be a number from 0.001 to 1000"),
        (lambda: TENANT.key("acme", weight=float("nan")), "weight must be a number"),
        (lambda: TENANT.key("acme", units=0), "units of limit 'tenant' must be an integer from 1"),
        (lambda: MODEL.units(601), "601 units of limit 'model' would never be admitted: its rate is 600 in 60 s"),
    ],
)
def test_a_limit_that_is_refused_where_it_is_written(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidLimit, match=message):
        make()


def test_limits_with_equal_values_are_one() -> None:
    assert Limit("model", concurrency=20, rate=Rate(600, per=60.0)) == MODEL
    assert len({MODEL, Limit("model", concurrency=20, rate=Rate(600, per=60.0))}) == 1
    assert TENANT.key("acme", weight=3) == TENANT.key("acme", weight=3.0)
    assert Limit("pause", concurrency=0).concurrency == 0


def test_an_app_declares_its_limits_and_those_of_its_activities() -> None:
    app = App("shop", limits=[TENANT])

    @app.activity(limits=[MODEL, TENANT.key("acme")])
    async def ask(ctx: ActivityContext) -> None: ...

    smooth = Rate(5, per=1, smooth=True)
    other = App("other", limits=[MODEL, Limit("smooth", rate=smooth), Limit("burst", rate=Rate(5, per=1, burst=2))])
    app.include(other)
    assert sorted(app.limits) == ["burst", "model", "smooth", "tenant"]
    specs = {spec.name: spec for spec in declared_limits(app)}
    assert specs["model"] == LimitSpec(name="model", concurrency=20, rate=RateBound(count=600, per=60.0))
    assert specs["smooth"].rate == RateBound(count=5, per=1.0, burst=1)
    assert specs["burst"].rate == RateBound(count=5, per=1.0, burst=2)
    texts = {limit.to_text() for limit in app.limits.values()}
    assert len(texts) == 4  # parts of the version of the code


def test_two_limits_of_one_name_with_other_bounds() -> None:
    app, other = App("shop", limits=[MODEL]), App("other", limits=[Limit("model", concurrency=1)])
    with pytest.raises(InvalidLimit, match="app 'shop' has two limits named 'model', with other bounds"):
        app.activity(limits=[Limit("model", concurrency=1)])(lambda ctx: None)
    with pytest.raises(InvalidLimit, match="two limits named 'model'"):
        declare_limits(app, [Limit("model")])
    with pytest.raises(InvalidApp, match="two limits named 'model'"):
        app.include(other)
    with pytest.raises(InvalidLimit, match=r"a limit is made by affinity\.Limit"):
        App("shop", limits=[wrong])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limits": MODEL}, InvalidLimit, "limits are a list"),
        ({"limits": "model"}, InvalidLimit, "limits are a list"),
        ({"limits": ["model"]}, InvalidLimit, r"a key of one as limit\.key\('acme'\), not 'model'"),
        ({"limits": [TENANT]}, InvalidLimit, r"limit 'tenant' has keys: name one, as in \.key\('acme'\)"),
        ({"limits": [MODEL, MODEL]}, InvalidLimit, "named twice"),
        ({"limits": [MODEL, MODEL.units(2)]}, InvalidLimit, "named twice"),
        ({"limits": [TENANT.key(f"{n}") for n in range(9)]}, InvalidLimit, "at most 8 limits, not 9"),
        ({"limits": [TENANT.key('"' * 250 + str(n)) for n in range(8)]}, InvalidLimit, "over the limit of 2048"),
        ({"retry": 3}, InvalidOptions, "retry must be a RetryPolicy, not 3"),
        ({"timeout": 0}, InvalidOptions, "timeout must be above 0"),
        ({"tag": "a b"}, InvalidId, "tag"),
    ],
)
def test_an_option_of_a_definition_that_is_refused(
    options: dict[str, Any], error: type[AffinityError], message: str
) -> None:
    with pytest.raises(error, match=message):
        App("shop").activity(**options)


def scheduled(call: Callable[[OrchestrationContext], Any]) -> ev.ActivityScheduled:
    """The event of the activity that ``call`` schedules."""

    async def main(ctx: OrchestrationContext) -> None:
        await call(ctx)

    event = run(main).history[-1]
    assert isinstance(event, ev.ActivityScheduled)
    return event


RETRY = RetryPolicy(max_attempts=2)


@APP.activity(retry=RETRY, timeout=timedelta(minutes=1), limits=[MODEL.units(2)], tag="gpu")
async def ask(ctx: ActivityContext) -> None: ...


USES = (LimitUse("model", "", 2),)
ACME = LimitUse("tenant", "acme", 1, 3.0)


@pytest.mark.parametrize(
    ("call", "recorded"),
    [
        (lambda ctx: ctx.schedule_activity(ask), (RETRY, 60.0, "gpu", True, USES, 0)),
        (lambda ctx: ctx.schedule_activity(ask, retry=None, timeout=None), (None, None, "gpu", True, USES, 0)),
        (lambda ctx: ctx.schedule_activity(ask, timeout=5), (RETRY, 5.0, "gpu", True, USES, 0)),
        (lambda ctx: ctx.schedule_activity(ask).with_tag("eu"), (RETRY, 60.0, "eu", False, USES, 0)),
        (lambda ctx: ctx.schedule_activity(ask).limited(), (RETRY, 60.0, "gpu", True, (), 0)),
        (lambda ctx: ctx.schedule_activity(ask).with_priority(7), (RETRY, 60.0, "gpu", True, USES, 7)),
        (
            lambda ctx: ctx.schedule_activity(ask).limited(TENANT.key("acme", weight=3)),
            (RETRY, 60.0, "gpu", True, (*USES, ACME), 0),
        ),
        (
            lambda ctx: ctx.schedule_activity(ask).limited(MODEL, TENANT.key("acme", weight=3)).with_priority(0),
            (RETRY, 60.0, "gpu", True, (LimitUse("model"), ACME), 0),
        ),
        (lambda ctx: ctx.schedule_activity("ask").limited(SWITCH), (None, None, None, False, (LimitUse("switch"),), 0)),
    ],
)
def test_the_definition_counts_where_the_call_says_nothing(
    call: Callable[[OrchestrationContext], Any], recorded: tuple[object, ...]
) -> None:
    event = scheduled(call)
    assert (event.retry, event.timeout, event.tag, event.default_tag, event.limits, event.priority) == recorded


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f.limited("model"), InvalidLimit, "a limit is a Limit"),
        (lambda f: f.limited([MODEL]), InvalidLimit, "a limit is a Limit"),
        (lambda f: f.limited(TENANT), InvalidLimit, "name one"),
        (lambda f: f.limited(MODEL, MODEL), InvalidLimit, "named twice"),
        (
            lambda f: f.limited(Limit("lost")),
            InvalidLimit,
            "no app declares the limit 'lost', so it would hold",
        ),
        (lambda f: f.limited(Limit("lost", keyed=True).key("k")), InvalidLimit, r"name it in App\(\.\.\., limits="),
        (lambda f: f.limited(MODEL).limited(SWITCH), OrchestrationMisuse, "has limits already"),
        (lambda f: f.with_priority(-1), InvalidInput, f"an integer from 0 to {MAX_PRIORITY}, not -1"),
        (lambda f: f.with_priority(MAX_PRIORITY + 1), InvalidInput, "an integer from 0"),
        (lambda f: f.with_priority(True), InvalidInput, "an integer from 0"),
        (lambda f: f.with_priority(1).with_priority(1), OrchestrationMisuse, "has the priority 1 already"),
    ],
)
def test_a_call_that_is_refused_schedules_nothing(
    call: Callable[[Any], Any], error: type[AffinityError], message: str
) -> None:
    async def main(ctx: OrchestrationContext) -> str:
        with pytest.raises(error, match=message):
            call(ctx.schedule_activity("x"))
        with pytest.raises(OrchestrationMisuse, match="cannot have limits"):
            ctx.schedule_timer(1).limited(MODEL)
        with pytest.raises(OrchestrationMisuse, match="cannot have a priority"):
            ctx.schedule_timer(1).with_priority(1)
        later = ctx.schedule_activity("y")
        await ctx.wait_any(later)
        for late in (later.limited, later.with_priority):
            with pytest.raises(OrchestrationMisuse, match="limited and with_priority before the next await"):
                late()  # type: ignore[call-arg]
        return "done"

    live = run(main, ev.ActivityCompleted(2, "1"))
    assert [event for event in live.history if isinstance(event, ev.ActivityScheduled)] == [
        ev.ActivityScheduled("y", "null")
    ]


# -- replay

OLD = ev.ActivityScheduled("ask", "null")
GPU = ev.ActivityScheduled("ask", "null", tag="gpu")
DEFAULT_GPU = ev.ActivityScheduled("ask", "null", tag="gpu", default_tag=True)


def calls_plain(ctx: OrchestrationContext) -> Any:
    return ctx.schedule_activity("ask")


def calls_ask(ctx: OrchestrationContext) -> Any:
    return ctx.schedule_activity(ask)


def calls_eu(ctx: OrchestrationContext) -> Any:
    return ctx.schedule_activity(ask).with_tag("eu")


def calls_limited(ctx: OrchestrationContext) -> Any:
    return ctx.schedule_activity("ask").limited(SWITCH).with_priority(3)


@pytest.mark.parametrize(
    ("call", "recorded", "matches"),
    [
        (calls_plain, OLD, True),
        (calls_ask, OLD, True),  # the definition has got options since
        (calls_ask, GPU, True),  # the tag of the call has become that of the definition
        (calls_ask, DEFAULT_GPU, True),
        (calls_ask, ev.ActivityScheduled("ask", "null", tag="tpu", default_tag=True), True),
        (calls_plain, DEFAULT_GPU, True),  # the definition has lost its tag
        (calls_eu, DEFAULT_GPU, True),  # the call has got its own tag
        (calls_plain, GPU, False),
        (calls_eu, GPU, False),
        (calls_eu, OLD, False),
        (calls_limited, OLD, True),
        (calls_limited, ev.ActivityScheduled("ask", "null", limits=USES, priority=9), True),
        (calls_plain, ev.ActivityScheduled("ask", "null", limits=(ACME,), priority=9), True),
    ],
)
def test_options_of_definitions_limits_and_priorities_may_change(
    call: Callable[[OrchestrationContext], Any], recorded: ev.ActivityScheduled, matches: bool
) -> None:
    async def main(ctx: OrchestrationContext) -> None:
        await call(ctx)

    live = Live(main)
    history: list[ev.Event] = [ev.OrchestrationStarted(live.definition.name, "1.0.0", "null"), recorded]
    if matches:
        assert live.replayed(history).pending_activities == {2: recorded}  # the recorded options count
    else:
        with pytest.raises(Nondeterminism):
            live.replayed(history)


# -- rows


def new_work(call: Callable[[OrchestrationContext], Any]) -> NewWorkItem:
    """The row of the activity that ``call`` schedules."""

    async def main(ctx: OrchestrationContext) -> None:
        await call(ctx)

    live = Live(main)
    step = live.start()
    claimed: list[str] = []

    def reserve(session_id: str) -> bool:
        claimed.append(session_id)
        return True

    built = build_turn(
        live.execution,
        step,
        generation=Generation("g"),
        first_version=None,
        consumed=[],
        acks=[],
        lock_here=8,
        try_reserve_session=reserve,
    )
    (item,) = built.turn.work_items
    (task,) = built.tasks
    assert decode_task(item.payload) == task
    assert task.limits == tuple(read_gate(item.gate.text)[1]) if item.gate else task.limits == ()
    assert bool(claimed) == item.claim_here
    return item


def test_the_gate_of_new_work() -> None:
    plain = new_work(lambda ctx: ctx.schedule_activity("x").on_session("s"))
    assert (plain.gate, plain.lock_here, plain.claim_here) == (None, True, True)
    first = new_work(lambda ctx: ctx.schedule_activity("x").on_session("s").with_priority(2))
    assert first.gate is not None
    assert (first.gate.text, first.gate.limited, first.gate.head_start) == ("[2]", False, 2 * PRIORITY_SECONDS)
    assert (first.lock_here, first.claim_here) == (True, True)  # it begins now anyway
    limited = new_work(lambda ctx: ctx.schedule_activity("x").limited(TENANT.key("acme", weight=3)).on_session("s"))
    assert (limited.lock_here, limited.claim_here) == (True, False)  # if it passes with the commit
    parked = new_work(
        lambda ctx: ctx.schedule_activity("x").on_session("s").limited(TENANT.key("acme", weight=3))._park()
    )
    assert (parked.lock_here, parked.claim_here) == (False, False)
    for work in (limited, parked):
        assert (work.gate, work.session_id) == (gate_of([ACME]), "s")


def test_a_reset_schedules_work_with_its_gate() -> None:
    event = ev.ActivityScheduled("x", "null", "s", limits=(ACME,), priority=5)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    info = InstanceInfo(
        instance_id="i",
        name="main",
        version="1.0.0",
        execution_id=1,
        status="running",
        custom_status=None,
        output=None,
        error=None,
        parent_id=None,
        owner=None,
        event_count=3,
        created_at=now,
        updated_at=now,
        generation=Generation("g"),
    )
    item = _work_item(WorkKey("i", 2, 3), event, info)
    assert item.gate == gate_of([ACME], 5)
    assert decode_task(item.payload).limits == (ACME,)


def test_keys_are_values() -> None:
    assert MODEL.units(3) == LimitKey(limit=MODEL, key="", weight=1.0, units=3)
    assert read_gate('[5,["tenant","acme",1,3.0]]') == (5, [ACME])
