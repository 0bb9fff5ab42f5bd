"""Records of the hot path: frozen to the type checker, and cheap to make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a dataclass with slots, compared and hashed by value, whose fields are never set again.

    That they are not is checked by mypy, not at run time: there, a frozen dataclass writes each field of a new object
    through ``object.__setattr__``, which for the ten records of a turn was an eighth of all that a worker executes.
    Whoever gets such a record from this library must treat it as frozen; what applications are given in their own
    functions (`affinity.ActivityContext`) is frozen for real.
    """
    return dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)
