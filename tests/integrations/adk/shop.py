"""An agent of ADK for tests: a scripted model with two tools, and one more that a person confirms."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import PrivateAttr

import affinity
from affinity.conversation import current_wake
from affinity.integrations.adk import ADKState, adk_conversations
from tests.support.activity_calls import call_test

Script = list[str | list[str]]
"""What the model says: a text, or names of tools that it calls; behind a colon, the agent to which it hands over."""

RETRY: Final = affinity.RetryPolicy(max_attempts=12, initial_interval=0.05)


class Scripted(BaseLlm):
    """A model that says the next line of its script, by the number of calls that were answered since the last message
    of a user. It counts its calls, and may fail in the middle of a text.
    """

    model: str = "scripted"
    script: Script
    _calls: Counter[int] = PrivateAttr(default_factory=Counter)
    _failures: Counter[int] = PrivateAttr(default_factory=Counter)
    _read: list[list[str]] = PrivateAttr(default_factory=list)

    @property
    def calls(self) -> Counter[int]:
        """How often each line was asked for."""
        return self._calls

    @property
    def failures(self) -> Counter[int]:
        """How often each line still fails."""
        return self._failures

    @property
    def read(self) -> list[list[str]]:
        """The texts of each request."""
        return self._read

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The line, word by word if it is to be streamed, and then as a whole."""
        parts = [part for content in llm_request.contents for part in content.parts or []]
        self._read.append([part.text for part in parts if part.text])
        said = [place for place, content in enumerate(llm_request.contents) if _is_message(content)]
        after = [part for content in llm_request.contents[said[-1] :] for part in content.parts or []]
        given = [part.function_response.response or {} for part in after if part.function_response]
        results = [str(response.get("result", response)) for response in given]
        number, left = 0, len(results)
        while left > 0 and isinstance(line := self.script[number], list):
            number, left = number + 1, left - len(line)
        self._calls[number] += 1
        line = self.script[number]
        text = line.format(*results) if isinstance(line, str) else f"{number} "
        if stream:
            for word in text.split():
                yield _response([types.Part(text=f"{word} ")], partial=True)
                self._fail(number)
        self._fail(number)
        calls = [] if isinstance(line, str) else [_call(*name.split(":")) for name in line]
        yield _response([types.Part(text=text), *calls])

    def _fail(self, number: int) -> None:
        if self._failures[number]:
            self._failures[number] -= 1
            raise ConnectionError("429")


def _call(name: str, agent: str = "") -> types.Part:
    arguments: dict[str, Any] = {"agent_name": agent} if agent else {"cents": 5}
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


def _response(parts: list[types.Part], *, partial: bool = False) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=parts), partial=partial)


def _is_message(content: types.Content) -> bool:
    return content.role == "user" and any(part.text for part in content.parts or [])


async def no_one(tool: str) -> None:
    """Let a tool end."""


class Shop:
    """An agent with three tools, and what they have done."""

    def __init__(self, script: Script) -> None:
        self.model = Scripted(script=script)
        self.effects: Counter[str] = Counter()
        self.interrupt: Callable[[str], Awaitable[None]] = no_one
        tools: list[Any] = [self.tool("charge"), self.tool("ship"), self.tool("refund", require_confirmation=True)]
        self.agent = LlmAgent(name="clerk", model=self.model, tools=tools)

    def tool(self, name: str, **options: Any) -> FunctionTool:
        """A tool of this name, which notes in the state that it ran."""

        async def run(cents: int, tool_context: ToolContext) -> str:
            """Do it."""
            self.effects[f"{name} {cents}"] += 1
            await self.interrupt(name)
            tool_context.state[name] = cents
            return f"{name} {cents} done"

        run.__name__ = name
        return FunctionTool(run, **options)

    def conversations(self, **options: Any) -> affinity.Conversations[ADKState]:
        """Conversations with the agent."""
        return adk_conversations(self.agent, retry=RETRY, **options)


def app_of(conversations: affinity.Conversations[ADKState]) -> affinity.App:
    """An app with these conversations."""
    app = affinity.App("shop")
    app.include(conversations)
    return app


ORDER: Final[Script] = [["charge"], ["ship"], "{0}, {1}"]
REFUND: Final[Script] = [["charge"], ["refund"], "{0}, {1}"]


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
