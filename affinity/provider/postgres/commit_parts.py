"""What guests add to commits (`CommitPart`): the records between the kernel, which sends the statement, and a guest."""

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

    Rows of a guest are locked behind those of the kernel and of guests whose names come before, in an order of its own.
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


def by_guest(numbered: Iterable[tuple[T, CommitPart]]) -> dict[str, list[tuple[T, CommitPart]]]:
    """Return parts by guest, in their order, each with what it comes with. The guests are in the order of their names,
    in which each statement locks their rows.
    """
    found: dict[str, list[tuple[T, CommitPart]]] = {}
    for with_it, part in numbered:
        found.setdefault(part.guest, []).append((with_it, part))
    return dict(sorted(found.items()))
