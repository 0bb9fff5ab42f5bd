"""A state that gets the content of another one in place, and the changes of two states in one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, Field

from affinity.session.in_place import assign, merged


class Model(BaseModel):
    """A state with a part that is not stored."""

    items: list[Any] = Field(default_factory=list)
    more: dict[str, Any] = Field(default_factory=dict)
    scratch: int = Field(default=0, exclude=True)


@dataclass(frozen=True)
class Frozen:
    """A state whose fields code cannot set."""

    items: list[Any] = field(default_factory=list)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Model(items=[1]), Model(items=[1, 2], more={"a": 1})),
        (Frozen([1]), Frozen([2])),
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}),
        ([1, 2, 3], [4]),
        ({1, 2}, {2, 3}),
        (deque([1]), deque([2, 3])),
        ({"a": [Model(items=[1])]}, {"a": [Model(items=[2]), Model()]}),
    ],
)
def test_the_object_gets_the_content(old: Any, new: Any) -> None:
    assert assign(old, new) is old
    assert old == new


def test_parts_stay_the_same_objects_and_scratch_stays() -> None:
    old = Model(items=[1], more={"a": Model(items=[2])}, scratch=7)
    items, part = old.items, old.more["a"]
    assign(old, Model(items=[1, 3], more={"a": Model(items=[4])}))
    assert old.items is items == [1, 3]
    assert old.more["a"] is part == Model(items=[4])
    assert old.scratch == 7
    assert assign(1, 2) == 2


@pytest.mark.parametrize(
    ("base", "saved", "mine", "both"),
    [
        ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}),
        ({"a": 1}, {}, {"a": 1, "b": 2}, {"b": 2}),
        ({}, {"a": {"x": 1}}, {"b": 2}, {"a": {"x": 1}, "b": 2}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "y": 1}}, {"a": {"x": 1}}, {"a": {"x": 2}}),
        ([1], [1, 2], [1], [1, 2]),
    ],
)
def test_the_changes_of_both_count(base: Any, saved: Any, mine: Any, both: Any) -> None:
    assert merged(base, saved, mine) == both
