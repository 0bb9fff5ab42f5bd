"""What operators look at: executions, trees and queued activities of instances."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeAlias, get_args

from affinity.client.calls import insist
from affinity.limits import SCRAPE_COUNT
from affinity.provider.contract import (
    ExecutionInfo,
    InstanceInfo,
    InstanceStatus,
    MessageState,
    Provider,
    TreeMember,
    WorkItemInfo,
    WorkItemState,
)

ExecutionStatus: TypeAlias = InstanceStatus | Literal["continued", "ended"]
"""That of its instance for the current execution. A former one has ``"continued"`` as new; ``"ended"`` are those that a
reset has replaced, and those of whose history only the beginning is kept.
"""

ActivityState: TypeAlias = Literal["running", "waiting", "retrying"]
"""It runs, it can be fetched by a worker, or it waits for its next attempt."""

_TYPE: Final = re.compile(r'\{"type":"(\w+)"')
_OUTCOMES: Final[dict[str, ExecutionStatus]] = {
    "orchestration_completed": "completed",
    "orchestration_failed": "failed",
    "orchestration_cancelled": "cancelled",
    "continued_as_new": "continued",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSummary:
    """One execution of an instance: another one begins with each ``continue_as_new``, and with each reset."""

    execution_id: int
    status: ExecutionStatus
    event_count: int  # events of it that are kept
    started_at: datetime | None  # None: not known
    ended_at: datetime | None  # None: it goes on, or its end is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingActivity:
    """An activity of an instance that has no result yet."""

    execution_id: int
    activity_id: int  # event id of its scheduling
    name: str
    session_id: str | None
    state: ActivityState
    attempt: int  # the one that runs, or the next
    worker_id: str | None  # that runs it
    scheduled_at: datetime
    next_attempt_at: datetime | None  # while it is retrying
    last_error: str | None  # "ValueError: …", of the attempt before


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """An instance in its tree of sub-orchestrations."""

    depth: int  # 0: the instance that was asked for
    instance_id: str
    parent_id: str | None
    name: str
    version: str | None
    status: InstanceStatus
    execution_id: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTree:
    """An instance with its sub-orchestrations and theirs: each behind its parent, children in the order of creation."""

    nodes: Sequence[TreeNode]
    truncated: bool  # there are more; those that are here are the nearest to the instance


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStatistics:
    """How much there is. Numbers of the queues stop at the limit that was asked for."""

    instances: Mapping[InstanceStatus, int]
    work_items: Mapping[WorkItemState, int]  # activities
    messages: Mapping[MessageState, int]
    oldest_work_item: float | None  # seconds for which the one that waits longest could have been fetched
    oldest_message: float | None


async def read_statistics(provider: Provider, limit: int) -> WorkStatistics:
    """See `Client.statistics`."""
    queues = await insist(partial(provider.measure_queues, limit))
    counts: Counter[InstanceStatus] = Counter()
    page = await insist(partial(provider.count_instances, SCRAPE_COUNT))
    counts.update(page.counts)
    while page.after is not None:
        page = await insist(partial(provider.count_instances, SCRAPE_COUNT, after=page.after))
        counts.update(page.counts)
    return WorkStatistics(
        instances={status: counts[status] for status in get_args(InstanceStatus)},
        work_items=queues.work_items,
        messages=queues.messages,
        oldest_work_item=queues.oldest_work_item,
        oldest_message=queues.oldest_message,
    )


def execution_of(row: ExecutionInfo, instance: InstanceInfo) -> ExecutionSummary:
    """The execution with its status, which is in its last event; that of the current one is its instance's."""
    found = _TYPE.match(row.last_event or "")
    former = _OUTCOMES.get(found[1], "ended") if found else "ended"
    return ExecutionSummary(
        execution_id=row.execution_id,
        status=instance.status if row.execution_id == instance.execution_id else former,
        event_count=row.event_count,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def activity_of(row: WorkItemInfo) -> PendingActivity:
    """The activity that a work item stands for."""
    is_running = row.state == "running"
    is_retrying = row.state == "delayed" and row.failures > 0
    return PendingActivity(
        execution_id=row.key.execution_id,
        activity_id=row.key.activity_id,
        name=row.name,
        session_id=row.session_id,
        state="running" if is_running else "retrying" if is_retrying else "waiting",
        attempt=row.attempts if is_running else row.attempts + 1,
        worker_id=row.worker_id,
        scheduled_at=row.queued_at,
        next_attempt_at=row.visible_at if is_retrying else None,
        last_error=row.last_error,
    )


def tree_of(instance_id: str, members: Sequence[TreeMember], limit: int) -> InstanceTree:
    """The members, which are those nearest to the instance, in the order of the tree."""
    children: defaultdict[str | None, list[TreeMember]] = defaultdict(list)
    for member in sorted(members[:limit], key=lambda one: (one.created_at, one.instance_id), reverse=True):
        if member.instance_id != instance_id:
            children[member.parent_id].append(member)
    nodes: list[TreeNode] = []
    waiting = [(0, member) for member in members if member.instance_id == instance_id]
    while waiting:
        depth, member = waiting.pop()
        nodes.append(_node(depth, member))
        waiting += [(depth + 1, child) for child in children.pop(member.instance_id, ())]
    return InstanceTree(nodes=nodes, truncated=len(members) > limit)


def _node(depth: int, member: TreeMember) -> TreeNode:
    return TreeNode(
        depth=depth,
        instance_id=member.instance_id,
        parent_id=member.parent_id,
        name=member.name,
        version=member.version,
        status=member.status,
        execution_id=member.execution_id,
        created_at=member.created_at,
        updated_at=member.updated_at,
    )
