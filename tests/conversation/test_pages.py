"""Feeds and replies from pages of a journal, without a database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from affinity.conversation import AgentMessage, JournalEntry, Retracted, Streamed, ToolConfirmation
from affinity.conversation.events import EventTypes
from affinity.conversation.follow import FeedItem, FeedPosition, PageReader, read_position
from affinity.conversation.journal import Entry, JournalPage, JournalWake, StreamCursor, StreamPart
from affinity.conversation.reply import Reply, check_awaited
from affinity.errors import ConversationTerminated, EntriesRemoved, InvalidInput, UnknownEntry, WakeFailed

TYPES = EventTypes()
AT = datetime(2026, 11, 23, tzinfo=UTC)


def entry(seq: int, kind: str, wake_id: str | None = None, **fields: Any) -> Entry:
    return Entry(seq, kind, json.dumps({"kind": kind, **fields}), None, wake_id, wake_id is None, AT)


def wake(first: int, wake_id: str, *, processed: int, text: str = "", read: int | None = None) -> list[Entry]:
    """The entries of a wake; without a text it has failed for good."""
    error = {"type": "OSError", "message": "no"}
    said = [entry(first + 1, "agent.message", wake_id, content=text)] if text else []
    result = "ok" if text else "error"
    stop = {"stop_reason": "end_turn"} if text else {"stop_reason": "failed", "error": error}
    last = first + len(said) + 1
    ended = {"span": "wake", "name": "chat.wake", "result": result, "processed": processed, "read": read}
    return [
        entry(first, "span.started", wake_id, span="wake", name="chat.wake"),
        *said,
        entry(last, "span.completed", wake_id, **ended),
        entry(last + 1, "conversation.idle", wake_id, **stop),
    ]


def page(
    entries: Sequence[Entry] = (),
    *,
    parts: Sequence[StreamPart] = (),
    last: StreamPart | None = None,
    more: bool = False,
) -> JournalPage:
    last = parts[-1] if parts else last
    cursor = None if last is None else StreamCursor(wake_id=last.wake_id, attempt=last.attempt, number=last.number)
    return JournalPage(
        journal_id=1,
        kind="chat",
        processed=0,
        first_seq=1,
        last_seq=entries[-1].seq if entries else 0,
        closed=False,
        parent=None,
        instance_status="running",
        entries=entries,
        more=more,
        stream=parts,
        streaming=cursor,
    )


def part(number: int, text: str, *, wake_id: str = "w1", attempt: int = 1) -> StreamPart:
    return StreamPart(
        session_id="s", journal_id=1, wake_id=wake_id, attempt=attempt, number=number, payload=json.dumps(text)
    )


def reader(after: int | str = 0, *kinds: str, stream: bool = True) -> PageReader:
    return PageReader(TYPES, read_position(after), kinds, stream=stream)


def shown(items: Sequence[FeedItem]) -> list[Any]:
    """Numbers of entries, streamed texts, and (attempt, replaced) of retracted parts."""
    forms: list[Any] = []
    for item in items:
        if isinstance(item, JournalEntry):
            forms.append(item.seq)
        elif isinstance(item, Streamed):
            forms.append(item.text)
        else:
            assert isinstance(item, Retracted)
            forms.append((item.attempt, item.replaced))
    return forms


def test_parts_come_once_and_entries_replace_them() -> None:
    feed = reader()
    pages = [
        page([entry(1, "user.message", content="hi")], parts=[part(1, "he")]),
        page(last=part(1, "he")),
        page(parts=[part(2, "llo")]),
        page(wake(2, "w1", processed=1, text="hello")),
    ]
    assert [shown([*feed.read(each)]) for each in pages] == [[1, "he"], [], ["llo"], [(1, True), 2, 3, 4, 5]]


def test_another_attempt_retracts_the_one_before() -> None:
    feed = reader()
    assert shown([*feed.read(page(parts=[part(1, "a"), part(2, "b")]))]) == ["a", "b"]
    assert shown([*feed.read(page(parts=[part(1, "A", attempt=2)]))]) == [(1, False), "A"]
    assert shown([*feed.read(page())]) == [(2, False)]
    assert shown([*feed.read(page())]) == []


def test_an_attempt_that_failed_is_not_replaced_by_its_trace() -> None:
    feed = reader()
    assert shown([*feed.read(page(parts=[part(1, "a")]))]) == ["a"]
    assert shown([*feed.read(page(wake(2, "w1", processed=0)))]) == [(1, False), 2, 3, 4]


def test_an_attempt_that_was_cancelled_is_not_replaced_by_the_note_of_it() -> None:
    feed = reader()
    assert shown([*feed.read(page(parts=[part(1, "a")]))]) == ["a"]
    note = entry(2, "span.completed", "w1", span="wake", name="chat.wake", result="cancelled")
    assert shown([*feed.read(page([note, *wake(3, "w2", processed=1, text="b")]))]) == [(1, False), 2, 3, 4, 5, 6]


def test_parts_wait_until_the_entries_before_them_are_read() -> None:
    feed = reader()
    assert shown([*feed.read(page([entry(1, "user.message", content="a")], parts=[part(1, "x")], more=True))]) == [1]
    assert shown([*feed.read(page([entry(2, "user.message", content="b")], parts=[part(1, "x")]))]) == [2, "x"]


def test_a_feed_goes_on_within_a_stream() -> None:
    """As after a lost connection: the position of each item, as text, gives what comes after it."""
    first = reader()
    parts = [part(n, str(n), wake_id="chat.7:w.1") for n in (1, 2, 3)]
    positions = [str(first.position) for _ in first.read(page([entry(1, "user.message", content="a")], parts=parts))]
    assert positions == ["1", "1.1.1.chat.7:w.1", "1.1.2.chat.7:w.1", "1.1.3.chat.7:w.1"]
    second = reader(positions[2])
    query = second.query("s")
    assert (query.after, query.stream) == (1, StreamCursor(wake_id="chat.7:w.1", attempt=1, number=2))
    assert shown([*second.read(replace(page(parts=parts[2:]), last_seq=1))]) == ["3"]
    assert str(second.position) == positions[3]


def test_without_streams_nothing_provisional_is_read() -> None:
    assert reader(stream=False).query("s").stream is None


def test_the_end_of_a_wake_is_read_although_other_kinds_are_wanted() -> None:
    feed = reader(0, "user.message")
    assert set(feed.query("s").kinds) == {"user.message", "conversation.idle", "conversation.status_changed"}
    assert shown([*feed.read(page([entry(1, "user.message", content="a")], parts=[part(1, "x")]))]) == [1, "x"]
    ended = [each for each in wake(2, "w1", processed=1, text="x") if each.kind == "conversation.idle"]
    assert shown([*feed.read(replace(page(ended), last_seq=5))]) == [(1, True)]
    assert feed.position == FeedPosition(5)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.2", "1.2.3", "1.x.3.w", "1.2.3.", "9" * 30, "²"])
def test_a_position_is_checked(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_position(text)


def reply(entries: Sequence[Entry], reason: str = "end_turn") -> Reply:
    return Reply("s", 1, "w1", 1, reason, entries, TYPES)


def test_a_reply_is_read_from_its_entries() -> None:
    found = reply(wake(2, "w1", processed=1, text="right"))
    assert (found.text, found.stop_reason, found.requires_action) == ("right", "end_turn", False)
    assert [each.seq for each in found.entries] == [2, 3, 4, 5]
    assert found.events == [AgentMessage("right")]
    assert (reply([]).text, reply([]).events) == ("", [])


def test_a_reply_has_the_requests_of_the_wake() -> None:
    first, second, third, _ = wake(2, "w1", processed=1, text="may I?")
    request = entry(4, "agent.tool_confirmation", "w1", tool="refund", request_id="r1")
    idle = entry(6, "conversation.idle", "w1", stop_reason="requires_action", requests=["r1"])
    found = reply([first, second, request, third._replace(seq=5), idle], "requires_action")
    assert found.requires_action
    assert found.requests == [ToolConfirmation("refund", request_id="r1")]


def test_a_wake_that_failed_for_good_is_raised() -> None:
    error = '{"type": "OSError", "message": "no"}'
    failed = JournalWake(5, "w1", 1, 3, 1, "failed", "", 1, error)
    now = replace(page(), wake=failed, processed=1, last_seq=5)
    with pytest.raises(WakeFailed, match="no") as caught:
        check_awaited("s", 2, now, 0)
    assert caught.value.error_type == "OSError"
    check_awaited("s", 2, replace(now, wake=failed._replace(outcome="retried")), 0)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ({"last_seq": 1}, UnknownEntry),
        ({"first_seq": 4}, EntriesRemoved),
        ({"is_input": False}, UnknownEntry),
        ({"processed": 2}, UnknownEntry),
        ({"closed": True}, ConversationTerminated),
        ({"instance_status": None}, ConversationTerminated),
        ({"instance_status": "cancelled"}, ConversationTerminated),
    ],
)
def test_what_no_wake_will_process_is_not_waited_for(where: dict[str, Any], error: type[Exception]) -> None:
    waiting = replace(page(), last_seq=3)
    check_awaited("s", 2, waiting, 0)
    with pytest.raises(error):
        check_awaited("s", 2, replace(waiting, **where), 0)


def test_retracted_and_streamed_have_a_form_for_server_sent_events() -> None:
    streamed = Streamed(wake_id="w", attempt=1, number=2, value={"a": 1})
    retracted = Retracted(wake_id="w", attempt=1, replaced=True)
    assert json.loads(streamed.to_json()) == {
        "kind": "stream.part",
        "wake_id": "w",
        "attempt": 1,
        "number": 2,
        "value": {"a": 1},
    }
    assert json.loads(retracted.to_json())["replaced"] is True
    assert (streamed.text, retracted.kind) == ("", "stream.retracted")
