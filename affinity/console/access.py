"""Who may read the console, and who may act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Final, Literal, TypeAlias, get_args

from starlette.requests import Request

from affinity.records import frozen

Action: TypeAlias = Literal["read", "answer", "cancel", "resume", "release", "move", "drain"]
"""``read``: all pages. ``answer``: requests of conversations. ``cancel``, ``resume``: instances. ``release``, ``move``:
sessions. ``drain``: workers, also to end a drain.
"""

NONE: Final[AbstractSet[Action]] = frozenset()
READ: Final[AbstractSet[Action]] = frozenset({"read"})
ALL: Final[AbstractSet[Action]] = frozenset(get_args(Action))


@frozen()
class Access:
    """What the user of a request may do."""

    actions: AbstractSet[Action]  # `NONE`, `READ`, `ALL`, or some actions; an action without "read" is none
    user: str = ""  # for the log of actions

    def may(self, action: str) -> bool:
        """Whether the user may do this."""
        return "read" in self.actions and action in self.actions


AccessFunction: TypeAlias = Callable[[Request], Access | Awaitable[Access]]
"""Gives the access of a request, for example from the session of the application around the console."""


def read_only(request: Request) -> Access:
    """Each request may read: the default. Put the console behind a login."""
    return Access(READ)
