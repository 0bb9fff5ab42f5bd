"""An agent of pydantic-ai for tests: a scripted model with two tools, and one more that a person approves.

The effects of its tools are counted in this process, and `interrupt` may hold one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import affinity
from affinity.conversation import current_wake
from affinity.integrations.pydantic_ai import AffinityDurability, AgentState, agent_conversations
from tests.support.activity_calls import call_test

Script = list[str | list[ToolCallPart]]
"""What the model says: a text, or calls of tools, in order."""

RETRY: Final = affinity.RetryPolicy(max_attempts=12, initial_interval=0.05)


def call(tool: str, **arguments: Any) -> ToolCallPart:
    """A call whose id is the name of the tool, and its arguments."""
    return ToolCallPart(tool, arguments, tool_call_id=":".join([tool, *map(str, arguments.values())]))


class Scripted:
    """A model that says the next line of its script, whatever it is asked, by the number of lines that it has said in
    the messages since the last prompt. It counts its calls, and may stream.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: Counter[int] = Counter()
        self.failures: Counter[int] = Counter()
        """How often a line fails, in the middle of its text."""

    def model(self, **options: Any) -> FunctionModel:
        """The model of an agent."""
        return FunctionModel(self.respond, stream_function=self.stream, **options)

    def _next(self, messages: list[ModelMessage]) -> tuple[int, str | list[ToolCallPart]]:
        number = 0
        for message in messages:
            if any(part.part_kind == "user-prompt" for part in message.parts):
                number = 0
            number += isinstance(message, ModelResponse)
        self.calls[number] += 1
        line = self.script[number]
        return number, line.format(*returns_of(messages)) if isinstance(line, str) else line

    def respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """The line as one response."""
        number, line = self._next(messages)
        if self.failures[number]:
            self.failures[number] -= 1
            raise ConnectionError("429")
        return ModelResponse(parts=[TextPart(line)] if isinstance(line, str) else line)

    async def stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        """The line word by word, or its calls behind a sentence."""
        number, line = self._next(messages)
        if not isinstance(line, str):
            yield f"round {number} "
            for place, each in enumerate(line):
                yield {place: DeltaToolCall(each.tool_name, each.args_as_json_str(), tool_call_id=each.tool_call_id)}
            return
        for word in line.split():
            yield f"{word} "
            if self.failures[number]:
                self.failures[number] -= 1
                raise ConnectionError("reset")


def returns_of(messages: list[ModelMessage]) -> list[str]:
    """The results of tools that the model is given."""
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, ToolReturnPart)]


async def no_one(tool: str) -> None:
    """Let a tool end."""


class Shop:
    """An agent with three tools, and what they have done."""

    def __init__(self, script: Script, **options: Any) -> None:
        self.model = Scripted(script)
        self.effects: Counter[str] = Counter()
        self.interrupt: Callable[[str], Awaitable[None]] = no_one
        self.agent: Agent[Any, Any] = Agent(
            self.model.model(), name="clerk", capabilities=[AffinityDurability(**options)], retries=2
        )
        for name in ("charge", "ship"):
            self.add(self.agent, name)
        self.add(self.agent, "refund", requires_approval=True)

    def add(self, agent: Agent[Any, Any], name: str, *, requires_approval: bool = False) -> None:
        """Give an agent a tool of this name."""

        async def run(cents: int) -> str:
            self.effects[f"{name} {cents}"] += 1
            await self.interrupt(name)
            return f"{name} {cents} done"

        agent.tool_plain(name=name, requires_approval=requires_approval)(run)

    def conversations(self, **options: Any) -> affinity.Conversations[AgentState]:
        """Conversations with the agent."""
        return agent_conversations(self.agent, retry=RETRY, **options)

    def app(self) -> affinity.App:
        """An app with these conversations."""
        app = affinity.App("shop")
        app.include(self.conversations())
        return app


ORDER: Final[Script] = [[call("charge", cents=5)], [call("ship", cents=5)], "{0}, {1}"]
REFUND: Final[Script] = [[call("charge", cents=5)], [call("refund", cents=5)], "{0}, {1}"]


async def ask_the_test(name: str) -> None:
    """Tell the test that a tool or the model runs, and wait for its answer."""
    wake = current_wake()
    assert wake is not None
    await call_test(wake.context, runs=name)


remote: Final = Shop(ORDER)
remote.interrupt = ask_the_test
conversations: Final = remote.conversations()
app: Final = affinity.App("remote")
app.include(conversations)

both: Final = Shop([[call("charge", cents=5)], [call("refund", cents=5)], "{0}, {1}"], stream=True)
matrix_conversations: Final = both.conversations()
matrix_app: Final = affinity.App("both")
matrix_app.include(matrix_conversations)
