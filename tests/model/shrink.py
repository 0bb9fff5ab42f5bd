"""Makes a plan that fails as short and as plain as it can be: leaves out steps, then unusual fields of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

Plan: TypeAlias = list[Any]


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A shorter plan that fails, too. Half of the steps are left out first, then a quarter, and so on."""
    size = len(plan)
    while size > 0:
        shorter = _leave_out(plan, size, fails)
        size = size // 2 if len(shorter) == len(plan) or size > 1 else size
        plan = shorter
    for place in range(len(plan)):
        for plainer in _plainer(plan[place]):
            candidate = [*plan[:place], plainer(plan[place]), *plan[place + 1 :]]
            if candidate != plan and fails(candidate):
                plan = candidate
    return plan


def _leave_out(plan: Plan, size: int, fails: Callable[[Plan], bool]) -> Plan:
    for start in reversed(range(0, len(plan), size)):
        shorter = [*plan[:start], *plan[start + size :]]
        if len(shorter) < len(plan) and fails(shorter):
            plan = shorter
    return plan


def _plainer(value: Any) -> Iterator[Callable[[Any], Any]]:
    """Changes that make a step plainer: a field as it usually is; of several parts, one of them."""
    for field in fields(value):
        now = getattr(value, field.name)
        if isinstance(now, tuple) and now and is_dataclass(now[0]):
            yield from (_with(field.name, (part,)) for part in now)
            yield from (_in_part(field.name, change) for change in _plainer(now[0]))
        elif field.default is not field.default_factory and now != field.default:
            yield _with(field.name, field.default)


def _with(name: str, value: Any) -> Callable[[Any], Any]:
    return lambda step: replace(step, **{name: value})


def _in_part(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change of the first part."""
    return lambda step: replace(step, **{name: (change(getattr(step, name)[0]), *getattr(step, name)[1:])})
