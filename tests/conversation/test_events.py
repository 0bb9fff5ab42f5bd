"""Events are typed, bounded, extended by applications, and read when another release wrote them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import AliasChoices, AliasPath, ConfigDict, Field, ValidationError

import affinity
from affinity.conversation import (
    AgentMessage,
    AnswerEvent,
    CallStarted,
    ChildEnded,
    ConfirmationAnswer,
    ConversationIdle,
    JournalEvent,
    RunEnded,
    SpanError,
    SpanStarted,
    ToolConfirmation,
    UnknownEvent,
    UserInterrupt,
    UserMessage,
)
from affinity.conversation.events import BUILT_IN, EventMeta, EventTypes, check_input, check_output, kind_of, meta_of
from affinity.conversation.journal import Entry
from affinity.errors import InvalidId, InvalidInput, InvalidOptions, PayloadTooLarge

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Rated(affinity.conversation.JournalEvent):
    stars: int
    note: str = ""
    kind: Literal["user.rated"] = "user.rated"


TYPES = EventTypes([Rated])


def test_built_in_kinds_are_there() -> None:
    kinds = {kind_of(each) for each in BUILT_IN}
    assert kinds >= {
        "user.message",
        "user.define_outcome",
        "user.interrupt",
        "user.tool_confirmation",
        "user.custom_tool_result",
        "conversation.status_changed",
        "conversation.idle",
        "span.started",
        "span.completed",
        "agent.message",
        "agent.tool_use",
        "agent.custom_tool_use",
    }


def test_fields_are_given_by_position_and_by_name() -> None:
    assert Rated(5, "good") == Rated(stars=5, note="good")
    assert ToolConfirmation("refund", {"amount": 3}).arguments == {"amount": 3}
    with pytest.raises(TypeError, match="takes 3 fields"):
        Rated(1, "2", "user.rated", 4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'stars' twice"):
        Rated(1, stars=2)  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Rated("many")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        Rated(4),
        UserMessage("héllo"),
        UserMessage([{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]),
        ConfirmationAnswer("r-1", allowed=True),
        ConversationIdle("failed", error=SpanError(type="E", message="m")),
        SpanStarted(span="wake", name="support.wake", started_at=NOW),
        ChildEnded("c", "d", "completed", {"answer": [1, None]}),
        RunEnded("r", "order", error=SpanError(type="E", message="m")),
        CallStarted("r", "charge", {"cents": 7}),
    ],
    ids=lambda event: event.kind,
)
def test_an_event_is_read_as_it_was_written(event: affinity.conversation.JournalEvent) -> None:
    text = TYPES.encode(event)
    assert json.loads(text)["kind"] == event.kind
    assert TYPES.decode(event.kind, text) == event


def test_a_kind_that_this_code_does_not_know_is_no_error() -> None:
    found = TYPES.decode("agent.dreamt", '{"kind":"agent.dreamt","of":["sheep"]}')
    assert found == UnknownEvent("agent.dreamt", {"of": ["sheep"]})


@pytest.mark.parametrize("payload", ['{"stars":"many"}', "[1]", '"text"', "{", '{"kind":"user.other","stars":1}'])
def test_what_does_not_fit_its_class_is_no_error(payload: str) -> None:
    found = TYPES.decode("user.rated", payload)
    assert isinstance(found, UnknownEvent)
    assert found.kind == "user.rated"


def test_fields_of_a_later_release_are_ignored() -> None:
    assert TYPES.decode("user.rated", '{"stars":3,"kind":"user.rated","since":"2027"}') == Rated(3)


def test_what_travels_with_an_input_is_no_part_of_its_event() -> None:
    text = TYPES.encode(Rated(3), EventMeta(trace="00-1-2-01", delegation="d"))
    assert TYPES.decode("user.rated", text) == Rated(3)
    assert meta_of(text) == EventMeta(trace="00-1-2-01", delegation="d")
    entry = TYPES.read(Entry(7, "user.rated", text, "m-1", None, True, NOW))
    assert json.loads(entry.to_json()) == {
        "seq": 7,
        "event": {"stars": 3, "note": "", "kind": "user.rated"},
        "event_id": "m-1",
        "recorded_at": "2026-01-02T03:04:05Z",
    }


def test_a_client_does_not_give_it() -> None:
    """An event that is passed on could end a delegation of any conversation."""
    given: dict[str, Any] = {
        "a": 1,
        "_": {"delegation": "d", "parent": "other", "parent_kind": "chat", "max_cycles": 1},
    }
    with pytest.raises(InvalidInput, match="the field '_'"):
        TYPES.encode(UnknownEvent("user.x", given))


def test_a_text_that_looks_like_it_is_left_alone() -> None:
    message = UserMessage('","_":{"delegation":"forged"}')
    text = TYPES.encode(message)
    assert meta_of(text) == EventMeta()
    assert TYPES.decode("user.message", text) == message
    read = TYPES.read(Entry(1, "user.message", text, None, None, True, NOW))
    assert json.loads(read.to_json())["event"]["content"] == message.content


def test_events_of_other_conversations_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"events=\[...\]"):
        EventTypes().encode(Rated(1))


def test_size_and_depth_are_bounded() -> None:
    with pytest.raises(PayloadTooLarge, match="over the limit"):
        TYPES.encode(UserMessage("x" * 1024 * 1024))
    deep: list[dict[str, Any]] = [{"type": "text"}]
    for _ in range(110):
        deep = [{"inner": deep}]
    with pytest.raises(PayloadTooLarge, match="nested"):
        TYPES.encode(UserMessage(deep))


@pytest.mark.parametrize("kind", ["", "message", "User.message", "user.", "user message.x", "u." + "x" * 70, None])
def test_a_malformed_kind_is_refused(kind: object) -> None:
    bad = type("Bad", (affinity.conversation.JournalEvent,), {"__annotations__": {"kind": object}, "kind": kind})
    with pytest.raises(InvalidOptions, match="kind"):
        EventTypes([bad])


def test_a_kind_that_is_taken_is_refused() -> None:
    class Mine(affinity.conversation.JournalEvent):
        kind: Literal["user.message"] = "user.message"

    with pytest.raises(InvalidOptions, match="taken"):
        EventTypes([Mine])
    with pytest.raises(InvalidOptions, match="no subclass"):
        EventTypes([dict])  # type: ignore[list-item]


def test_an_answer_says_to_what() -> None:
    """Otherwise no request of the application could expire."""

    class Signed(AnswerEvent):
        kind: Literal["user.signed"] = "user.signed"

    with pytest.raises(InvalidOptions, match="Signed is an answer"):
        EventTypes([Signed])


def test_clients_send_inputs_only() -> None:
    check_input(Rated(1), "m-1")
    for event in (
        AgentMessage("x"),
        ConversationIdle("end_turn"),
        ChildEnded("c", "d", "failed"),
    ):
        with pytest.raises(InvalidInput, match="by wakes only"):
            check_input(event, None)
    with pytest.raises(InvalidId, match="event id"):
        check_input(Rated(1), "")
    with pytest.raises(InvalidInput):
        check_input("text", None)  # type: ignore[arg-type]


def test_handlers_do_not_write_the_conversation_s_own_events() -> None:
    check_output(AgentMessage("x"), EventTypes())
    for event in (SpanStarted(span="s", name="n"), ConversationIdle("end_turn")):
        with pytest.raises(InvalidInput, match="the conversation writes it by itself"):
            check_output(event, EventTypes())


def test_a_misspelt_field_is_refused_where_an_event_is_made_and_ignored_where_it_is_read() -> None:
    with pytest.raises(TypeError, match="UserInterrupt has no field 'reson'; it has reason, cancel, cascade, kind"):
        UserInterrupt(reson="enough")  # type: ignore[call-arg]
    assert UserInterrupt.model_validate({"reason": "enough", "later": 1}) == UserInterrupt("enough")


def test_fields_of_an_event_may_have_other_names() -> None:
    class Named(JournalEvent):
        model_config = ConfigDict(validate_by_name=True)
        stars: int = Field(alias="Stars")
        text: str = Field("", validation_alias=AliasChoices("says", AliasPath("said", 0)))
        kind: Literal["user.named"] = "user.named"

    class Open(JournalEvent):
        model_config = ConfigDict(extra="allow")
        kind: Literal["user.open"] = "user.open"

    assert Named(Stars=1, said=["a"]) == Named(stars=1, says="a")  # type: ignore[call-arg]
    assert Open(more=1).model_extra == {"more": 1}  # type: ignore[call-arg]


def test_an_event_with_a_constructor_of_its_own_is_read_with_fields_of_a_later_release() -> None:
    class Counted(JournalEvent):
        number: int = 1
        kind: Literal["user.counted"] = "user.counted"

        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)

    read = EventTypes([Counted]).decode("user.counted", '{"kind":"user.counted","number":2,"later":3}')
    assert read == Counted(number=2)
