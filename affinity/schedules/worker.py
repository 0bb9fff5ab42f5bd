"""The part of a worker that fires schedules, and updates those that its code declares.

Any worker fires any schedule; it does not need the code of the target. A tick and the next due time are one write,
from the revision that was read: of workers that fire the same tick one succeeds. A tick also has its own id
(`affinity.schedules.firing.tick_id`), so that it starts nothing twice even if the database was set back or restored.

Each sweep reports when the next schedule is due, so no worker asks for it. The worker that made the sweep waits for
that time if it comes before the next sweep.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio

from affinity.errors import DataRefused, QuotaExceeded
from affinity.limits import MAX_PAGE, SCHEDULE_STEP
from affinity.orchestration import KernelApp
from affinity.orchestration.overlap import on_overlap
from affinity.provider.contract import NewInstance, NewMessage, Provider
from affinity.redaction import redacted
from affinity.schedules.declaring import declared_schedules
from affinity.schedules.firing import cancellation, message_of_tick, new_row, start_of_tick, tick_id, with_spec
from affinity.schedules.spec import (
    LATEST_SECONDS,
    MISSED_SECONDS,
    ScheduleSpec,
    format_due,
    next_tick,
    read_spec,
    ticks,
)
from affinity.schedules.store.contract import ScheduleRow, ScheduleWrite, keeps_schedules, schedules_of
from affinity.worker.guests import GuestPart, newest_version
from affinity.worker.services import WorkerServices

logger: logging.Logger = logging.getLogger("affinity.worker")

HORIZON: Final = 1.2
"""Seconds: a tick that is due later is found by a later sweep, of this worker or another."""

DECLARE_SECONDS: Final = 30.0
"""Seconds between two checks that the database has the schedules of this code: versions may have come or gone."""

QUEUED_SECONDS: Final = 0.1
"""Seconds from a start on which other ticks wait to the next check whether it has ended: missed ticks may be many."""

RETRY_SECONDS: Final = 60.0
"""Longest pause between two attempts to fire a tick that is refused, or that this code cannot read. The first pause is
a second, and each later pause is twice as long.
"""

MAX_NOTE: Final = 500
"""Characters of a note on a late tick."""

_EARLIER: Final = timedelta(microseconds=1)


@dataclass
class Firing:
    """The writes and starts of one due schedule."""

    row: ScheduleRow
    spec: ScheduleSpec
    now: datetime
    starts: list[NewInstance] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)
    missed: tuple[datetime, datetime] | None = None
    """First tick that was due before the catch-up window, and the beginning of that window."""

    def __post_init__(self) -> None:
        self.read: ScheduleRow = self.row
        if self.row.retry_at is not None:
            self.row = replace(self.row, retry_at=None, note=None)

    def run(self) -> None:
        """Fire the queued tick, if its time has come, and all ticks that are due, or the first of them."""
        was_idle = not self.row.is_running
        if was_idle and self.row.queued is not None:
            self._fire_queued(self.row.queued)
        for due in self._take_due(was_idle):
            self._fire(due)

    def _fire_queued(self, due: datetime) -> None:
        """Fire the tick that waits; the next one that waits takes its place."""
        until = self.row.queued_until
        if until is None:
            self.row = replace(self.row, queued=None)
            self._fire(due)
            return
        first = self._within_window(due)
        following = None if first is None else next_tick(self.spec, first)
        waits = following is not None and following <= until
        self.row = replace(self.row, queued=following if waits else None, queued_until=until if waits else None)
        if first is not None and first <= until:
            self._fire(first)

    def _within_window(self, first: datetime) -> datetime | None:
        """Return the first tick from this one on that is not too old to be fired, or None; it may be in the future."""
        window = LATEST_SECONDS if self.spec.catch_up is None else self.spec.catch_up
        earliest = self.now - timedelta(seconds=window)
        if first >= earliest:
            return first
        self.missed = (first, earliest)
        return next_tick(self.spec, earliest - _EARLIER)

    def _take_due(self, was_idle: bool) -> Sequence[datetime]:
        """Return the ticks to fire now; the row has the due time behind them, and those that wait."""
        if self.row.next_due is None or self.row.next_due > self.now:
            return []
        first = self._within_window(self.row.next_due)
        if first is None or first > self.now:
            self.row = replace(self.row, next_due=first)
            return []
        if self._wait_in_turn(first, was_idle):
            return []
        coming = ticks(self.spec, first - _EARLIER)
        due = list(itertools.takewhile(lambda tick: tick <= self.now, itertools.islice(coming, SCHEDULE_STEP)))
        self.row = replace(self.row, next_due=next_tick(self.spec, due[-1]))
        if self.spec.catch_up is None or self.spec.overlap == "cancel":
            self._skip(len(due) - 1)
            return due[-1:]
        return due

    def _wait_in_turn(self, first: datetime, was_idle: bool) -> bool:
        """Let all ticks that are due wait for each other, and fire the first of them if none runs. False: they were not
        missed and the instance of the tick before runs, or the schedule does not fire missed ticks one after another.
        """
        row, spec = self.row, self.spec
        if spec.is_event or spec.catch_up is None or spec.overlap not in {"skip", "queue"}:
            return False
        is_missed = was_idle or first <= self.now - timedelta(seconds=MISSED_SECONDS)
        if row.queued_until is None and (row.queued is not None or not is_missed):
            return False
        queued = row.queued or first
        self.row = replace(row, queued=queued, queued_until=self.now, next_due=next_tick(spec, self.now))
        if not self.row.is_running:
            self._fire_queued(queued)
        return True

    def _skip(self, number: int) -> None:
        if number > 0:
            self.row = replace(self.row, skipped=self.row.skipped + number)

    def _fire(self, due: datetime) -> None:
        if self.spec.orchestration is None:
            self.messages.append(message_of_tick(self.spec, tick_id(self.row, due), due))
            self.row = replace(self.row, last_due=due)
            return
        is_running, has_queued = self.row.is_running and not self.spec.sends, self.row.queued is not None
        match on_overlap(self.spec.overlap, is_running=is_running, has_queued=has_queued):
            case "start":
                self._start(due)
            case "queue":
                self._queue(due)
            case _:
                self._skip(1)

    def _queue(self, due: datetime) -> None:
        """Wait for the end of the instance that runs; a later tick that cancels it replaces an earlier one."""
        self._skip(self.row.queued is not None)
        self.row = replace(self.row, queued=due)
        if self.spec.overlap == "cancel" and self.row.running is not None:
            self.messages.append(cancellation(self.row.running, self.row.name))

    def _start(self, due: datetime) -> None:
        instance_id = tick_id(self.row, due)
        self.starts.append(start_of_tick(self.spec, instance_id, due, now=self.now))
        self.row = replace(self.row, last_due=due, running=instance_id, is_running=True, note=None)

    @property
    def write(self) -> ScheduleWrite:
        """The write, with its starts."""
        return ScheduleWrite(row=self.row, starts=self.starts)


class ScheduleLoops(GuestPart):
    """The loops of one worker."""

    late = ("schedule_late_seconds", "Seconds for which the longest due schedule has been due")

    def __init__(self, services: WorkerServices, app: KernelApp, *, code: str) -> None:
        super().__init__(services, app, code=code)
        self._store = schedules_of(services.provider)
        self._app = app
        self._code = code
        self._wanted = anyio.Event()
        self._at = 0.0
        self._late: set[str] = set()
        self._is_first = True

    @classmethod
    def is_wanted(cls, provider: Provider, app: KernelApp) -> bool:
        """Return whether the provider keeps schedules, or the app declares some, which then is an error."""
        return keeps_schedules(provider) or bool(declared_schedules(app))

    @property
    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Fire, and declare."""
        return (self.run, self.declare)

    def on_due(self, seconds: float | None) -> None:
        """Fire after this many seconds, if that is before the next sweep."""
        if seconds is not None and seconds <= HORIZON:
            self._at = self._monotonic() + seconds
            self._wanted.set()

    async def run_due(self) -> float | None:
        """Fire all due ticks, also of schedules that are about to be declared."""
        if self._is_first and declared_schedules(self._app):
            await self.declare_now()
        return await self.fire()

    def starts(self) -> Iterable[tuple[str, str | None]]:
        """Return the orchestrations that declared schedules start."""
        for spec in declared_schedules(self._app).values():
            if spec.orchestration is not None:
                yield spec.orchestration, spec.version

    async def run(self) -> None:
        """Fire the schedules that are due within `HORIZON` of a sweep, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._pause(max(0.0, self._at - self._monotonic()))
            if self._lease.is_serving:
                self.on_due(await self.fire())

    async def fire(self) -> float | None:
        """Fire all due ticks; return the seconds until the next schedule is due, or None if no schedule is active."""
        waits = False
        while True:
            due = await self._health.call(partial(self._store.get_due_schedules, SCHEDULE_STEP), self.run)
            if not due.rows:
                return due.next_due if not waits else min(due.next_due or QUEUED_SECONDS, QUEUED_SECONDS)
            late: list[ScheduleRow] = []
            firings = [one for row in due.rows if (one := self._planned(row, due.now, late)) is not None]
            waits = waits or any(firing.starts and firing.row.queued for firing in firings)
            await self._send(firings)
            late += await self._write(firings)
            if late:
                await self._health.call(
                    partial(self._store.write_schedules, [ScheduleWrite(row=row) for row in late]), self.run
                )

    def _planned(self, row: ScheduleRow, now: datetime, late: list[ScheduleRow]) -> Firing | None:
        """Return the firing of a schedule. None: it is of later code, or its zone is unknown here; then it is added to
        ``late``.
        """
        try:
            firing = Firing(row, read_spec(row.spec), now)
            firing.run()
        except Exception as error:
            late.append(self._put_off(row, now, error))
            return None
        return firing

    def _put_off(self, row: ScheduleRow, now: datetime, error: Exception) -> ScheduleRow:
        """Return the row of a schedule that cannot be fired now: it is put off, each time for longer."""
        if row.name not in self._late:
            logger.warning("schedule %s: its tick is late: %s", row.name, redacted(error))
        self._late.add(row.name)
        last = timedelta() if row.retry_at is None or row.updated_at is None else row.retry_at - row.updated_at
        pause = min(max(2 * last, timedelta(seconds=1)), timedelta(seconds=RETRY_SECONDS))
        return replace(row, retry_at=now + pause, note=f"its tick is late: {error}"[:MAX_NOTE])

    async def _send(self, firings: Sequence[Firing]) -> None:
        """Send the messages of ticks before the write: after it, a lost reply would leave them unsent. Each
        message has a key, or may be sent twice.
        """
        sent = [(firing, message) for firing in firings for message in firing.messages]
        if not sent:
            return
        send = partial(self._provider.send_message, [message for _, message in sent])
        for (firing, message), delivery in zip(sent, await self._health.call(send, self.run), strict=True):
            self._notifier.hint_owner(message.instance_id)
            if message.key is not None:
                note = None if delivery in {"delivered", "repeated"} else f"{message.instance_id!r}: {delivery}"
                if note != firing.row.note and note is not None:
                    logger.warning("schedule %s: the event of a tick was not delivered to %s", firing.row.name, note)
                firing.row = replace(firing.row, note=note, skipped=firing.row.skipped + (note is not None))

    async def _write(self, firings: Sequence[Firing]) -> list[ScheduleRow]:
        """Write ticks; returns the rows of those that a quota or their data refused."""
        if not firings:
            return []
        try:
            await self._write_once(firings)
        except (QuotaExceeded, DataRefused):
            return await self._write_each(firings)
        return []

    async def _write_each(self, firings: Sequence[Firing]) -> list[ScheduleRow]:
        """Write the ticks one by one, see `_write`. If a quota has refused some starts, do not try as many again."""
        late: list[ScheduleRow] = []
        refused: QuotaExceeded | None = None
        most = 0
        for firing in firings:
            if refused is not None and len(firing.starts) >= most:
                late.append(self._put_off(firing.read, firing.now, refused))
                continue
            try:
                await self._write_once([firing])
            except QuotaExceeded as error:
                refused, most = error, len(firing.starts)
                late.append(self._put_off(firing.read, firing.now, error))
            except DataRefused as error:
                late.append(self._put_off(firing.read, firing.now, error))
        return late

    async def _write_once(self, firings: Sequence[Firing]) -> None:
        write = partial(self._store.write_schedules, [firing.write for firing in firings])
        written = await self._health.call(write, self.run)
        done = [firing for firing, ok in zip(firings, written, strict=True) if ok]
        for firing in done:
            self._late.discard(firing.row.name)
            if firing.missed is not None:
                first, window = map(format_due, firing.missed)
                logger.warning(
                    "schedule %s: its ticks from %s on were missed; those before %s are not fired (catch_up)",
                    firing.row.name,
                    first,
                    window,
                )
        if any(firing.starts for firing in done):
            self._notifier.share()

    # -- declarations

    async def declare(self) -> None:
        """Update the declared schedules, at the start and every `DECLARE_SECONDS`, until cancelled."""
        is_done = False
        while declared_schedules(self._app) or not is_done:
            if self._lease.is_serving:
                is_done = await self.declare_now()
            await self._pause(DECLARE_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311

    async def declare_now(self) -> bool:
        """Update the declared schedules. False: they were left, as live workers of the app run newer code."""
        name = self._app.name
        workers = await self._health.call(self._provider.list_workers, self.declare)
        if newest_version(workers, name) not in {None, self._code}:
            return False
        rows = await self._rows_of(name)
        others = {row.name: row for row in await self._rows_named(declared_schedules(self._app).keys() - rows.keys())}
        now = (await self._health.call(partial(self._store.get_due_schedules, 0), self.declare)).now
        writes = [
            changed
            for schedule, spec in declared_schedules(self._app).items()
            if (changed := self._declared(schedule, spec, rows.get(schedule), others.get(schedule), now)) is not None
        ]
        writes += [
            _undeclared(row, self._code)
            for row in rows.values()
            if row.name not in declared_schedules(self._app) and row.paused is None
        ]
        for row in writes:
            what = "no longer declared" if row.paused == "undeclared" else "declared"
            logger.info("schedule %s: %s by code %s", row.name, what, self._code)
        for start in range(0, len(writes), SCHEDULE_STEP):
            batch = [ScheduleWrite(row=row) for row in writes[start : start + SCHEDULE_STEP]]
            written = await self._health.call(partial(self._store.write_schedules, batch), self.declare)
            if not all(written):  # a schedule has just fired, or another worker declares it
                return await self.declare_now()
        self._is_first = False
        if writes:
            self.on_due(0.0)
        return True

    def _declared(
        self, name: str, spec: ScheduleSpec, row: ScheduleRow | None, other: ScheduleRow | None, now: datetime
    ) -> ScheduleRow | None:
        """Return the write for a schedule that this code declares; None: nothing to write."""
        if other is not None:
            if self._is_first:
                owner = "a client" if other.app is None else f"the app {other.app!r}"
                logger.error("schedule %s: %s has created it, so the one of this code is not used", name, owner)
            return None
        if row is None:
            return new_row(name, spec, now, app=self._app.name, code=self._code)
        is_same = row.spec == spec.to_text()
        if row.code == self._code and row.paused != "undeclared" and (is_same or not self._is_first):
            return None
        declared = replace(row, paused=None, note=None) if row.paused == "undeclared" else row
        return replace(with_spec(declared, spec, now), code=self._code)

    async def _rows_of(self, app: str) -> Mapping[str, ScheduleRow]:
        rows: dict[str, ScheduleRow] = {}
        after: str | None = None
        while True:
            page = partial(self._store.list_schedules, app=app, after=after, limit=MAX_PAGE)
            found = await self._health.call(page, self.declare)
            rows |= {row.name: row for row in found}
            if len(found) < MAX_PAGE:
                return rows
            after = found[-1].name

    async def _rows_named(self, names: Sequence[str] | set[str]) -> Sequence[ScheduleRow]:
        if not names:
            return []
        return await self._health.call(partial(self._store.list_schedules, sorted(names)), self.declare)


def _undeclared(row: ScheduleRow, code: str) -> ScheduleRow:
    note = f"code {code} no longer declares it"
    return replace(row, paused="undeclared", note=note, code=code, next_due=None, queued=None, queued_until=None)


PART: Final = ScheduleLoops
"""The part of a worker."""
