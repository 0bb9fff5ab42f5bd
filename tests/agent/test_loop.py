"""`run_loop`: rounds of a model and its tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Annotated, Any, cast

import anyio
import pytest
from pydantic import BaseModel, PlainValidator, WithJsonSchema

from affinity import Wake
from affinity.agent import ContextWindow, LoopResult, ModelReply, ModelRequest, Tool, ToolCall, run_loop, tool
from affinity.agent.transcript import HISTORY, in_order
from affinity.conversation import (
    AgentMessage,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    EndedWake,
    JournalEntry,
    JournalEvent,
    ToolConfirmation,
    ToolResult,
    ToolUse,
    UserInterrupt,
    UserMessage,
)
from affinity.conversation.endings import Endings, RunningCode
from affinity.conversation.events import EventTypes
from affinity.errors import InvalidInput, InvalidOptions
from affinity.limits import MAX_EVENT_BYTES


class FakeWake:
    """The parts of a wake that a loop needs, in memory: this object has the pending requests."""

    attempt = 1
    conversation_id = "c"

    def __init__(self, *events: JournalEvent, pending_requests: Sequence[str] = ()) -> None:
        self.before = list(events)
        self.id = "w1"
        self.of_w0 = len(events)
        """Entries up to this number are of the wake before."""
        self.appended: list[JournalEvent] = []
        self.spans: list[tuple[str, bool]] = []
        self.streamed: list[Any] = []
        self.shown: list[tuple[str, str, dict[str, Any]]] = []
        self.requests: list[Any] = [SimpleNamespace(request_id=each) for each in pending_requests]
        self.pending: list[Any] = []
        self.committed: list[Any] = []
        self.due: list[Any] = []
        self.commits: list[int] = []
        """How many events were appended at each commit."""
        self.begun: set[str] = set()
        self.logger = logging.LoggerAdapter(logging.getLogger("test"), {"wake_id": "w1"})
        self.read_up_to = 1_000_000

    def section(self, name: str) -> FakeWake:
        return self

    @contextmanager
    def running_code(self) -> Iterator[RunningCode]:
        yield Endings().begin()

    async def commit(self) -> None:
        self.commits.append(len(self.appended))

    def _with_middleware(self, kind: str, name: str, input: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    async def begin_once(self, key: str) -> bool:
        is_new = key not in self.begun
        self.begun.add(key)
        return is_new

    def note_truncated(self) -> None:
        self.is_truncated = True

    def has_begun(self, key: str) -> bool:
        return key in self.begun

    async def resource(self, resource: Any) -> Any:
        return resource

    def append(self, event: JournalEvent) -> None:
        EventTypes().encode(event)
        self.appended.append(event)

    def require(self, event: Any, *, expires_in: float | None = None) -> Any:
        asked = event.model_copy(update={"request_id": f"r{len(self.requests)}"})
        EventTypes().encode(asked)
        self.requests.append(SimpleNamespace(request_id=asked.request_id, expires_in=expires_in))
        self.appended.append(asked)
        return asked

    def stream(self, value: Any) -> None:
        self.streamed.append(value)

    @contextmanager
    def stream_tool(
        self, tool: str, tool_use_id: str, arguments: Mapping[str, Any], *, call_key: str
    ) -> Iterator[None]:
        self.shown.append((tool, tool_use_id, dict(arguments)))
        yield

    @contextmanager
    def span(self, name: str, *, calls: bool = False) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.spans.append((name, False))
            raise
        self.spans.append((name, True))

    async def history(self, *, last: int, kinds: Collection[str] = (), wake: str | None = None) -> list[Any]:
        outside = (UserMessage, ConfirmationAnswer, CustomToolResult, UserInterrupt)
        entries = [
            SimpleNamespace(
                seq=n, event=event, wake_id=None if isinstance(event, outside) else "w0" if n <= self.of_w0 else "w1"
            )
            for n, event in enumerate(self.before, 1)
        ]
        of_kind = [each for each in entries if not kinds or each.event.kind in kinds]
        return [each for each in of_kind if wake is None or each.wake_id == wake][-last:]

    async def wakes(self, *, after: int, limit: int) -> list[Any]:
        """An attempt of a wake has written each entry, and has read all inputs before but the pending ones."""
        new = min([each.seq for each in self.pending], default=limit)
        written = [each for each in await self.history(last=limit) if each.wake_id is not None]
        return [SimpleNamespace(wake_id=each.wake_id, seq=each.seq, read=min(each.seq, new) - 1) for each in written]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.appended]

    @property
    def results(self) -> list[ToolResult]:
        """In the order of the calls, which they are not appended in; without their keys."""
        calls = [event.call_key or event.tool_use_id for event in self.appended if isinstance(event, ToolUse)]
        places = {name: place for place, name in reversed(list(enumerate(calls)))}
        found = [event for event in self.appended if isinstance(event, ToolResult)]
        found.sort(key=lambda result: places.get(result.call_key or result.tool_use_id, -1))
        return [each.model_copy(update={"call_key": ""}) for each in found]


class Script:
    """A model that answers what it was given, in order, and keeps the requests."""

    def __init__(self, *replies: ModelReply) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest) -> ModelReply:
        self.requests.append(request)
        return self.replies.pop(0)


def says(text: str, **fields: Any) -> ModelReply:
    return ModelReply(content=text, finish_reason="stop", **fields)


def calls(*made: ToolCall, text: str | None = None, **fields: Any) -> ModelReply:
    return ModelReply(content=text, calls=made, finish_reason="tool_calls", **fields)


def run(wake: FakeWake, model: Callable[..., Any], *tools: Any, **options: Any) -> LoopResult:
    async def main() -> LoopResult:
        return await run_loop(cast(Wake, wake), model=model, tools=tools, **options)

    return anyio.run(main)


@tool
def double(n: int) -> int:
    return 2 * n


def test_the_request_is_the_system_entries_and_then_the_transcript() -> None:
    wake, model = FakeWake(UserMessage("one"), AgentMessage("1"), UserMessage("two")), Script(says("2"))
    result = run(wake, model, system=["Count.", "Briefly."])
    assert [m["content"] for m in model.requests[0].openai_messages()] == ["Count.", "Briefly.", "one", "1", "two"]
    assert wake.kinds == ["agent.message"]  # the system prompts are not copied into the journal
    assert (result.stop, result.text, result.rounds) == ("answer", "2", 1)


def test_rounds_go_on_until_the_answer_and_usage_is_summed() -> None:
    wake = FakeWake(UserMessage("4 twice"))
    first = calls(ToolCall("c1", "double", '{"n":4}'), text="I compute.", usage={"input": 10, "output": 3})
    model = Script(first, says("8", usage={"input": 14, "output": 1}))
    result = run(wake, model, double)
    assert wake.kinds == ["agent.message", "agent.tool_use", "agent.tool_result", "agent.message"]
    assert wake.results == [ToolResult("c1", 8)]
    assert result.usage == {"input": 24, "output": 4}
    assert sum(getattr(event, "usage", {}).get("input", 0) for event in wake.appended) == 24
    roles = [m["role"] for m in model.requests[1].openai_messages()]
    assert roles == ["user", "assistant", "tool"]
    assert wake.spans == [("model", True), ("double", True), ("model", True)]


def test_bad_calls_are_results_of_three_kinds_and_siblings_are_unaffected() -> None:
    @tool
    def broken() -> None:
        raise ValueError("no")

    wake = FakeWake(UserMessage("go"))
    made = [ToolCall("1", "double", "{n:"), ToolCall("2", "gone", "{}"), ToolCall("3", "broken", "{}")]
    run(wake, Script(calls(*made, ToolCall("4", "double", {"n": 1})), says("done")), double, broken)
    kinds = [r.result["error"]["kind"] if r.is_error else None for r in wake.results]  # type: ignore[index,call-overload]
    assert [r.tool_use_id for r in wake.results] == ["1", "2", "3", "4"]
    assert kinds == ["invalid_tool_arguments", "unknown_tool", "tool_execution_exception", None]
    assert wake.results[3].result == 2
    assert ("broken", False) in wake.spans


def test_a_result_that_is_too_large_is_an_error_that_the_model_reads() -> None:
    @tool
    def huge() -> str:
        return "x" * MAX_EVENT_BYTES

    wake = FakeWake(UserMessage("go"))
    assert run(wake, Script(calls(ToolCall("1", "huge", {})), says("sorry")), huge).stop == "answer"
    (result,) = wake.results
    assert result.result["error"]["type"] == "PayloadTooLarge"  # type: ignore[index,call-overload]


def test_what_an_option_raises_is_a_result_and_it_reads_what_the_tool_runs_with() -> None:
    asked: list[Any] = []

    def is_forced(arguments: Any) -> bool:
        asked.append(arguments)
        return bool(arguments["force"] is True)

    @tool(confirm=is_forced)
    def push(force: bool = False) -> str:
        return "pushed"

    @tool(resource=lambda arguments: arguments["missing"])
    def lock() -> str:
        return "locked"

    made = [ToolCall("0", "push", {}), ToolCall("1", "lock", {})]
    wake = FakeWake(UserMessage("go"))
    result = run(wake, Script(calls(*made, ToolCall("2", "push", {"force": "yes"}))), push, lock)
    assert asked == [{"force": False}, {"force": True}]
    assert result.stop == "requires_action"  # "yes" is what a bool may be given as
    assert {each.tool_use_id: each.is_error for each in wake.results} == {"0": False, "1": True}
    assert "KeyError" in str(next(each.result for each in wake.results if each.is_error))


def test_arguments_need_a_json_form_only_for_options_that_read_them() -> None:
    @tool
    def look(at: Annotated[set[object], PlainValidator(lambda text: {object}), WithJsonSchema({})]) -> int:
        return len(at)

    wake = FakeWake(UserMessage("go"))
    run(wake, Script(calls(ToolCall("1", "look", {"at": "x"})), says("found")), look)
    assert wake.results == [ToolResult("1", 1)]


def test_a_tool_that_ends_the_process_is_an_exception() -> None:
    @tool
    def leave() -> None:
        raise SystemExit(2)

    wake = FakeWake(UserMessage("go"))
    made = [ToolCall("1", "leave", {}), ToolCall("2", "double", {"n": 2})]
    assert run(wake, Script(calls(*made), says("sorry")), leave, double).stop == "answer"
    assert [each.is_error for each in wake.results] == [True, False]


@pytest.mark.parametrize(
    "arguments", ['{"n": NaN}', '{"n": 1e999}', {"n": float("nan")}, '{"n": "\ud800"}', {"n": "\ud800"}, [1]]
)
def test_arguments_without_a_json_form_are_bad_arguments(arguments: Any) -> None:
    wake = FakeWake(UserMessage("go"))
    assert run(wake, Script(calls(ToolCall("1", "double", arguments)), says("sorry")), double).stop == "answer"
    assert "invalid_tool_arguments" in str(wake.results[0].result)


def test_an_input_that_came_during_the_wake_before_is_behind_its_answer() -> None:
    wake, model = FakeWake(UserMessage("one"), UserMessage("two"), AgentMessage("1")), Script(says("2"))
    wake.pending = [SimpleNamespace(seq=2, event=UserMessage("two"), wake_id=None)]
    run(wake, model)
    assert [m["content"] for m in model.requests[0].openai_messages()] == ["one", "1", "two"]


def test_a_wake_without_an_end_has_read_what_stands_before_its_first_entry() -> None:
    """It was cancelled, when it had committed a call; the end of the call does not leave it."""

    def entry(seq: int, event: JournalEvent, wake_id: str | None = None) -> JournalEntry:
        return JournalEntry(seq, event, None, wake_id, datetime(2026, 11, 26, tzinfo=UTC), "")

    one, call = entry(1, UserMessage("one")), entry(2, ToolUse("double", {"n": 1}, "c1"), "w0")
    two, result = entry(3, UserMessage("two")), entry(4, ToolResult("c1", 2), "w0")
    stop, said = entry(5, UserInterrupt()), entry(6, AgentMessage("stopped"), "w1")
    end = EndedWake(
        wake_id="w1", attempt=1, seq=6, base=0, read=5, processed=5, outcome="done", reason="end_turn", error=None
    )
    assert in_order([one, call, two, result, stop, said], [end]) == [one, call, result, two, stop, said]


def test_a_transcript_that_is_cut_off_begins_with_a_message_of_the_user() -> None:
    calls_before = [ToolUse("double", {"n": 1}, "old"), ToolResult("old", 2)]
    rest = [AgentMessage("2")] * (HISTORY - 3)
    wake, model = FakeWake(*calls_before, UserMessage("one"), *rest, UserMessage("two")), Script(says("3"))
    run(wake, model)
    messages = model.requests[0].openai_messages()
    assert (messages[0], len(messages)) == ({"role": "user", "content": "one"}, HISTORY - 1)


def test_calls_run_at_the_same_time_unless_they_share_a_resource() -> None:
    running: set[str] = set()
    overlaps: set[frozenset[str]] = set()

    async def busy(name: str, key: str | None) -> str:
        overlaps.update(frozenset({name, other}) for other in running)
        running.add(name)
        while name == "a" and not any(isinstance(event, ToolResult) for event in wake.appended):
            await anyio.sleep(0)  # until the other one's result is there
        running.discard(name)
        return name

    each = Tool(name="busy", function=busy, resource=lambda arguments: arguments["key"])
    made = [ToolCall(n, "busy", {"name": n, "key": key}) for n, key in (("a", "k"), ("b", "k"), ("c", None))]
    wake = FakeWake(UserMessage("go"))
    model = Script(calls(*made), says("done"))
    run(wake, model, each)
    assert frozenset({"a", "c"}) in overlaps
    assert frozenset({"a", "b"}) not in overlaps
    appended = [event.result for event in wake.appended if isinstance(event, ToolResult)]
    assert appended == ["c", "a", "b"]  # each is committed when it is there
    messages = [m["content"] for m in model.requests[1].openai_messages() if m["role"] == "tool"]
    assert messages == ["a", "b", "c"]  # the model reads them in the order of the calls


@pytest.mark.parametrize("reason", ["length", "content_filter", "pause_turn"])
def test_an_unknown_finish_reason_ends_the_loop_and_runs_no_call(reason: str) -> None:
    wake = FakeWake(UserMessage("go"))
    reply = ModelReply(content="I beg", calls=[ToolCall("1", "double", '{"n":')], finish_reason=reason)
    result = run(wake, Script(reply), double)
    assert (result.stop, result.finish_reason, result.text) == ("unknown_finish_reason", reason, "I beg")
    assert wake.kinds == ["agent.message"]


def test_past_the_bound_it_is_truncated() -> None:
    wake = FakeWake(UserMessage("go"))
    model = Script(*(calls(ToolCall(str(n), "double", {"n": n})) for n in range(9)))
    assert run(wake, model, double, max_rounds=3).stop == "truncated"
    assert (len(model.requests), len(wake.results)) == (3, 3)
    with pytest.raises(InvalidOptions, match="max_rounds"):
        run(wake, model, max_rounds=0)


def test_what_the_model_raises_leaves_the_loop() -> None:
    async def fails(request: ModelRequest) -> ModelReply:
        raise ConnectionError("429")

    with pytest.raises(ConnectionError):
        run(FakeWake(UserMessage("go")), fails)


def test_a_model_streams_through_the_request() -> None:
    async def streams(request: ModelRequest) -> ModelReply:
        request.stream("hel")
        request.stream("lo")
        return says("hello")

    wake = FakeWake(UserMessage("go"))
    run(wake, streams)
    assert wake.streamed == ["hel", "lo"]


# -- requests


@tool(confirm=True, confirm_within=60.0)
def refund(cents: int) -> str:
    return f"refunded {cents}"


def test_a_call_that_needs_confirmation_waits_and_the_others_run() -> None:
    wake = FakeWake(UserMessage("refund me"))
    made = [ToolCall("1", "refund", {"cents": 5}), ToolCall("2", "double", {"n": 2})]
    result = run(wake, Script(calls(*made)), refund, double)
    assert result.stop == "requires_action"
    assert wake.kinds == ["agent.tool_use", "agent.tool_use", "agent.tool_confirmation", "agent.tool_result"]
    assert wake.requests[0].expires_in == 60.0


@tool(
    confirm=True, title="Pay back", describe=lambda call: f"Pay {call.cents / 100:.2f} € to {call.to}", dangerous=True
)
def pay_back(cents: int, to: str = "the customer") -> str:
    return f"paid {cents}"


def test_a_person_reads_the_words_of_the_application() -> None:
    """A sentence from the arguments, with their defaults; of a tool that says nothing there is none."""
    wake = FakeWake(UserMessage("pay me"))
    made = [ToolCall("1", "pay_back", {"cents": 4990}), ToolCall("2", "refund", {"cents": 5})]
    assert run(wake, Script(calls(*made)), pay_back, refund).stop == "requires_action"
    asked = [event for event in wake.appended if isinstance(event, ToolConfirmation)]
    assert [(each.title, each.summary, each.dangerous) for each in asked] == [
        ("Pay back", "Pay 49.90 € to the customer", True),
        ("", "", False),
    ]


@pytest.mark.parametrize(
    ("describe", "problem"), [(lambda call: call.absent, "absent"), (lambda call: 5, "not a text")]
)
def test_a_call_that_cannot_be_described_is_not_run(describe: Callable[[Any], str], problem: str) -> None:
    wake = FakeWake(UserMessage("pay me"))

    @tool(confirm=True, describe=describe)
    def pay(cents: int) -> str:
        raise AssertionError

    run(wake, Script(calls(ToolCall("1", "pay", {"cents": 5})), says("sorry")), pay)
    (result,) = wake.results
    assert result.is_error
    assert problem in str(result.result)


OPEN = (
    UserMessage("refund me"),
    ToolUse("refund", {"cents": 5}, "1"),
    ToolConfirmation("refund", {"cents": 5}, "1", "r0"),
)


def test_an_allowed_call_runs_before_the_model_is_called_again() -> None:
    wake = FakeWake(*OPEN, ConfirmationAnswer(request_id="r0", allowed=True))
    model = Script(says("done"))
    assert run(wake, model, refund).stop == "answer"
    assert wake.results == [ToolResult("1", "refunded 5")]
    assert model.requests[0].openai_messages()[-1]["content"] == "refunded 5"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (ConfirmationAnswer(request_id="r0", allowed=False, reason="too much"), "too much"),
        (ConfirmationAnswer(request_id="r0", allowed=False, expired=True), "not answered in time"),
        (None, "dropped by an interrupt"),
    ],
)
def test_a_call_that_is_not_allowed_is_refused(answer: ConfirmationAnswer | None, text: str) -> None:
    wake = FakeWake(*OPEN, *([] if answer is None else [answer]))
    run(wake, Script(says("done")), refund)
    (result,) = wake.results
    assert result.is_error
    assert result.result["error"]["kind"] == "refused"  # type: ignore[index,call-overload]
    assert text in result.result["error"]["message"]  # type: ignore[index,call-overload,operator]


@pytest.mark.parametrize("answers", [[], [ConfirmationAnswer("r0", allowed=True)]])
def test_a_call_before_an_interrupt_does_not_run(answers: list[ConfirmationAnswer]) -> None:
    """Whatever was answered before it, and wherever a transcript of the application has the answer."""
    for events in ([*answers, UserInterrupt("stop")], [UserInterrupt("stop"), *answers]):
        wake, model = FakeWake(*OPEN, *events), Script(says("I stop"))
        assert run(wake, model, refund).stop == "answer"
        (result,) = wake.results
        assert "the call was interrupted and has not run" in str(result.result)
        assert result.is_error
        *_, told, interrupt = model.requests[0].openai_messages()
        assert "interrupted" in told["content"]
        assert interrupt == {"role": "user", "content": "[the user interrupts you] stop"}


def test_a_call_behind_an_interrupt_waits_and_runs() -> None:
    """Also one of the same id."""
    before = (*OPEN, UserInterrupt("stop"), ToolResult("1", "interrupted", is_error=True), *OPEN[1:2])
    asked = OPEN[2].model_copy(update={"request_id": "r1"})
    assert run(FakeWake(*before, asked, pending_requests=["r1"]), Script(), refund).stop == "requires_action"
    wake = FakeWake(*before, asked, ConfirmationAnswer("r1", allowed=True))
    run(wake, Script(says("done")), refund)
    assert [each.result for each in wake.results] == ["refunded 5"]


@pytest.mark.parametrize("first", ["refund", "double"])
def test_an_answer_is_for_one_of_two_calls_with_one_id_in_a_reply(first: str) -> None:
    """Some models give all their calls an empty one."""
    made = [ToolCall("", "refund", {"cents": 5}), ToolCall("", "double", {"n": 1})]
    wake = FakeWake(UserMessage("go"))
    run(wake, Script(calls(*sorted(made, key=lambda call: call.tool != first))), refund, double)
    assert [each.result for each in wake.results] == [2]
    again = FakeWake(*wake.before, *wake.appended, ConfirmationAnswer("r0", True))
    assert run(again, Script(says("done")), refund, double).stop == "answer"
    assert [each.result for each in again.results] == ["refunded 5"]


def test_a_request_over_the_bound_is_an_error_that_the_model_reads() -> None:
    class Full(FakeWake):
        def require(self, event: Any, *, expires_in: float | None = None) -> Any:
            if self.requests:
                raise InvalidInput("1 requests are pending")
            return super().require(event, expires_in=expires_in)

    wake = Full(UserMessage("refund us"))
    made = [ToolCall(str(n), "refund", {"cents": 5}) for n in range(2)]
    assert run(wake, Script(calls(*made)), refund).stop == "requires_action"
    assert "are pending" in str([each.result for each in wake.results])


def test_a_tool_of_the_client_over_the_bound_is_an_error_that_the_model_reads() -> None:
    class Full(FakeWake):
        def require(self, event: Any, *, expires_in: float | None = None) -> Any:
            raise InvalidInput("100 requests are pending")

    wake = Full(UserMessage("where?"))
    made = [ToolCall("c1", "double", {"n": 1}), ToolCall("c2", "position", {"exact": True})]
    model = Script(calls(*made), says("later"))
    assert run(wake, model, double, Tool(name="position", arguments=Position)).stop == "answer"
    assert wake.kinds == ["agent.tool_use"] * 2 + ["agent.tool_result"] * 2 + ["agent.message"]
    assert {each.tool_use_id: each.is_error for each in wake.results} == {"c1": False, "c2": True}
    assert "are pending" in str(next(each.result for each in wake.results if each.is_error))


LARGE = "x" * MAX_EVENT_BYTES


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (ToolCall("c1", "note", {"text": LARGE}), "invalid_tool_arguments"),
        (ToolCall("c1", "note", f'{{"text": "{LARGE}'), "invalid_tool_arguments"),
        (ToolCall("c1", "position", {"exact": True, "why": LARGE}), "invalid_tool_arguments"),
        (ToolCall("c1", LARGE, {}), "unknown_tool"),
        (ToolCall("c1", "\udcff", {}), "unknown_tool"),
        (ToolCall(LARGE, "note", {"text": ""}), "invalid_tool_arguments"),
    ],
    ids=["arguments", "text", "client", "name", "surrogate", "id"],
)
def test_a_call_that_no_journal_takes_is_an_error_that_the_model_reads(call: ToolCall, kind: str) -> None:
    @tool
    def note(text: str) -> str:
        raise AssertionError("it must not run")

    class Reason(Position):
        why: str

    wake = FakeWake(UserMessage("note it"))
    model = Script(calls(call, ToolCall("c2", "double", {"n": 1}), usage={"output": 7}), says("sorry"))
    assert run(wake, model, note, double, Tool(name="position", arguments=Reason)).stop == "answer"
    (cut, *_), (bad, good) = wake.appended, wake.results
    assert isinstance(cut, ToolUse)
    assert cut.usage == {"output": 7}
    assert (bad.tool_use_id, bad.is_error, good.result) == (cut.tool_use_id, True, 2)
    assert bad.result["error"]["kind"] == kind  # type: ignore[index,call-overload]
    assert len(model.requests[1].openai_messages()) == len(model.requests[1].anthropic_messages()) + 1 == 4


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (LARGE, "xxx"),
        ([{"type": "text", "text": "so:"}, {"type": "image", "data": LARGE}], "so:"),
        ([{"type": "image", "data": LARGE}], ""),
        ("half of a pair: \ud83d", "half of a pair: "),
        ([{"type": "text", "text": "so:", "logprob": float("nan")}], "so:"),
    ],
    ids=["text", "blocks", "image", "surrogate", "nan"],
)
def test_an_answer_that_no_journal_takes_ends_the_loop(content: Any, shown: str) -> None:
    wake = FakeWake(UserMessage("hi"))
    reply = ModelReply(
        content=content, calls=[ToolCall("c1", "double", {"n": 1})], finish_reason="tool_calls", usage={"output": 7}
    )
    result = run(wake, Script(reply), double)
    assert (result.stop, result.usage) == ("invalid_reply", {"output": 7})
    (message,) = wake.appended
    assert isinstance(message, AgentMessage)
    assert message.text.startswith(shown)
    assert "the reply of the model" in message.text
    assert (message.text, message.usage) == (result.text, {"output": 7})


def test_an_answer_is_for_one_call_however_often_a_model_uses_its_id() -> None:
    done = (*OPEN, ConfirmationAnswer(request_id="r0", allowed=True), ToolResult("1", "refunded 5"))
    wake, model = FakeWake(*done, UserMessage("again")), Script(calls(ToolCall("1", "refund", {"cents": 9_000})))
    assert run(wake, model, refund).stop == "requires_action"
    assert wake.kinds == ["agent.tool_use", "agent.tool_confirmation"]


def test_two_calls_of_one_id_need_an_answer_each() -> None:
    both = [ToolUse("refund", {"cents": 9_000}, ""), ToolUse("refund", {"cents": 5}, "")]
    asked = [ToolConfirmation("refund", {}, "", request_id) for request_id in ("r1", "r2")]
    answer = ConfirmationAnswer(request_id="r2", allowed=True)
    wake = FakeWake(UserMessage("refund me"), *both, *asked, answer, pending_requests=["r1"])
    assert run(wake, Script(), refund).stop == "requires_action"
    assert wake.results == [ToolResult("", "refunded 5")]


def test_while_a_request_is_pending_the_model_is_not_called() -> None:
    wake, model = FakeWake(*OPEN, pending_requests=["r0"]), Script()
    assert run(wake, model, refund).stop == "requires_action"
    assert (model.requests, wake.appended) == ([], [])


class Position(BaseModel):
    exact: bool


def test_a_tool_of_the_client_waits_for_its_result() -> None:
    position = Tool(name="position", arguments=Position)
    wake = FakeWake(UserMessage("where?"))
    assert run(wake, Script(calls(ToolCall("c1", "position", {"exact": True}))), position).stop == "requires_action"
    assert wake.kinds == ["agent.custom_tool_use"]
    (asked,) = wake.appended
    assert isinstance(asked, CustomToolUse)
    after = FakeWake(UserMessage("where?"), asked, CustomToolResult(request_id=asked.request_id, result="here"))
    model = Script(says("there"))
    assert run(after, model, position).stop == "answer"
    assert model.requests[0].openai_messages()[-1] == {"role": "tool", "tool_call_id": "c1", "content": "here"}


def test_arguments_of_a_client_tool_are_checked_before_the_request() -> None:
    wake = FakeWake(UserMessage("where?"))
    model = Script(calls(ToolCall("c1", "position", {"exact": "maybe"})), says("sorry"))
    assert run(wake, model, Tool(name="position", arguments=Position)).stop == "answer"
    assert wake.kinds == ["agent.tool_use", "agent.tool_result", "agent.message"]


def test_a_tool_of_the_client_that_was_dropped_is_refused() -> None:
    wake = FakeWake(UserMessage("where?"), CustomToolUse("position", {}, "c1", request_id="r0"))
    run(wake, Script(says("fine")), Tool(name="position", arguments=Position))
    assert wake.results[0].result["error"]["kind"] == "refused"  # type: ignore[index,call-overload]


# -- replies of APIs


def test_replies_of_openai() -> None:
    function = {"name": "double", "arguments": '{"n":1}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "details": {}}
    reply = ModelReply.from_openai({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage})
    assert reply.calls == [ToolCall("c1", "double", '{"n":1}')]
    assert (reply.finish_reason, reply.usage) == ("tool_calls", {"prompt_tokens": 3, "completion_tokens": 2})


def test_replies_of_anthropic() -> None:
    blocks = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "double", "input": {"n": 1}},
    ]
    reply = ModelReply.from_anthropic({"content": blocks, "stop_reason": "tool_use", "usage": {"input_tokens": 3}})
    assert (reply.content, reply.calls) == ("I look.", [ToolCall("t1", "double", {"n": 1})])
    assert (reply.finish_reason, reply.usage) == ("tool_use", {"input_tokens": 3})


@pytest.mark.parametrize("read", [ModelReply.from_openai, ModelReply.from_anthropic])
@pytest.mark.parametrize(
    "response",
    [
        {"error": {"message": "overloaded"}},
        {"choices": [], "content": None},
        [],
        {"content": [{"type": "tool_use"}]},
        {"content": ["text"]},
    ],
)
def test_the_response_to_a_request_that_has_failed_is_no_answer(read: Any, response: Any) -> None:
    with pytest.raises(InvalidInput, match="the response is no"):
        read(response)


def test_a_refusal_of_openai_is_its_content() -> None:
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    assert ModelReply.from_openai({"choices": [{"message": message, "finish_reason": "stop"}]}).content == "I will not."


def test_rounds_that_are_committed_count() -> None:
    """Of earlier attempts of the wake: the model knows its round, and the bound is of all attempts."""
    done = [ToolUse("double", {"n": 2}, "c1", message_id="w1.1.1"), ToolResult("c1", 4)]
    for bound, stop in ((1, "truncated"), (2, "answer")):
        wake, model = FakeWake(UserMessage("double 2"), *done), Script(says("4"))
        wake.committed = [SimpleNamespace(seq=n, event=event) for n, event in enumerate(done, 2)]
        result = run(wake, model, double, max_rounds=bound)
        assert (result.stop, result.rounds) == (stop, bound)
        assert [each.round for each in model.requests] == [2][: bound - 1]


# --- while a call waits -----------------------------------------------------------------------------------------------

PAYS: Any = (
    UserMessage("pay"),
    ToolUse("refund", {"cents": 5}, "c1", message_id="w0.1.1"),
    ToolConfirmation("refund", {"cents": 5}, "c1", request_id="r1"),
)


LATE = UserMessage("how late is it?")


def while_it_waits(*events: JournalEvent, pending: JournalEvent = LATE) -> FakeWake:
    """A wake that reads one more event while the call waits for an answer."""
    wake = FakeWake(*PAYS, *events, pending, pending_requests=["r1"])
    wake.pending = [SimpleNamespace(seq=len(wake.before), event=pending, wake_id=None)]
    return wake


def test_a_message_is_answered_while_a_call_waits() -> None:
    """The call has a provisional result until the real one comes, as a message; an earlier one is not given again."""
    wake, model = while_it_waits(), Script(says("noon"))
    assert run(wake, model, refund).stop == "answer"
    waits, answer = wake.appended
    assert isinstance(waits, ToolResult)
    assert waits.provisional
    assert [m["role"] for m in model.requests[0].openai_messages()] == ["user", "assistant", "tool", "user"]

    again, model = while_it_waits(UserMessage("how late is it?"), waits, answer, pending=UserMessage("sure?")), Script()
    model.replies = [says("yes")]
    run(again, model, refund)
    assert again.kinds == ["agent.message"]

    wake = FakeWake(*again.before, *again.appended, ConfirmationAnswer("r1", allowed=True))
    model = Script(says("done"))
    assert run(wake, model, refund).text == "done"
    assert wake.kinds == ["agent.tool_result", "agent.message"]
    messages = model.requests[0].openai_messages()
    assert messages[-1] == {"role": "user", "content": '[the call refund({"cents":5}) has ended now] refunded 5'}
    assert [m["role"] for m in messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    roles = [m["role"] for m in model.requests[0].anthropic_messages()]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant", "user"]


def test_a_call_that_waits_is_not_requested_again() -> None:
    """Its copy is refused; one with other arguments is a request of its own, for which the loop ends."""
    wake = while_it_waits()
    model = Script(calls(ToolCall("c2", "refund", '{"cents": 5}')), says("it waits"))
    assert run(wake, model, refund).text == "it waits"
    assert [each.provisional for each in wake.results] == [True, False]
    assert '"kind":"refused"' in wake.results[-1].model_dump_json()
    assert len(wake.requests) == 1
    wake = while_it_waits()
    assert run(wake, Script(calls(ToolCall("c2", "refund", '{"cents": 6}'))), refund).stop == "requires_action"
    assert len(wake.requests) == 2


@pytest.mark.parametrize(
    ("word", "text"), [("queue", "your message is read after it"), ("refuse", "send your message")]
)
def test_a_message_waits_or_is_refused_where_the_application_says_so(word: str, text: str) -> None:
    """It has an answer in any case; the model reads both when the result is there."""
    wake, model = while_it_waits(), Script()
    result = run(wake, model, refund, while_waiting=word)
    assert (result.stop, model.requests) == ("requires_action", [])
    assert text in result.text
    wake = FakeWake(*wake.before, *wake.appended, ConfirmationAnswer("r1", allowed=True))
    model = Script(says("paid, and it is noon"))
    run(wake, model, refund, while_waiting=word)
    last = [m["content"] for m in model.requests[0].openai_messages()][-3:]
    assert last == ["how late is it?", result.text, '[the call refund({"cents":5}) has ended now] refunded 5']


def test_the_answer_to_one_of_two_requests_asks_no_model() -> None:
    """Its result is there; the other call of the reply has none, and no message has come."""
    calls_of = (ToolUse("refund", {"cents": 6}, "c2", message_id="w0.1.1"), PAYS[2])
    asked = ToolConfirmation("refund", {"cents": 6}, "c2", request_id="r2")
    wake = FakeWake(*PAYS[:2], *calls_of, asked, ConfirmationAnswer("r2", allowed=True), pending_requests=["r1"])
    assert run(wake, Script(), refund).stop == "requires_action"
    assert [each.result for each in wake.results] == ["refunded 6"]


# --- a long journal ---------------------------------------------------------------------------------------------------


def test_a_transcript_is_cut_between_turns() -> None:
    """Of a journal that is longer than it, and of one whose beginning retention has removed."""
    turn = [
        UserMessage("look"),
        ToolUse("double", {"n": 1}, "c", message_id="m"),
        ToolResult("c", 2),
        AgentMessage("2"),
    ]
    wake, model = FakeWake(*turn * (HISTORY // 4), *turn[2:], UserMessage("and now?")), Script(says("same"))
    run(wake, model)
    messages = model.requests[0].openai_messages()
    assert messages[0] == {"role": "user", "content": "look"}
    assert len(messages) == HISTORY - 2


def test_a_call_that_is_allowed_after_a_long_time_runs() -> None:
    """It is not in the transcript: its result is a message."""
    fill = [UserMessage("fill")] * HISTORY
    answer = ConfirmationAnswer("w0.1", allowed=True)
    asked = ToolConfirmation("refund", {"cents": 5}, "c1", request_id="w0.1")
    wake, model = FakeWake(*PAYS[:2], asked, *fill, answer), Script(says("done"))
    wake.pending = [SimpleNamespace(seq=len(wake.before), event=answer, wake_id=None)]
    assert run(wake, model, refund).text == "done"
    assert [each.result for each in wake.results] == ["refunded 5"]
    last = model.requests[0].openai_messages()[-1]
    assert last == {"role": "user", "content": '[the call refund({"cents":5}) has ended now] refunded 5'}


def sizes(request: ModelRequest) -> list[str]:
    return [event.text for event in request.events if isinstance(event, UserMessage | AgentMessage)]


def test_a_window_bounds_what_the_model_is_given() -> None:
    """Whole turns, the last ones; the last one in any case."""
    talk = [UserMessage("a" * 10), AgentMessage("b" * 10), UserMessage("c" * 10), AgentMessage("d" * 10)]
    count: Any = {"count_tokens": lambda event: len(getattr(event, "text", ""))}
    for bound, first in ((44, "a"), (43, "c"), (10, "e"), (1, "e")):
        model = Script(says("f"))
        window = ContextWindow(max_tokens=bound, **count)
        run(FakeWake(*talk, UserMessage("eeee")), model, context=window)
        assert sizes(model.requests[0])[0][0] == first, bound
    in_bytes = ContextWindow(max_bytes=len(UserMessage("eeee").model_dump_json()))
    run(FakeWake(*talk, UserMessage("eeee")), model := Script(says("f")), context=in_bytes)
    assert sizes(model.requests[0]) == ["eeee"]


def test_a_window_is_summarised_once() -> None:
    """What does not fit becomes a summary in the journal, with which the transcript begins from then on."""
    given: list[list[str]] = []

    def summarise(events: Sequence[JournalEvent]) -> str:
        given.append([event.text for event in events if isinstance(event, UserMessage | AgentMessage)])
        return "they have counted"

    window = ContextWindow(
        max_tokens=20, count_tokens=lambda event: len(getattr(event, "text", "")), summarise=summarise
    )
    talk = [
        UserMessage("one one one"),
        AgentMessage("1"),
        UserMessage("two two"),
        AgentMessage("2"),
        UserMessage("and"),
    ]
    wake, model = FakeWake(*talk), Script(says("3"))
    run(wake, model, context=window)
    assert given == [["one one one", "1", "two two", "2"]]
    assert wake.kinds == ["agent.context_summary", "agent.message"]
    assert wake.commits[0] == 1
    shown = [m["content"] for m in model.requests[0].openai_messages()]
    assert shown == ["[a summary of what came before] they have counted", "and"]
    for removed in (0, 2):  # by retention, or by an import: numbers are others then
        later, model = FakeWake(*talk[removed:], *wake.appended, UserMessage("go on")), Script(says("4"))
        later.id, later.of_w0 = "w2", len(talk) - removed
        run(later, model, context=window)
        assert len(given) == 1
        assert [m["content"] for m in model.requests[0].openai_messages()] == [*shown, "3", "go on"]


def test_what_this_wake_has_added_is_not_summarised() -> None:
    """As of a second loop in one wake: the summary stands before all of it."""
    window = ContextWindow(
        max_tokens=5, count_tokens=lambda event: len(getattr(event, "text", "")), summarise=lambda events: "short"
    )
    wake, model = FakeWake(UserMessage("one one one"), AgentMessage("1"), UserMessage("two")), Script(says("2"))
    wake.id = "w0"
    run(wake, model, context=window)
    assert wake.kinds == ["agent.message"]
    assert sizes(model.requests[0]) == ["two"]


def test_bad_bounds_are_refused() -> None:
    bad: list[Any] = [{}, {"max_bytes": 1, "max_tokens": 1}, {"max_tokens": 5}, {"max_bytes": 0}]
    for options in bad:
        with pytest.raises(InvalidOptions):
            ContextWindow(**options)
    summarising = ContextWindow(max_bytes=9, summarise=lambda events: "s")
    with pytest.raises(InvalidOptions, match="do not give transcript="):
        run(FakeWake(), Script(), context=summarising, transcript=[])
    with pytest.raises(InvalidOptions, match="must be one of answer, queue, refuse"):
        run(FakeWake(), Script(), while_waiting="wait")
