"""The parts that guests add to this provider: verbs, rights, and their share in statements of the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, LiteralString, TypeAlias

from affinity.actions import ActionCall, Actors, Administration
from affinity.errors import InvalidOptions
from affinity.guests import modules
from affinity.provider.contract import Retention
from affinity.provider.postgres.commit_parts import PostgresCommit
from affinity.provider.postgres.driver.wire import Params, Row
from affinity.provider.postgres.operations import ActionShare, Database
from affinity.provider.rounds import RoundKind
from affinity.records import frozen

ObjectKind: TypeAlias = Literal["SCHEMA", "TABLE", "SEQUENCE", "FUNCTION"]

READ: Final = "SELECT"
CHANGE: Final = "SELECT, INSERT, UPDATE, DELETE"
RUN: Final = "EXECUTE"


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of each kind of role to some objects.

    Args:
        kind: as ``GRANT`` calls it: a view is a table.
        objects: names, separated by spaces; a function's name stands for all functions of that name.
        client, worker, scaler: privileges, separated by commas.
        reader: likewise; None: as a client.
    """

    kind: ObjectKind
    objects: str
    client: str = ""
    worker: str = ""
    scaler: str = ""
    reader: str | None = None

    def of(self, role_kind: str) -> list[str]:
        """Return the privileges of a kind of role."""
        named = self.client if role_kind == "reader" and self.reader is None else getattr(self, role_kind)
        return [privilege.strip() for privilege in str(named).split(",") if privilege]


ShareInAction: TypeAlias = Callable[[Actors, ActionCall], ActionShare | None]
"""Return the share of the guest in a call of an action; None: the actors are not its own."""

RemoveOld: TypeAlias = Callable[[Database, Retention], Awaitable[tuple[int, bool]]]
"""Do a step of removing old data. Return the number of rows that it has removed, and whether there may be more."""


@frozen(kw_only=True)
class PostgresPrefetch:
    """The rows of a guest that a fetch reads in its statement, because activities begin with them
    (`FetchOptions.prefetch`).
    """

    columns: LiteralString
    """Columns of ``tables``, for the select list."""
    width: int
    """The number of the columns."""
    tables: LiteralString
    """Outer join of at most one row to each fetched item ``t``, which has ``instance_id`` and ``name``."""
    params: Callable[[Collection[str]], Params]
    """Return the parameters of ``tables``, for the names of the activities."""
    read: Callable[[Row], object | None]
    """Return the value of an item's columns, for `GuestPart.read_ahead`; None: the worker has to read it."""


@frozen(kw_only=True)
class PostgresPart:
    """The part of a guest in this provider. Expressions may use the function ``clock()``, and no parameters."""

    verbs: Mapping[str, Callable[..., Any]]
    rights: Sequence[Rights]
    """Rights to all objects of its schema."""
    due: LiteralString | None = None
    """Seconds until the guest's loop has something to do, for `Sweep.due`: an expression in the sweep's statement."""
    late: LiteralString | None = None
    """Seconds for which the loop's work has been due, for `QueueStatistics.late`: an expression in the statement of
    the gauges.
    """
    next_due: LiteralString | None = None
    """Future time, in Unix seconds, at which the loop's work will be due next; for `affinity.testing.Env`."""
    is_endless: bool = False
    """Whether there may always be a next time, as ticks of schedules: `Env.run_until_idle` does not wait for it."""
    remove_old: RemoveOld | None = None
    rounds: Callable[[Database, Retention], Sequence[RoundKind]] | None = None
    """Rounds of removing old data that have to look at each row: see `affinity.provider.rounds`."""
    needs_record: LiteralString | None = None
    """A condition in the sweep's statement: the guest needs the record ``r``, a row of ``session_states``."""
    awaits: LiteralString | None = None
    """A condition in the statement of `ProviderConnection.get_waits`: the wait ``w``, a row of ``activity_waits`` with
    a ``target_id``, belongs to this guest and is not over.
    """
    share_in_action: ShareInAction | None = None
    administered: Callable[[Administration], tuple[LiteralString, Sequence[Any]] | None] | None = None
    """Return a statement of the guest, if any, for the transaction in which the owner administers the database."""
    commit: PostgresCommit | None = None
    prefetch: PostgresPrefetch | None = None


@cache
def parts() -> Mapping[str, PostgresPart]:
    """Return the parts, by guest."""
    return {guest: module.PART for guest, module in modules("store.postgres").items()}


def expressions(field: str) -> dict[str, LiteralString]:
    """Return the expression of each part that has one, by guest."""
    found = {guest: getattr(part, field) for guest, part in parts().items()}
    return {guest: expression for guest, expression in found.items() if expression is not None}


@cache
def commits() -> Mapping[str, PostgresCommit]:
    """Return the functions that commit parts, by guest."""
    return {guest: part.commit for guest, part in parts().items() if part.commit is not None}


def commit_of(guest: str) -> PostgresCommit:
    """Return the functions that commit the parts of a guest.

    Raises:
        InvalidOptions: this provider does not know the guest.
    """
    if (commit := commits().get(guest)) is None:
        raise InvalidOptions(f"this provider cannot commit what {guest!r} adds to the result of an activity")
    return commit


@cache
def prefetches() -> Mapping[str, PostgresPrefetch]:
    """Return the prefetches, by guest."""
    return {guest: part.prefetch for guest, part in parts().items() if part.prefetch is not None}
