"""The reads and writes of threads, each within a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from affinity.integrations.database import Connection, Tables
from affinity.integrations.langgraph.fence import Fence, Place, ThreadConflict, Token

TABLES: Final = Tables("langgraph", __package__, 1, "threads", "AffinitySaver(url).setup()")

PAGE: Final = 100
"""Checkpoints of a listing that are read together."""


class Stored(NamedTuple):
    """A value as LangGraph's serializer has written it."""

    type: str
    data: bytes


class Row(NamedTuple):
    """A checkpoint."""

    place: Place
    checkpoint_id: str
    parent_id: str | None
    checkpoint: Stored
    metadata: Stored
    writes: int
    """How often its namespace had been written."""
    results: Sequence[tuple[str, str, Stored]]
    """Writes of its tasks: task, channel and value, in the order in which a run applies them."""


class Put(NamedTuple):
    """A checkpoint to write."""

    place: Place
    token: Token | None
    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    checkpoint: Stored
    metadata: Stored
    by_run: bool
    is_copy: bool = False
    """Made by ``update_state(..., as_node="__copy__")``."""


class Results(NamedTuple):
    """Writes of a task to store."""

    place: Place
    token: Token | None
    checkpoint_id: str
    task_id: str
    task_path: str
    writes: Sequence[tuple[int, str, Stored]]
    """Place, channel and value."""


class Conditions(NamedTuple):
    """The conditions of a listing; None: any."""

    thread: str | None
    ns: str | None
    checkpoint_id: str | None
    before: str | None


def put(connection: Connection, fence: Fence, new: Put) -> None:
    """Write a checkpoint.

    Raises:
        ThreadConflict: another writer has the namespace, or the parent was deleted.
    """
    if new.token is not None:
        fence.claim(connection, new.token)
    else:
        by_run, is_copy = new.by_run, new.is_copy
        fence.take_to_put(connection, new.place, new.checkpoint_id, new.parent_id, by_run=by_run, is_copy=is_copy)
    given = {
        **new.place.parameters,
        "checkpoint": new.checkpoint_id,
        "parent": new.parent_id,
        "needed": new.parent_id if new.token is not None else None,
        "run": new.run_id,
        "value_type": new.checkpoint.type,
        "value": new.checkpoint.data,
        "metadata_type": new.metadata.type,
        "metadata": new.metadata.data,
    }
    if not connection.fetch("put", given):
        raise new.place.conflict(f"checkpoint {new.parent_id}, on which this run goes on, was deleted")


def put_results(connection: Connection, fence: Fence, new: Results) -> None:
    """Store what a task has written.

    Raises:
        ThreadConflict: another writer has the namespace.
    """
    if new.token is not None:
        fence.claim(connection, new.token)
    else:
        fence.take_to_put_writes(connection, new.place, new.checkpoint_id)
    about = {**new.place.parameters, "checkpoint": new.checkpoint_id, "task": new.task_id, "path": new.task_path}
    connection.run_all(
        "put_write",
        [
            {**about, "idx": idx, "channel": channel, "value_type": value.type, "value": value.data}
            for idx, channel, value in new.writes
        ],
    )


def read(connection: Connection, place: Place, checkpoint_id: str | None) -> Row | int:
    """Return a checkpoint, the newest one if no id is given. If it is not there, return how often the namespace was
    written.

    The number of writes is never newer than the rest: what is written later makes the reader's token worthless. It is
    read with a checkpoint in one statement. Where there is none, it is read before the last look for one.
    """
    name, given = "latest" if checkpoint_id is None else "one", {**place.parameters, "checkpoint": checkpoint_id}
    writes = 0
    if not (rows := connection.fetch(name, given)):
        writes = writes_so_far(connection, place)
        rows = connection.fetch(name, given)
    return _row(connection, rows[0]) if rows else writes


def writes_so_far(connection: Connection, place: Place) -> int:
    """Return how often a namespace was written."""
    found = connection.fetch("writes_so_far", place.parameters)
    return int(found[0][0]) if found else 0


def last_run(connection: Connection, place: Place, run_id: str) -> tuple[str, Stored, bool] | None:
    """Return the run that has written last, with the metadata of its newest checkpoint, and whether the given run has
    written too; None: no run has written.
    """
    rows = connection.fetch("last_run", place.parameters)
    if not rows:
        return None
    ((found, metadata_type, metadata),) = rows
    has_run = found == run_id or bool(connection.fetch("has_run", {**place.parameters, "run": run_id}))
    return found, Stored(metadata_type, bytes(metadata)), has_run


def page(connection: Connection, where: Conditions, last: Row | None, most: int) -> Sequence[Row]:
    """Return checkpoints, newest first, behind the last one of the page before."""
    given = {
        "thread": where.thread,
        "ns": where.ns,
        "checkpoint": where.checkpoint_id,
        "before": where.before,
        "last_id": last.checkpoint_id if last else None,
        "last_thread": last.place.thread if last else None,
        "last_ns": last.place.ns if last else None,
        "most": most,
    }
    return [_row(connection, row) for row in connection.fetch("page", given)]


def _row(connection: Connection, found: tuple[Any, ...]) -> Row:
    thread, ns, checkpoint_id, parent_id, value_type, value, metadata_type, metadata, writes, has_results = found
    place = Place(thread, ns)
    about = {**place.parameters, "checkpoint": checkpoint_id}
    results = connection.fetch("writes_of", about) if has_results else ()
    return Row(
        place,
        checkpoint_id,
        parent_id,
        Stored(value_type, bytes(value)),
        Stored(metadata_type, bytes(metadata)),
        writes or 0,
        [(task, channel, Stored(of_type, bytes(data))) for task, channel, of_type, data in results],
    )


def delete_thread(connection: Connection, thread: str) -> None:
    """Delete a thread with all that belongs to it."""
    for name in ("delete_thread", "delete_thread_writes", "delete_thread_checkpoints"):
        connection.fetch(name, {"thread": thread})


def delete_runs(connection: Connection, run_ids: Iterable[str]) -> None:
    """Delete the checkpoints of runs, with the results of their tasks."""
    for run_id in run_ids:
        for name in ("delete_run_writes", "delete_run"):
            connection.fetch(name, {"run": run_id})


def copy_thread(connection: Connection, source: str, target: str) -> None:
    """Copy a thread; the same copy again changes nothing.

    Raises:
        ThreadConflict: the target has checkpoints of its own.
    """
    given = {"source": source, "target": target}
    if connection.fetch("is_other", given):
        raise ThreadConflict(target, "", f"it has checkpoints of its own: thread {source!r} cannot be copied over it")
    for name in ("copy_thread", "copy_checkpoints", "copy_writes"):
        connection.fetch(name, given)


def namespaces(connection: Connection, thread: str) -> Sequence[Place]:
    """Lock the namespaces of a thread, until the transaction ends, and return them."""
    places = [Place(thread, ns) for (ns,) in connection.fetch("namespaces", {"thread": thread})]
    for place in places:
        connection.fetch("lock", place.parameters)
    return places


def keep_only(connection: Connection, place: Place, kept: Iterable[str]) -> None:
    """Delete the other checkpoints of a namespace, with the results of their tasks."""
    ids = {checkpoint_id for (checkpoint_id,) in connection.fetch("ids", place.parameters)} - {*kept}
    given = [{**place.parameters, "checkpoint": checkpoint_id} for checkpoint_id in sorted(ids)]
    if given:
        connection.run_all("delete_writes_of", given)
        connection.run_all("delete_checkpoint", given)
