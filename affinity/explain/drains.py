"""What a drain of a worker will move, and to where, before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from affinity.explain.words import counted
from affinity.provider.contract import Provider, SessionInfo, WorkerInfo
from affinity.records import frozen


@frozen()
class DrainTarget:
    """A worker that takes sessions of the drained one."""

    worker: WorkerInfo
    room: int  # sessions that it may hold beside its own


@frozen(kw_only=True)
class DrainPreview:
    """The sessions that a worker holds, and the workers that may take them."""

    worker: WorkerInfo
    sessions: Sequence[SessionInfo]  # held, by id; an idle one is freed immediately, another one as its work ends
    has_more: bool  # it has other sessions, which may be held
    targets: Sequence[DrainTarget]  # workers with the most room first
    sentence: str


async def drain_preview(provider: Provider, worker_id: str, limit: int) -> DrainPreview | None:
    """What a drain moves, with ``limit`` sessions at most; None: there is no such worker.

    Raises:
        ProviderError: the database does not answer.
    """
    workers = await provider.list_workers()
    worker = next((one for one in workers if one.worker_id == worker_id), None)
    if worker is None:
        return None
    rows = await provider.list_sessions(worker_id=worker_id, limit=limit)
    targets = [DrainTarget(one, one.capacity - one.sessions) for one in workers if _takes(one, worker)]
    targets.sort(key=lambda target: -target.room)
    return DrainPreview(
        worker=worker,
        sessions=[row for row in rows if row.held],
        has_more=len(rows) == limit,
        targets=targets,
        sentence=f"worker {worker_id!r} {_sentence(worker, targets)}",
    )


def _takes(one: WorkerInfo, drained: WorkerInfo) -> bool:
    is_other = one.worker_id != drained.worker_id and one.labels.get("app") == drained.labels.get("app")
    return is_other and one.alive and not one.restarting and not one.draining and one.sessions < one.capacity


def _sentence(worker: WorkerInfo, targets: Sequence[DrainTarget]) -> str:
    if not worker.alive or not worker.sessions:
        return "holds no sessions: a drain moves none"
    held, room = f"holds {counted(worker.sessions, 'session')}", sum(target.room for target in targets)
    if not room:
        one, its = ("it", "its") if worker.sessions == 1 else ("one", "their")
        return f"{held}, and no other worker has room for {one}: {its} work waits after the drain"
    if room < worker.sessions:
        late = counted(worker.sessions - room, "session")
        return f"{held}, and the other workers have room for {room}: work of {late} waits after the drain"
    return f"{held}, and the other workers have room for {room}: they take each session with its next work"
