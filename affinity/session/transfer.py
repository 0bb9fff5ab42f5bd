"""Export and import of session records: one JSON document per record.

A state that is JSON is in the document as JSON (``state``), if nothing is lost that way; every other state as base64
(``state_base64``). ``version`` and ``epoch`` are of the store that the record comes from; the store that imports it
sets its own. An import keeps the times, or sets new ones in the same order: the newest stays newest.

A record is checked before it is stored: its form and limits, and, where the code of its kind is at hand, by loading it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json, to_json

from affinity.errors import InvalidInput, SessionLoadFailed, SessionRecordRefused, SessionWriteConflict, problem_of
from affinity.limits import MAX_ID_BYTES, MAX_INTEGER, MAX_LABELS, MAX_PARTICIPANTS, check_choice, check_id
from affinity.records import (
    RecordTimes,
    SessionMetadata,
    SessionRecord,
    SessionState,
    SessionStore,
    SessionSummary,
    keep_named,
)
from affinity.session.codec import pack, unpack
from affinity.session.sessions import Sessions


def readable(record: SessionRecord | SessionSummary) -> dict[str, Any]:
    """Return the record as a JSON document for people and programs: ``state`` when that is JSON, else ``state_base64``.
    The document of a summary has no state.

    Raises:
        SessionLoadFailed: the state is damaged, or packed in a way that this version does not know.
    """
    if isinstance(record, SessionSummary):
        return _description_of(record)
    try:
        state = unpack(record.state, record.encoding)
    except ValueError as error:
        raise SessionLoadFailed(record.session_id, str(error)) from error
    return _description_of(record) | _state_field(state)


def _description_of(record: SessionRecord | SessionSummary) -> dict[str, Any]:
    """Return the record as a JSON document without its state."""
    metadata = record.metadata
    return {
        "session_id": record.session_id,
        "kind": metadata.kind,
        "name": metadata.name,
        "parent": metadata.parent,
        "labels": dict(metadata.labels),
        "message_count": metadata.message_count,
        "participants": list(metadata.participants),
        "schema_version": record.schema_version,
        "version": record.version,
        "epoch": record.epoch,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
    }


async def exported_line(store: SessionStore, record: SessionRecord) -> str:
    """Return the record as one line of JSON, without the newline, and keep the blobs that it names."""
    document = readable(record)
    line = to_json(document).decode()
    # They do not show in a state in base64.
    await keep_named(store, [line, base64.b64decode(document.get("state_base64", ""))])
    return line


def _state_field(state: bytes) -> dict[str, Any]:
    try:
        # In a list, so that it is nested as deeply as in the document: parsers limit the depth.
        (value,) = from_json(b"[" + state + b"]", allow_inf_nan=False)
        if _is_same_json(to_json(value), state):
            return {"state": value}
    except ValueError:
        pass  # it is no JSON, which is no error: any bytes can be a state
    return {"state_base64": base64.b64encode(state).decode()}


def _is_same_json(written: bytes, original: bytes) -> bool:
    """Whether two JSON texts differ only in white space and escapes; numbers are compared digit by digit."""
    return written == original or _tokens(written) == _tokens(original)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_tokens = partial(
    json.loads, parse_int=str, parse_float=str, parse_constant=_refuse_constant, object_pairs_hook=lambda pairs: pairs
)


# --- import -----------------------------------------------------------------------------------------------------------


def _check_text(text: str) -> str:
    """Weaker than the check where labels and names are written: any record of a store can be imported into another."""
    if "\x00" in text:
        raise ValueError("holds the character U+0000, which no store keeps")
    if len(text.encode()) > MAX_ID_BYTES:
        raise ValueError(f"over the limit of {MAX_ID_BYTES} bytes")
    return text


Time: TypeAlias = Annotated[AwareDatetime, Field(ge=datetime(1, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC))]
"""A time of an export. What databases round must be in range too, in UTC."""

_Id = Annotated[str, AfterValidator(partial(check_id, what="it"))]
_Text = Annotated[str, AfterValidator(_check_text)]


class _ExportLine(BaseModel):
    """The form of a line."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    session_id: _Id
    kind: _Text = ""
    name: _Text | None = None
    parent: _Id | None = None
    labels: Annotated[dict[_Text, _Text], Field(max_length=MAX_LABELS)] = {}
    message_count: Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)] | None = None
    participants: Annotated[list[_Text], Field(max_length=MAX_PARTICIPANTS)] = []
    schema_version: Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
    version: int | None = None
    epoch: int | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    state: Any = None
    state_base64: str = ""

    @model_validator(mode="after")
    def _has_one_state(self) -> Self:
        if len(self.model_fields_set & {"state", "state_base64"}) != 1:
            raise ValueError("needs either state or state_base64")
        return self

    def bytes_of_state(self) -> bytes:
        if "state_base64" in self.model_fields_set:
            return base64.b64decode(self.state_base64, validate=True)
        state = to_json(self.state)
        from_json(state, allow_inf_nan=False)  # a number such as 1e400 is read as infinity, which JSON has not
        return state


