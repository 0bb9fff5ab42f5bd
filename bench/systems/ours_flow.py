"""What our workers run for ``flow``: work with limits, and the same work without."""

from __future__ import annotations

from pydantic import BaseModel

import affinity
from affinity import ActivityContext, ActivityFuture, App, OrchestrationContext, Rate
from bench.service import call
from bench.systems.ours_app import Route, Step
from bench.tracing import start_if_enabled
from bench.work import Stamp, stamp

start_if_enabled()

PARALLEL = 100
"""Calls at the same time, of ours and of a peer."""

FREE = Rate(1_000_000, per=60)
"""A rate that is never reached."""

TOO_MANY = 429

open_limit = affinity.Limit("open", concurrency=10_000, rate=FREE)
keyed_limit = affinity.Limit("keyed", concurrency=1, keyed=True)
shared_limit = affinity.Limit("shared", concurrency=PARALLEL, rate=FREE)
closed_limit = affinity.Limit("closed", concurrency=0)
fair_limit = affinity.Limit("fair", keyed=True)

app = App("bench-flow", limits=[open_limit, keyed_limit, shared_limit, closed_limit, fair_limit])


@app.activity
async def step(context: ActivityContext, this: Step) -> Stamp:
    """A turn."""
    return stamp(this.turn)


class FlowRoute(Route):
    """Turns, on the session of the instance or on none."""

    limit: str = ""  # "open", or "keyed": each turn has a key of its own
    on_session: bool = False


@app.orchestration(name="walk")
async def walk(context: OrchestrationContext, route: FlowRoute) -> list[Stamp]:
    """Turns, one after the other."""
    return [await _turn(context, route, turn) for turn in range(route.turns + 1)]


def _turn(context: OrchestrationContext, route: FlowRoute, turn: int) -> ActivityFuture[Stamp]:
    work = context.schedule_activity(step, Step(turn=turn))
    if route.on_session:
        work = work.on_session(context.instance_id)
    if route.limit == "open":
        work = work.limited(open_limit)
    elif route.limit == "keyed":
        work = work.limited(keyed_limit.key(f"{context.instance_id}/{turn}"))
    return work


class Calls(BaseModel):
    """Activities that are started together."""

    count: int
    closed: bool = False  # they wait until somebody opens their limit


@app.orchestration
async def fan(context: OrchestrationContext, calls: Calls) -> list[Stamp]:
    """Activities, all of which have the same limit; closed ones have one of a hundred keys too."""
    work = [context.schedule_activity(step, Step(turn=number)) for number in range(calls.count)]
    if not calls.closed:
        return await context.gather(*(each.limited(shared_limit) for each in work))
    keys = [fair_limit.key(f"tenant-{number % 100}") for number in range(calls.count)]
    return await context.gather(*(each.limited(closed_limit, key) for each, key in zip(work, keys, strict=True)))


CALLS_A_SECOND = 50
"""That the service accepts, in any second."""

RATE = 47
"""Calls a second that we begin, evenly spaced. It is below `CALLS_A_SECOND`, as two calls that were admitted in
different seconds reach the service in one if the first takes longer to get there: with 47 it may take 79 ms longer,
with 48 57 ms. With 46 no more than 90.6 % of what the service allows could be used.
"""

AT_ONCE = 20
"""Calls that it is to have at the same time."""

OF_TENANT = 16
"""Calls that a tenant may have at the same time."""

service_limit = affinity.Limit("service", concurrency=AT_ONCE, rate=Rate(RATE, per=1, smooth=True))
tenant_limit = affinity.Limit("tenant", concurrency=OF_TENANT, keyed=True)

calling = App("bench-calling", limits=[service_limit, tenant_limit])
"""Calls a service that answers 429 above its limit."""


class ServiceCalls(BaseModel):
    """Calls of a tenant, which are started together."""

    port: int
    tenant: str
    first: int = 0
    count: int = 1
    seconds: float  # that the service takes for each


class ServiceCall(BaseModel):
    """One of them."""

    port: int
    tenant: str
    number: int
    seconds: float


@calling.activity
async def call_service(context: ActivityContext, this: ServiceCall) -> int:
    """A call; when the service has had too many, all workers wait."""
    status = await call(this.port, this.tenant, this.number, this.seconds)
    if status == TOO_MANY:
        raise affinity.RetryAfter(1.0, limit=service_limit)
    return status


@calling.orchestration
async def call_often(context: OrchestrationContext, calls: ServiceCalls) -> int:
    """Calls of one tenant, as soon as its limit and that of the service allow."""
    places = tenant_limit.key(calls.tenant), service_limit
    work = [
        context.schedule_activity(call_service, _call(calls, number)).limited(*places)
        for number in range(calls.first, calls.first + calls.count)
    ]
    return len(await context.gather(*work))


def _call(calls: ServiceCalls, number: int) -> ServiceCall:
    return ServiceCall(port=calls.port, tenant=calls.tenant, number=number, seconds=calls.seconds)
