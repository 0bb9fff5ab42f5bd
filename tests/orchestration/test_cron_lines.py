"""Ticks of cron lines where clocks are changed, in each time zone, compared with a clock that is read each minute."""

from __future__ import annotations

import itertools
import time
import zoneinfo
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from affinity.schedules.spec import new_spec, next_tick, ticks

MINUTE = timedelta(minutes=1)
AROUND = timedelta(hours=28)
YEAR = 2026
SECONDS = 30.0

NAMING = ["0 0 * * *", "30 2 * * *", "15 0-3 * * *", "0,30,59 1-3/2,23 * * *", "5 0 1 * *", "0 12 * * *"]
RUNNING = ["0 */2 * * *", "7 */2 * * *", "*/20 * * * *", "30 * * * *", "0 */3 * * SUN", "*/45 1-3 * * *", "5 */1 1 * *"]
"""Lines that name hours and minutes, and lines that run through all the minutes of the day."""

ODD = [
    ("Antarctica/Troll", 2026),  # by two hours
    ("Africa/Casablanca", 2026),  # around Ramadan
    ("America/Sao_Paulo", 2018),  # at midnight
    ("America/Caracas", 2007),  # back by half an hour
    ("Asia/Pyongyang", 2018),  # forward by half an hour, at 23:30
    ("Asia/Kathmandu", 1985),  # forward by a quarter of an hour
    ("Pacific/Apia", 2011),  # a day is left out
    ("Pacific/Kwajalein", 1969),  # a day comes twice
]


def changes(zone: ZoneInfo, year: int) -> Sequence[datetime]:
    """The minutes of a year from which on the clock has another offset."""
    days = [datetime(year, 1, 1, tzinfo=UTC) + n * timedelta(days=1) for n in range(367)]
    minutes: list[datetime] = []
    for begin, end in itertools.pairwise(days):
        if begin.astimezone(zone).utcoffset() != end.astimezone(zone).utcoffset():
            minutes += [begin + n * MINUTE for n in range(24 * 60)]
    return [at for at in minutes if at.astimezone(zone).utcoffset() != (at - MINUTE).astimezone(zone).utcoffset()]


def read_clock(zone: ZoneInfo, begin: datetime, end: datetime) -> Sequence[tuple[datetime, datetime]]:
    """Each minute, and what the clock shows then."""
    minutes = [begin + n * MINUTE for n in range((end - begin) // MINUTE)]
    return [(at, at.astimezone(zone).replace(tzinfo=None)) for at in minutes]


def in_field(field: str, low: int, high: int) -> Collection[int]:
    """The numbers of a field of a cron line."""
    found: set[int] = set()
    for part in field.split(","):
        numbers, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if numbers == "*" else numbers).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


class Line:
    """A cron line, as its documents read it."""

    def __init__(self, text: str) -> None:
        minute, hour, day, _, weekday = text.split()
        self.minutes, self.hours, self.days = in_field(minute, 0, 59), in_field(hour, 0, 23), in_field(day, 1, 31)
        self.is_for_sunday = weekday == "SUN"
        self.names_times = text in NAMING

    def matches(self, clock: datetime) -> bool:
        is_time = clock.minute in self.minutes and clock.hour in self.hours and clock.day in self.days
        return is_time and (not self.is_for_sunday or clock.weekday() == 6)

    def due(self, shown: Sequence[tuple[datetime, datetime]]) -> Sequence[datetime]:
        """The ticks, by what the clock shows at each minute."""
        if not self.names_times:
            return [at for at, clock in shown if self.matches(clock)]
        found, before = [], shown[0][1] - MINUTE  # the latest time that the clock has shown
        for at, clock in shown:
            new = [before + n * MINUTE for n in range(1, (clock - before) // MINUTE + 1)]  # several: a gap ends
            if any(self.matches(each) for each in new):
                found.append(at)
            before = max(before, clock)
        return found


def check(name: str, change: datetime) -> None:
    """Compare the ticks of all lines around a change: all of them, and the next one from many moments on."""
    zone, begin, end = ZoneInfo(name), change - AROUND, change + AROUND
    shown = read_clock(zone, begin, end)
    for text in NAMING + RUNNING:
        spec, wanted = new_spec("x", {"cron": text, "zone": name}), Line(text).due(shown)
        found = list(itertools.takewhile(lambda due: due < end, ticks(spec, begin - MINUTE / 60)))
        assert found == wanted, (name, text)
        for minutes in range(-200, 200, 23):
            moment = change + minutes * MINUTE + timedelta(seconds=minutes % 60, microseconds=minutes % 2)
            later = next((due for due in wanted if due > moment), None)
            assert later is None or next_tick(spec, moment) == later, (name, text, moment)


@pytest.mark.slow
@pytest.mark.once
def test_each_zone_of_this_year() -> None:
    """Zones with the same changes are tried once; on a slow machine, as many as there is time for."""
    seen, begin = set(), time.monotonic()
    for name in ["Australia/Lord_Howe", *sorted(zoneinfo.available_timezones())]:
        zone = ZoneInfo(name)
        found = changes(zone, YEAR)
        key = tuple((at, (at - MINUTE).astimezone(zone).utcoffset(), at.astimezone(zone).utcoffset()) for at in found)
        if key not in seen and time.monotonic() - begin < SECONDS:
            for change in found:
                check(name, change)
        seen.add(key)
    assert len(seen) > 10


@pytest.mark.parametrize(("name", "year"), ODD)
def test_odd_changes(name: str, year: int) -> None:
    found = changes(ZoneInfo(name), year)
    assert found
    for change in found:
        check(name, change)


@pytest.mark.parametrize("line", NAMING + RUNNING)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
def test_seconds_in_front_change_no_tick(line: str, zone: str) -> None:
    begin = datetime(YEAR, 3, 27, tzinfo=UTC)
    with_seconds, without = (new_spec("x", {"cron": text, "zone": zone}) for text in (f"0 {line}", line))
    assert list(itertools.islice(ticks(with_seconds, begin), 200)) == list(itertools.islice(ticks(without, begin), 200))
