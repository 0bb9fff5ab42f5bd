"""Finds the encoded payloads in what a column has, and puts others in their places: nothing else of it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

from pydantic_core import from_json

from affinity.errors import PayloadUnreadable
from affinity.payloads import forms
from affinity.payloads.forms import Form
from affinity.payloads.pipeline import is_always_plain
from affinity.payloads.table import Encoded, all_records, all_verbs
from affinity.records import FRAME

_IN_TEXT: Final = re.compile(rf'{re.escape(FRAME)}[A-Za-z0-9+/=]*\.[^"\\\s]*')
"""A frame in a text: also in a JSON text that is a string of another one."""

_NESTED: Final = "instances.next_start"
"""The column whose payload is a string in a JSON object."""


class Found(NamedTuple):
    """The payloads in one stored value."""

    frames: Mapping[str | bytes, str]
    """Encoded ones, with the names of their fields."""
    in_the_clear: int


class _Column(NamedTuple):
    form: Form
    field: str
    may_be_plain: bool


def find_payloads(column: str, stored: str | bytes) -> Found:
    """Return the payloads in a value of a column, ``table.column``, that has encoded payloads."""
    known = _columns()[column]
    frames: dict[str | bytes, str] = {}
    in_the_clear = 0

    def get(frame: str | bytes, field: str) -> bytes:
        frames[frame] = field
        return b"null"

    def plain(event: str | None) -> None:
        nonlocal in_the_clear
        in_the_clear += not (known.may_be_plain or is_always_plain(event))

    for value in _nested(stored) if column == _NESTED and isinstance(stored, str) else (stored,):
        forms.decode(known.form, value, known.field, get, plain)
    return Found(frames, in_the_clear)


def replace_payloads(stored: str | bytes, new: Mapping[str | bytes, str | bytes]) -> str | bytes:
    """Return a stored value with some of its encoded payloads replaced.

    Raises:
        PayloadUnreadable: one of them is not found as it is.
    """
    if isinstance(stored, bytes):
        found = new.get(stored)
        count = int(isinstance(found, bytes))
        result: str | bytes = found if isinstance(found, bytes) else stored
    else:
        count = len({match[0] for match in _IN_TEXT.finditer(stored)} & new.keys())
        result = _IN_TEXT.sub(lambda match: str(new.get(match[0], match[0])), stored)
    if count != len(new):
        raise PayloadUnreadable("the stored form of an encoded payload is damaged")
    return result


def _nested(stored: str) -> Iterator[str]:
    """Return the texts in a JSON object, which are JSON objects themselves."""
    try:
        document = from_json(stored)
    except ValueError:
        return
    if isinstance(document, dict):
        yield from (value for value in document.values() if isinstance(value, str) and value.startswith("{"))


@cache
def _columns() -> Mapping[str, _Column]:
    of_records = [encoded for record in all_records().values() for encoded in record.fields.values()]
    of_verbs = [encoded for verb in all_verbs().values() for encoded in verb.arguments.values()]
    details = {encoded.field for encoded in of_records if encoded.form == "details"}
    return {
        column: _column(encoded, details)
        for encoded in chain(of_records, of_verbs)
        for column in encoded.columns.split()
    }


def _column(encoded: Encoded, details: set[str]) -> _Column:
    # The title of a description has a column of its own.
    form: Form = "text" if encoded.form == "description" else encoded.form
    return _Column(form, encoded.field, encoded.field in details)
