"""Records of `affinity.records` that are frozen to the type checker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from affinity.records import constructor, frozen


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
