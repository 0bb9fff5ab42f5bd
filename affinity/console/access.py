"""Who may read the console, and who may act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from starlette.requests import Request

from affinity.errors import InvalidOptions

Action: TypeAlias = Literal[
    "read",  # all pages
    "answer",  # requests of conversations
    "converse",  # send messages, ask, interrupt, have a failed conversation try again, fork
    "raise",  # events for instances
    "cancel",  # instances; also to terminate conversations
    "resume",  # suspended instances
    "reset",  # instances to an earlier event
    "start",  # start instances, and run ended ones again
    "delete",  # finished instances, and records of sessions
    "release",  # sessions
    "move",  # sessions to another worker
    "drain",  # workers; also to end a drain
    "limit",  # change, pause and resume limits
    "schedule",  # pause, resume and trigger schedules
]
"""What a user may do."""

NONE: Final[AbstractSet[Action]] = frozenset()
READ: Final[AbstractSet[Action]] = frozenset({"read"})
ALL: Final[AbstractSet[Action]] = frozenset(get_args(Action))


@dataclass(frozen=True, slots=True)
class Access:
    """What the user of a request may do."""

    actions: AbstractSet[Action]  # `NONE`, `READ`, `ALL`, or some actions; an action without "read" is none
    user: str = ""  # for the log of actions

    def __post_init__(self) -> None:
        """Refuse actions that do not exist.

        Raises:
            InvalidOptions: `actions` is no set, or has something else than an `Action`.
        """
        if not isinstance(self.actions, AbstractSet):
            raise InvalidOptions(f"Access(actions=…) takes a set, as {{'read', 'answer'}}, not {self.actions!r:.80}")
        if unknown := self.actions - ALL:
            raise InvalidOptions(f"Access: no such action: {unknown!r:.80}; there are {', '.join(get_args(Action))}")

    def may(self, action: str) -> bool:
        """Whether the user may do this."""
        return "read" in self.actions and action in self.actions


AccessFunction: TypeAlias = Callable[[Request], Access | Awaitable[Access]]
"""Gives the access of a request, for example from the session of the application around the console."""


def read_only(request: Request) -> Access:
    """Each request may read: the default. Put the console behind a login."""
    return Access(READ)
