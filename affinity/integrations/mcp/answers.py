"""Answers of tools: JSON objects of bounded size, whose texts are cut where they are long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_jsonable_python

from affinity.limits import truncate

MAX_TEXT: Final = 4_000
"""UTF-8 bytes of a text in an answer; what is longer is cut off: a model pays for each word that it reads."""

HIDDEN: Final = "(hidden)"


def answer(value: object) -> Any:
    """Return the value as JSON has it, with its long texts cut."""
    return _cut(to_jsonable_python(value, fallback=str))


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return truncate(value, MAX_TEXT)
    if isinstance(value, Mapping):
        return {truncate(str(key), MAX_TEXT): _cut(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(each) for each in value]
    return value
