"""Streams: provisional output of a wake that is running.

A `StreamWriter` belongs to one attempt of one wake. Its parts have numbers from 1, without gaps. The commit of the
wake, or of a part of it, removes them in its transaction (`JournalWrite.clear_stream`); later parts go on from there.
An attempt that fails retracts them. The first part of a later attempt removes the parts of earlier attempts, which may
have ended with their worker.

A crash of the database may lose the parts. The database adds no part behind a gap, and the writer, which keeps the
parts until they are committed, writes all of them again. So a reader sees each part, or that they are gone
(`Retracted`) and then all.

`Streams` writes the parts of all wakes of a worker: immediately when it has written none for a while, then one call
about each `FLUSH_SECONDS` while there are any. Text that one wake writes between two calls becomes one part.

The payload of a part is the JSON of the streamed value. An object with the field `MARK` is not such a value: the field
names the type of the part. A value that has this field itself is written as ``{MARK: "value", "value": …}``, and so is
the first part of an attempt, which says up to where the attempt has read the inputs (``read``).

Calls of tools (`StreamWriter.start_tool`) describe the wake, and no entry replaces them. After the commit of a part of
the wake they are shown again: the calls that still run, and the ends of calls since the last such commit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from pydantic_core import to_json

from affinity.batching import batches
from affinity.conversation.journal import StreamPart
from affinity.errors import NotSerializable, PayloadTooLarge, ProviderError, problem_of
from affinity.limits import (
    MAX_STREAM_BYTES,
    MAX_STREAMED_ARGUMENT,
    MAX_STREAMED_ARGUMENTS,
    MAX_STREAMED_TOOLS,
    check_depth,
    check_payload,
    truncate,
)
from affinity.readback import json_of
from affinity.records import parse_stored
from affinity.redaction import redacted
from affinity.user_code import as_error

logger: logging.Logger = logging.getLogger("affinity.conversation")

FLUSH_SECONDS: Final = 0.005
"""Shortest time between two calls that write parts. A reader sees a token as it comes; faster tokens share a call."""

WRITING_SHARE: Final = 0.1
"""Share of the time that calls may take. While the database is slow there are fewer, each with more tokens."""

LONGEST_FLUSH: Final = 0.2
"""Longest time from the beginning of a call to the next one, unless a call takes longer or fails."""

PAUSES: Final = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to write while the database fails; the last pause repeats."""

MAX_PART: Final = 64 * 1024
"""Characters of text in one part."""

MARK: Final = "$affinity"
"""Field of the payload of a part that is not the JSON of a streamed value."""

