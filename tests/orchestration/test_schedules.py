"""Schedules: their options, and when they are due. No database."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from affinity import App, Event, ExternalEvent, OrchestrationContext
from affinity.errors import InvalidApp, InvalidId, InvalidInput, InvalidSchedule, NotSerializable, OrchestrationMisuse
from affinity.limits import MAX_SCHEDULE_NAME_BYTES, MAX_SCHEDULE_TIMES
from affinity.schedules.spec import (
    ScheduleOptions,
    ScheduleSpec,
    changed_spec,
    check_name,
    new_spec,
    next_tick,
    read_spec,
    ticks,
)

PAGE = Path(__file__).parents[2] / "docs" / "learn" / "schedules.md"
MINUS = "\N{MINUS SIGN}"
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
DUE = datetime(2026, 1, 1, 3, tzinfo=UTC)

app = App("shop")


@app.orchestration
async def report(ctx: OrchestrationContext, day: datetime) -> None: ...


@app.orchestration
async def plain(ctx: OrchestrationContext) -> None: ...


@app.orchestration
async def with_default(ctx: OrchestrationContext, region: str = "eu") -> None: ...


@app.orchestration
async def number(ctx: OrchestrationContext, n: int) -> None: ...


@app.orchestration
async def document(ctx: OrchestrationContext, fields: dict[str, str]) -> None: ...


def due(spec: ScheduleSpec, after: datetime, count: int) -> list[datetime]:
    return list(itertools.islice(ticks(spec, after), count))


# --- daylight saving time


DST = [
    # zone, cron line, local midnight before the change, the ticks that follow, in local time with their offset
    ("Europe/Berlin", "30 2 * * *", "2026-03-29", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
    ("Europe/Berlin", "30 2 * * *", "2026-10-25", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
    (
        "Europe/Berlin",
        "0 * * * *",
        "2026-10-25 00:30",
        ["10-25 01:00 +0200", "10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"],
    ),
    ("Europe/Berlin", "0 * * * *", "2026-03-29 00:30", ["03-29 01:00 +0100", "03-29 03:00 +0200", "03-29 04:00 +0200"]),
    ("America/New_York", "30 2 * * *", "2026-03-08", ["03-08 03:00 -0400", "03-09 02:30 -0400"]),
    ("America/New_York", "30 1 * * *", "2026-11-01", ["11-01 01:30 -0400", "11-02 01:30 -0500"]),
    (
        "America/New_York",
        "0 * * * *",
        "2026-11-01 00:30",
        ["11-01 01:00 -0400", "11-01 01:00 -0500", "11-01 02:00 -0500"],
    ),
    ("America/New_York", "0 * * * *", "2026-03-08 00:30", ["03-08 01:00 -0500", "03-08 03:00 -0400"]),
    # Half an hour only.
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04", ["10-04 02:30 +1100", "10-05 02:15 +1100"]),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05", ["04-05 01:45 +1100", "04-06 01:45 +1030"]),
    (
        "Australia/Lord_Howe",
        "*/30 * * * *",
        "2026-04-05 00:45",
        ["04-05 01:00 +1100", "04-05 01:30 +1100", "04-05 01:30 +1030", "04-05 02:00 +1030"],
    ),
    # The change is at midnight.
    ("America/Sao_Paulo", "30 0 * * *", "2018-11-03 12:00", ["11-04 01:00 -0200", "11-05 00:30 -0200"]),
    ("America/Sao_Paulo", "30 23 * * *", "2018-02-17 12:00", ["02-17 23:30 -0200", "02-18 23:30 -0300"]),
    (
        "America/Sao_Paulo",
        "0 * * * *",
        "2018-02-17 22:30",
        ["02-17 23:00 -0200", "02-17 23:00 -0300", "02-18 00:00 -0300"],
    ),
]


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), DST)
def test_a_gap_and_a_repeated_hour(zone: str, cron: str, after: str, expected: Sequence[str]) -> None:
    """A time in a gap is due when the gap ends. One in a repeated hour is due once, unless the line says each hour."""
    here = ZoneInfo(zone)
    spec = new_spec("report", {"cron": cron, "zone": zone})
    begin = datetime.fromisoformat(after).replace(tzinfo=here)
    found = due(spec, begin, len(expected))
    assert [f"{each.astimezone(here):%m-%d %H:%M %z}" for each in found] == expected


@pytest.mark.parametrize(("zone", "cron", "after", "expected"), DST)
def test_ticks_do_not_depend_on_where_one_begins(zone: str, cron: str, after: str, expected: Sequence[str]) -> None:
    """The next tick behind each moment is the first one of the whole sequence that comes later."""
    spec = new_spec("report", {"cron": cron, "zone": zone})
    begin = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    whole = due(spec, begin, len(expected) + 30)
    for minutes in range(0, 6 * 60, 7):
        moment = begin + timedelta(minutes=minutes)
        assert next_tick(spec, moment) == next(each for each in whole if each > moment), moment
    for one, following in itertools.pairwise(whole):
        assert next_tick(spec, one) == following


def test_the_table_of_the_documents() -> None:
    """Says what the code does."""
    text = PAGE.read_text().partition("### Daylight saving time")[2].partition("\n#")[0]
    table = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    rows = [(zone, cron, day, expected) for zone, cron, day, expected in table]
    assert len({row[0] for row in rows}) == 4
    for zone, cron, day, expected in rows:
        name, here = zone.strip("`"), ZoneInfo(zone.strip("`"))
        begin = datetime.fromisoformat(day).replace(tzinfo=here) - timedelta(seconds=1)
        spec = new_spec("report", {"cron": cron.strip("`"), "zone": name})
        wanted = expected.split(", ")
        found = [each.astimezone(here) for each in due(spec, begin, len(wanted))]
        assert [f"{each:%H:%M} ({_offset(each)})" for each in found] == wanted, (zone, cron, day)


def _offset(local: datetime) -> str:
    text = f"{local:%z}"
    return f"UTC{text[0].replace('-', MINUS)}{int(text[1:3])}" + (f":{text[3:]}" if text[3:] != "00" else "")


# --- every, at, end


def test_every_is_aligned_to_the_clock() -> None:
    """Ticks do not depend on when the schedule was created."""
    spec = new_spec("report", {"every": timedelta(minutes=15)})
    assert due(spec, JANUARY + timedelta(minutes=7), 2) == [JANUARY + timedelta(minutes=n) for n in (15, 30)]
    assert next_tick(spec, JANUARY) == JANUARY + timedelta(minutes=15)
    assert next_tick(new_spec("report", {"every": 1.5}), JANUARY) == JANUARY + timedelta(seconds=1.5)


def test_a_list_of_times() -> None:
    """In order, each once, in any zone."""
    east = timezone(timedelta(hours=2))
    times = [JANUARY + timedelta(days=n) for n in (3, 1, 2)] + [(JANUARY + timedelta(days=1)).astimezone(east)]
    spec = new_spec("report", {"at": times})
    assert due(spec, JANUARY, 9) == [JANUARY + timedelta(days=n) for n in (1, 2, 3)]
    assert due(spec, JANUARY + timedelta(days=3), 9) == []


def test_the_end_is_the_last_moment_of_a_tick() -> None:
    spec = new_spec("report", {"every": 3600, "end": JANUARY + timedelta(hours=2)})
    assert due(spec, JANUARY, 9) == [JANUARY + timedelta(hours=n) for n in (1, 2)]


def test_a_cron_line_with_seconds() -> None:
    spec = new_spec("report", {"cron": "*/20 * * * * *"})
    assert due(spec, JANUARY, 2) == [JANUARY + timedelta(seconds=n) for n in (20, 40)]


# --- what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of cron=, every= and at="),
        ({"cron": "0 3 * * *", "every": 60}, "one of"),
        ({"at": []}, "one of"),
        ({"cron": "soon"}, "Wrong number of fields; it has 5 fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": 5}, "it has 5 fields"),
        ({"cron": "0 3 * * *", "zone": "Europe/Bern"}, "no time zone has this name"),
        ({"cron": "0 3 * * *", "zone": ""}, "no time zone has this name"),
        ({"cron": "0 3 * * *", "zone": "../etc/passwd"}, "no time zone has this name"),
        ({"every": 60, "zone": "nowhere"}, "no time zone has this name"),
        ({"every": 0.5}, "from 1 to"),
        ({"every": True}, "from 1 to"),
        ({"every": float("nan")}, "from 1 to"),
        ({"at": [datetime(2026, 1, 1)]}, "with a time zone"),
        ({"at": ["tomorrow"]}, "with a time zone"),
        ({"at": [JANUARY + timedelta(seconds=n) for n in range(MAX_SCHEDULE_TIMES + 1)]}, "over the limit of 1000"),
        ({"every": 60, "end": datetime(2026, 1, 1)}, "with a time zone"),
        ({"every": 60, "overlap": "wait"}, "must be one of skip, queue, allow, cancel"),
        ({"every": 60, "catch_up": -1}, "catch_up = -1"),
        ({"every": 60, "catch_up": timedelta(days=32)}, "catch_up"),
        ({"every": 60, "jitter": timedelta(days=2)}, "jitter"),
        ({"every": 60, "colour": "red"}, "has no option colour"),
        ({"every": 60, "input": [1], "due_as": "day"}, "due_as needs an input that is a JSON object"),
    ],
)
def test_refused_options(options: Any, text: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        new_spec("report", options)
    assert text in str(caught.value)
    assert isinstance(caught.value, InvalidInput)


def test_refused_names() -> None:
    assert check_name("a" * MAX_SCHEDULE_NAME_BYTES)
    with pytest.raises(InvalidSchedule):
        check_name("a" * (MAX_SCHEDULE_NAME_BYTES + 1))
    for name in ("", "a\nb", 5):
        with pytest.raises(InvalidId):
            check_name(name)


def test_refused_targets() -> None:
    with pytest.raises(InvalidApp, match="not registered"):
        new_spec(test_refused_targets, {"every": 60})  # type: ignore[arg-type]
    with pytest.raises(OrchestrationMisuse, match="takes no input"):
        new_spec(plain, {"every": 60, "input": 5})
    with pytest.raises(NotSerializable, match="without input=, the input of a schedule is the due time"):
        new_spec(number, {"every": 60})
    with pytest.raises(NotSerializable):
        new_spec(number, {"every": 60, "input": "many"})
    with pytest.raises(InvalidSchedule, match="each tick has a key"):
        new_spec(ExternalEvent("i", "tick", idempotency_key="k"), {"every": 60})
    with pytest.raises(InvalidSchedule, match="an event has no version"):
        new_spec(ExternalEvent("i", "tick"), {"every": 60, "version": "1"})
    for options in ({"overlap": "cancel"}, {"jitter": 5}):
        with pytest.raises(InvalidSchedule, match="an event has no overlap and no jitter"):
            new_spec(ExternalEvent("i", "tick"), cast(ScheduleOptions, {"every": 60, **options}))
    with pytest.raises(InvalidSchedule, match="in an update set 'skip' and 0"):
        changed_spec(new_spec("report", {"every": 60, "overlap": "queue"}), ExternalEvent("i", "tick"), {})


# --- the input


def test_the_due_time_is_the_input_that_is_needed() -> None:
    """Of a function that needs an input, or of a name; an input that is given, and a default, stay."""
    every: ScheduleOptions = {"every": 60}
    assert new_spec(report, every).input_at(DUE) == '"2026-01-01T03:00:00Z"'
    assert new_spec("report", every).input_at(DUE) == '"2026-01-01T03:00:00Z"'
    assert new_spec("report", {"every": 60, "input": None}).input_at(DUE) == "null"
    assert new_spec(plain, every).input_at(DUE) == "null"
    assert new_spec(with_default, every).input_at(DUE) == '"eu"'
    assert new_spec(number, {"every": 60, "input": 5}).input_at(DUE) == "5"


def test_a_key_of_the_input_has_the_due_time() -> None:
    """Beside the others, and checked against the type of the input."""
    spec = new_spec(document, {"every": 60, "input": {"region": "eu"}, "due_as": "day"})
    assert spec.input_at(DUE) == '{"region":"eu","day":"2026-01-01T03:00:00Z"}'
    assert new_spec(document, {"every": 60, "due_as": "day"}).input_at(DUE) == '{"day":"2026-01-01T03:00:00Z"}'
    with pytest.raises(NotSerializable):
        new_spec(number, {"every": 60, "due_as": "day"})


def test_the_data_of_an_event_has_the_due_time() -> None:
    message = Event("message", dict[str, str])
    assert new_spec(ExternalEvent("i", "tick"), {"every": 60}).input_at(DUE) == '"2026-01-01T03:00:00Z"'
    assert new_spec(ExternalEvent("i", "tick", 5), {"every": 60}).input_at(DUE) == "5"
    spec = new_spec(ExternalEvent("i", message({"a": "b"})), {"every": 60, "due_as": "at"})
    assert (spec.event, spec.input_at(DUE)) == ("message", '{"a":"b","at":"2026-01-01T03:00:00Z"}')


# --- stored


def test_a_schedule_is_read_as_it_was_written() -> None:
    """With keys that a later release has added."""
    spec = new_spec(
        report,
        {
            "cron": "0 3 * * *",
            "zone": "Europe/Berlin",
            "end": JANUARY,
            "overlap": "queue",
            "catch_up": timedelta(hours=1),
            "jitter": 5,
            "for_session": "s",
            "version": "1.0.0",
        },
    )
    assert read_spec(spec.to_text()) == spec
    assert read_spec(spec.to_text()[:-1] + ',"later":1}') == spec
    with pytest.raises(InvalidSchedule, match="cannot be read"):
        read_spec('{"overlap":"later"}')


def test_options_replace_their_own() -> None:
    """One of cron, every and at replaces the other two; the target stays."""
    spec = new_spec(document, {"cron": "0 3 * * *", "zone": "Europe/Berlin", "input": {"a": "b"}, "jitter": 5})
    later = changed_spec(spec, None, {"every": 60})
    assert (later.cron, later.every, later.zone, later.jitter, later.input) == (
        None,
        60.0,
        "Europe/Berlin",
        5.0,
        spec.input,
    )
    assert changed_spec(spec, None, {"overlap": "allow"}) == spec.model_copy(update={"overlap": "allow"})
    assert changed_spec(spec, plain, {}).orchestration == "plain"
    with pytest.raises(InvalidSchedule, match="give the target too"):
        changed_spec(spec, None, {"input": {}})


# --- in an app


def test_an_app_has_schedules_by_name() -> None:
    """An included app brings its own; two of one name are refused."""
    outer, inner = App("outer"), App("inner")
    inner.schedule("nightly", "report", cron="0 3 * * *")
    outer.include(inner)
    outer.include(inner)
    assert set(outer.schedules) == {"nightly"}
    with pytest.raises(InvalidApp, match="two schedules"):
        outer.schedule("nightly", "report", cron="0 4 * * *")
    other = App("other")
    other.schedule("nightly", "report", cron="0 4 * * *")
    with pytest.raises(InvalidApp, match="two schedules"):
        outer.include(other)
