"""What a start gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from affinity.client.management import ExecutionSummary, InstanceTree, PendingActivity
from affinity.client.records import Instance
from affinity.limits import MAX_PAGE
from affinity.orchestration.codec import Codec

if TYPE_CHECKING:
    from affinity.client.client import Client

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle(Generic[R]):
    """An instance that was started, now or earlier; its calls are those of the client, for this instance."""

    instance_id: str
    created: bool  # False: an instance of this id and orchestration was there already
    _client: Client = field(repr=False)
    _result: Codec | None = field(repr=False)  # None: the orchestration is known by name only

    async def wait(self, timeout: float | None = None) -> R:
        """The result, once it has ended; see `Client.wait`."""
        return cast(R, await self._client.wait_decoded(self.instance_id, timeout, self._result))

    async def raise_event(self, name: str, data: Any = None) -> None:
        """Send it an event; see `Client.raise_event`."""
        await self._client.raise_event(self.instance_id, name, data)

    async def cancel(self, reason: str = "") -> None:
        """Ask it to end; see `Client.cancel`."""
        await self._client.cancel(self.instance_id, reason)

    async def resume(self) -> None:
        """Let it go on after a suspension; see `Client.resume`."""
        await self._client.resume(self.instance_id)

    async def reset(self, *, to_event: int) -> int:
        """Open it again at an earlier event; see `Client.reset`."""
        return await self._client.reset(self.instance_id, to_event=to_event)

    async def status(self) -> Instance:
        """How it is; see `Client.status`."""
        return await self._client.status(self.instance_id)

    async def executions(self, *, limit: int = 100, before: int | None = None) -> Sequence[ExecutionSummary]:
        """Its executions, newest first; see `Client.executions`."""
        return await self._client.executions(self.instance_id, limit=limit, before=before)

    async def activities(self, *, limit: int = 100) -> Sequence[PendingActivity]:
        """Its activities that have no result yet; see `Client.activities`."""
        return await self._client.activities(self.instance_id, limit=limit)

    async def tree(self, *, limit: int = MAX_PAGE) -> InstanceTree:
        """It and its sub-orchestrations; see `Client.tree`."""
        return await self._client.tree(self.instance_id, limit=limit)
