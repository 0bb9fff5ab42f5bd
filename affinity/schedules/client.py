"""Schedules, as clients use them: `Client.schedules`."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar, Unpack, overload

from affinity.actions import action
from affinity.batching import batches
from affinity.client.calls import check_delivery, retry
from affinity.client.registered import RegisteredCalls
from affinity.errors import Contention, InvalidSchedule, ScheduleDeclared, ScheduleExists, UnknownSchedule
from affinity.limits import MAX_BACKFILL, MAX_ERROR_BYTES, check_condition, check_limit, check_text, several, truncate
from affinity.orchestration.context import OrchestrationFunction
from affinity.orchestration.overlap import Overlap
from affinity.provider.contract import Provider
from affinity.schedules.firing import message_of_tick, new_row, start_of_tick, tick_id, with_spec
from affinity.schedules.reasons import TickReason, explain_schedule
from affinity.schedules.spec import (
    ScheduleOptions,
    ScheduleSpec,
    Target,
    TickOptions,
    changed_spec,
    check_name,
    new_spec,
    next_tick,
    read_spec,
    ticks,
)
from affinity.schedules.store.contract import PauseKind, ScheduleProvider, ScheduleRow, ScheduleWrite, schedules_of

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type

ScheduleState: TypeAlias = Literal["active", "paused", "undeclared", "ended"]

_MOMENT: Final = timedelta(microseconds=1)

NEXT_TICKS: Final = 5
"""Coming ticks of a `Schedule`."""

CHANGES: Final = 20
"""Attempts to change a schedule that fires between the read and the write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, as it was read."""

    name: str
    generation: str  # in the ids of its instances; another one after it was deleted and created again
    state: ScheduleState  # "undeclared": paused, since the newest version of the code no longer declares it
    note: str | None  # why it is paused, or what its last tick has met
    target: str  # for people: name of the orchestration, or the event and its receiver
    timing: str  # for people
    zone: str
    overlap: Overlap
    end: datetime | None  # the last moment of a tick
    next_ticks: Sequence[datetime]  # up to 5, in UTC; a tick that is due and not fired yet is the first
    last_tick: datetime | None  # that has started or sent something
    last_instance: str | None  # that it started
    is_running: bool  # whether that instance has not ended
    queued: datetime | None  # a tick that waits for its end
    queued_until: datetime | None  # missed ticks behind it, up to then, wait too; None: it waits alone
    skipped: int  # ticks that have started or sent nothing, as another was running, or the receiver was not there
    app: str | None  # whose code declares it; None: a client created it
    code_version: str | None  # of that code
    created_at: datetime
    updated_at: datetime


class Schedules:
    """Creates, shows and changes schedules; `Client.schedules`.

    ::

        await client.schedules.create("nightly", "summary", cron="0 3 * * *", zone="Europe/Berlin")
        await client.schedules.pause("nightly", reason="migration")

    A schedule that code declares (`affinity.App.schedule`) is changed in the code; it can be paused and triggered here.
    """

    def __init__(self, client: RegisteredCalls) -> None:
        self._client = client

    @property
    def _provider(self) -> Provider:
        return self._client._provider

    @property
    def _store(self) -> ScheduleProvider:
        return schedules_of(self._client._provider)

    @property
    def _database(self) -> str:
        return self._client._database

    @overload
    async def create(
        self,
        name: str,
        target: OrchestrationFunction[I, Any],
        *,
        input: I,
        force: bool = ...,
        **options: Unpack[TickOptions],
    ) -> Schedule: ...
    @overload
    async def create(
        self, name: str, target: Target, *, due_as: str | None = ..., force: bool = ..., **options: Unpack[TickOptions]
    ) -> Schedule: ...
    @overload
    async def create(
        self,
        name: str,
        target: OrchestrationFunction[Any, Any],
        *,
        input: Any,
        due_as: str,
        force: bool = ...,
        **options: Unpack[TickOptions],
    ) -> Schedule: ...
    @overload
    async def create(
        self, name: str, target: str, *, force: bool = ..., **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    @action("create", "schedule", "name", "target")
    async def create(
        self, name: str, target: Target, *, force: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create a schedule; its first tick comes after now. `affinity.App.schedule` describes the target and the
        options, and `Client.start` describes ``force``.

        Raises:
            ScheduleExists: the name is taken.
            InvalidSchedule: an option is refused, such as a cron line or the name of a zone.
            InvalidInput: another argument is refused; the subclass is the reason.
        """
        spec = new_spec(target, options)
        row = new_row(check_name(name), spec, await self._now())
        if not force:
            await self._check_target(target, spec)
        if not await self._write(row):
            found = await self._find(name)
            if found is None or found.generation != row.generation:  # else by an earlier attempt, whose reply was lost
                raise ScheduleExists(f"a schedule {name!r} is there already: update or delete it")
        return await self.show(name)

    async def _check_target(self, target: Target, spec: ScheduleSpec) -> None:
        """Check an orchestration that is given by name: see `Client.start`."""
        if isinstance(target, str):
            text = spec.input_at(await self._now())
            await self._client._check_start(target, spec.version, text, is_given=spec.input is not None)

    @overload
    async def update(
        self,
        name: str,
        target: OrchestrationFunction[I, Any],
        *,
        input: I,
        force: bool = ...,
        **options: Unpack[TickOptions],
    ) -> Schedule: ...
    @overload
    async def update(
        self,
        name: str,
        target: Target | None = ...,
        *,
        due_as: str | None = ...,
        force: bool = ...,
        **options: Unpack[TickOptions],
    ) -> Schedule: ...
    @overload
    async def update(
        self,
        name: str,
        target: OrchestrationFunction[Any, Any],
        *,
        input: Any,
        due_as: str,
        force: bool = ...,
        **options: Unpack[TickOptions],
    ) -> Schedule: ...
    @overload
    async def update(
        self, name: str, target: str, *, force: bool = ..., **options: Unpack[ScheduleOptions]
    ) -> Schedule: ...
    @action("update", "schedule", "name", "target")
    async def update(
        self, name: str, target: Target | None = None, *, force: bool = False, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Change a schedule. Options that are left out stay, but one of ``cron``, ``every`` and ``at`` replaces the
        other two. ``target`` replaces the target with its input. When the ticks change, a tick that was missed before
        is dropped. ``force`` is the same as in `create`.

        Raises:
            UnknownSchedule, ScheduleDeclared: nothing was changed.
            InvalidSchedule, InvalidInput: see `create`.
        """
        if isinstance(target, str) and not force:
            await self._check_target(target, changed_spec(read_spec((await self._read(name)).spec), target, options))

        def change(row: ScheduleRow, now: datetime) -> ScheduleRow:
            _refuse_declared(row, "change")
            return with_spec(row, changed_spec(read_spec(row.spec), target, options), now)

        return await self._change(name, change)

    async def list(self, *, app: str | None = None, limit: int = 100, after: str | None = None) -> Sequence[Schedule]:
        """Return one page of schedules, by name. The next page is ``after`` the last name seen.

        Args:
            app: only the schedules that this app declares.
            limit: schedules at most, from 1 to `limits.MAX_PAGE`.
            after: name of the last schedule of the page before.

        Raises:
            InvalidInput: a text that no store can keep, or a limit out of range.
        """
        check_limit(limit)
        check_condition((app, after), "app or after")
        page = partial(self._store.list_schedules, app=app, after=after, limit=limit)
        rows = await retry(page)
        return [_shown(row) for row in rows]

    async def show(self, name: str) -> Schedule:
        """Return one schedule.

        Raises:
            UnknownSchedule: no schedule has this name.
        """
        return _shown(await self._read(name))

    async def explain(self, names: str | Collection[str]) -> Mapping[str, TickReason]:
        """Explain when each of these schedules ticks next, or why it does not: it is paused or late, or no worker is
        alive. Unknown names are left out. A text is one name.

        Raises:
            InvalidInput: a name that no store can keep.
        """
        names = several(names, "names")
        check_condition(names, "name")
        rows = await retry(partial(self._store.list_schedules, names)) if names else []
        workers, now = await retry(self._provider.list_workers), await self._now()
        return {row.name: explain_schedule(row, workers, now) for row in rows}

    @action("pause", "schedule", "name", "reason")
    async def pause(self, name: str, reason: str = "") -> Schedule:
        """Stop firing until `resume`. A tick that waits for the end of the tick before is dropped.

        Raises:
            UnknownSchedule: no schedule has this name.
        """
        note = truncate(check_text(reason, "reason"), MAX_ERROR_BYTES) or None

        def change(row: ScheduleRow, _: datetime) -> ScheduleRow:
            return replace(row, paused="operator", note=note, next_due=None, queued=None, queued_until=None)

        return await self._change(name, change)

    @action("resume", "schedule", "name")
    async def resume(self, name: str) -> Schedule:
        """Fire a paused schedule again, from its next tick on. `backfill` fires the ticks between.

        Raises:
            UnknownSchedule: no schedule has this name.
            ScheduleDeclared: it is paused because the newest version of the code does not declare it.
        """

        def change(row: ScheduleRow, now: datetime) -> ScheduleRow:
            if row.paused == "undeclared":
                raise ScheduleDeclared(f"schedule {name!r}: {row.note}; delete it, or declare it again")
            if row.paused is None:
                return row
            return replace(row, paused=None, note=None, next_due=next_tick(read_spec(row.spec), now))

        return await self._change(name, change)

    @action("trigger", "schedule", "name")
    async def trigger(self, name: str) -> str:
        """Fire a schedule now, by hand, even if it is paused or a tick's instance runs. Its ticks stay as they are.

        Returns:
            The id of the instance that was started, or that received the event.

        Raises:
            UnknownSchedule: no schedule has this name.
            QuotaExceeded: the database has as many instances as it may have.
            UnknownInstance, InstanceFinished, TooManyUnreadEvents: the event was not sent.
        """
        row, now = await self._read(name), await self._now()
        spec = read_spec(row.spec)
        instance_id = f"{tick_id(row, now)}-{secrets.token_hex(4)}"
        await self._fire(spec, [(instance_id, now)])
        return spec.instance_id or instance_id

    @action("backfill", "schedule", "name", "start", "end")
    async def backfill(self, name: str, *, start: datetime, end: datetime) -> int:
        """Fire the ticks of a time in the past, beside each other whatever the overlap, even if the schedule is paused.
        A tick that was fired before is not fired again, as long as its instance is kept.

        Args:
            name: of the schedule.
            start: the first moment of a tick, with a time zone.
            end: the last one.

        Returns:
            The number of ticks that this call has fired.

        Raises:
            UnknownSchedule: no schedule has this name.
            InvalidSchedule: ``end`` is before ``start`` or in the future, a time has no zone, or there are more than
                `limits.MAX_BACKFILL` ticks. Nothing was fired.
            QuotaExceeded: see `trigger`; some may have been fired.
        """
        row, now = await self._read(name), await self._now()
        if start.tzinfo is None or end.tzinfo is None or not start <= end <= now:
            raise InvalidSchedule(f"backfill from {start} to {end}: must be times with a zone, in order, not after now")
        spec = read_spec(row.spec)
        found = itertools.takewhile(lambda due: due <= end, ticks(spec, start - _MOMENT))
        due = list(itertools.islice(found, MAX_BACKFILL + 1))
        if len(due) > MAX_BACKFILL:
            raise InvalidSchedule(f"from {start} to {end} are more than {MAX_BACKFILL} ticks: do it in parts")
        return await self._fire(spec, [(tick_id(row, tick), tick) for tick in due])

    @action("delete", "schedule", "name")
    async def delete(self, name: str) -> None:
        """Remove a schedule; the instances that it has started stay.

        Raises:
            UnknownSchedule: no schedule has this name.
            ScheduleDeclared: code declares it. A paused one is removed; if the newest code still declares it, a worker
                creates it again.
        """
        for _ in range(CHANGES):
            row = await self._read(name)
            if row.paused is None:
                _refuse_declared(row, "remove")
            if await self._write(row, removed=True):
                return
        raise Contention(f"schedule {name!r} changes all the time")

    # -- how

    async def _now(self) -> datetime:
        return (await retry(partial(self._store.get_due_schedules, 0))).now

    async def _find(self, name: str) -> ScheduleRow | None:
        return next(iter(await retry(partial(self._store.list_schedules, [name]))), None)

    async def _read(self, name: str) -> ScheduleRow:
        row = await self._find(check_name(name))
        if row is None:
            raise UnknownSchedule(f"no schedule is named {name!r}")
        return row

    async def _write(self, row: ScheduleRow, *, removed: bool = False) -> bool:
        (written,) = await retry(partial(self._store.write_schedules, [ScheduleWrite(row=row, removed=removed)]))
        return written

    async def _change(self, name: str, change: Callable[[ScheduleRow, datetime], ScheduleRow]) -> Schedule:
        """Write a change that may be made again from a later revision, as the schedule may fire in between."""
        for _ in range(CHANGES):
            row, now = await self._read(name), await self._now()
            changed = change(row, now)
            if changed == row or await self._write(changed):
                return await self.show(name)
        raise Contention(f"schedule {name!r} changes all the time")

    async def _fire(self, spec: ScheduleSpec, due: Sequence[tuple[str, datetime]]) -> int:
        """Start the instances, or send the events, of these ids and due times; returns how many are new."""
        fire = self._send if spec.orchestration is None else self._start
        return sum([await fire(spec, part) for part in batches(due)])

    async def _start(self, spec: ScheduleSpec, due: Sequence[tuple[str, datetime]]) -> int:
        starts = [start_of_tick(spec, instance_id, each) for instance_id, each in due]
        created = await retry(partial(self._provider.create_instance, starts))
        self._client._hints.notify_all()
        return sum(created)

    async def _send(self, spec: ScheduleSpec, due: Sequence[tuple[str, datetime]]) -> int:
        messages = [message_of_tick(spec, key, each) for key, each in due]
        deliveries = await retry(partial(self._provider.send_message, messages))
        receivers = {message.instance_id for message in messages}
        self._client._hints.notify_owners(receivers)
        for receiver, delivery in itertools.product(receivers, set(deliveries) - {"repeated"}):
            check_delivery(receiver, delivery)
        return deliveries.count("delivered")


class ScheduleCalls(RegisteredCalls):
    """The part of `affinity.Client` for schedules."""

    @property
    def schedules(self) -> Schedules:
        """Creates, shows and changes schedules."""
        return Schedules(self)


def _refuse_declared(row: ScheduleRow, verb: str) -> None:
    if row.app is not None:
        raise ScheduleDeclared(
            f"schedule {row.name!r} is declared by the code of the app {row.app!r}: {verb} it there; "
            "a pause stops it without new code"
        )


def _shown(row: ScheduleRow) -> Schedule:
    note, coming = row.note, [] if row.next_due is None else [row.next_due]
    try:
        spec = read_spec(row.spec)
        coming += itertools.islice(ticks(spec, coming[0]), NEXT_TICKS - 1) if coming else ()
    except Exception as error:  # of a later release, or of a zone that is not known here
        spec, note = ScheduleSpec(), f"{type(error).__name__}: {error}"
    assert row.created_at is not None
    assert row.updated_at is not None
    return Schedule(
        name=row.name,
        generation=row.generation,
        state=_STATES[row.paused] if row.paused else "active" if coming or row.queued else "ended",
        note=note,
        target=spec.target,
        timing=spec.timing,
        zone=spec.zone,
        overlap="allow" if spec.sends else spec.overlap,
        end=spec.end,
        next_ticks=coming,
        last_tick=row.last_due,
        last_instance=row.running,
        is_running=row.is_running,
        queued=row.queued,
        queued_until=row.queued_until,
        skipped=row.skipped,
        app=row.app,
        code_version=row.code,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


_STATES: Final[dict[PauseKind, ScheduleState]] = {"operator": "paused", "undeclared": "undeclared"}
