"""Events as messages of the APIs of models, and back."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from affinity.agent import from_anthropic, from_openai, to_anthropic, to_openai
from affinity.conversation import (
    AgentMessage,
    CallEnded,
    ChildEnded,
    ConfirmationAnswer,
    ConversationIdle,
    CustomToolResult,
    CustomToolUse,
    DefineOutcome,
    JournalEvent,
    RequestExpired,
    RevisitDue,
    RunEnded,
    SpanCompleted,
    SpanError,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserInterrupt,
    UserMessage,
)
from affinity.errors import InvalidInput

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris and Rome?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "call_A1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}},
            {"id": "call_b2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_A1", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_b2", "content": "sun"},
    {"role": "assistant", "content": "Rain in Paris, sun in Rome."},
    {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "Oslo?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "weather", "arguments": '{"city": Oslo'}}],
    },
]

ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Weather in Paris and Rome?"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
            {"type": "text", "text": "Go on."},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Rain in Paris."}]},
]


def test_messages_of_openai_come_back_as_they_were() -> None:
    transcript = from_openai(OPENAI)
    assert to_openai(transcript.events, system=transcript.system) == OPENAI


def test_messages_of_anthropic_come_back_as_they_were() -> None:
    assert to_anthropic(from_anthropic(ANTHROPIC)) == ANTHROPIC


def test_messages_go_from_one_api_to_the_other_with_their_ids() -> None:
    messages = to_openai(from_anthropic(ANTHROPIC))
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ["toolu_1", "toolu_2"]


def test_arguments_that_are_no_object_are_kept_as_the_model_gave_them() -> None:
    last = from_openai(OPENAI).events[-1]
    assert isinstance(last, ToolUse)
    assert (last.arguments, last.raw_arguments) == ({}, '{"city": Oslo')


def test_what_is_no_part_of_the_talk_has_no_message() -> None:
    events = [
        UserMessage("hi"),
        SpanCompleted(span="1", name="wake"),
        ToolConfirmation("refund", {}, "c1", request_id="r1"),
        AgentMessage("hello"),
    ]
    assert [m["role"] for m in to_openai(events)] == ["user", "assistant"]


def test_a_tool_of_the_client_is_a_call_and_its_answer_the_result() -> None:
    events = [
        UserMessage("where am I?"),
        CustomToolUse("position", {}, "c1", request_id="r1"),
        CustomToolResult(request_id="r1", result={"lat": 1.5}),
    ]
    _, call, result = to_openai(events)
    assert call["tool_calls"][0]["id"] == "c1"
    assert result == {"role": "tool", "tool_call_id": "c1", "content": '{"lat":1.5}'}


def test_results_stand_behind_their_calls_whatever_came_between() -> None:
    events = [
        UserMessage("refund me"),
        ToolUse("refund", {}, "c1", message_id="m"),
        ToolUse("look", {}, "c2", message_id="m"),
        ToolResult("c2", "seen"),
        UserMessage("are you there?"),
        AgentMessage("I stop."),
        ToolResult("c1", "refused", is_error=True),
    ]
    shown = [(m["role"], m.get("tool_call_id", m["content"])) for m in to_openai(events)]
    answers = [("tool", "c1"), ("tool", "c2"), ("user", "are you there?"), ("assistant", "I stop.")]
    assert shown == [("user", "refund me"), ("assistant", None), *answers]
    _, _, behind, _ = to_anthropic(events)
    assert [block["type"] for block in behind["content"]] == ["tool_result", "tool_result", "text"]


def test_a_call_has_one_result() -> None:
    late = CustomToolResult(request_id="r1", result="no answer came in time", is_error=True, expired=True)
    events = [CustomToolUse("position", {}, "c1", request_id="r1"), late, ToolResult("c1", "refused", is_error=True)]
    assert [m["role"] for m in to_openai(events)] == ["assistant", "tool"]


def test_an_id_that_is_used_again_is_of_another_call() -> None:
    events = [ToolUse("t", {}, "c", message_id="1"), ToolResult("c", "one")]
    events += [ToolUse("t", {}, "c", message_id="2"), ToolResult("c", "two")]
    assert [m["content"] for m in to_openai(events)] == [None, "one", None, "two"]


def test_results_of_text_blocks_go_from_one_api_to_the_other() -> None:
    blocks = [{"type": "text", "text": "rain"}]
    (result,) = from_anthropic([{"role": "user", "content": [_result("c1", content=blocks)]}])
    assert to_openai([result]) == [{"role": "tool", "tool_call_id": "c1", "content": blocks}]
    assert from_openai(to_openai([result])).events == [result]


def test_a_result_without_content_is_empty() -> None:
    for given in (_result("c1"), _result("c1", content=[])):
        message = {"role": "user", "content": [given]}
        assert to_anthropic(from_anthropic([message])) == [{"role": "user", "content": [_result("c1", content="")]}]


def _result(tool_use_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_use_id, **fields}


def test_two_replies_without_a_user_between_stay_two() -> None:
    events = [AgentMessage("one"), AgentMessage("two"), ToolUse("t", {}, "c1"), ToolResult("c1", "done")]
    messages = to_openai(events)
    assert [m["content"] for m in messages] == ["one", "two", "done"]
    assert [len(m.get("tool_calls", ())) for m in messages] == [0, 1, 0]


def test_an_error_is_marked_for_anthropic() -> None:
    (message,) = to_anthropic([ToolResult("c1", {"error": "no"}, is_error=True)])
    assert message["content"] == [
        {"type": "tool_result", "tool_use_id": "c1", "content": '{"error":"no"}', "is_error": True}
    ]


@pytest.mark.parametrize("read", [from_openai, from_anthropic])
def test_an_unknown_role_is_refused(read: Any) -> None:
    with pytest.raises(InvalidInput, match="message 0 has the role 'robot'"):
        read([{"role": "robot", "content": "x"}])


@pytest.mark.parametrize("read", [from_openai, from_anthropic])
@pytest.mark.parametrize("message", ["x", {"role": "user", "content": 5}, {"role": "assistant", "content": [5]}])
def test_what_is_no_message_is_refused(read: Any, message: Any) -> None:
    with pytest.raises(InvalidInput, match="message 1 is none of the API's"):
        read([{"role": "user", "content": "x"}, message])


def test_a_call_without_a_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="message 0 is none of the API's"):
        from_openai([{"role": "assistant", "tool_calls": [{"id": "c1", "function": None}]}])


DATA = "iVBORw0KGgo="
IMAGES = [
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
    ),
    (
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ),
    (
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
            "title": "a.pdf",
        },
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{DATA}", "filename": "a.pdf"}},
    ),
]
TEXT = {"type": "text", "text": "What is it?"}


@pytest.mark.parametrize(("anthropic", "openai"), IMAGES, ids=["base64", "url", "document"])
def test_images_go_from_one_api_to_the_other_and_back(anthropic: dict[str, Any], openai: dict[str, Any]) -> None:
    of_anthropic = [{"role": "user", "content": [TEXT, anthropic]}]
    of_openai = [{"role": "user", "content": [TEXT, openai]}]
    assert to_openai(from_anthropic(of_anthropic)) == of_openai
    assert to_anthropic(from_openai(of_openai).events) == of_anthropic
    assert to_openai(from_openai(of_openai).events) == of_openai
    assert to_anthropic(from_anthropic(of_anthropic)) == of_anthropic


def test_what_only_one_api_has_stays_there() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    call = {"type": "tool_use", "id": "c1", "name": "t", "input": {}}
    cached = {**TEXT, "cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [cached]},
        {"role": "assistant", "content": [thinking, TEXT, call]},
        {"role": "user", "content": [_result("c1", content="done")]},
        {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
    ]
    events = from_anthropic(messages)
    assert to_anthropic(events) == messages
    assert [each["content"] for each in to_openai(events)] == [[TEXT], [TEXT], "done", ""]
    refusal = {"type": "refusal", "refusal": "I do not"}
    refused = from_openai([{"role": "assistant", "content": [refusal]}]).events
    assert to_openai(refused) == [{"role": "assistant", "content": [refusal]}]
    assert to_anthropic(refused) == [{"role": "assistant", "content": [{"type": "text", "text": "I do not"}]}]


@pytest.mark.parametrize(
    ("write", "block"),
    [
        (to_anthropic, {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}),
        (to_anthropic, {"type": "image_url", "image_url": {"url": "data:image/png,plain"}}),
        (to_anthropic, {"type": "image_url", "image_url": DATA}),
        (to_anthropic, {"type": "file", "file": {"file_id": "f1"}}),
        (to_openai, {"type": "image", "source": {"type": "file", "file_id": "f1"}}),
        (to_openai, {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}),
        (to_openai, {"type": "image"}),
        (to_openai, {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}),
        (to_openai, {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}),
    ],
)
def test_a_block_without_a_counterpart_is_refused(write: Any, block: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{block['type']!r} has no counterpart"):
        write([UserMessage([block])])
    other = to_openai if write is to_anthropic else to_anthropic
    assert other([UserMessage([block])]) == [{"role": "user", "content": [block]}]


def test_a_result_is_blocks_only_where_the_api_has_them() -> None:
    image, url = IMAGES[0]
    shown: list[tuple[Any, Any]] = [
        ([image], [image]),
        ([url], [image]),
        ([{"type": "invoice"}], '[{"type":"invoice"}]'),
    ]
    shown += [([{"type": "text"}], '[{"type":"text"}]'), ([{"type": "image", "id": 5}], '[{"type":"image","id":5}]')]
    for result, content in shown:
        (message,) = to_anthropic([ToolResult("c1", result)])
        assert message["content"] == [_result("c1", content=content)]
    (message,) = to_openai([ToolResult("c1", [{**TEXT, "citations": None}])])
    assert message["content"] == [TEXT]


class Rated(JournalEvent):
    """An input of an application."""

    stars: int
    kind: Literal["user.rated"] = "user.rated"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ChildEnded("c/a", "d", "completed", "42 cm"), "[the work of 'c/a' has ended: completed] 42 cm"),
        (ChildEnded("c/a", "d", "completed", {"cm": 42}), """[the work of 'c/a' has ended: completed] {"cm":42}"""),
        (ChildEnded("c/a", "d", "terminated"), "[the work of 'c/a' has ended: terminated]"),
        (RunEnded("r", "order", {"id": 7}), """['order' has ended: completed] {"id":7}"""),
        (
            CallEnded("r", "charge", error=SpanError(type="ValueError", message="no money")),
            "['charge' has ended: failed] no money",
        ),
        (
            ChildEnded("c/a", "d", "failed", error=SpanError(type="OSError", message="no disk")),
            "[the work of 'c/a' has ended: failed] no disk",
        ),
        (UserInterrupt("take another way"), "[the user interrupts you] take another way"),
        (DefineOutcome("ship it", ["tests pass"]), "[the outcome that is wanted] ship it\n- tests pass"),
        (RevisitDue("check the oven", [1]), "[you asked to come back now] check the oven [1]"),
        (RequestExpired("r"), "[no answer came in time to the request 'r']"),
        (Rated(stars=5), """[user.rated] {"stars":5}"""),
    ],
)
def test_an_input_that_is_no_message_is_one_of_the_user(event: JournalEvent, text: str) -> None:
    """It comes where it was read; ``render`` says it otherwise, or not at all."""
    events = [UserMessage("go"), AgentMessage("gone"), event]
    assert to_openai(events)[-1] == {"role": "user", "content": text}
    assert to_anthropic(events)[-1] == {"role": "user", "content": [{"type": "text", "text": text}]}
    assert to_openai(events, render=lambda event: event.kind)[-1]["content"] == event.kind
    assert [m["role"] for m in to_openai(events, render=lambda event: None)] == ["user", "assistant"]


def test_what_is_no_input_has_no_message() -> None:
    assert to_openai([ConversationIdle("end_turn"), ToolConfirmation("t"), ConfirmationAnswer("r", allowed=True)]) == []