def read_line(number: int, line: str | bytes) -> tuple[SessionState, RecordTimes | None]:
    """The record in line ``number``, and its times, if the line has them.

    Raises:
        InvalidInput: the line is not such a document; the message has its number and the reason.
    """
    try:
        parsed = _ExportLine.model_validate(from_json(line, allow_inf_nan=False))
        state, encoding = pack(parsed.bytes_of_state())
    except ValidationError as error:
        raise InvalidInput(f"line {number}: {problem_of(error)}") from error
    except (ValueError, TypeError) as error:  # a TypeError: it is no text
        raise InvalidInput(f"line {number} holds no record: {error}") from error
    new = SessionState(
        session_id=parsed.session_id,
        state=state,
        encoding=encoding,
        schema_version=parsed.schema_version,
        metadata=SessionMetadata(
            kind=parsed.kind,
            name=parsed.name,
            parent=parsed.parent,
            labels=parsed.labels,
            message_count=parsed.message_count,
            participants=parsed.participants,
        ),
    )
    updated_at = parsed.updated_at
    if updated_at is None:
        return new, None
    return new, RecordTimes(created_at=min(parsed.created_at or updated_at, updated_at), updated_at=updated_at)


Lines: TypeAlias = Iterable[str | bytes] | AsyncIterable[str | bytes]

OnExists: TypeAlias = Literal["refuse", "skip", "replace"]
"""How an import treats a record that the store has already."""

ImportTimes: TypeAlias = Literal["kept", "now"]
"""Which times an import writes: the record's own, or the time of the import."""

IN_MEMORY: Final = 16 * 1024 * 1024
"""Bytes of lines that are read twice before they go to a temporary file."""

_LONG_AGO: Final = timedelta(days=365)
_LAST: Final = datetime.max.replace(tzinfo=UTC)

