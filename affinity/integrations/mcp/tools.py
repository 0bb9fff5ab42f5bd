"""Code of the application as tools of a server: conversations and orchestrations, with their progress."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from typing import Annotated, Any, Final, get_type_hints
from uuid import uuid4

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field
from pydantic_core import to_jsonable_python

import affinity
from affinity import Client
from affinity.conversation import Reply, Retracted, Streamed, UserMessage
from affinity.errors import AffinityError, InvalidOptions, ProviderError, WaitTimeout

TIMEOUT: Final = 300.0
"""Seconds that a call waits by default."""

Id = Annotated[str, Field(min_length=1, max_length=256)]


def add_conversation(
    server: MCPServer,
    client: Client,
    conversations: affinity.Conversations[Any],
    *,
    name: str,
    description: str,
    timeout: float = TIMEOUT,
) -> None:
    """Add a tool that sends a message to a conversation, and returns its reply. What a wake streams is the progress.

    The assistant names the conversation: with the same id it goes on. So this is for assistants that may speak in each
    of them, as in front of a login of yours. A call with the same ``message_id`` waits for the reply to the same
    message, so an assistant that repeats a call says it once.

    Args:
        server: gets the tool.
        client: an open client.
        conversations: whose code workers have.
        name: of the tool.
        description: for the model.
        timeout: seconds that a call waits for the reply. The work goes on behind that; the error says so, and names
            the ids to call again with.

    Raises:
        InvalidOptions: ``timeout`` is not a positive number.
    """
    _check_timeout(timeout)

    async def ask(
        conversation_id: Id,
        message: Annotated[str, Field(min_length=1)],
        ctx: Context[Any, Any],
        message_id: Id | None = None,
    ) -> str:
        event_id, said = message_id or secrets.token_hex(8), _Said(ctx)
        again = f"call again with the same message, and message_id {event_id!r}"
        try:
            talk = client.conversation(conversations, conversation_id)
            with anyio.fail_after(timeout):
                async for item in talk.stream_reply(UserMessage(message), event_id=event_id):
                    if isinstance(item, Reply):
                        return item.text
                    await said.take(item)
        except TimeoutError:
            raise ToolError(f"{_went_on('the conversation', conversation_id, timeout)}: {again}") from None
        except ProviderError as error:
            raise ToolError(f"{type(error).__name__}: {error}; {again}") from error
        except AffinityError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error
        raise ToolError("the conversation has ended without a reply")

    server.add_tool(ask, name=name, description=description)


def add_orchestration(
    server: MCPServer,
    client: Client,
    orchestration: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = TIMEOUT,
) -> None:
    """Add a tool that starts an orchestration and returns its result. Changes of its custom status are the progress.

    The tool has the input of the orchestration as its argument ``input``, with its JSON schema, and ``instance_id``: a
    call with the same one waits for the same instance, so an assistant that repeats a call does the work once.

    Args:
        server: gets the tool.
        client: an open client.
        orchestration: a function that an app has registered.
        name: of the tool. By default that of the function.
        description: for the model. By default the docstring of the function.
        timeout: seconds that a call waits for the end. The work goes on behind that, and the error says so.

    Raises:
        InvalidOptions: ``timeout`` is not a positive number, or the function is of another form.
    """
    _check_timeout(timeout)
    parameters = [*inspect.signature(orchestration).parameters.values()]
    if not 1 <= len(parameters) <= 2:  # noqa: PLR2004 -- the context, and the input
        raise InvalidOptions(f"{orchestration!r} is no orchestration: it takes a context, and an input or none")
    has_input = len(parameters) > 1
    hints = get_type_hints(orchestration, include_extras=True)

    async def run(instance_id: str | None, ctx: Context[Any, Any], **given: Any) -> Any:
        arguments, used = [given["input"]] if has_input else [], instance_id or str(uuid4())
        again = f"call again with instance_id {used!r}"
        try:
            await client.start(orchestration, *arguments, instance_id=used)
            result = await _result(client, used, timeout, ctx)
            return to_jsonable_python(result, fallback=str)
        except WaitTimeout:
            raise ToolError(f"{_went_on('the instance', used, timeout)}: {again}") from None
        except ProviderError as error:
            raise ToolError(f"{type(error).__name__}: {error}; {again}") from error
        except AffinityError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    kind = inspect.Parameter.KEYWORD_ONLY
    taken = [inspect.Parameter("input", kind, annotation=hints.get(parameters[1].name, Any))] if has_input else []
    taken += [
        inspect.Parameter("instance_id", kind, annotation=Id | None, default=None),
        inspect.Parameter("ctx", kind, annotation=Context[Any, Any]),
    ]

    async def called(**given: Any) -> Any:
        return await run(given.pop("instance_id", None), given.pop("ctx"), **given)

    called.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in taken}
    server.add_tool(
        called,
        name=name or orchestration.__name__,
        description=description or inspect.getdoc(orchestration) or "",
        structured_output=False,
    )


async def _result(client: Client, instance_id: str, timeout: float, ctx: Context[Any, Any]) -> Any:
    """The result of an instance. Each custom status is reported.

    Raises:
        WaitTimeout: it has not ended in this time.
        OrchestrationFailed: it has failed.
    """
    until, number = anyio.current_time() + timeout, 0
    now = await client.status(instance_id)
    while not now.finished:
        left = max(0.0, until - anyio.current_time())
        now = await client.wait_status(instance_id, changed_from=now, timeout=left)
        if now.custom_status is not None:
            number += 1
            await ctx.report_progress(number, None, str(now.custom_status))
    return await client.wait(instance_id, timeout=timeout)


class _Said:
    """Reports what a wake streams as the progress of a call: the text so far."""

    def __init__(self, ctx: Context[Any, Any]) -> None:
        self._ctx = ctx
        self._text, self._number = "", 0

    async def take(self, item: object) -> None:
        """Report an item of a reply; a retraction begins anew."""
        match item:
            case Streamed(value=str() as more):
                self._text += more
            case Retracted():
                self._text = ""
            case _:
                return
        self._number += 1
        await self._ctx.report_progress(self._number, None, self._text)


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidOptions(f"timeout is a positive number of seconds, not {timeout!r}")


def _went_on(what: str, id: str, timeout: float) -> str:
    return f"{what} {id!r} has not answered in {timeout:g} s, and goes on"
