"""Requests to a model, and its replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from affinity.agent.formats import Message, Render, render_input, to_anthropic, to_openai
from affinity.agent.tools import Tool
from affinity.conversation.events import Content, JournalEvent, text_of
from affinity.errors import InvalidInput, problem_of


class ToolCall(NamedTuple):
    """A call of a tool, as a model gives it."""

    tool_use_id: str  # empty: it has given none
    tool: str
    arguments: str | Mapping[str, Any]  # JSON text of an object, or the object


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The answer of a model."""

    content: Content | None = None
    calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None  # as the API names it; None: it answered
    usage: Mapping[str, int] = field(default_factory=dict)  # tokens by name
    model: str | None = None  # that has answered, for traces; None: the name of the function that asks it
    provider: str | None = None  # of the model, as the conventions of OpenTelemetry name it: "openai", "aws.bedrock"

    @classmethod
    def from_openai(cls, response: Mapping[str, Any]) -> ModelReply:
        """The first choice of a chat completion, as plain JSON values.

        Raises:
            InvalidInput: it is none, such as the response to a request that has failed.
        """
        try:
            choice = response["choices"][0]
            message = choice["message"]
            calls = [
                ToolCall(call.get("id") or "", call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ]
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidInput(f"the response is no chat completion: {problem_of(error)}") from error
        return cls(
            content=message.get("content") or message.get("refusal"),
            calls=calls,
            finish_reason=choice.get("finish_reason"),
            usage=numbers_of(response.get("usage")),
            model=_model_of(response),
            provider="openai",
        )

    @classmethod
    def from_anthropic(cls, response: Mapping[str, Any]) -> ModelReply:
        """A message, as plain JSON values.

        Raises:
            InvalidInput: it is none, such as the response to a request that has failed.
        """
        if not isinstance(response, Mapping) or not isinstance(blocks := response.get("content"), list):
            raise InvalidInput("the response is no message: it has no content")
        try:
            shown = [block for block in blocks if block.get("type") != "tool_use"]
            calls = [ToolCall(b.get("id") or "", b["name"], b["input"]) for b in blocks if b.get("type") == "tool_use"]
        except (AttributeError, LookupError, TypeError) as error:
            raise InvalidInput(f"the response is no message: {problem_of(error)}") from error
        text = text_of(shown) if all(block.get("type") == "text" for block in shown) else shown
        return cls(
            content=text or None,
            calls=calls,
            finish_reason=response.get("stop_reason"),
            usage=numbers_of(response.get("usage")),
            model=_model_of(response),
            provider="anthropic",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """The input of a model: the system prompts, then the transcript."""

    system: Sequence[str]
    events: Sequence[JournalEvent]
    tools: Sequence[Tool]
    round: int  # from 1; an attempt that comes again goes on behind the rounds that are committed
    stream: Callable[[Any], None]  # `Wake.stream`: shows a part of the answer to readers now

    render: Render = render_input  # as for `run_loop`

    def openai_messages(self) -> list[Message]:
        """``messages`` of a chat completion."""
        return to_openai(self.events, system=self.system, render=self.render)

    def openai_tools(self) -> list[dict[str, Any]]:
        """``tools`` of a chat completion."""
        return [each.to_openai() for each in self.tools]

    def anthropic_messages(self) -> list[Message]:
        """``messages`` of a message request; its ``system`` is a parameter of its own."""
        return to_anthropic(self.events, render=self.render)

    def anthropic_tools(self) -> list[dict[str, Any]]:
        """``tools`` of a message request."""
        return [each.to_anthropic() for each in self.tools]


Model: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply] | ModelReply]
"""Asks a model. An exception ends the loop, and the wake fails. A function that is not async runs in a thread, which an
interrupt does not end.
"""


def _model_of(response: Mapping[str, Any]) -> str | None:
    model = response.get("model")
    return model if isinstance(model, str) and model else None


def numbers_of(usage: Any) -> dict[str, int]:
    """A usage, as far as it has numbers."""
    found = usage if isinstance(usage, Mapping) else {}
    return {name: value for name, value in found.items() if type(value) is int}
