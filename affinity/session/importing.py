"""Writing the records of an export into a store, line by line."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from affinity.errors import InvalidInput, SessionWriteConflict
from affinity.records import SessionState, SessionStore
from affinity.session.transfer import read_line

Lines: TypeAlias = Iterable[str | bytes] | AsyncIterable[str | bytes]

OnExists: TypeAlias = Literal["refuse", "skip", "replace"]
"""What an import does with a record that the store has already."""

Progress: TypeAlias = Callable[[int], None]
"""Called now and then with the number of records done so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did."""

    added: int
    replaced: int
    skipped: int


async def import_lines(store: SessionStore, lines: Lines, on_exists: OnExists, progress: Progress) -> Imported:
    """See `SessionManager.import_`."""
    if on_exists not in get_args(OnExists):
        raise InvalidInput(f"on_exists = {on_exists!r}: must be one of {', '.join(get_args(OnExists))}")
    done = dict.fromkeys(("added", "replaced", "skipped"), 0)
    async for number, line in _numbered(lines):
        try:
            done[await _write(store, read_line(number, line), on_exists)] += 1
        except InvalidInput as error:
            raise InvalidInput(f"{error}{_so_far(done)}") from error
        except SessionWriteConflict as error:
            raise _refusal(number, error, done) from error
        progress(sum(done.values()))
    return Imported(**done)


def check_lines(lines: Iterable[str | bytes]) -> None:
    """Read every line as an import would, and write nothing.

    Raises:
        InvalidInput: a line is no record; the message names it.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            read_line(number, line)


def silent(done: int) -> None:
    """A progress that nobody watches."""


async def _write(store: SessionStore, new: SessionState, on_exists: OnExists) -> str:
    if on_exists == "replace":
        return "added" if await store.save(new) == 1 else "replaced"
    try:
        await store.save(new, expected_version=0)
    except SessionWriteConflict:
        if on_exists == "refuse":
            raise
        return "skipped"
    return "added"


async def _numbered(lines: Lines) -> AsyncIterator[tuple[int, str | bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    number = 0
    async for line in lines if isinstance(lines, AsyncIterable) else _each(lines):
        number += 1
        if line.strip():
            yield number, line


async def _each(lines: Iterable[str | bytes]) -> AsyncIterator[str | bytes]:
    for line in lines:
        yield line


def _so_far(done: Mapping[str, int]) -> str:
    return f" (records written before it: {done['added'] + done['replaced']})"


def _refusal(number: int, error: SessionWriteConflict, done: Mapping[str, int]) -> SessionWriteConflict:
    message = f"line {number}: the store has a record of it{_so_far(done)}; skip or replace what is there"
    return SessionWriteConflict(error.session_id, 0, error.version, message)
