"""Parts of guests in commits (`CommitPart`): the records between the kernel, which sends the statement, and a guest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import LiteralString, NamedTuple, TypeAlias, TypeVar

from affinity.provider.contract import Generation, NewWorkItem, Turn, WorkKey
from affinity.provider.postgres.driver.arrays import Packed
from affinity.provider.postgres.driver.wire import Params
from affinity.records import CommitPart, frozen

T = TypeVar("T")

Columns: TypeAlias = dict[LiteralString, Packed]


class Parking(NamedTuple):
    """The parked work items of a batch."""

    items: Sequence[NewWorkItem]  # items to park: the last of each turn
    generations: Sequence[Generation]  # of the instances of ``items``
    cancelled: Sequence[WorkKey]  # cancelled items, which may be parked, or queued by now
    instances: Collection[str]  # instances of all of them


class LoneCall(NamedTuple):
    """The call that commits a lone turn. It calls a function of the guest that has the result of ``commit_turn``."""

    function: LiteralString
    values: Columns  # its arguments, beside those that the kernel adds: worker, incarnation, lengths of locks


class CommitCalls(NamedTuple):
    """The calls that a guest adds to the select list of a commit, after its turns have written everything else."""

    calls: Sequence[LiteralString]  # in their order; each raises ``refuse`` when the fence of a part fails
    params: Params
    placing: int | None = None  # index of the call that returns the places of parked items; see `PostgresCommit.parks`


class AckCalls(NamedTuple):
    """The calls that a guest adds to the statement of acks; see ``ack`` in work_items.sql for its tables."""

    calls: Sequence[LiteralString]  # for the select list, in their order; for the parts that have passed
    params: Params


@frozen(kw_only=True)
class PostgresCommit:
    """The functions and texts that commit the parts of a guest (`CommitPart`). The functions are called only for
    batches with such parts.

    Rows of a guest are locked after those of the kernel and of guests whose names come before. The guest chooses the
    order of its own rows.
    """

    lone: Callable[[Turn], LoneCall | None]
    """Return a single call for a turn with one part, one result, and at most one work item, which it parks. None: the
    turn needs more.
    """
    calls: Callable[[Sequence[CommitPart], Parking], CommitCalls]
    """Return the calls for the parts and the parked items of a batch."""
    fences: LiteralString
    """Query of ``(guest, n)``: the parts whose fences do not pass, in ``check_fences``."""
    fence_params: Callable[[Sequence[CommitPart]], Params]
    """Return the parameters of ``fences``."""
    ack_tables: LiteralString
    """Common tables of the statement of acks, which lock rows and check fences."""
    ack_fence: LiteralString
    """Condition on ``n``, the number of an ack: it has no part of the guest, or the part passes."""
    acks: Callable[[Sequence[tuple[int, CommitPart]]], AckCalls]
    """Return the calls for the parts of a batch of acks, each with the number of its ack; no two have a session in
    common.
    """
    parks: bool = False
    """True if the guest parks work items (`NewWorkItem.parked`), and queues them later; only one guest may. Then
    ``calls`` is called for each batch with parked items. One of its calls returns the place of each item: NULL: parked;
    "": queued; else the holder of its session.
    """


def by_guest(numbered: Iterable[tuple[T, CommitPart]]) -> dict[str, list[tuple[T, CommitPart]]]:
    """Return numbered parts by guest, in their order. The guests are in the order of their names, in which each
    statement locks their rows.
    """
    found: dict[str, list[tuple[T, CommitPart]]] = {}
    for with_it, part in numbered:
        found.setdefault(part.guest, []).append((with_it, part))
    return dict(sorted(found.items()))
