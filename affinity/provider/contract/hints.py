"""Hints for workers, notices of changes, and the subscriptions to both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from affinity.records import frozen


@frozen(kw_only=True)
class Hint:
    """A hint: why a worker should look; it may be lost or superfluous."""

    work: bool = True  # the queues may have work for it
    cancel: bool = False  # a work item that it has locked may have been removed, or an operator has resumed it
    sessions: bool = False  # a session that it holds may have moved
    only_messages: bool = False  # the work is messages of instances, and no work items
    only_own: bool = False  # the work is items of sessions that the worker holds, and no messages
    to_all: bool = False  # set by the provider, if it knows: all workers have received it

    def merge(self, other: Hint | None) -> Hint:
        """Return both hints as one."""
        if other is None:
            return self
        both = [hint for hint in (self, other) if hint.work]
        return Hint(
            work=self.work or other.work,
            cancel=self.cancel or other.cancel,
            sessions=self.sessions or other.sessions,
            only_messages=bool(both) and all(hint.only_messages for hint in both),
            only_own=bool(both) and all(hint.only_own for hint in both),
            to_all=self.to_all and other.to_all,
        )


class HintSource(Protocol):
    """A subscription to hints."""

    async def wait(self, timeout: float) -> Hint | None:
        """Return the hints that came since the last call, merged. Wait at most ``timeout`` seconds for a hint; None
        when no hint came.

        Raises:
            ConnectionLost: the subscription broke; open a new one.
        """
        ...


class ChangeWatch(Protocol):
    """A subscription to changes, by session id: of the data that a guest keeps for a session, and replies of the
    instance of that id.
    """

    async def wait(self, timeout: float) -> Mapping[str, bool] | None:
        """Return the sessions that may have changed since the last call. Wait at most ``timeout`` seconds for a change.
        Empty: any session may have changed; None: nothing came. A notice may be lost or superfluous. The value is False
        if only minor changes came: a guest that writes many changes marks them so.

        Raises:
            ConnectionLost: the subscription broke; open a new one.
        """
        ...


def merge_changes(before: dict[str, bool], changes: Mapping[str, bool]) -> None:
    """Add changes, as `ChangeWatch.wait` returns them."""
    for session_id, is_major in changes.items():
        before[session_id] = is_major or before.get(session_id, False)
