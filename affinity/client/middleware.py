"""What a middleware of a client is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from affinity.orchestration.middleware import Next, SyncNext

CallOperation: TypeAlias = Literal["start", "raise", "ask", "send"]
"""What a client does: start instances; raise events; ask an instance or a conversation; send to a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """A call of a client that causes work, for the middleware around it, which cannot change it."""

    operation: CallOperation
    names: Sequence[str]  # of the orchestrations, of the events, or of the kind of conversations
    ids: Sequence[str | None]  # of the instances, or of the conversation; None: a random one


ClientMiddleware: TypeAlias = Callable[[ClientCall, Next], Awaitable[Any]] | Callable[[ClientCall, SyncNext], Any]
