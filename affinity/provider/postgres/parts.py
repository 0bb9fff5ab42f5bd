"""The parts that guests add to this provider: verbs, rights, and their share in statements of the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, LiteralString, NamedTuple, TypeAlias, TypeVar

from affinity.actions import ActionCall, Actors, Administration
from affinity.errors import InvalidOptions
from affinity.guests import modules
from affinity.provider.contract import Retention, Turn
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import ActionShare, Database
from affinity.provider.postgres.turn_columns import Columns, Parking
from affinity.records import CommitPart, frozen

T = TypeVar("T")

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
        """The privileges of a kind of role."""
        named = self.client if role_kind == "reader" and self.reader is None else getattr(self, role_kind)
        return [each.strip() for each in str(named).split(",") if each]


ShareInAction: TypeAlias = Callable[[Actors, ActionCall], ActionShare | None]
"""What the guest adds to a call of an action; None: the actors are not its own."""

RemoveOld: TypeAlias = Callable[[Database, Retention], Awaitable[tuple[int, bool]]]
"""A step of removing old data: the number of rows that it has removed, and whether there may be more."""


class LoneCall(NamedTuple):
    """The call that commits a lone turn, of a function of the guest's with the result of ``commit_turn``."""

    function: LiteralString
    values: Columns  # its arguments, and those that the kernel adds: worker, incarnation, lengths of locks


class CommitCalls(NamedTuple):
    """What a guest adds to the select list of a commit, whose turns have written everything else."""

    calls: Sequence[LiteralString]  # in their order; each raises ``refuse`` when the fence of a part fails
    params: Params
    placing: int | None = None  # which of the calls says where parked items went: by item, see `PostgresCommit.parks`


class AckCalls(NamedTuple):
    """What a guest adds to the statement of acks. See ``ack`` in work_items.sql, which names the tables before them."""

    calls: Sequence[LiteralString]  # for the select list, in their order; for the parts that have passed
    params: Params


@frozen(kw_only=True)
class PostgresCommit:
    """How the parts of a guest are committed (`CommitPart`). The functions are called only for batches with such parts.

    Rows of a guest are locked behind those of the kernel, in an order of its own.
    """

    lone: Callable[[Turn], LoneCall | None]
    """One call for a turn with one part, one result, and at most one work item, which it parks. None: it needs more."""
    calls: Callable[[Sequence[CommitPart], Parking], CommitCalls]
    """The parts and the parked items of a batch."""
    fences: LiteralString
    """Query of ``(guest, n)``: the parts whose fences do not pass, in ``check_fences``."""
    fence_params: Callable[[Sequence[CommitPart]], Params]
    """Its parameters."""
    ack_tables: LiteralString
    """Common tables of the statement of acks, which lock and judge."""
    ack_fence: LiteralString
    """Condition on ``n``, the number of an ack: it has no part of the guest, or the part passes."""
    acks: Callable[[Sequence[tuple[int, CommitPart]]], AckCalls]
    """The parts of a batch of acks, each with the number of its ack; no two have a session in common."""
    parks: bool = False
    """Whether the guest parks work items (`NewWorkItem.parked`), and queues them later. Then ``calls`` comes for each
    batch with parked items. One of its calls returns the place of each: NULL: parked; "": queued; else the holder of
    its session.
    """


@frozen(kw_only=True)
class PostgresPart:
    """The part of a guest in this provider. Expressions may use the function ``clock()``, and no parameters."""

    verbs: Mapping[str, Callable[..., Any]]
    rights: Sequence[Rights]
    """To all objects of its schema."""
    due: LiteralString | None = None
    """Seconds until the guest's loop has something to do, for `Sweep.due`: an expression in the sweep's statement."""
    late: LiteralString | None = None
    """Seconds for which that has been due, for `QueueStatistics.late`: an expression in the statement of the gauges."""
    next_due: LiteralString | None = None
    """Time, in Unix seconds, at which that will be due next and is not now; for `affinity.testing.Env`."""
    remove_old: RemoveOld | None = None
    awaits: LiteralString | None = None
    """Whether a wait ``w``, a row of ``activity_waits`` with a ``target_id``, is one of this guest that is not over: a
    condition in the statement of `ProviderConnection.get_waits`.
    """
    share_in_action: ShareInAction | None = None
    administered: Callable[[Administration], tuple[LiteralString, Sequence[Any]] | None] | None = None
    """A statement of the guest, if any, in the transaction of what the owner does to the database."""
    commit: PostgresCommit | None = None


@cache
def parts() -> Mapping[str, PostgresPart]:
    """The parts, by guest."""
    return {guest: module.PART for guest, module in modules("store.postgres").items()}


def expressions(field: str) -> dict[str, LiteralString]:
    """An expression of each part that has one, by guest."""
    found = {guest: getattr(part, field) for guest, part in parts().items()}
    return {guest: expression for guest, expression in found.items() if expression is not None}


@cache
def commits() -> Mapping[str, PostgresCommit]:
    """How parts are committed, by guest."""
    return {guest: part.commit for guest, part in parts().items() if part.commit is not None}


def commit_of(guest: str) -> PostgresCommit:
    """Return how the parts of a guest are committed.

    Raises:
        InvalidOptions: this provider does not know the guest.
    """
    if (commit := commits().get(guest)) is None:
        raise InvalidOptions(f"this provider cannot commit what {guest!r} adds to the result of an activity")
    return commit


def by_guest(numbered: Iterable[tuple[T, CommitPart]]) -> dict[str, list[tuple[T, CommitPart]]]:
    """Return parts by guest, in their order, each with what it comes with."""
    found: dict[str, list[tuple[T, CommitPart]]] = {}
    for with_it, part in numbered:
        found.setdefault(part.guest, []).append((with_it, part))
    return found
