"""Group commit of runs: what they write while a commit is under way is in the next one.

On PostgreSQL a group is one statement, and on SQLite one transaction. A write that the statement refuses, and one whose
group has failed, is done again by itself, in a transaction of its own: that says why.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias

from affinity.errors import ConnectionLost, Contention, ProviderError
from affinity.integrations.database import Connection, Database
from affinity.integrations.langgraph import threads
from affinity.integrations.langgraph.fence import Fence, Place, ThreadConflict, Token
from affinity.integrations.langgraph.threads import Put, Results, Stored

MAX_GROUP: Final = 100
"""Writes that are committed together."""

MAX_GROUP_BYTES: Final = 4_000_000
"""Bytes of the values of a group, if it is more than one write."""

PATIENCE: Final = "200ms"
"""How long a group waits for a row that another transaction holds. Then its writes go on one by one, beside others."""

Write: TypeAlias = Put | Results


class Writer:
    """Writes what runs give it, one group at a time, on a thread of the pool."""

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database, self._fence = database, fence
        self._lock = threading.Lock()
        self._queue: deque[tuple[Write, Future[None]]] = deque()
        self._is_writing = False

    def write(self, new: Write) -> None:
        """Return when it is committed.

        Raises:
            ThreadConflict: another writer has the namespace, or the parent was deleted.
            ProviderError: the database cannot be reached, or has refused it.
        """
        future = self._add(new)
        self._begin()
        future.result()

    async def awrite(self, new: Write) -> None:
        """Await the same. A call that is cancelled is written nevertheless."""
        future = self._add(new)
        try:
            await asyncio.sleep(0)  # LangGraph makes several calls in one step of its event loop
        finally:
            self._begin()
        await asyncio.wrap_future(future)

    def _add(self, new: Write) -> Future[None]:
        future = Future[None]()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._queue.append((new, future))
        return future

    def _begin(self) -> None:
        with self._lock:
            if self._is_writing or not self._queue:
                return
            self._is_writing = True
        try:
            self._database.submit(self._write_next)
        except BaseException:
            with self._lock:
                self._is_writing = False
            raise

    def _write_next(self) -> None:
        while True:
            group = self._next()
            _settle(group, self._write_group([new for new, _ in group]))
            with self._lock:
                self._is_writing = bool(self._queue)
            if not self._is_writing:
                return
            try:
                self._database.submit(self._write_next)  # behind the calls that wait for a connection
            except RuntimeError:  # it is being closed, when these writes are done
                continue
            return

    def _next(self) -> Sequence[tuple[Write, Future[None]]]:
        with self._lock:
            group, taken, left = Group(), list[tuple[Write, Future[None]]](), deque[tuple[Write, Future[None]]]()
            for each in self._queue:
                (taken if group.take(each[0]) else left).append(each)
            self._queue = left
            return taken

    def _write_group(self, group: Sequence[Write]) -> Sequence[Future[None] | Exception | None]:
        """Return for each write None, its error, or the future of a transaction of its own."""
        try:
            refused = self._database.call(partial(_write, self._fence, group), "group")
        except ConnectionLost as error:
            return [error] * len(group)
        except ProviderError as error:
            if len(group) == 1 and not isinstance(error, Contention):
                return [error]
            refused = group
        except Exception as error:
            return [error] * len(group)
        alone = {id(new): self._alone(new) for new in refused}
        return [alone.get(id(new)) for new in group]

    def _alone(self, new: Write) -> Future[None] | Exception | None:
        put = partial(_put, fence=self._fence, new=new)
        try:
            return self._database.submit(self._database.call, put)
        except RuntimeError:  # it is being closed
            pass
        try:
            self._database.call(put)
        except Exception as error:
            return error
        return None


def _settle(group: Sequence[tuple[Write, Future[None]]], ended: Sequence[Future[None] | Exception | None]) -> None:
    for (_, future), end in zip(group, ended, strict=True):
        if isinstance(end, Future):
            end.add_done_callback(partial(_copy, future))
        elif end is None:
            future.set_result(None)
        else:
            future.set_exception(end)


def _copy(future: Future[None], ended: Future[None]) -> None:
    if (error := ended.exception()) is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class Group:
    """The writes that may be committed together."""

    def __init__(self) -> None:
        self._tokens: dict[Place, Token | None] = {}
        self._keys = set[object]()
        self._left_behind = set[Place]()
        self._bytes = 0

    def take(self, new: Write) -> bool:
        """Return whether the write joins the group. One of a namespace stays behind an earlier one that does not."""
        size = sum(len(each.data) for each in _values(new))
        key = (new.place, isinstance(new, Put) or (new.checkpoint_id, new.task_id))
        fits = (
            len(self._keys) < MAX_GROUP
            and (not self._keys or self._bytes + size <= MAX_GROUP_BYTES)
            and self._tokens.get(new.place, new.token) == new.token
            and key not in self._keys
            and new.place not in self._left_behind
        )
        if fits:
            self._bytes += size
            self._tokens[new.place] = new.token
            self._keys.add(key)
        else:
            self._left_behind.add(new.place)
        return fits


def _values(new: Write) -> Iterable[Stored]:
    return [new.checkpoint, new.metadata] if isinstance(new, Put) else [value for _, _, value in new.writes]


def _put(connection: Connection, *, fence: Fence, new: Write) -> None:
    if isinstance(new, Put):
        threads.put(connection, fence, new)
    else:
        threads.put_results(connection, fence, new)


def _write(fence: Fence, group: Sequence[Write], connection: Connection) -> Sequence[Write]:
    """Return the writes that were refused."""
    if connection.writes_groups:
        return _write_at_once(group, connection)
    refused = list[Write]()
    for new in group:
        try:
            with connection.savepoint():
                _put(connection, fence=fence, new=new)
        except ThreadConflict:
            refused.append(new)
    return refused


def _write_at_once(group: Sequence[Write], connection: Connection) -> Sequence[Write]:
    data = bytearray()

    def stored(prefix: str, value: Stored) -> dict[str, object]:
        begin = len(data) + 1
        data.extend(value.data)
        return {f"{prefix}_type": value.type, f"{prefix}_at": begin, f"{prefix}_size": len(value.data)}

    places: dict[Place, dict[str, object]] = {}
    results = list[dict[str, object]]()
    for new in group:
        assert new.token is not None
        place = places.setdefault(
            new.place, {**new.place.parameters, "writer": new.token.name, "read": new.token.writes}
        )
        if isinstance(new, Put):
            place |= {"checkpoint": new.checkpoint_id, "parent": new.parent_id, "run": new.run_id}
            place |= stored("value", new.checkpoint) | stored("metadata", new.metadata)
        else:
            about = {"checkpoint": new.checkpoint_id, "task": new.task_id, "path": new.task_path}
            last = {idx: (channel, value) for idx, channel, value in new.writes}
            results += [
                {**new.place.parameters, **about, "idx": idx, "channel": channel, **stored("value", value)}
                for idx, (channel, value) in last.items()
            ]
    given: dict[str, Any] = {
        "patience": PATIENCE,
        "places": json.dumps([*places.values()]),
        "results": json.dumps(results),
        "data": bytes(data),
    }
    written = {Place(thread, ns): has_put for thread, ns, has_put in connection.fetch("write", given)}
    return [new for new in group if new.place not in written or (isinstance(new, Put) and not written[new.place])]
