"""Records with defaults for tests: fetches, instances, turns, work items, states; and counts of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import (
    FetchOptions,
    NewInstance,
    NewMessage,
    NewWorkItem,
    OrchestrationItem,
    Provider,
    Reset,
    Timeouts,
    Turn,
    WorkerProfile,
    WorkItem,
    WorkKey,
)
from affinity.session import SessionMetadata, SessionState, StateWrite

ITEM_LOCK: Final = 30.0
SESSION_LOCK: Final = 300.0
TIMEOUTS: Final = Timeouts(work_item_lock=ITEM_LOCK, session_lock=SESSION_LOCK)

LONG_LEASE: Final = 1_000_000.0
"""Seconds; for tests in which the worker's lease plays no part."""

SHORT_LEASE: Final = 15.0
"""Seconds; for tests in which it ends."""

UNKNOWN_AFTER: Final = 60.0
ACTIVITY: Final = "work"
ORCHESTRATION: Final = "flow"


class Choices(TypedDict, total=False):
    """Options of a fetch that a test may set; the defaults restrict nothing."""

    max_sessions: int
    names: Collection[str]
    unknown_after: float
    uncounted_after: int
    max_bytes: int
    timeouts: Timeouts
    pack: bool
    only_own: bool
    prefetch: Mapping[str, Collection[str]]


def fetch_options(limit: int = 1, **choices: Unpack[Choices]) -> FetchOptions:
    """Options of a worker that registers the suite's activity and has room for all sessions, unless set otherwise."""
    return FetchOptions(
        limit=limit,
        max_sessions=choices.get("max_sessions", 10_000),
        names=choices.get("names", (ACTIVITY,)),
        unknown_after=choices.get("unknown_after", UNKNOWN_AFTER),
        uncounted_after=choices.get("uncounted_after", 1_000),
        max_bytes=choices.get("max_bytes", MAX_BATCH_BYTES),
        timeouts=choices.get("timeouts", TIMEOUTS),
        pack=choices.get("pack", False),
        only_own=choices.get("only_own", False),
        prefetch=choices.get("prefetch", {}),
    )


def profile(**fields: Any) -> WorkerProfile:
    """The registration of a worker of the suite, with room for all sessions unless the fields say otherwise."""
    suite: dict[str, Any] = {"capacity": 10_000, "app": "suite", "code_version": "1", "registered": {}}
    return WorkerProfile(**suite | fields)


def new_instance(instance_id: str, **fields: Any) -> NewInstance:
    """An instance of the suite's orchestration."""
    return NewInstance(
        **{"instance_id": instance_id, "name": ORCHESTRATION, "version": None, "start": "start", **fields}
    )


def fence_of(at: OrchestrationItem) -> dict[str, Any]:
    """The fence that ``at`` shows, as fields of a record."""
    return {name: getattr(at, name) for name in ("instance_id", "generation", "execution_id", "event_count")}


def turn(at: OrchestrationItem, **step: Any) -> Turn:
    """A turn at the fence that ``at`` shows; it records one event unless ``history`` says otherwise."""
    return Turn(**{**fence_of(at), "history": ["event"], **step})


def reset_of(at: OrchestrationItem, keep: int, **more: Any) -> Reset:
    """A reset at the fence that ``at`` shows."""
    return Reset(**fence_of(at), keep=keep, history=["reset"], **more)


def payloads(item: OrchestrationItem) -> Sequence[str]:
    """Payloads of the messages of an instance."""
    return [message.payload for message in item.messages]


def message_ids(item: OrchestrationItem) -> Sequence[int]:
    """Ids of the messages of an instance, for `Turn.consumed`."""
    return [message.id for message in item.messages]


def work_item(at: OrchestrationItem, activity_id: int, session_id: str | None = None) -> NewWorkItem:
    """An activity of the execution that ``at`` shows."""
    key = WorkKey(at.instance_id, at.execution_id, activity_id)
    return NewWorkItem(key=key, name="work", payload="input", session_id=session_id)


def state(session_id: str, content: bytes = b"by hand", **metadata: Any) -> SessionState:
    """A state of that content; the keywords are fields of its metadata."""
    return SessionState(session_id=session_id, state=content, metadata=SessionMetadata(**metadata))


def state_write(item: WorkItem, content: bytes = b"by work", *, base: int = 0, epoch: int | None = None) -> StateWrite:
    """A write with the result of the item, under the epoch with which it was fetched unless another is given."""
    assert item.session_id is not None
    written_under = item.session_epoch if epoch is None else epoch
    return StateWrite(new=state(item.session_id, content), base_version=base, epoch=written_under or 0)


def about(seconds: float, wanted: float) -> bool:
    """Return True if ``seconds`` is ``wanted``, less at most `TOUCH_SLACK` and the time that the test takes."""
    return wanted - 10 < seconds <= wanted


def timer(at: OrchestrationItem, event_id: int, delay: float) -> NewMessage:
    """A timer of the execution that ``at`` shows."""
    name = (at.execution_id, event_id)
    return NewMessage(instance_id=at.instance_id, payload=f"timer {event_id}", delay=delay, timer=name)


async def count_rows(provider: Provider) -> dict[str, int]:
    """Rows by kind, up to a thousand of each."""
    queues, instances = await provider.measure_queues(1_000), await provider.count_instances(1_000)
    return {
        "work_items": sum(queues.work_items.values()),
        "messages": sum(queues.messages.values()),
        "sessions": len(await provider.list_sessions(limit=1_000)),
        "workers": len(await provider.list_workers()),
        "instances": sum(instances.counts.values()),
    }
