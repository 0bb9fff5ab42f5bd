"""Records of `affinity.records` that are frozen to the type checker, and the arguments of a filter."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from affinity.errors import InvalidId, InvalidOptions
from affinity.provider.contract import Token, WorkAbandon, WorkKey, WorkLock
from affinity.records import constructor, frozen
from affinity.session import SessionFilter


@frozen()
class Point:
    x: int
    y: int = 0


@frozen(kw_only=True)
class Named:
    name: str


def test_it_is_compared_and_hashed_by_value() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert {Point(1), Point(1, 0)} == {Point(1)}
    assert replace(Point(1), y=3) == Point(1, 3)
    assert repr(Point(1)) == "Point(x=1, y=0)"


def test_its_fields_are_all_it_has() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 1  # type: ignore[attr-defined]


def test_a_keyword_only_one_takes_no_positions() -> None:
    with pytest.raises(TypeError):
        Named("a")  # type: ignore[call-arg]
    assert Named(name="a").name == "a"


def test_the_type_checker_refuses_what_python_lets_pass() -> None:
    """An ignore that ignores nothing would be an error of mypy's."""
    point = Point(1)
    point.x = 2  # type: ignore[misc]
    assert point.x == 2


def test_a_constructor_makes_what_the_class_makes() -> None:
    make = constructor(Point)
    assert make(x=1) == Point(1)
    assert make(y=3, x=1) == Point(1, 3)
    assert type(make(x=1)) is Point
    with pytest.raises(TypeError, match="'x'"):
        make()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'z'"):
        make(x=1, z=2)  # type: ignore[call-arg]


NAIVE = datetime(2026, 1, 1)


def test_a_failed_delivery_is_counted_as_an_attempt() -> None:
    """``attempts - failures`` were interrupted or run now: it is never negative."""
    with pytest.raises(ValueError, match="an activity that has failed was an attempt"):
        WorkAbandon(lock=WorkLock(key=WorkKey("i", 1, 2), token=Token("t")), failed=True, count_attempt=False)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {name: text}
            for name in ("kind", "name", "parent", "participant", "holder", "prefix")
            for text in "\0\ud800"
        ),
        {"labels": {"\0": "a"}},
        {"labels": {"a": "\ud800"}},
        {"after": (datetime.now(UTC), "\0")},
    ],
)
def test_a_filter_takes_no_text_that_no_store_can_keep(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidId, match="no store can keep"):
        SessionFilter(**wrong)


@pytest.mark.parametrize("wrong", [{"updated_after": NAIVE}, {"created_after": NAIVE}, {"after": (NAIVE, "s")}])
def test_a_filter_takes_no_time_without_a_zone(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions, match="no time zone"):
        SessionFilter(**wrong)
