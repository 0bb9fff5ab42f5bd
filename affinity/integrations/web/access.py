"""Who may read a chat, write in it, and answer its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from starlette.requests import Request

from affinity.errors import InvalidOptions
from affinity.limits import check_id

ChatAction: TypeAlias = Literal[
    "read",  # messages and streams
    "converse",  # send messages, stop an answer, try a failed one again
    "answer",  # requests: approvals, and results of tools that the browser runs
    "events",  # the journal as it is, with the trace of each wake: names, times and errors of the code
]
"""What a user may do."""

MAY_READ: Final[AbstractSet[ChatAction]] = frozenset({"read"})
MAY_CHAT: Final[AbstractSet[ChatAction]] = frozenset({"read", "converse", "answer"})
MAY_ALL: Final[AbstractSet[ChatAction]] = frozenset(get_args(ChatAction))


@dataclass(frozen=True, slots=True)
class ChatAccess:
    """What the user of a request may do."""

    actions: AbstractSet[ChatAction]  # `MAY_READ`, `MAY_CHAT`, `MAY_ALL`, or some; an action without "read" is none
    user: str = ""  # for the audit log, which has the answers
    # Only conversations with this owner exist for the user, and those that the user begins have it. None: all
    # conversations of the kind.
    owner: str | None = None

    def __post_init__(self) -> None:
        """Refuse actions that do not exist.

        Raises:
            InvalidOptions: `actions` is no set, or has something else than a `ChatAction`.
            InvalidId: the owner is none.
        """
        if not isinstance(self.actions, AbstractSet):
            raise InvalidOptions(f"ChatAccess(actions=…) takes a set, such as MAY_CHAT, not {self.actions!r:.80}")
        if unknown := self.actions - MAY_ALL:
            names = ", ".join(get_args(ChatAction))
            raise InvalidOptions(f"ChatAccess: no such action: {unknown!r:.80}; there are {names}")
        if self.owner is not None:
            check_id(self.owner, "owner")

    def may(self, action: str) -> bool:
        """Whether the user may do this."""
        return "read" in self.actions and action in self.actions


ChatAccessFunction: TypeAlias = Callable[[Request], ChatAccess | Awaitable[ChatAccess]]
"""Gives the access of a request, for example from the session of the application around the chat."""
