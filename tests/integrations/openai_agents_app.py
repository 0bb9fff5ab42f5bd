"""An agent of the OpenAI Agents SDK for tests: a scripted model with two tools, and one more that a person approves."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from agents import Agent, FunctionTool, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

import affinity
from affinity.conversation import current_wake
from affinity.integrations.openai_agents import OpenAIState, openai_conversations
from tests.support.activity_calls import call_test

set_tracing_disabled(True)  # there is no network

Script = list[str | list[ResponseFunctionToolCall]]
"""What the model says: a text, or calls of tools, in order."""

RETRY: Final = affinity.RetryPolicy(max_attempts=12, initial_interval=0.05)


def call(tool: str, arguments: str = '{"cents": 5}', name: str = "") -> ResponseFunctionToolCall:
    """A call, whose id is the name of the tool, or another one."""
    return ResponseFunctionToolCall(
        id=f"fc_{name or tool}", call_id=name or tool, type="function_call", name=tool, arguments=arguments
    )


def message(text: str) -> ResponseOutputMessage:
    """A message of the model."""
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", role="assistant", status="completed", type="message", content=[part])


class Scripted(Model):
    """A model that says the next line of its script, by the number of calls that were answered since the last message
    of a user. It counts its calls, and may fail in the middle of a text.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: Counter[int] = Counter()
        self.failures: Counter[int] = Counter()

    def _next(self, input: Any) -> tuple[int, list[Any]]:
        items = [{"role": "user"}] if isinstance(input, str) else list(input)
        last = max(place for place, item in enumerate(items) if item.get("role") == "user")
        results = [_text_of(item["output"]) for item in items[last:] if item.get("type") == "function_call_output"]
        number, left = 0, len(results)
        while left and isinstance(line := self.script[number], list):
            number, left = number + 1, left - len(line)
        self.calls[number] += 1
        line = self.script[number]
        return number, [message(line.format(*results))] if isinstance(line, str) else [message(f"{number} "), *line]

    def _fail(self, number: int) -> None:
        if self.failures[number]:
            self.failures[number] -= 1
            raise ConnectionError("429")

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        """The line as one response."""
        number, output = self._next(input)
        self._fail(number)
        return ModelResponse(output=output, usage=Usage(requests=1, total_tokens=7), response_id=f"r{number}")

    async def stream_response(
        self, system_instructions: Any, input: Any, *rest: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """The line, its text word by word."""
        number, output = self._next(input)
        for word in output[0].content[0].text.split():
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta",
                content_index=0,
                delta=f"{word} ",
                item_id="m",
                logprobs=[],
                output_index=0,
                sequence_number=0,
            )
            self._fail(number)
        response = Response(
            id=f"r{number}",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)


def _text_of(output: Any) -> str:
    """The text of a result, which an MCP server gives as a part of a list."""
    return str(output[0]["text"] if isinstance(output, list) else output)


async def no_one(tool: str) -> None:
    """Let a tool end."""


class Shop:
    """An agent with three tools, and what they have done."""

    def __init__(self, script: Script) -> None:
        self.model = Scripted(script)
        self.effects: Counter[str] = Counter()
        self.interrupt: Callable[[str], Awaitable[None]] = no_one
        tools: list[Any] = [self.tool("charge"), self.tool("ship"), self.tool("refund", needs_approval=True)]
        self.agent: Agent[Any] = Agent(name="clerk", model=self.model, tools=tools)

    def tool(self, name: str, *, needs_approval: bool = False) -> FunctionTool:
        """A tool of this name."""

        async def run(cents: int) -> str:
            self.effects[f"{name} {cents}"] += 1
            await self.interrupt(name)
            return f"{name} {cents} done"

        return function_tool(run, name_override=name, needs_approval=needs_approval)

    def conversations(self, **options: Any) -> affinity.Conversations[OpenAIState]:
        """Conversations with the agent."""
        return openai_conversations(self.agent, retry=RETRY, **options)


def app_of(conversations: affinity.Conversations[OpenAIState]) -> affinity.App:
    """An app with these conversations."""
    app = affinity.App("shop")
    app.include(conversations)
    return app


ORDER: Final[Script] = [[call("charge")], [call("ship")], "{0}, {1}"]
REFUND: Final[Script] = [[call("charge")], [call("refund")], "{0}, {1}"]


async def ask_the_test(name: str) -> None:
    """Tell the test that a tool runs, and wait for its answer."""
    wake = current_wake()
    assert wake is not None
    await call_test(wake.context, runs=name)


remote: Final = Shop(ORDER)
remote.interrupt = ask_the_test
conversations: Final = remote.conversations()
app: Final = app_of(conversations)

matrix_conversations: Final = Shop(REFUND).conversations(stream=True)
matrix_app: Final = app_of(matrix_conversations)

MCP_URL: Final = "AFFINITY_TESTS_MCP_URL"
"""Variable with the address of the server of `mcp_app`."""


class ServerOfTest(MCPServerStreamableHttp):
    """The server of the test, whose address is not known before it runs."""

    async def connect(self) -> None:
        """Connect to it."""
        self.params["url"] = os.environ[MCP_URL]
        await super().connect()  # type: ignore[no-untyped-call]


MCP_ORDER: Final[Script] = [[call("ship", '{"parcel": 7}')], [call("refund")], "{0}, {1}"]
mcp_conversations: Final = openai_conversations(
    Agent(
        name="clerk",
        model=Scripted(MCP_ORDER),
        mcp_servers=[ServerOfTest({"url": ""}, require_approval={"refund": "always"}, cache_tools_list=True)],
    ),
    retry=RETRY,
)
mcp_app: Final = app_of(mcp_conversations)
