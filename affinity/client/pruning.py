"""Removing instances and histories that ended long ago, in steps that hold nobody up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from affinity.client.calls import insist
from affinity.errors import InvalidInput
from affinity.limits import MAX_RETENTION_SECONDS
from affinity.provider.contract import FINISHED, Provider

EndedStatus: TypeAlias = Literal["completed", "failed", "cancelled"]

PruneProgress: TypeAlias = Callable[[int], None]
"""Called after each step with the number of instances, or executions, so far."""


COMPLETED: Final[tuple[EndedStatus, ...]] = ("completed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedInstances:
    """What `Client.prune` removed, or would remove."""

    roots: int  # instances without a parent
    instances: int  # they, and all their sub-orchestrations


async def prune_instances(
    provider: Provider, older_than: float, status: Collection[EndedStatus], *, dry_run: bool, progress: PruneProgress
) -> PrunedInstances:
    """See `Client.prune`."""
    _check_age(older_than)
    wanted = frozenset(status)
    if not wanted or not wanted <= FINISHED:
        raise InvalidInput(f"status = {sorted(wanted)!r}: name some of {', '.join(sorted(FINISHED))}")
    roots = instances = 0
    step = partial(provider.prune_instances, wanted, older_than, dry_run=dry_run)
    pruned = await insist(step)
    while True:
        roots, instances = roots + pruned.roots, instances + pruned.instances
        progress(instances)
        if pruned.after is None:
            return PrunedInstances(roots=roots, instances=instances)
        pruned = await insist(partial(step, after=pruned.after))


async def prune_histories(provider: Provider, older_than: float, *, dry_run: bool, progress: PruneProgress) -> int:
    """See `Client.prune_histories`."""
    _check_age(older_than)
    executions, more = 0, True
    while more:
        pruned = await insist(partial(provider.prune_histories, older_than, dry_run=dry_run))
        executions, more = executions + pruned.executions, pruned.more
        progress(executions)
    return executions


def _check_age(older_than: float) -> None:
    if not 0 <= older_than <= MAX_RETENTION_SECONDS:
        raise InvalidInput(
            f"older_than = {older_than!r}: must be seconds from 0 to {MAX_RETENTION_SECONDS:.0f} (100 years)"
        )
