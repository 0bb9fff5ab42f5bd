"""Schedules: their targets and their due times. Pure: the caller passes the time.

A *tick* is one due time of a schedule. Ticks follow from the schedule alone, never from when it was created or last
fired, so that every worker computes the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypedDict, cast
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json, to_json

from affinity.errors import InvalidApp, InvalidSchedule, NotSerializable, OrchestrationMisuse, problem_of
from affinity.limits import (
    MAX_CATCH_UP_SECONDS,
    MAX_JITTER_SECONDS,
    MAX_SCHEDULE_NAME_BYTES,
    MAX_SCHEDULE_TIMES,
    MAX_TIMER_SECONDS,
    MIN_SCHEDULE_SECONDS,
    check_choice,
    check_code_name,
    check_id,
    check_items,
    check_labels,
)
from affinity.orchestration.codec import Codec
from affinity.orchestration.context import OrchestrationFunction, OrchestrationWithoutInput
from affinity.orchestration.definitions import MISSING, OrchestrationDefinition, definition_of
from affinity.orchestration.overlap import Overlap
from affinity.orchestration.typed import ExternalEvent, encode_raised
from affinity.records import Labels, UnreadableText, frozen

LATEST_SECONDS: Final = 60.0
"""Without a catch-up window, the latest tick is fired if it was due at most this long ago."""

MISSED_SECONDS: Final = 5.0
"""With a window, a tick that is found this long after its time was missed. Workers look every second."""

_SAMPLE: Final = datetime(2026, 1, 1, 3, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_ANY_INPUT: Final = Codec(Any, "input of the schedule")


@frozen(kw_only=True)
class ScheduleTarget:
    """A target of a schedule: an orchestration with its input, as JSON. Made by layers above."""

    orchestration: str
    input: str
    sends: bool = False  # it delivers an event: the instances of two ticks may run beside each other


Target: TypeAlias = (
    str | OrchestrationFunction[Any, Any] | OrchestrationWithoutInput[Any] | ExternalEvent | ScheduleTarget
)
"""The target of a schedule: an orchestration, by function or name; an event to an instance; or a target that a layer
above has made.
"""


class TickOptions(TypedDict, total=False):
    """Options of a schedule, without its input: due times, overlap of ticks, and options of the target."""

    cron: str | None
    """A cron line of 5 fields (minute, hour, day of month, month, weekday), or 6, with seconds first."""
    every: float | timedelta | None
    """Seconds, or a timedelta, of at least 1 s: the ticks are the whole multiples since 1970, in UTC."""
    at: Sequence[datetime] | None
    """Up to 1,000 times, each with a time zone. One of ``cron``, ``every`` and ``at`` is given."""
    zone: str
    """Time zone of the cron line; by default UTC."""
    end: datetime | None
    """The last moment of a tick, with a time zone; None: it never ends."""
    overlap: Overlap
    """The action of a tick while the instance of the tick before runs: "skip" (default) does nothing, "queue" waits for
    its end (one tick does), "allow" starts beside it, "cancel" asks it to end and waits for that.
    It does not apply to events: each tick sends its event.
    """
    catch_up: float | timedelta | None
    """Seconds, or a timedelta, of at most 31 days: ticks missed for no longer are fired, oldest first, with "skip" and
    "queue" one after the other. With "cancel" only the latest one is. None: only the latest one, if it was due within
    the last minute.
    """
    jitter: float | timedelta
    """Seconds, or a timedelta, of at most a day: each start is delayed by a part of it, which follows from the tick. It
    does not apply to events.
    """
    version: str | None
    """Version of the orchestration; by default the latest that the worker registers."""
    for_session: str | None
    """Id of the session that the instances work for, as in `Client.start`."""
    labels: Labels | None
    """Labels of the instances, as in `Client.start`."""


class ScheduleOptions(TickOptions, total=False):
    """Options of a schedule."""

    input: Any
    """Input of the orchestration. Without it, an orchestration that needs one gets the due time, in ISO 8601, UTC."""
    due_as: str | None
    """Key under which the input, an object, or the data of the event, has the due time too."""


class ScheduleSpec(BaseModel):
    """A schedule as it is stored: JSON, whose unknown keys are ignored."""

    model_config = ConfigDict(frozen=True)

    orchestration: str | None = None  # name; None: an event is sent
    sends: bool = False  # as `ScheduleTarget.sends`
    version: str | None = None
    for_session: str | None = None
    labels: dict[str, str] = {}
    instance_id: str | None = None  # that receives the event
    event: str | None = None  # its name
    input: str | None = None  # JSON, of the orchestration or the event; None: the due time
    due_as: str | None = None  # key under which the input, an object, has the due time
    cron: str | None = None
    zone: str = "UTC"
    every: float | None = None  # seconds
    at: tuple[datetime, ...] = ()
    end: datetime | None = None  # the last moment of a tick
    overlap: Overlap = "skip"
    catch_up: float | None = None  # seconds; None: see `LATEST_SECONDS`
    jitter: float = 0.0  # seconds

    def to_text(self) -> str:
        """Return the schedule as JSON, without fields that have their default."""
        return self.model_dump_json(exclude_defaults=True)

    def has_ticks_of(self, other: ScheduleSpec) -> bool:
        """Return whether both have the same ticks."""
        return all(getattr(self, name) == getattr(other, name) for name in ("cron", "zone", "every", "at", "end"))

    @property
    def is_event(self) -> bool:
        """True if its ticks send an event, and so do not wait for each other."""
        return self.orchestration is None or self.sends

    @property
    def timing(self) -> str:
        """The due times, for people."""
        if self.cron is not None:
            return f"cron {self.cron} ({self.zone})"
        if self.every is not None:
            return f"every {timedelta(seconds=self.every)}"
        return f"at {len(self.at)} times"

    @property
    def target(self) -> str:
        """The orchestration or the event of a tick, for people."""
        if self.orchestration is not None:
            return self.orchestration
        return f"event {self.event!r} to {self.instance_id!r}"

    def input_at(self, due: datetime) -> str:
        """Return the input of one tick, as JSON."""
        text = format_due(due)
        if self.input is None:
            return to_json(text).decode()
        if self.due_as is None:
            return self.input
        return to_json({**from_json(self.input), self.due_as: text}).decode()


def read_spec(text: str) -> ScheduleSpec:
    """Return a stored schedule.

    Raises:
        InvalidSchedule: it cannot be read by this version.
    """
    try:
        return ScheduleSpec.model_validate_json(text)
    except ValidationError as error:
        problem = text.error if isinstance(text, UnreadableText) else problem_of(error)
        raise InvalidSchedule(f"the schedule cannot be read: {problem}") from error


def new_spec(target: Target, options: ScheduleOptions) -> ScheduleSpec:
    """Return a checked schedule.

    Raises:
        InvalidSchedule: options are out of range, contradict each other, or lead to no tick.
        InvalidApp: the target is a function that is not a registered orchestration.
        InvalidId, NotSerializable, PayloadTooLarge, OrchestrationMisuse: a name, an id or the input is refused.
    """
    unknown = options.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        raise InvalidSchedule(f"a schedule has no option {', '.join(sorted(unknown))}")
    return _checked(ScheduleSpec(**_target_fields(target, options), **_timing_fields(options)))


def changed_spec(spec: ScheduleSpec, target: Target | None, options: ScheduleOptions) -> ScheduleSpec:
    """Return the schedule with these options in place of its own; ``cron``, ``every`` or ``at`` replaces the other two.

    Raises:
        InvalidSchedule, InvalidApp, InvalidInput: see `new_spec`; or ``input`` or ``due_as`` is given without the
            target.
    """
    if target is None and (of_target := options.keys() & _OF_TARGET):
        raise InvalidSchedule(f"give the target too: {', '.join(sorted(of_target))} belongs to it")
    before: dict[str, Any] = {name: getattr(spec, name) for name in _TIMING}
    if options.keys() & _WHEN:
        before = {name: value for name, value in before.items() if name not in _WHEN}
    timing = _timing_fields(cast(ScheduleOptions, {**before, **options}))
    fields = spec.model_dump() if target is None else _target_fields(target, options)
    return _checked(ScheduleSpec(**{**fields, **timing}))


def _checked(spec: ScheduleSpec) -> ScheduleSpec:
    if spec.orchestration is None and (spec.overlap != "skip" or spec.jitter):
        raise InvalidSchedule("an event has no overlap and no jitter: leave them out; in an update set 'skip' and 0")
    if spec.sends and spec.overlap not in {"skip", "allow"}:
        raise InvalidSchedule("a target that sends an event has no overlap: leave it out; in an update set 'allow'")
    return spec


_WHEN: Final = frozenset({"cron", "every", "at"})
_OF_TARGET: Final = frozenset({"input", "due_as", "version", "for_session", "labels"})
_TIMING: Final = tuple(name for name in ScheduleOptions.__annotations__ if name not in _OF_TARGET)


def check_name(name: object) -> str:
    """Return the name of a schedule.

    Raises:
        InvalidId: it is not allowed.
        InvalidSchedule: it is too long.
    """
    checked = check_id(name, "schedule name")
    if len(checked.encode()) > MAX_SCHEDULE_NAME_BYTES:
        raise InvalidSchedule(f"the name of a schedule has at most {MAX_SCHEDULE_NAME_BYTES} UTF-8 bytes")
    return checked


def format_due(due: datetime) -> str:
    """Return a due time as text for ids and inputs: UTC in ISO 8601."""
    return due.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- ticks


def ticks(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    """Yield the ticks behind a time, in order, as UTC."""
    for due in _unbounded(spec, after.astimezone(UTC)):
        if spec.end is not None and due > spec.end:
            return
        yield due


def next_tick(spec: ScheduleSpec, after: datetime) -> datetime | None:
    """Return the first tick after a time; None: no tick follows."""
    return next(ticks(spec, after), None)


def _unbounded(spec: ScheduleSpec, after: datetime) -> Iterator[datetime]:
    if spec.cron is not None:
        yield from _cron_ticks(spec.cron, ZoneInfo(spec.zone), after)
    elif spec.every is not None:
        period = timedelta(seconds=spec.every)
        for n in _count_from((after - _EPOCH) // period + 1):
            yield _EPOCH + n * period
    else:
        yield from (due for due in spec.at if due > after)


def _count_from(first: int) -> Iterator[int]:
    while True:
        yield first
        first += 1


def _cron_ticks(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the ticks of a cron line behind a time.

    cronsim finds the times of a clock that is never put back or forward. The changes are handled here, since cronsim
    steps over them by whole hours and days.
    """
    clocks = CronSim(cron, _clock_before(after, zone))
    found = (_instants(clock, zone) for clock in clocks)
    last = after
    for due in (first for first, _ in found) if _names_times(cron) else _all_instants(found):
        if due > last:
            last = due
            yield due


