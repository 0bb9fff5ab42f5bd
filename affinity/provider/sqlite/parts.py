"""The parts that guests add to this provider: verbs, and steps in operations of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, LiteralString, TypeAlias

from affinity.actions import ActionCall, Actors, Administration
from affinity.guests import modules
from affinity.provider.contract import Retention
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.records import frozen

Seconds: TypeAlias = Callable[[Tx], float | None]

ActionShare: TypeAlias = Callable[[Tx, object], Callable[[], None]]
"""What a guest adds to the transaction of one call of an action, whose result it gets. It returns what is called when
the transaction was committed.
"""


@frozen(kw_only=True)
class SqlitePart:
    """The part of a guest in this provider."""

    verbs: Mapping[str, Callable[..., Any]]
    """Made by the functions of `affinity.provider.sqlite.verbs`."""
    due: Seconds | None = None
    """Seconds until the guest's loop has something to do, for `Sweep.due`."""
    late: Seconds | None = None
    """Seconds for which that has been due, for `QueueStatistics.late`."""
    next_due: Seconds | None = None
    """Time, in Unix seconds, at which that will be due next and is not now; for `affinity.testing.Env`."""
    remove_old: Callable[[Tx, Retention], tuple[int, bool]] | None = None
    """A step of removing old data: the number of rows that it has removed, and whether there may be more."""
    awaits: LiteralString | None = None
    """Whether a wait ``w``, a row of ``activity_waits`` with a ``target_id``, is one of this guest that is not over: a
    condition in the statement of `ProviderConnection.get_waits`.
    """
    share_in_action: Callable[[Actors, ActionCall], ActionShare | None] | None = None
    """What the guest adds to a call of an action; None: the actors are not its own."""
    administered: Callable[[Tx, Administration], None] | None = None
    """What the guest adds to the transaction of what the owner does to the database."""


@cache
def parts() -> Mapping[str, SqlitePart]:
    """The parts, by guest."""
    return {guest: module.PART for guest, module in modules("store.sqlite").items()}


def ask(tx: Tx, field: str) -> dict[str, float | None]:
    """Seconds of each part that has them, by guest."""
    found = {guest: getattr(part, field) for guest, part in parts().items()}
    return {guest: seconds(tx) for guest, seconds in found.items() if seconds is not None}


def tell_guests(tx: Tx, done: Administration) -> None:
    """Run what guests add to the transaction that is open."""
    for part in parts().values():
        if part.administered is not None:
            part.administered(tx, done)
