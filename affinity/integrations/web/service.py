"""What all routes of a chat share: the client, the access of a request, and the conversation that it asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request

from affinity import Client, ConversationHandle, errors
from affinity.conversation import Connectable
from affinity.integrations.web.access import ChatAccess, ChatAccessFunction, ChatAction
from affinity.integrations.web.http import Refused
from affinity.redaction import redacted
from affinity.tasks import call_here
from affinity.user_code import check_function

logger: logging.Logger = logging.getLogger("affinity.integrations.web")

Database: TypeAlias = str | Client | Callable[[Request], Client]
"""A URL; or an open client; or a function that gives the open client for a request."""

ConversationsOf: TypeAlias = Connectable[Any, ConversationHandle]
"""A kind of conversations: an `affinity.Conversations`."""

_DENIED: Final = "you may not do this"


class ChatService:
    """The conversations of one kind, for the users of a web application."""

    def __init__(
        self,
        conversations: ConversationsOf,
        database: Database,
        access: ChatAccessFunction,
        *,
        show_errors: bool,
        heartbeat: float,
    ) -> None:
        """Raise `InvalidOptions` for a heartbeat that is not a positive number, or an ``access`` that takes other
        arguments.
        """
        check_function(access, "access", "request")
        if not heartbeat > 0:
            raise errors.InvalidOptions(f"heartbeat = {heartbeat!r}: must be a positive number of seconds")
        self.show_errors, self.heartbeat = show_errors, heartbeat
        self._conversations, self._database, self._access = conversations, database, access
        self._opening = asyncio.Lock()
        self._client: Client | None = None

    async def aclose(self) -> None:
        """Close the client that was opened for a URL."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Close it at the end of the block."""
        try:
            yield
        finally:
            await self.aclose()

    async def client(self, request: Request) -> Client:
        """Return the client, which the first request opens if it is not given."""
        database = self._database
        if isinstance(database, str):
            async with self._opening:
                if self._client is None:
                    self._client = await Client(database).__aenter__()
                return self._client
        return database if isinstance(database, Client) else database(request)

    async def access(self, request: Request, action: ChatAction) -> ChatAccess:
        """Return the access of the user, who may do this.

        Raises:
            Refused: the user may not, or the function that says so has failed; its ``HTTPException`` is the answer.
        """
        try:
            access: object = await call_here(self._access, request)
        except HTTPException as error:  # how Starlette and FastAPI ask for a login
            raise Refused(error.status_code, error.detail, error.headers) from None
        except Exception as error:
            logger.error("the function access of this chat has failed: %s", redacted(error))  # noqa: TRY400 -- redacted
            raise Refused(500, "the access of this request is not known: see the log") from None
        if not isinstance(access, ChatAccess):
            logger.error("the function access of this chat has returned %s, not a ChatAccess", type(access).__name__)
            raise Refused(500, "the access of this request is not known: see the log")
        check_action(access, action)
        return access

    async def open(self, request: Request, access: ChatAccess, conversation_id: str) -> ConversationHandle:
        """Return a conversation, which may begin with the request.

        Raises:
            UnknownConversation: it is of another owner.
            ClientError, InvalidInput: see `affinity.Client.conversation` and `ConversationHandle.create`.
        """
        client = await self.client(request)
        talk = client.conversation(self._conversations, conversation_id)
        if access.owner is not None:
            try:
                await client.get_conversation(conversation_id)
            except errors.UnknownConversation:
                await self._begin(talk, access.owner)
            await self._check_owner(client, access, talk)
        return talk

    async def _begin(self, talk: ConversationHandle, owner: str) -> None:
        """Create a conversation with its owner; another request may be first."""
        try:
            await talk.create(owner=owner)
        except errors.ConversationExists:
            return

    async def known(self, request: Request, access: ChatAccess, conversation_id: str) -> ConversationHandle:
        """Return a conversation that exists.

        Raises:
            UnknownConversation: there is none of this kind with this id, or it is of another owner.
            InvalidInput: see `affinity.Client.conversation`.
        """
        client = await self.client(request)
        talk = client.conversation(self._conversations, conversation_id)
        await self._check_owner(client, access, talk)
        return talk

    async def _check_owner(self, client: Client, access: ChatAccess, talk: ConversationHandle) -> None:
        info = await client.get_conversation(talk.conversation_id)
        is_kind = info.kind == getattr(self._conversations, "kind", info.kind)
        if not is_kind or (access.owner is not None and info.owner != access.owner):
            raise errors.UnknownConversation(talk.conversation_id, "there is none")


def check_action(access: ChatAccess, action: ChatAction) -> None:
    """Raise `Refused` unless the user may do this."""
    if not access.may(action):
        raise Refused(403, _DENIED)


def conversation_id(request: Request) -> str:
    """Return the conversation that the address names."""
    found: str = request.path_params["conversation_id"]
    return found


def problem_for_reader(error: errors.AffinityError, *, show_errors: bool) -> str:
    """Return why a stream has ended, in words for the browser.

    Raises:
        AffinityError: the error itself, if it is none that a stream ends with.
    """
    match error:
        case errors.WakeFailed():
            return str(error) if show_errors else "the answer has failed"
        case errors.ConversationTerminated():
            return "the conversation has ended"
        case errors.UnknownConversation():
            return "the conversation was deleted"
        case errors.UnknownEntry():
            return "entries are gone: load the messages again"
        case errors.ProviderError():
            return "the database does not answer"
        case errors.ClientError():
            return str(error)
    raise error
