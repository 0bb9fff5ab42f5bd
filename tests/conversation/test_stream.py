"""The worker's side of streams, on journals that a test can hold up and break."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from affinity.conversation.journal import StreamPart
from affinity.conversation.stream import (
    MAX_PART,
    Streamed,
    StreamItem,
    Streams,
    ToolEnded,
    ToolStarted,
    inputs_read,
    read_part,
)
from affinity.errors import ConnectionLost, Contention, DataRefused, NotSerializable, PayloadTooLarge
from affinity.limits import MAX_STREAM_BYTES, MAX_STREAMED_ARGUMENTS, MAX_STREAMED_TOOLS
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

    async def write_stream(self, parts: Sequence[StreamPart]) -> Sequence[int]:
        self.calls.append(list(parts))
        if self.gate is not None:
            await self.gate.wait()
        if self.delay:
            await anyio.sleep(self.delay)
        if any(part.wake_id == self.refused for part in parts):
            raise DataRefused("no")
        if self.failures:
            raise self.failures.pop(0)
        return []

    async def retract_stream(self, session_id: str, journal_id: int, wake_id: str, attempt: int) -> None:
        self.retracted.append((wake_id, attempt))

    def values(self, wake_id: str) -> list[Any]:
        """The parts that one wake has streamed, each once."""
        parts = {part.number: part.payload for call in self.calls for part in call if part.wake_id == wake_id}
        assert list(parts) == list(range(1, len(parts) + 1))
        return [json.loads(payload) for payload in parts.values()]

    def items(self) -> list[StreamItem]:
        """What a reader makes of all parts."""
        return [read_part(part) for call in self.calls for part in call]

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


@pytest.mark.parametrize(
    "value",
    [
        {"$affinity": "tool_ended", "tool_use_id": "1", "is_error": True},
        {"$affinity": "value", "value": 1},
        {"a": {"$affinity": "tool_started"}},
        {"value": 1, "$affinity": None},
        '{"$affinity":"tool_ended","tool_use_id":"1","is_error":true}',
        "$affinity",
    ],
)
@pytest.mark.parametrize("read", [None, 17])
async def test_no_value_of_an_application_passes_for_a_call_of_a_tool(value: Any, read: int | None) -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1, read=read)
    for each in (value, [value], value):
        writer.write(each)
    await until(lambda: _true(len(journals.items()) == 3))
    assert journals.items() == [
        Streamed(wake_id="w", attempt=1, number=n, value=each) for n, each in enumerate((value, [value], value), 1)
    ]


@pytest.mark.parametrize("is_tool", [False, True])
async def test_the_first_part_says_up_to_where_the_inputs_were_read(is_tool: bool) -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1, read=17)
    if is_tool:
        writer.start_tool("look", "1", {})
    writer.write("a")
    writer.write({"read": 3})
    await until(lambda: _true(len(journals.items()) == 2 + is_tool))
    parts = [part for call in journals.calls for part in call]
    assert [inputs_read(part) for part in parts] == [17, *[None] * (len(parts) - 1)]


async def test_calls_of_tools_go_with_the_values_and_are_shown_again_behind_a_part_of_the_wake() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)
    first = writer.start_tool("look", "1", {"at": "x"}, "k")
    writer.write("a")
    second = writer.start_tool("look", "1", {"at": "x"})  # models use an id again
    assert (first, second) == ("k", "w.1.call.2")
    await until(lambda: _true(len(journals.items()) == 3))
    assert len(journals.calls) == 1
    writer.end_tool(first, is_error=False)
    await writer.settle()  # the entries of a part replace what is not written
    writer.write("b")
    writer.show_again()
    await until(lambda: _true(len(journals.items()) == 6))
    at: dict[str, Any] = {"wake_id": "w", "attempt": 1}
    assert journals.items()[3:] == [
        Streamed(number=4, value="b", **at),
        ToolEnded(number=5, tool_use_id="1", call_key=first, is_error=False, **at),
        ToolStarted(number=6, tool="look", tool_use_id="1", call_key=second, arguments={"at": "x"}, **at),
    ]
    writer.end_tool(second, is_error=True)
    writer.show_again()
    writer.show_again()
    await until(lambda: _true(len(journals.items()) == 7))
    assert json.loads(journals.items()[-1].to_json()) == {
        "kind": "stream.tool_ended",
        "wake_id": "w",
        "attempt": 1,
        "number": 7,
        "tool_use_id": "1",
        "call_key": second,
        "is_error": True,
    }


async def test_arguments_are_cut_and_calls_have_a_bound_of_their_own() -> None:
    journals = Journals()
    writer = journals.streams().open("s", 1, "w", 1)
    small = {"path": "/a", "deep": [{"b": 1}]}
    large = {"text": "ä" * 10_000, **small, **{f"n{n}": "x" * 200 for n in range(100)}}
    writer.start_tool("write", "1", small)
    writer.start_tool("write", "2", large)
    await until(lambda: _true(len(journals.items()) == 2))
    first, second = journals.items()
    assert isinstance(first, ToolStarted)
    assert isinstance(second, ToolStarted)
    assert first.arguments == small
    assert len(json.dumps(second.arguments, ensure_ascii=False).encode()) <= MAX_STREAMED_ARGUMENTS + 100
    assert {name: second.arguments[name] for name in small} == small
    assert second.arguments["text"].startswith('"äää')
    with pytest.raises(NotSerializable):
        writer.start_tool("write", "3", {"a": object()})
    for n in range(2 * MAX_STREAMED_TOOLS // 1000):
        writer.end_tool(writer.start_tool("write", f"{n}" * 200, {}), is_error=False)
    writer.write("a")
    await until(
        lambda: _true(journals.items()[-1] == Streamed(wake_id="w", attempt=1, number=_last(journals), value="a"))
    )
    assert sum(len(part.payload) for call in journals.calls for part in call) <= MAX_STREAMED_TOOLS + 100


def _last(journals: Journals) -> int:
    return journals.calls[-1][-1].number
