"""Values of many kinds, which go to activities and come from them: read as they were given, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pydantic import SecretStr

import affinity
from affinity.errors import ActivityError, NotSerializable
from tests.programs.names import NAME

REFUSED: Final = object()


@dataclass
class Part:
    """A nested value."""

    name: str = ""
    price: Decimal = Decimal("0.50")
    due: date | None = None
    parts: list[Part] = field(default_factory=list)


@dataclass
class More(Part):
    """Has a field that a reader of its base class does not get."""

    more: int = 0


_TIME: Final = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)

KINDS: Final[tuple[tuple[Any, Callable[[], Any], Any], ...]] = (
    # Type, value, what is read; None: the same.
    (int, lambda: 7, None),
    (Decimal, lambda: Decimal("1.10"), None),
    (datetime, lambda: _TIME, None),
    (timedelta, lambda: timedelta(days=-1, microseconds=1), None),
    (bytes, lambda: b"abc", None),
    (UUID, lambda: UUID(int=7), None),
    (str | None, lambda: None, None),
    (str, lambda: "a\0\N{SNOWMAN}", None),
    (Part, lambda: Part("a", due=_TIME.date(), parts=[Part("b", Decimal("1E+3"))]), None),
    (dict[str, list[Part]], lambda: {"": [], "a": [Part("b")]}, None),
    (tuple[Decimal, set[bytes]], lambda: (Decimal("-0.0"), {b""}), None),
    (Any, lambda: [Decimal("1.10"), _TIME, b"a", None], ["1.10", "2026-02-03T04:05:06.000789Z", "a", None]),
    (Any, lambda: {1: (2, {3})}, {"1": [2, [3]]}),
    (float, lambda: math.nan, REFUSED),
    (Any, lambda: {"a": [-math.inf]}, REFUSED),
    (bytes, lambda: b"\xff", REFUSED),
    (str, lambda: "\ud800", REFUSED),
    (list[Part], lambda: [More()], REFUSED),
    (SecretStr, lambda: SecretStr("hush"), REFUSED),
    (dict[str, list[int]], lambda: {"a": iter([1])}, REFUSED),
    (dict[Any, int], lambda: {1: 1, "1": 2}, REFUSED),
)

app: Final = affinity.App(f"{NAME}.values")

wrong: Final[list[str]] = []
"""What was read in this process, and was not given."""


def _take(number: int) -> Any:
    async def take(ctx: affinity.ActivityContext, value: Any) -> None:
        _compare(number, value, "an activity")

    take.__annotations__["value"] = KINDS[number][0]
    return app.activity(name=f"{NAME}.take-{number}")(take)


def _give(number: int) -> Any:
    async def give(ctx: affinity.ActivityContext) -> Any:
        return KINDS[number][1]()

    give.__annotations__["return"] = KINDS[number][0]
    return app.activity(name=f"{NAME}.give-{number}")(give)


_TAKES: Final = [_take(number) for number in range(len(KINDS))]
_GIVES: Final = [_give(number) for number in range(len(KINDS))]


def _compare(number: int, found: Any, reader: str) -> None:
    _, make, read = KINDS[number]
    expected = make() if read is None else read
    if (found, str(found)) != (expected, str(expected)):
        wrong.append(f"{reader} has read {found!r}, and not {expected!r}, of value {number}")


async def carry(ctx: affinity.OrchestrationContext, number: int, *, back: bool) -> str:
    """Give an activity this value, or get it from one."""
    try:
        if back:
            _compare(number, await ctx.schedule_activity(_GIVES[number]), "an orchestration")
        else:
            await ctx.schedule_activity(_TAKES[number], KINDS[number][1]())
    except (NotSerializable, ActivityError) as error:
        kind = getattr(error, "error_type", None) or type(error).__name__
        if (kind, KINDS[number][2]) != (NotSerializable.__name__, REFUSED):
            wrong.append(f"value {number} has ended in {kind}: {error}")
        return kind
    return "given"
