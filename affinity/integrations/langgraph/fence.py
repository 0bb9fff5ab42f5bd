"""Who may write to a thread.

A checkpointer is not told when a run begins or ends. It sees that a run reads, and that it writes. So a read gives a
run a token, which LangGraph carries to the writes of this run, in the ``configurable`` of their config: a random name,
and how often the namespace of the thread had been written.

* The first write of a run takes the namespace, if nobody has written to it since the run has read it.
* Further writes need that no other run has taken it in between.
* A write that may not is refused with `ThreadConflict`, and changes nothing.

So of two runs that have read the same checkpoint one goes on, and the other one ends with the error. A run that was
paused, and whose thread another one has resumed, writes nothing any more: no checkpoint, and no result of a task.

Writes without a token are those of programs, such as ``update_state``. They take the namespace as well. The checkpoint
must follow on the newest one, unless the program has read its parent by its id, to begin a branch there.
"""

from __future__ import annotations

import secrets
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Self

from affinity.errors import AffinityError
from affinity.integrations.database import Connection

TOKEN: Final = "__affinity_writer"  # noqa: S105 -- no secret
"""Key of the token in a ``configurable``. LangGraph keeps keys with this beginning out of metadata."""

_OF_RUNS: Final = "__pregel_"
"""Beginning of the keys that LangGraph adds to the ``configurable`` of a run."""

_REMEMBERED: Final = 4096
"""Checkpoints that programs have read by their ids, of which a saver knows."""


class ThreadConflict(AffinityError):
    """A write to a thread was refused: another writer has written to it since this one has read it.

    Nothing was written. Run the graph again: it reads the thread as it is now.

    Attributes:
        thread_id: of the thread.
        checkpoint_ns: the namespace; "" is the graph itself, others are subgraphs.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, reason: str) -> None:
        where = f" (namespace {checkpoint_ns!r})" if checkpoint_ns else ""
        super().__init__(f"thread {thread_id!r}{where}: {reason}")
        self.thread_id: str = thread_id
        self.checkpoint_ns: str = checkpoint_ns


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace of a thread."""

    thread: str
    ns: str

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters that name it in statements."""
        return {"thread": self.thread, "ns": self.ns}

    def conflict(self, reason: str) -> ThreadConflict:
        """Return the error of a write that is refused here."""
        return ThreadConflict(self.thread, self.ns, reason)


@dataclass(frozen=True, slots=True)
class Token:
    """The right of a run to write to a place."""

    place: Place
    writes: int
    name: str

    @classmethod
    def new(cls, place: Place, writes: int) -> Self:
        """Return a token for a run that has read the place after so many writes."""
        return cls(place, writes, secrets.token_hex(12))

    def __str__(self) -> str:
        """Return its text in a config."""
        return f"{self.writes}.{self.name}.{_digest(self.place)}"

    @classmethod
    def read(cls, place: Place, configurable: Any) -> Self | None:
        """Return the token of a config; None: it has no token for this place."""
        parts = str(configurable.get(TOKEN, "")).split(".")
        if len(parts) != len(("writes", "name", "digest")) or parts[2] != _digest(place):
            return None
        return cls(place, int(parts[0]), parts[1])


def _digest(place: Place) -> str:
    return format(zlib.crc32(f"{place.thread}\0{place.ns}".encode()), "08x")


def is_run(configurable: Any) -> bool:
    """Return whether a run of a graph reads with this config, and not a program."""
    return any(key.startswith(_OF_RUNS) for key in configurable)


class Fence:
    """Checks the writes of one saver, each in the transaction that writes."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(12)
        self._read: OrderedDict[tuple[Place, str], str | None] = OrderedDict()

    def note_read(self, place: Place, checkpoint_id: str, parent: str | None) -> None:
        """Note that a program has read a checkpoint by its id: it may begin a branch there, or put a copy beside it."""
        self._read[place, checkpoint_id] = parent
        self._read.move_to_end((place, checkpoint_id))
        while len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)

    def claim(self, connection: Connection, token: Token) -> None:
        """Let a run write.

        Raises:
            ThreadConflict: it may not.
        """
        given = {**token.place.parameters, "writer": token.name, "read": token.writes}
        if not connection.fetch("claim", given):
            raise token.place.conflict(
                "another run has written to it since this one has read it, so this one may write no more"
            )

    def take_to_put(
        self,
        connection: Connection,
        place: Place,
        checkpoint_id: str,
        parent: str | None,
        *,
        by_run: bool,
        is_copy: bool,
    ) -> None:
        """Let a program write a checkpoint with this parent, also if this call has written it before. A copy has the
        parent of the checkpoint that it is a copy of.

        Raises:
            ThreadConflict: it may not.
        """
        writer = self._lock(connection, place)
        newest = _newest(connection, place)
        is_own = writer == self._name and not by_run and (parent is None or newest == checkpoint_id)
        is_asked = (place, parent) in self._read or (is_copy and self._has_read_beside(place, parent))
        if newest is not None and not is_own and parent != newest and not is_asked:
            raise place.conflict(
                f"its newest checkpoint is {newest}, and this one would follow on {parent}: read the thread again"
            )
        self._take(connection, place)

    def take_to_put_writes(self, connection: Connection, place: Place, checkpoint_id: str) -> None:
        """Let a program write results of tasks of this checkpoint.

        Raises:
            ThreadConflict: it may not.
        """
        writer = self._lock(connection, place)
        newest = _newest(connection, place)
        if checkpoint_id != newest and writer not in ("", self._name) and (place, checkpoint_id) not in self._read:
            raise place.conflict(f"its newest checkpoint is {newest}, and these are results of {checkpoint_id}")
        self._take(connection, place)

    def _has_read_beside(self, place: Place, parent: str | None) -> bool:
        """Return whether a program has read a checkpoint with this parent by its id."""
        return any(read == place and beside == parent for (read, _), beside in list(self._read.items()))

    def _lock(self, connection: Connection, place: Place) -> str:
        ((writer,),) = connection.fetch("lock", place.parameters)
        return str(writer)

    def _take(self, connection: Connection, place: Place) -> None:
        connection.fetch("take", {**place.parameters, "writer": self._name})


def _newest(connection: Connection, place: Place) -> str | None:
    rows = connection.fetch("newest", place.parameters)
    return rows[0][0] if rows else None
