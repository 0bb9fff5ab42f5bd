"""A client on an SQLite file, and a stand-in for its worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from affinity import Client
from affinity.conversation.journal import JournalWrite
from affinity.orchestration.events import Event, OrchestrationCompleted, OrchestrationStarted
from affinity.orchestration.wire import encode_event
from affinity.provider import open_provider
from affinity.provider.contract import (
    FetchOptions,
    Incarnation,
    InstanceUpdate,
    MessageReply,
    NewWorkItem,
    OrchestrationItem,
    Provider,
    Suspend,
    Timeouts,
    Turn,
    WorkerIdentity,
    WorkKey,
)
from affinity_conformance.providers.builders import profile
from tests.provider.sqlite_files import create_file
from tests.support.messages import decode_message

TIMEOUTS = Timeouts(work_item_lock=30, session_lock=300)


@pytest.fixture
def url(tmp_path: Path) -> str:
    create_file(path := tmp_path / "client.db")
    return f"sqlite:///{path}"


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Provider]:
    provider = await open_provider(url)
    yield provider
    await provider.aclose()


@pytest.fixture
async def client(provider: Provider) -> AsyncIterator[Client]:
    async with Client.from_provider(provider) as client:
        yield client


@dataclass
class Puppet:
    """A worker without code: it ends instances as the test says."""

    provider: Provider
    identity: WorkerIdentity

    async def take(self, instance_id: str) -> OrchestrationItem:
        """The instance, owned, with its messages."""
        fetch = await self.provider.fetch_orchestration_item(self.identity, limit=1000, names=(), unknown_after=0)
        return next(item for item in fetch.items if item.instance_id == instance_id)

    async def end(self, instance_id: str, *, output: str = "null") -> None:
        await self._commit(
            await self.take(instance_id),
            InstanceUpdate(status="completed", version="1.0.0", output=output),
            history=[encode_event(OrchestrationCompleted(result=output))],
        )

    async def end_badly(self, instance_id: str, status: str, error: str) -> None:
        assert status in {"failed", "cancelled"}
        update = InstanceUpdate(status="failed" if status == "failed" else "cancelled", error=error)
        await self._commit(await self.take(instance_id), update)

    async def record(self, instance_id: str, *events: Event) -> None:
        """Take a turn that leaves these events behind the start."""
        await self._commit(
            await self.take(instance_id), InstanceUpdate(status="running"), history=[*map(encode_event, events)]
        )

    async def reply(self, instance_id: str, *replies: MessageReply) -> None:
        """Take a turn that replies to events."""
        await self._commit(await self.take(instance_id), InstanceUpdate(status="running"), replies=replies)

    async def suspend(self, instance_id: str, reason: str = "Nondeterminism") -> None:
        item = await self.take(instance_id)
        why = Suspend(
            instance_id=instance_id,
            generation=item.generation,
            execution_id=item.execution_id,
            event_count=item.event_count,
            error_type=reason,
            message="history has tea, but the code now does coffee",
            code="v1",
            needs_code=True,
        )
        assert list(await self.provider.suspend_instance(self.identity, [why])) == [True]

    async def write(self, *writes: JournalWrite) -> None:
        """Take a turn of each instance that commits these additions to its journal."""
        for each in writes:
            await self._commit(await self.take(each.session_id), InstanceUpdate(status="running"), parts=[each])

    async def hold(self, instance_id: str, session_id: str) -> None:
        """Schedule work on a session, and claim the session with it."""
        item = await self.take(instance_id)
        work = NewWorkItem(
            key=WorkKey(instance_id, item.execution_id, 2), name="act", payload="{}", session_id=session_id
        )
        await self._commit(item, InstanceUpdate(status="running"), work_items=[work])
        options = FetchOptions(limit=10, max_sessions=10, names=["act"], unknown_after=300, timeouts=TIMEOUTS)
        fetch = await self.provider.fetch_work_item(self.identity, options)
        assert [item.session_id for item in fetch.items] == [session_id]

    async def _commit(
        self,
        item: OrchestrationItem,
        update: InstanceUpdate,
        *,
        history: list[str] | None = None,
        work_items: list[NewWorkItem] | None = None,
        parts: Sequence[JournalWrite] = (),
        replies: Sequence[MessageReply] = (),
    ) -> None:
        started = [
            e for _, e in (decode_message(m.payload) for m in item.messages) if isinstance(e, OrchestrationStarted)
        ]
        turn = Turn(
            instance_id=item.instance_id,
            generation=item.generation,
            execution_id=item.execution_id,
            event_count=item.event_count,
            history=[encode_event(replace(event, version="1.0.0", time=1.0)) for event in started] + (history or []),
            consumed=[message.id for message in item.messages],
            work_items=work_items or [],
            parts=parts,
            replies=replies,
            update=update,
        )
        (result,) = await self.provider.commit_turn(self.identity, [turn], TIMEOUTS)
        assert result.committed


@pytest.fixture
async def puppet(provider: Provider) -> Puppet:
    identity = WorkerIdentity(worker_id="puppet", incarnation=Incarnation("one"))
    await provider.register_worker(identity, 60.0, {"host": "test"}, profile=profile())
    return Puppet(provider, identity)
