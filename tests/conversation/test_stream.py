"""The worker's side of streams, on journals that a test can hold up and break."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from affinity.conversation.stream import MAX_PART, Streams
from affinity.errors import ConnectionLost, Contention, DataRefused, NotSerializable, PayloadTooLarge
from affinity.journal import StreamPart
from affinity.limits import MAX_STREAM_BYTES
from tests.support.waiting import until


@dataclass
class Journals:
    """Records the written parts."""

    calls: list[list[StreamPart]] = field(default_factory=list)
    retracted: list[tuple[str, int]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    refused: str | None = None  # the wake whose parts the database refuses
    gate: anyio.Event | None = None  # calls wait for it, once they have been made
    delay: float = 0.0  # seconds that each call takes

    async def write_stream(self, parts: Sequence[StreamPart]) -> None:
        self.calls.append(list(parts))
        if self.gate is not None:
            await self.gate.wait()
        if self.delay:
            await anyio.sleep(self.delay)
        if any(part.wake_id == self.refused for part in parts):
            raise DataRefused("no")
        if self.failures:
            raise self.failures.pop(0)

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        self.retracted.append((wake_id, attempt))

    def values(self, wake_id: str) -> list[Any]:
        """The parts that one wake has streamed, each once."""
        parts = {part.number: part.payload for call in self.calls for part in call if part.wake_id == wake_id}
        assert list(parts) == list(range(1, len(parts) + 1))
        return [json.loads(payload) for payload in parts.values()]

    def streams(self, interval: float = 0.0) -> Streams:
        return Streams(self, interval)


async def test_text_is_joined_between_two_calls_and_other_values_keep_their_place() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)
    for value in ("to", "", "ge", "ther", {"tool": "look"}, 3, "a", "ft", "er"):
        writer.write(value)
    await until(lambda: _true(len(journals.values("w")) == 4))
    assert journals.values("w") == ["together", {"tool": "look"}, 3, "after"]
    assert len(journals.calls) == 1


async def test_all_streams_of_a_worker_share_each_call() -> None:
    journals = Journals(gate=anyio.Event())
    streams = journals.streams()
    first, *others = [streams.open("s", 1, f"w{n}", 1) for n in range(50)]
    first.write("a")
    await until(lambda: _true(len(journals.calls) == 1))
    for each in (first, *others):
        each.write("b")
        each.write("c")
    assert journals.gate is not None
    journals.gate.set()
    await until(lambda: _true(len(journals.calls) == 2))
    assert [len(call) for call in journals.calls] == [1, 50]
    assert journals.values("w0") == ["a", "bc"]


async def test_after_the_end_nothing_more_is_written() -> None:
    """The commit clears the stream: a part that came after it would stay."""
    journals = Journals(gate=anyio.Event())
    writer = journals.streams().open("s", 1, "w", 1)
    writer.write("a")
    await until(lambda: _true(len(journals.calls) == 1))
    writer.write("b")
    ended = anyio.Event()

    async def end() -> None:
        await writer.end()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        await anyio.sleep(0.02)
        assert not ended.is_set()  # a call is under way
        assert journals.gate is not None
        journals.gate.set()
    writer.write("c")
    await anyio.sleep(0.02)
    assert journals.values("w") == ["a"]
    assert writer.is_used


async def test_an_attempt_that_fails_retracts_what_it_has_written_and_only_then() -> None:
    journals = Journals()
    streams = journals.streams()
    silent, writer = streams.open("s", 1, "silent", 1), streams.open("s", 1, "w", 2)
    writer.write("a")
    await until(lambda: _true(len(journals.calls) == 1))
    await writer.retract()
    await silent.retract()
    assert journals.retracted == [("w", 2)]
    assert not silent.is_used


async def test_a_call_is_repeated_as_it_was_until_it_succeeds() -> None:
    """Also when it is not known whether it was done: a part that is there is not written again."""
    journals = Journals(failures=[ConnectionLost("gone"), Contention("busy")])
    writer = journals.streams().open("s", 1, "w", 1)
    writer.write("a")
    await until(lambda: _true(len(journals.calls) == 1))
    writer.write("b")
    await until(lambda: _true(len(journals.calls) == 4))
    assert [[part.number for part in call] for call in journals.calls] == [[1], [1], [1], [2]]
    assert journals.values("w") == ["a", "b"]


async def test_a_stream_that_the_database_refuses_ends_and_the_others_go_on() -> None:
    journals = Journals(refused="bad")
    streams = journals.streams()
    bad, good = streams.open("s", 1, "bad", 1), streams.open("t", 2, "good", 1)
    bad.write("a")
    good.write("a")
    await until(lambda: _true(bad.is_ended))
    good.write("b")
    await until(lambda: _true(len(journals.values("good")) == 2))
    assert journals.values("good") == ["a", "b"]


async def test_a_slow_database_gets_fewer_calls_with_more_tokens() -> None:
    """One that takes 20 ms for each call is not called again for ten times as long."""
    journals = Journals(delay=0.02)
    writer = journals.streams(0.001).open("s", 1, "w", 1)
    with anyio.move_on_after(1.0):
        while True:
            writer.write("x")
            await anyio.sleep(0.001)
    assert 2 <= len(journals.calls) <= 6
    assert len(journals.values("w")) == len(journals.calls)


async def test_what_is_no_json_is_refused_at_the_edge() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)
    for value in (object(), float("nan"), "\ud800", {"a": {1, object()}}):
        with pytest.raises(NotSerializable):
            writer.write(value)
    with pytest.raises(PayloadTooLarge):
        writer.write([1] * 2**21)
    assert not writer.is_used


async def test_large_text_is_split_and_an_attempt_may_stream_so_much() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)
    writer.write("ä" * (MAX_PART + 1))
    await until(lambda: _true(len(journals.values("w")) == 2))
    assert journals.values("w") == ["ä" * MAX_PART, "ä"]
    with pytest.raises(PayloadTooLarge, match="provisional"):
        writer.write("x" * MAX_STREAM_BYTES)


async def test_a_thread_may_write() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)

    def write() -> None:
        for number in range(1000):
            writer.write(f"{number},")

    await anyio.to_thread.run_sync(write)
    expected = "".join(f"{number}," for number in range(1000))
    await until(lambda: _true("".join(journals.values("w")) == expected))


async def _true(value: bool) -> bool:
    return value
