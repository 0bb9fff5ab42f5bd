"""Approvals, results of the client, and waits for an external event, as requests of a run of several wakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import JsonValue
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from affinity.composed.client import Client
from affinity.conversation import Conversations, CustomToolUse, ToolConfirmation, WakeRun
from affinity.errors import InvalidInput, RequestNotPending
from affinity.integrations.agent_runs import shown_arguments, together

_FIELD: Final = "token"
"""The argument of a request of `RequestWaiter` that has the token."""

_MARK: Final = "#"
"""Between the conversation and the wait, in a token. The second part does not have it."""

_SHOWN: Final[Mapping[str, type]] = {"title": str, "summary": str, "dangerous": bool}
"""Fields of a `ToolConfirmation` that the metadata of a deferred call may give."""


async def answer_requests(
    run: WakeRun, requests: DeferredToolRequests, expires_in: float | timedelta | None
) -> DeferredToolResults:
    """Ask a person about each approval, and the client for each result. They wait together, for all answers."""
    approvals: dict[str, Any] = {}
    results: dict[str, Any] = {}

    async def approve(call: ToolCallPart) -> None:
        given = requests.metadata.get(call.tool_call_id, {})
        about: dict[str, Any] = {name: given[name] for name in _SHOWN if isinstance(given.get(name), _SHOWN[name])}
        arguments = shown_arguments(call.args_as_dict())
        request = ToolConfirmation(call.tool_name, arguments, tool_use_id=call.tool_call_id, **about)
        answer = await run.require(request, expires_in=expires_in)
        denied = ToolDenied(answer.reason) if answer.reason else ToolDenied()
        approvals[call.tool_call_id] = ToolApproved() if answer.allowed else denied

    async def execute(call: ToolCallPart) -> None:
        request = CustomToolUse(call.tool_name, shown_arguments(call.args_as_dict()), tool_use_id=call.tool_call_id)
        answer = await run.require(request, expires_in=expires_in)
        results[call.tool_call_id] = ToolFailed(str(answer.result)) if answer.is_error else answer.result

    await together([*map(approve, requests.approvals), *map(execute, requests.calls)])
    return requests.build_results(approvals=approvals, calls=results)


class RequestWaiter(ExternalEventWaiter):
    """Waits for external events (`pydantic_ai.external_events`), by a request to the client for each.

    `ask` runs in a step. If it does not answer, the run makes a `CustomToolUse` with the name of the wait and its
    token, and waits for its result: see `resolve_token`.
    """

    def __init__(self, conversation_id: str, run: WakeRun) -> None:
        self._conversation_id, self._run = conversation_id, run
        self._numbers: Counter[str] = Counter()

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Return the answer of `ask`, or of the request.

        Raises:
            ExternalEventError: no answer came in time, or the answer is an error.
        """
        self._numbers[name] += 1
        token = f"{self._conversation_id}{_MARK}{self._run.id}/{name.replace(_MARK, '_')}/{self._numbers[name]}"

        async def ask_once(token: str) -> JsonValue:
            return await ask(token)

        early: JsonValue = await self._run.step(f"{name}.ask", ask_once, token)
        if early is not None:
            return early
        answer = await self._run.require(CustomToolUse(name, {_FIELD: token}), expires_in=timeout)
        if answer.is_error:
            raise ExternalEventError(str(answer.result))
        return answer.result


async def resolve_token(
    client: Client, conversations: Conversations[Any], token: str, payload: Any, /, *, is_error: bool = False
) -> int:
    """Answer a wait for an external event, such as of `pydantic_ai.capabilities.RequestInput`.

    The request is there when the wake in which the agent has asked has ended, some milliseconds after ``ask``.

    Args:
        client: of the database in which the conversation is.
        conversations: whose handler runs the agent.
        token: as ``ask`` was given it.
        payload: the answer, a JSON value; for `RequestInput` the JSON of `DeferredToolResults`.
        is_error: no answer will come; ``payload`` says why.

    Returns:
        The number of the entry of the answer, for `affinity.ConversationHandle.reply`.

    Raises:
        InvalidInput: the text is no such token.
        RequestNotPending: no request with this token waits: not yet, or not any longer.
        UnknownConversation, ConversationTerminated: see `affinity.ConversationHandle.answer`.
    """
    conversation_id, mark, _ = token.rpartition(_MARK)
    if not mark:
        raise InvalidInput(f"{token!r:.80} is no token of a wait for an external event")
    talk = client.conversation(conversations, conversation_id)
    for request in await talk.requests():
        if isinstance(request.event, CustomToolUse) and request.event.arguments.get(_FIELD) == token:
            return await talk.answer(request.request_id, result=payload, is_error=is_error)
    raise RequestNotPending(conversation_id, f"no request with the token {token!r} waits")
