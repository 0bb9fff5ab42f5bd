"""Snapshots of an open state: what it was at a moment, so that code which is repeated can go on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from affinity.records import SessionState
from affinity.session.in_place import merged
from affinity.session.resources import RESOURCE_LABEL
from affinity.session.state import CachedState, DumpedState, EncodedState, StateSchema
from affinity.session.writer import CommitState, SessionWriter

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Snapshots(Generic[S]):
    """Takes snapshots of the state of one block, and puts them in place. Names of resources are put in place too."""

    _schema: StateSchema[S]
    _writer: SessionWriter[S]
    _cached: CachedState[S]
    _note_saved: Callable[[SessionWriter[S], CachedState[S]], None]

    @property
    def recorded_digest(self) -> bytes | None:
        """Digest of the state in the record; None: there is no record, or it is of another schema version."""
        return self._cached.record.digest

    def digest(self) -> bytes:
        """Digest of the state as it is now.

        Raises:
            NotSerializable: it has no encoded form.
        """
        return self._schema.digest(self._cached)

    def dump(self) -> DumpedState:
        """The state as it is now, for `take`.

        Raises:
            NotSerializable, InvalidInput: as at the end of the block.
        """
        return self._schema.dump(self._cached)

    async def take(self, dumped: DumpedState, known: bytes | None = None) -> EncodedState | None:
        """The state as it was; None: it has this digest.

        Raises:
            NotSerializable, PayloadTooLarge: as at the end of the block.
        """
        return await self._schema.snapshot(self._cached, dumped, known)

    async def recorded(self) -> SessionState:
        """The state that the record has, or that a session without one begins with.

        Raises:
            SessionWriteConflict: the record has been written since.
        """
        return await self._writer.recorded(self._cached)

    def plain(self) -> Any:
        """The plain form of the state as it is now."""
        return self._schema.plain(self._cached)

    async def plain_of(self, state: SessionState) -> Any:
        """The plain form of a snapshot, migrated.

        Raises:
            SessionLoadFailed: it cannot be read.
        """
        return await self._schema.plain_of(state)

    def put(self, plain: Any, labels: Mapping[str, str]) -> None:
        """Give the state the content of a snapshot, in place, and add its names of resources.

        Raises:
            SessionLoadFailed: it cannot be read.
        """
        self._schema.put(self._cached, plain)
        about = self._cached.metadata
        named = {**about.labels, **_resources(labels)}
        if named != dict(about.labels):
            self._cached.metadata = replace(about, labels=named)

    def merge(self, base: Any, saved: Any, labels: Mapping[str, str]) -> None:
        """Add the changes that lead from one plain form to another. What has changed here since ``base`` stays."""
        mine = self.plain()
        self.put(merged(base, saved, mine), labels)

    @property
    def has_new_resources(self) -> bool:
        """The record does not name all resources of the state."""
        cached = self._cached
        return _resources(cached.metadata.labels) != _resources(cached.record.metadata.labels)

    async def write_resources(self, commit: CommitState) -> None:
        """Write the names of the resources to the record, which keeps its state. ``commit``: see
        `OpenSession.checkpoint`.

        Raises:
            SessionWriteConflict, SessionSaveFailed, SessionError: as `OpenSession.checkpoint`.
        """
        await self._writer.write_labels(self._cached, commit)
        self._note_saved(self._writer, self._cached)


def _resources(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key.startswith(RESOURCE_LABEL)}