Progress: TypeAlias = Callable[[int], None]
"""Called repeatedly with the number of records processed so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """How many records an import has written and skipped."""

    added: int
    replaced: int
    skipped: int
    old: int = 0
    """Records written that were last updated more than a year ago: retention by age may remove them soon."""
    unloaded: int = 0
    """Records whose form alone was checked, since the code of their kind is not at hand."""


async def import_lines(
    store: SessionStore,
    lines: Lines,
    sessions: Iterable[Sessions[Any]],
    *,
    on_exists: OnExists,
    times: ImportTimes,
    progress: Progress,
) -> Imported:
    """Write the records of an export into a store; `SessionManager.import_` describes the arguments."""
    check_choice("on_exists", on_exists, OnExists)
    check_choice("times", times, ImportTimes)
    done = dict.fromkeys(("added", "replaced", "skipped"), 0)
    long_ago, old, unloaded, number = datetime.now(UTC) - _LONG_AGO, 0, 0, 0
    try:
        async for number, line in numbered_lines(lines) if times == "kept" else _oldest_first(lines):
            new, kept = read_line(number, line)
            unloaded += not await _load(new, sessions)
            what = await _write(store, new, on_exists, kept if times == "kept" else None)
            done[what] += 1
            old += what != "skipped" and times == "kept" and kept is not None and kept.updated_at < long_ago
            progress(sum(done.values()))
    except SessionRecordRefused as error:
        raise _located(number, error, _so_far(done)) from error.__cause__
    except InvalidInput as error:
        raise InvalidInput(f"{error}{_so_far(done)}") from error
    except SessionWriteConflict as error:
        raise _refusal(number, error, done) from error
    return Imported(**done, old=old, unloaded=unloaded)


async def _load(new: SessionState, sessions: Iterable[Sessions[Any]]) -> bool:
    """Load a record by the code of its kind, as a check; returns whether there is such code."""
    of_kind = [each for each in sessions if each.kind == new.metadata.kind]
    for each in of_kind:
        await each._check_record(new)
    return bool(of_kind)


def _located(number: int, error: SessionRecordRefused, then: str = "") -> SessionRecordRefused:
    return SessionRecordRefused(error.session_id, error.reason, where=f"line {number}: ", then=then)


async def check_lines(lines: Iterable[str | bytes], sessions: Iterable[Sessions[Any]] = ()) -> int:
    """Check every line as an import would, and write nothing.

    Returns:
        The number of records.

    Raises:
        InvalidInput: a line is no record; the message has its number.
        SessionRecordRefused: a record could not be loaded; the same.
    """
    records = 0
    async for number, line in numbered_lines(lines):
        new, _ = read_line(number, line)
        records += 1
        try:
            await _load(new, sessions)
        except SessionRecordRefused as error:
            raise _located(number, error) from error.__cause__
    return records


def no_progress(done: int) -> None:
    """The `Progress` of a caller that passes none."""


async def _write(store: SessionStore, new: SessionState, on_exists: OnExists, times: RecordTimes | None) -> str:
    if on_exists == "replace":
        return "added" if await store.save(new, times=times) == 1 else "replaced"
    try:
        await store.save(new, expected_version=0, times=times)
    except SessionWriteConflict:
        if on_exists == "refuse":
            raise
        return "skipped"
    return "added"


async def numbered_lines(lines: Lines) -> AsyncIterator[tuple[int, str | bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    number = 0
    async for line in lines if isinstance(lines, AsyncIterable) else _iterate(lines):
        number += 1
        if line.strip():
            yield number, line


async def _oldest_first(lines: Lines) -> AsyncIterator[tuple[int, str | bytes]]:
    """As `numbered_lines`, in the order in which the records were last written: an export has the newest first. Records
    without times are the last ones, in the order of their lines.

    Raises:
        InvalidInput: a line is no record.
    """
    with SpooledTemporaryFile(max_size=IN_MEMORY) as copy:
        found: list[tuple[datetime, int, int, int]] = []
        async for number, line in numbered_lines(lines):
            _, times = read_line(number, line)
            order = (_LAST, number) if times is None else (times.updated_at, -number)
            found.append((*order, copy.tell(), copy.write(line.encode() if isinstance(line, str) else line)))
        for _, number, start, size in sorted(found):
            copy.seek(start)
            yield abs(number), copy.read(size)


async def _iterate(lines: Iterable[str | bytes]) -> AsyncIterator[str | bytes]:
    for line in lines:
        yield line


def _so_far(done: Mapping[str, int]) -> str:
    return f" (records written before it: {done['added'] + done['replaced']})"


def _refusal(number: int, error: SessionWriteConflict, done: Mapping[str, int]) -> SessionWriteConflict:
    message = f"line {number}: the store has a record of it{_so_far(done)}; skip the line or replace the record"
    return SessionWriteConflict(error.session_id, 0, error.version, message)
