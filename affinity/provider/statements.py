"""Loading of SQL, which lives in ``.sql`` files beside its provider.

A file is a sequence of statements, each headed by a line ``-- name: purpose``. A line ``-- include name`` stands for
the text of another statement of the file. A line ``-- name of guests`` marks a place at which guests add text, such as
``-- columns of guests`` for the end of a select list, and ``-- conditions of guests`` for the end of a condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final, LiteralString

_HEAD = re.compile(r"^-- (?P<name>[a-z_0-9]+): .+$", re.MULTILINE)
_INCLUDE = re.compile(r"^ *-- include (\w+)$", re.MULTILINE)


def load_statements(package: str, filename: str) -> dict[str, LiteralString]:
    """Return the statements of one file by name.

    Text in a packaged file is as trusted as a literal in the code, hence the type.
    """
    text = (files(package) / filename).read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    found = {head["name"]: text[head.end() : end].strip().rstrip(";") for head, end in zip(heads, ends, strict=True)}
    assert len(found) == len(heads), f"a statement name stands twice in {package}/{filename}"

    def expanded(statement: LiteralString) -> LiteralString:
        return _INCLUDE.sub(lambda line: expanded(found[line[1]]), statement)

    return {name: expanded(statement) for name, statement in found.items()}


_PART: Final = re.compile(r"^ *-- \[(\w+)\n(.*?)^ *-- \1\](?:\n|;|\Z)", re.DOTALL | re.MULTILINE)


@cache
def with_parts(statement: LiteralString, kept: frozenset[str]) -> LiteralString:
    """Return the statement with only these of its parts. A part begins with ``-- [name`` and ends with ``-- name]``. It
    may stand in several pieces, and hold pieces of other parts.
    """
    return _PART.sub(lambda part: with_parts(part[2], kept) if part[1] in kept else "", statement)


_OF_GUESTS: Final = re.compile(r"^ *-- (\w+) of guests$", re.MULTILINE)


def with_columns(statement: LiteralString, expressions: Iterable[LiteralString]) -> LiteralString:
    """Return the statement with these expressions at the end of its select list."""
    return with_guests(statement, columns="".join(f"    , ({expression})\n" for expression in expressions).rstrip("\n"))


def with_conditions(statement: LiteralString, conditions: Iterable[LiteralString]) -> LiteralString:
    """Return the statement with these alternatives at the end of its condition."""
    return with_guests(statement, conditions="\n".join(f"    OR ({condition})" for condition in conditions))


def with_guests(statement: LiteralString, **texts: LiteralString) -> LiteralString:
    """Return the statement with these texts in place of its lines ``-- name of guests``, by name."""
    return _OF_GUESTS.sub(lambda line: texts.get(line[1], line[0]), statement)
