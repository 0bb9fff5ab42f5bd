"""Groups of errors, as task groups raise them: one error alone is that error, and no policy retries a final one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

import affinity
from affinity import RetryPolicy, Wake
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import UserMessage
from affinity.errors import (
    ActivityFailed,
    NotSerializable,
    OrchestrationFailed,
    SessionWriteConflict,
    WakeFailed,
    WakeMisuse,
    decisive_error,
    errors_in,
)
from affinity.testing import Env

pytestmark = pytest.mark.anyio

RETRY = RetryPolicy(max_attempts=3, initial_interval=0.01, non_retryable=(LookupError,))

CONFLICT = SessionWriteConflict("s", None, None, "x")


def _group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("unhandled errors in a TaskGroup", list(errors))


GROUPS: Any = [
    (_group(ConnectionError("busy")), 3, "ConnectionError", "busy"),
    (_group(_group(ConnectionError("busy"))), 3, "ConnectionError", "busy"),
    (_group(WakeMisuse("no")), 1, "WakeMisuse", "no"),
    (_group(KeyError("k")), 1, "KeyError", "'k'"),
    (_group(ConnectionError("busy"), OSError("gone")), 3, "ExceptionGroup", "ConnectionError: busy; OSError: gone"),
    (_group(ConnectionError("busy"), _group(NotSerializable("no"))), 1, "ExceptionGroup", "NotSerializable: no"),
    (_group(ConnectionError("busy"), KeyError("k")), 1, "ExceptionGroup", "KeyError: 'k'"),
]
"""A group, the attempts that RETRY gives it, and the name and text that are recorded."""


class Chat(BaseModel):
    """The state of a conversation."""


Ends = Callable[[ExceptionGroup[Exception], list[int]], Awaitable[tuple[str, str]]]


async def _of_handler(group: ExceptionGroup[Exception], attempts: list[int]) -> tuple[str, str]:
    chats = affinity.Conversations(Chat, kind="chat")

    @chats.on_wake(retry=RETRY)
    async def handle(wake: Wake, chat: Chat) -> None:
        attempts.append(wake.attempt)
        raise group

    app = affinity.App("groups")
    app.include(chats)
    async with Env(app) as env:
        with pytest.raises(WakeFailed) as failed:
            await env.client.conversation(chats, "c").ask(UserMessage("x"))
    return failed.value.error_type, failed.value.message


async def _of_step(group: ExceptionGroup[Exception], attempts: list[int]) -> tuple[str, str]:
    chats = affinity.Conversations(Chat, kind="chat")

    async def fail() -> None:
        attempts.append(1)
        raise group

    @chats.on_wake(retry=RetryPolicy(max_attempts=1))
    async def handle(wake: Wake, chat: Chat) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: wake.step("fail", fail, retry=RETRY))

    app = affinity.App("groups")
    app.include(chats)
    async with Env(app) as env:
        with pytest.raises(WakeFailed) as failed:
            await env.client.conversation(chats, "c").ask(UserMessage("x"))
    return failed.value.error_type, failed.value.message


async def _of_activity(group: ExceptionGroup[Exception], attempts: list[int]) -> tuple[str, str]:
    app = affinity.App("groups")

    @app.activity
    async def fail(ctx: affinity.ActivityContext, n: int) -> None:
        attempts.append(ctx.attempt)
        raise group

    @app.orchestration
    async def run(ctx: affinity.OrchestrationContext, n: int) -> tuple[str, str]:
        with pytest.raises(ActivityFailed) as failed:
            await ctx.schedule_activity(fail, n, retry=RETRY)
        return failed.value.error_type, failed.value.message

    async with Env(app) as env:
        found = await (await env.client.start(run, 1, instance_id="i")).wait()
        return found[0], found[1]


@pytest.mark.parametrize("ends", [_of_handler, _of_step, _of_activity])
@pytest.mark.parametrize(("group", "attempts", "name", "text"), GROUPS)
async def test_a_group_counts_by_its_errors(
    ends: Ends, group: ExceptionGroup[Exception], attempts: int, name: str, text: str
) -> None:
    made: list[int] = []
    error_type, message = await ends(group, made)
    assert (error_type, len(made)) == (name, attempts)
    assert text in message


@pytest.mark.parametrize(("group", "attempts", "name", "text"), GROUPS)
async def test_so_does_that_of_an_orchestration(
    group: ExceptionGroup[Exception], attempts: int, name: str, text: str
) -> None:
    app = affinity.App("groups")

    @app.orchestration
    async def run(ctx: affinity.OrchestrationContext, n: int) -> None:
        raise group

    async with Env(app) as env:
        with pytest.raises(OrchestrationFailed) as failed:
            await (await env.client.start(run, 1, instance_id="i")).wait()
    assert failed.value.error_type == name
    assert text in failed.value.message


async def test_and_that_of_a_tool() -> None:
    chats = affinity.Conversations(Chat, kind="chat")
    results: list[Any] = []

    @tool
    async def search() -> None:
        """Search."""
        raise _group(ConnectionError("busy"))

    async def model(request: ModelRequest) -> ModelReply:
        if request.round == 1:
            return ModelReply(calls=[ToolCall("1", "search", {})], finish_reason="tool_calls")
        results.extend(each["content"] for each in request.openai_messages() if each["role"] == "tool")
        return ModelReply(content="done")

    @chats.on_wake
    async def handle(wake: Wake, chat: Chat) -> None:
        await run_loop(wake, model=model, tools=[search])

    app = affinity.App("groups")
    app.include(chats)
    async with Env(app) as env:
        await env.client.conversation(chats, "c").ask(UserMessage("x"))
    assert '"type":"ConnectionError"' in results[0]


def test_a_conflict_among_others_decides() -> None:
    """The attempt does not count: the wake, or the activity, runs again."""
    assert decisive_error(_group(ValueError(), _group(CONFLICT))) is CONFLICT
    assert len(errors_in(_group(ValueError(), _group(CONFLICT, OSError())))) == 3
    error = ValueError()
    assert (decisive_error(error), errors_in(error)) == (error, [error])