_MARKED: Final = f'{{"{MARK}":'
_OF_TOOL: Final = f'{_MARKED}"tool_'
"""Beginnings of payloads: of all with `MARK`, and of calls of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptItem:
    """An item of a feed that is of one attempt of a wake."""

    wake_id: str
    attempt: int

    kind: ClassVar[str]

    def to_json(self) -> str:
        """Return the item as one JSON object, on one line."""
        return to_json({"kind": self.kind, **asdict(self)}).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(_AttemptItem):
    """Provisional output of a wake that is running. A `Retracted` of its wake and attempt follows, in every case."""

    number: int  # of the part in its attempt, from 1; between two `Retracted` without gaps
    value: Any  # text, or another JSON value

    kind: ClassVar[str] = "stream.part"

    @property
    def text(self) -> str:
        """The value, if it is text; else empty."""
        return self.value if isinstance(self.value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(_AttemptItem):
    """A call of a tool runs: the entry `ToolUse` was committed before. It is void with the streamed parts of its wake
    and attempt; then the calls that still run are shown again.
    """

    number: int  # see `Streamed`
    tool: str
    tool_use_id: str  # of the model, which may use one again
    call_key: str = ""  # of the `ToolUse`; unique in the conversation
    # Of `limits.MAX_STREAMED_ARGUMENTS`: of a longer value the beginning of its JSON, as a text.
    arguments: Mapping[str, Any]

    kind: ClassVar[str] = "stream.tool_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnded(_AttemptItem):
    """A call of a tool has ended. Its result is the entry `ToolResult`, which may come before this. A reader may miss
    this, and not the entry: when it is slow, or the wake ends with the call.
    """

    number: int  # see `Streamed`
    tool_use_id: str
    is_error: bool  # the tool has raised
    call_key: str = ""  # as of the `ToolStarted`

    kind: ClassVar[str] = "stream.tool_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retracted(_AttemptItem):
    """The streamed parts of this attempt of the wake, or of earlier attempts, are void."""

    replaced: bool  # by the entries of the wake, which follow; False: the attempt has failed

    kind: ClassVar[str] = "stream.retracted"


StreamItem: TypeAlias = Streamed | ToolStarted | ToolEnded
"""The decoded form of a part."""


def read_part(part: StreamPart) -> StreamItem:
    """Return the decoded form of a part."""
    found = parse_stored(part.payload)
    at: Any = {"wake_id": part.wake_id, "attempt": part.attempt, "number": part.number}
    if not (isinstance(found, dict) and MARK in found):
        return Streamed(value=found, **at)
    match found[MARK]:
        case "tool_started":
            names = ("tool", "tool_use_id", "call_key", "arguments")
            return ToolStarted(**{name: found[name] for name in names}, **at)
        case "tool_ended":
            return ToolEnded(**{name: found[name] for name in ("tool_use_id", "call_key", "is_error")}, **at)
        case _:
            return Streamed(value=found.get("value"), **at)


def inputs_read(part: StreamPart) -> int | None:
    """Return the number up to which the attempt has read the inputs; None: the part does not say it."""
    found = parse_stored(part.payload) if part.payload.startswith(_MARKED) else {}
    read: int | None = found.get("read")
    return read


class StreamWriter:
    """The stream of one attempt of a wake. It belongs to a worker's loop; `write` may be called from any thread."""

    def __init__(
        self, streams: Streams, session_id: str, journal_id: int, wake_id: str, attempt: int, *, read: int | None
    ) -> None:
        self.session_id: str = session_id
        self.journal_id: int = journal_id
        self.wake_id: str = wake_id
        self.attempt: int = attempt
        self.is_used: bool = False
        """Something was written: the commit must clear the stream."""
        self.is_ended: bool = False
        self._streams = streams
        self._values: deque[tuple[str, bool]] = deque()  # text as it is, or JSON (True)
        self._size = 0
        self._number = 0
        self._read = read
        self._kept: list[StreamPart] = []  # that no commit has replaced yet
        self._first = 1  # number of the first of them
        self._running: dict[str, tuple[str, str]] = {}  # by key: id and payload of the calls of tools that run
        self._calls = 0
        self._ended: list[str] = []  # payloads of ends of calls since the last committed part of the wake
        self._tool_size = 0

    def write(self, value: Any) -> None:
        """Show a value to readers: text, which is joined with the text before it, or another JSON value.

        Raises:
            NotSerializable: JSON cannot represent it.
            PayloadTooLarge: it is too large or too deep, or the attempt has streamed `limits.MAX_STREAM_BYTES`.
        """
        if self.is_ended or value == "":
            return
        text, is_json = (_check_text(value), False) if isinstance(value, str) else (_encode(value), True)
        self._size += len(text) if text.isascii() else len(text.encode())
        if self._size > MAX_STREAM_BYTES:
            raise PayloadTooLarge(
                f"the attempt has streamed {self._size} bytes, over the limit of {MAX_STREAM_BYTES}: "
                "streamed values are provisional; append entries, or keep large data in a store"
            )
        self._add(text, is_json=is_json)

    def _add(self, text: str, *, is_json: bool) -> None:
        self._values.append((text, is_json))
        self.is_used = True
        self._streams.note(self)

    def start_tool(self, tool: str, tool_use_id: str, arguments: Mapping[str, Any], call_key: str = "") -> str:
        """Show that a call of a tool runs: see `ToolStarted`. Return its key, a new key unless it is given.

        Raises:
            NotSerializable: the arguments have no JSON form.
            PayloadTooLarge: they are nested too deep.
        """
        self._calls += 1
        key = call_key or f"{self.wake_id}.{self.attempt}.call.{self._calls}"
        about = {"tool": tool, "tool_use_id": tool_use_id, "call_key": key, "arguments": _cut(arguments)}
        payload = check_depth(_json_of({MARK: "tool_started", **about}), "a call of a tool")
        self._running[key] = (tool_use_id, payload)
        self._show(payload)
        return key

    def end_tool(self, call_key: str, *, is_error: bool) -> None:
        """Show that a call of a tool has ended: see `ToolEnded`."""
        tool_use_id, _ = self._running.pop(call_key, ("", ""))
        about = {"tool_use_id": tool_use_id, "call_key": call_key, "is_error": is_error}
        self._ended.append(_json_of({MARK: "tool_ended", **about}))
        self._show(self._ended[-1])

    def show_again(self) -> None:
        """Show the calls of tools again: the commit of a part of the wake has removed all streamed parts."""
        ended, self._ended = self._ended, []
        for payload in (*ended, *[payload for _, payload in self._running.values()]):
            self._show(payload)

    def _show(self, payload: str) -> None:
        if not self.is_ended and (payload, True) not in self._values:
            self._add(payload, is_json=True)

    async def settle(self) -> None:
        """Drop the unwritten values, which the entries of a part replace, and wait for calls that write parts."""
        self._values.clear()
        await self._streams.written(self)
        self._kept, self._first = [], self._number + 1

    def still_wanted(self, parts: Sequence[StreamPart]) -> list[StreamPart]:
        """Return the parts, among these, that no commit has replaced since."""
        return [] if self.is_ended else [part for part in parts if part.first == self._first]

    @property
    def kept(self) -> Sequence[StreamPart]:
        """All parts that no commit has replaced yet."""
        return self._kept

    async def end(self) -> None:
        """Drop the unwritten values. Afterwards no part of this attempt is written: the commit may clear them."""
        self.is_ended = True
        await self.settle()

    async def retract(self) -> None:
        """End, and remove the parts that were written: the attempt has failed. If the database fails too, the next
        attempt or commit removes them.
        """
        await self.end()
        if self._number:
            await self._streams.retract(self)

    def take(self) -> Iterator[StreamPart]:
        """Yield the parts that are not written yet."""
        for payload in _joined(self._values):
            self._tool_size += len(payload) if payload.startswith(_OF_TOOL) else 0
            if payload.startswith(_OF_TOOL) and self._tool_size > MAX_STREAMED_TOOLS:
                continue
            self._number += 1
            is_first = self._number == 1 and self._read is not None
            part = StreamPart(
                session_id=self.session_id,
                journal_id=self.journal_id,
                wake_id=self.wake_id,
                attempt=self.attempt,
                number=self._number,
                payload=_with_read(payload, self._read) if is_first else payload,
                first=self._first,
            )
            self._kept.append(part)
            yield part


