"""Schedules: periods, overlaps and windows, which clients pause, resume, trigger, change and delete meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import affinity
from affinity import Instance
from affinity.errors import UnknownSchedule
from affinity.schedules import Overlap, Schedule
from affinity.schedules.spec import new_spec, ticks
from tests.programs.area import Area
from tests.programs.play import Play
from tests.programs.program import Size

NAME: Final = "schedules"

ActKind: TypeAlias = Literal["pause", "resume", "trigger", "backfill", "update", "delete"]

DAY: Final = 86_400.0


@dataclass(frozen=True)
class Plan:
    """One schedule, from the begin of the program."""

    period: float = 60.0
    ticks: int = 3
    overlap: Overlap = "skip"
    catch_up: float | None = DAY
    jitter: float = 0.0
    lasts: float = 0.0  # seconds of each instance
    event: bool = False  # each tick sends an event to an instance that counts them


@dataclass(frozen=True)
class ScheduleAct:
    """Something that a client does with a schedule."""

    number: int = 0
    kind: ActKind = "trigger"
    after: int = 0  # ticks of the program before it


@dataclass(frozen=True)
class SchedulesPart:
    """Schedules, and what clients do one after the other."""

    plans: tuple[Plan, ...] = (Plan(),)
    acts: tuple[ScheduleAct, ...] = ()


@dataclass
class Created:
    """What a client knows of a schedule."""

    schedule: Schedule
    end: datetime
    triggered: list[str] = field(default_factory=list)
    is_changed: bool = False  # it was paused, updated, backfilled or deleted: not all of its ticks are known


class Schedules(Area[SchedulesPart, Sequence[Created]]):
    """Each tick starts one instance, or sends one event, as the overlap says."""

    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[SchedulesPart]:
        most_ticks, most_plans, most_acts = (2, 1, 2) if size == "small" else (8, 3, 6)
        plans = st.builds(
            Plan,
            period=st.sampled_from((60.0, 1.0, 7.0, 3600.0)),
            ticks=st.integers(1, most_ticks),
            overlap=st.sampled_from(("skip", "queue", "allow", "cancel")),
            catch_up=st.sampled_from((DAY, None, 5.0)),
            jitter=st.sampled_from((0.0, 0.0, 30.0)),
            lasts=st.sampled_from((0.0, 0.5, 20.0, 100.0)),
            event=st.sampled_from((False, False, True)),
        )
        acts = st.builds(
            ScheduleAct,
            number=st.integers(0, 2),
            kind=st.sampled_from(("trigger", "pause", "resume", "update", "backfill", "delete")),
            after=st.sampled_from((0, 1, 5, 20)),
        )
        return st.builds(
            SchedulesPart,
            plans=st.lists(plans, min_size=1, max_size=most_plans).map(tuple),
            acts=st.lists(acts, max_size=most_acts).map(tuple),
        )

    def include(self, app: affinity.App) -> None:
        app.include(_app)

    async def run(self, play: Play, part: SchedulesPart) -> Sequence[Created]:
        created = [await self._create(play, number, plan) for number, plan in enumerate(part.plans)]
        for act in part.acts:
            await play.pause(act.after)
            await _act(play, act, created[act.number % len(created)])
        while any(each.next_ticks for each in await play.env.client.schedules.list()):
            await play.pause(1)  # until the last tick: at rest, later ticks do not count
        return created

    async def _create(self, play: Play, number: int, plan: Plan) -> Created:
        client, end = play.env.client, play.env.now() + timedelta(seconds=plan.period * plan.ticks)
        timing: dict[str, Any] = {"every": plan.period, "end": end, "catch_up": plan.catch_up}
        name = f"{NAME}-{number}"
        if plan.event:
            await client.start(_counter, instance_id=f"{name}-counter")
            target = affinity.ExternalEvent(f"{name}-counter", "tick")
            return Created(await client.schedules.create(name, target, **timing), end)
        timing |= {"overlap": plan.overlap, "jitter": plan.jitter}
        return Created(
            await client.schedules.create(name, _tick, input={"lasts": plan.lasts}, due_as="due", **timing), end
        )

    async def check(self, play: Play, part: SchedulesPart, seen: Sequence[Created]) -> None:
        for plan, created in zip(part.plans, seen, strict=True):
            spec = new_spec("tick", {"every": plan.period, "end": created.end})
            due = [*ticks(spec, created.schedule.next_ticks[0] - timedelta(microseconds=1))]
            if plan.event:
                await _check_events(play, plan, created, due)
            else:
                await _check_instances(play, plan, created, due)


async def _act(play: Play, act: ScheduleAct, created: Created) -> None:
    schedules, name = play.env.client.schedules, created.schedule.name
    created.is_changed |= act.kind not in {"trigger", "resume"}
    try:
        match act.kind:
            case "trigger":
                created.triggered.append(await schedules.trigger(name))
            case "pause":
                await schedules.pause(name)
            case "resume":
                await schedules.resume(name)
            case "update":
                await schedules.update(name, overlap="skip")
            case "backfill":
                await schedules.backfill(name, start=play.env.started, end=play.env.now())
            case "delete":
                await schedules.delete(name)
    except UnknownSchedule:
        assert created.is_changed, f"{name} is not there, and no client has deleted it"


async def _check_events(play: Play, plan: Plan, created: Created, due: Sequence[datetime]) -> None:
    """The counter has received each tick once, and each trigger."""
    name = created.schedule.name
    found = (await play.env.client.status(f"{name}-counter")).custom_status or []
    wanted = [each.isoformat().replace("+00:00", "Z") for each in due]
    most = len(wanted) + len(created.triggered)  # one by hand may have the time of a tick
    known = f"{name} was triggered {created.triggered}, and has sent {found} for {wanted}"
    if created.is_changed:
        return
    assert len(set(wanted) & set(found)) + len(created.triggered) <= len(found) <= most, known
    if plan.catch_up == DAY:
        assert len(found) == most, known
        assert set(wanted) <= set(found), known


async def _check_instances(play: Play, plan: Plan, created: Created, due: Sequence[datetime]) -> None:
    schedule, client = created.schedule, play.env.client
    start = f"{schedule.name}/{schedule.generation}@"
    found = {each.instance_id: each async for each in client.list_instances(prefix=start)}
    for instance_id in created.triggered:
        assert found.pop(instance_id).status == "completed", f"{instance_id}, by hand, has not ended"
    started = sorted(found.values(), key=_due)
    for each in started:
        _check_one(plan, created, each, due)
    if created.is_changed:
        return
    if plan.overlap != "allow":
        for one, following in itertools.pairwise(started):
            assert following.created_at >= one.updated_at, f"{following.instance_id} began beside {one.instance_id}"
    if plan.catch_up == DAY:
        skipped = (await client.schedules.show(schedule.name)).skipped
        assert len(started) + skipped == len(due), f"{start}: {len(started)} started, {skipped} skipped of {due}"
        assert not skipped or plan.overlap != "allow", f"{start}: {skipped} skipped, and they may overlap"


def _check_one(plan: Plan, created: Created, instance: Instance, due: Sequence[datetime]) -> None:
    """Of a tick; its code has seen the tick; it has ended, as the overlap allows."""
    name, at = instance.instance_id, _due(instance)
    assert at in due or created.is_changed, f"{name} is no tick of {due}"
    assert at <= instance.created_at, f"{name} was started before its time, at {instance.created_at}"
    if instance.status == "cancelled":
        assert plan.overlap == "cancel", f"{name} was cancelled"
    else:
        assert (instance.status, instance.output) == ("completed", at.isoformat()), f"{name}: {instance}"


def _due(instance: Instance) -> datetime:
    return datetime.fromisoformat(instance.instance_id.rpartition("@")[2])


_app: Final = affinity.App(NAME)


@_app.orchestration(name=f"{NAME}.tick")
async def _tick(ctx: affinity.OrchestrationContext, given: dict[str, Any]) -> str:
    assert ctx.scheduled_for is not None
    if "due" in given:
        assert datetime.fromisoformat(given["due"]) == ctx.scheduled_for
    if given["lasts"]:
        await ctx.schedule_timer(given["lasts"])
    return ctx.scheduled_for.isoformat()


@_app.orchestration(name=f"{NAME}.counter")
async def _counter(ctx: affinity.OrchestrationContext) -> None:
    received: list[str] = []
    while True:
        received.append(await ctx.schedule_wait("tick", str))
        ctx.set_custom_status(received)


SCHEDULES: Final = Schedules()
