"""Changing a state to another content in place: code that holds the state, or a part of it, sees the new content."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_GONE: Final = object()


def assign(old: Any, new: Any) -> Any:
    """Give an object the content of another one. Its scratch fields stay. Return ``new`` if the object cannot be
    changed, else the object itself.
    """
    if old is new or type(old) is not type(new):
        return new
    match old:
        case dict():
            found = {key: assign(old.get(key), value) for key, value in new.items()}
            old.clear()
            old.update(found)
        case list() | deque():
            items = [assign(*pair) for pair in zip(old, new, strict=False)] + [*new][len(old) :]
            old.clear()
            old.extend(items)
        case set():
            old.clear()
            old.update(new)
        case BaseModel():
            _assign_model(old, new)
        case _ if dataclasses.is_dataclass(old):
            _assign_fields(old, new)
        case _:
            return new
    return old


def _assign_model(old: BaseModel, new: BaseModel) -> None:
    fields, values = type(old).model_fields, old.__dict__
    for name in [*values]:
        if name not in fields:  # a cached property
            del values[name]
    for name, field in fields.items():
        if not field.exclude:
            values[name] = assign(values.get(name), getattr(new, name))
    for name in ("__pydantic_fields_set__", "__pydantic_extra__"):
        object.__setattr__(old, name, getattr(new, name))


def _assign_fields(old: Any, new: Any) -> None:
    described: dict[str, FieldInfo] = getattr(type(old), "__pydantic_fields__", {})
    for field in dataclasses.fields(old):
        about = described.get(field.name, field.default)
        if not (isinstance(about, FieldInfo) and about.exclude):
            value = assign(getattr(old, field.name, None), getattr(new, field.name))
            object.__setattr__(old, field.name, value)  # also of a frozen one


def exchange(old: Any, new: Any) -> bool:
    """Exchange the attributes of two objects of one class; False: they have none."""
    if type(old) is not type(new) or not hasattr(old, "__dict__"):
        return False
    old.__dict__, new.__dict__ = new.__dict__, old.__dict__
    return True


def merged(base: Any, saved: Any, mine: Any) -> Any:
    """The plain form of a state with the changes from ``base`` to ``saved``, and from ``base`` to ``mine``. A value
    that both have changed is that of ``mine``.
    """
    if saved == base:
        return mine
    if mine == base:
        return saved
    if not all(isinstance(each, dict) for each in (base, saved, mine)):
        return mine
    found = {
        key: merged(base.get(key, _GONE), saved.get(key, _GONE), mine.get(key, _GONE)) for key in {**mine, **saved}
    }
    return {key: value for key, value in found.items() if value is not _GONE}