class StreamTarget(Protocol):
    """The target of writes of parts: a `JournalProvider`, or the `JournalAccess` of a worker."""

    async def write_stream(self, parts: Sequence[StreamPart]) -> Collection[int]: ...
    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None: ...


class Streams:
    """Writes the streams of a worker's wakes. For one event loop."""

    def __init__(self, provider: StreamTarget, interval: float = FLUSH_SECONDS) -> None:
        self._provider = provider
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: dict[StreamWriter, None] = {}  # have values, in the order in which they came
        self._writing: set[StreamWriter] = set()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(
        self, session_id: str, journal_id: int, wake_id: str, attempt: int, *, read: int | None = None
    ) -> StreamWriter:
        """Return the stream of an attempt. Close it with `StreamWriter.end` before the commit, or
        `StreamWriter.retract`. ``read``: up to which number the attempt has read the inputs.
        """
        return StreamWriter(self, session_id, journal_id, wake_id, attempt, read=read)

    def note(self, writer: StreamWriter) -> None:
        """Note that a stream has values to write."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.note, writer)
            return
        self._waiting[writer] = None
        if self._task is None:
            self._task = self._loop.create_task(self._write_all())

    async def written(self, writer: StreamWriter) -> None:
        """Wait until no call with parts of this stream is under way."""
        while writer in self._writing:
            await self._written.wait()

    async def retract(self, writer: StreamWriter) -> None:
        """Remove the parts that the stream has written."""
        try:
            await self._provider.retract_stream(writer.session_id, writer.journal_id, writer.wake_id, writer.attempt)
        except ProviderError as error:
            logger.debug("a stream was not retracted: %s", redacted(error))

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                parts = {writer: list(writer.take()) for writer in waiting}
                began = self._loop.time()
                await self._write_lasting(parts)
                took = self._loop.time() - began
                await asyncio.sleep(max(self._interval, min(took / WRITING_SHARE, LONGEST_FLUSH)) - took)
        finally:
            self._task = None

    async def _write_lasting(self, parts: Mapping[StreamWriter, Sequence[StreamPart]]) -> None:
        """Write the parts, with as many attempts as it takes; parts that are no longer needed are dropped. When the
        database has lost the parts before them, all are written.
        """
        pauses = iter(PAUSES)
        while parts := {writer: wanted for writer, each in parts.items() if (wanted := writer.still_wanted(each))}:
            try:
                lost = await self._write(parts)
                parts = {writer: writer.kept for writer in parts if writer.journal_id in lost}
            except ProviderError as error:
                if not error.retryable:
                    return await self._write_singly(parts, error)
                await asyncio.sleep(next(pauses, PAUSES[-1]))

    async def _write(self, parts: Mapping[StreamWriter, Sequence[StreamPart]]) -> Collection[int]:
        """Write the parts. Return the journals that have lost earlier parts."""
        self._writing, lost = set(parts), set[int]()
        try:
            for batch in batches([part for kept in parts.values() for part in kept], lambda part: len(part.payload)):
                lost.update(await self._provider.write_stream(batch))
            return lost
        finally:
            self._writing = set()
            written, self._written = self._written, asyncio.Event()
            written.set()

    async def _write_singly(self, parts: Mapping[StreamWriter, Sequence[StreamPart]], error: ProviderError) -> None:
        """Find the stream that the database refuses, and end it: its later parts would leave a gap."""
        if len(parts) > 1:
            for writer, each in parts.items():
                await self._write_lasting({writer: each})
            return
        for writer in parts:
            logger.warning("the stream of wake %s ends early: %s", writer.wake_id, redacted(error))
            writer.is_ended = True


def _joined(values: deque[tuple[str, bool]]) -> Iterator[str]:
    """Take the values; JSON of each, and of the texts between them, joined."""
    texts: list[str] = []
    size = 0
    while values:
        text, is_json = values.popleft()
        if is_json or size + len(text) > MAX_PART:
            yield from _pieces(texts)
            texts, size = [], 0
        if is_json:
            yield text
        else:
            texts.append(text)
            size += len(text)
    yield from _pieces(texts)


def _pieces(texts: Sequence[str]) -> Iterator[str]:
    text = "".join(texts)
    for start in range(0, len(text), MAX_PART):
        yield to_json(text[start : start + MAX_PART]).decode()


def _check_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NotSerializable(f"a streamed value must be JSON: {problem_of(error)}") from error
    return text


def _encode(value: Any) -> str:
    text = _json_of(value)
    return f'{_MARKED}"value","value":{text}}}' if f'"{MARK}"' in text else text


def _with_read(payload: str, read: int | None) -> str:
    """Return the payload of the first part of an attempt, which has read the inputs up to this number."""
    marked = payload if payload.startswith(_MARKED) else f'{_MARKED}"value","value":{payload}}}'
    return f'{marked[:-1]},"read":{read}}}'


def _cut(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call, as far as there is room."""
    if len(_json_of(arguments).encode()) <= MAX_STREAMED_ARGUMENTS:
        return arguments
    shown: dict[str, Any] = {}
    room = MAX_STREAMED_ARGUMENTS
    for name, value in arguments.items():
        text = _json_of(value)
        cut = truncate(text, MAX_STREAMED_ARGUMENT)
        size = len(_json_of([name, cut]).encode())
        if size <= room:
            room -= size
            shown[name] = value if cut == text else cut
    return shown


def _json_of(value: Any) -> str:
    try:
        text, _ = json_of(value)
    except BaseException as error:
        raise NotSerializable(f"a streamed value must be JSON: {problem_of(as_error(error))}") from error
    return check_payload(check_depth(text, "a streamed value"), "a streamed value")