def _all_instants(found: Iterable[tuple[datetime, datetime]]) -> Iterator[datetime]:
    """Yield the instants in order, without those of times that a gap leaves out."""
    repeated: list[datetime] = []  # second instants, which come behind all first ones of the repeated time
    for first, second in found:
        if repeated and repeated[-1] <= first:
            yield from repeated
            repeated = []
        if second >= first:
            yield first
        if second > first:
            repeated.append(second)
    yield from repeated


def _names_times(cron: str) -> bool:
    """Return whether the line names hours and minutes, so that each of its times is due once a day. Any other line runs
    through all the minutes that the day has.
    """
    minute, hour, *_ = cron.split()[-5:]
    return not minute.startswith("*") and not hour.startswith("*")


def _clock_before(after: datetime, zone: ZoneInfo) -> datetime:
    """Return the clock time at ``after``. If the clock will show that time again, return the clock time at which the
    repetition begins, or an earlier one: times from there on come again, too.
    """
    shown = after.astimezone(zone)
    clock = shown.replace(tzinfo=None)
    if shown.fold:
        return clock
    repeated = clock.replace(tzinfo=zone, fold=1).astimezone(UTC) - after
    return clock - max(repeated, timedelta(0))


def _instants(clock: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the first and the last instant at which the clock shows this time, or the end of the gap that leaves
    it out; in the gap the second one comes before the first.
    """
    first = clock.replace(tzinfo=zone).astimezone(UTC)
    second = clock.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if second >= first:
        return first, second
    low, high = second, first  # the clock is changed between the two
    offset = low.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == offset else (low, middle)
    return high, second


# --- options


def _timing_fields(options: ScheduleOptions) -> dict[str, Any]:
    cron, every, at = options.get("cron"), options.get("every"), options.get("at")
    at = () if at is None else check_items(at, "at", error=InvalidSchedule)
    if sum(timing not in (None, ()) for timing in (cron, every, at)) != 1:
        raise InvalidSchedule("a schedule needs one of cron=, every= and at=")
    zone, overlap, end = options.get("zone", "UTC"), options.get("overlap", "skip"), options.get("end")
    check_choice("overlap", overlap, Overlap, InvalidSchedule)
    fields = {
        "cron": None if cron is None else _check_cron(cron, zone),
        "zone": zone,
        "every": None if every is None else _seconds("every", every, MIN_SCHEDULE_SECONDS, MAX_TIMER_SECONDS),
        "at": _check_times(at),
        "end": None if end is None else _check_time("end", end),
        "overlap": overlap,
        "catch_up": None
        if (window := options.get("catch_up")) is None
        else _seconds("catch_up", window, 0.0, MAX_CATCH_UP_SECONDS),
        "jitter": _seconds("jitter", options.get("jitter", 0.0), 0.0, MAX_JITTER_SECONDS),
    }
    if cron is None:
        _zone(zone)
    return fields


def _check_cron(cron: str, zone: str) -> str:
    known = _zone(zone)
    try:
        sim = CronSim(cron, _SAMPLE.astimezone(known))
        if next(sim, None) is None:
            raise InvalidSchedule(f"cron = {cron!r:.80}: it has no tick within 50 years")
    except (CronSimError, AttributeError) as error:
        raise InvalidSchedule(
            f"cron = {cron!r:.80}: {error}; it has 5 fields (minute hour day month weekday), or 6 with seconds first"
        ) from error
    return cron


def _zone(zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(zone)
    except Exception as error:  # ZoneInfoNotFoundError, ValueError, TypeError, and of the file system IsADirectoryError
        raise InvalidSchedule(f"zone = {zone!r:.80}: no time zone has this name, as in 'Europe/Berlin'") from error


def _check_times(at: Sequence[datetime]) -> tuple[datetime, ...]:
    if len(at) > MAX_SCHEDULE_TIMES:
        raise InvalidSchedule(f"at has {len(at)} times, over the limit of {MAX_SCHEDULE_TIMES}")
    return tuple(sorted({_check_time("at", time) for time in at}))


def _check_time(name: str, value: object) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise InvalidSchedule(f"{name} = {value!r:.80}: must be a datetime with a time zone")
    return value.astimezone(UTC)


def _seconds(name: str, value: float | timedelta, least: float, most: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
    if not is_number or not least <= seconds <= most:
        raise InvalidSchedule(f"{name} = {value!r:.80}: must be seconds or a timedelta, from {least:g} to {most:g} s")
    return float(seconds)


def _target_fields(target: Target, options: ScheduleOptions) -> dict[str, Any]:
    value, due_as = options.get("input", MISSING), options.get("due_as")
    if isinstance(target, ExternalEvent):
        fields = _event_fields(target, options)
    elif isinstance(target, ScheduleTarget):
        if value is not MISSING or due_as is not None:
            raise InvalidSchedule("a ScheduleTarget has its input: leave out input= and due_as=")
        fields = {"orchestration": target.orchestration, "input": target.input, "sends": target.sends}
    else:
        fields = _orchestration_fields(target, value, due_as)
    for name, what in (("version", "orchestration version"), ("for_session", "session id")):
        if (given := options.get(name)) is not None:
            fields[name] = check_code_name(given, what) if name == "version" else check_id(given, what)
    if (labels := options.get("labels")) is not None:
        fields["labels"] = check_labels(labels)
    return fields


def _orchestration_fields(target: object, value: Any, due_as: str | None) -> dict[str, Any]:
    if isinstance(target, str):
        text = None if value is MISSING else _ANY_INPUT.encode(value)
        return {"orchestration": check_code_name(target, "orchestration name"), **_with_due(text, due_as)}
    definition = definition_of(target)
    if not isinstance(definition, OrchestrationDefinition):
        raise InvalidApp(f"{target!r} is not registered as an orchestration: pass a name, or decorate it")
    if due_as is not None:
        fields = _with_due(_ANY_INPUT.encode({} if value is MISSING else value), due_as)
    else:
        fields = _with_due(_typed_input(definition, value), None)
    try:
        definition.arguments(ScheduleSpec(orchestration=definition.name, **fields).input_at(_SAMPLE))
    except NotSerializable as error:
        raise NotSerializable(f"{error}; without input=, the input of a schedule is the due time") from error
    return {"orchestration": definition.name, **fields}


def _typed_input(definition: OrchestrationDefinition, value: Any) -> str | None:
    """Return the encoded input. None stands for the due time: the function needs an input and gets none."""
    try:
        return definition.encode_input(value)
    except OrchestrationMisuse:
        if value is MISSING:
            return None
        raise


def _event_fields(target: ExternalEvent, options: ScheduleOptions) -> dict[str, Any]:
    if options.get("input", MISSING) is not MISSING or target.idempotency_key is not None:
        raise InvalidSchedule("a scheduled event has its data in the ExternalEvent; each tick has a key of its own")
    if misplaced := options.keys() & {"version", "for_session", "labels"}:
        raise InvalidSchedule(f"an event has no {', '.join(sorted(misplaced))}")
    name, data = encode_raised(target.name, target.data)
    text = None if data == "null" and options.get("due_as") is None else data
    receiver = check_id(target.instance_id, "instance id")
    return {"instance_id": receiver, "event": name, **_with_due(text, options.get("due_as"))}


def _with_due(text: str | None, due_as: str | None) -> dict[str, Any]:
    if due_as is None:
        return {"input": text}
    given = "{}" if text in (None, "null") else text
    if not isinstance(from_json(given), dict):
        raise InvalidSchedule("due_as needs an input that is a JSON object, which gets the due time under this key")
    return {"input": given, "due_as": check_id(due_as, "due_as")}
