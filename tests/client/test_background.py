"""Waiting, notifying and retrying, against a provider that does what the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from affinity import Client, ExternalEvent, Start
from affinity.client import calls as calls_module
from affinity.errors import (
    AccessDenied,
    ClientError,
    ConnectionLost,
    Contention,
    DatabaseFailure,
    DataRefused,
    ProviderError,
    ReadOnly,
    SchemaMismatch,
    StatementTimeout,
)
from affinity.limits import MAX_BATCH
from affinity.provider.contract import (
    Delivery,
    Generation,
    Hint,
    InstanceInfo,
    NewInstance,
    NewMessage,
    Provider,
    RegisteredCode,
)

pytestmark = pytest.mark.anyio

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def info(instance_id: str, status: Any = "completed") -> InstanceInfo:
    return InstanceInfo(
        generation=Generation("b"),
        instance_id=instance_id,
        name="brew",
        version=None,
        execution_id=1,
        status=status,
        custom_status=None,
        output="1",
        error=None,
        parent_id=None,
        owner=None,
        event_count=0,
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
    )


@dataclass
class FailingProvider:
    """A provider whose verbs first raise the errors that are queued for them."""

    errors: dict[str, list[ProviderError]] = field(default_factory=dict)
    database: str = "a database"
    calls: list[tuple[str, int]] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    existing: dict[str, Generation] = field(default_factory=dict)
    hints: int = 0
    notified: list[tuple[set[str | None], set[str]]] = field(default_factory=list)
    hint_sent: anyio.Event = field(default_factory=anyio.Event)
    gate: anyio.Event | None = None

    def _called(self, verb: str, size: int) -> None:
        self.calls.append((verb, size))
        if pending := self.errors.get(verb):
            raise pending.pop(0)

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        ids = [instance.instance_id for instance in instances]
        new = [instance_id not in self.existing for instance_id in ids]
        for instance in instances:  # before the error: a lost answer may follow a commit
            self.existing.setdefault(instance.instance_id, instance.generation)
        self._called("create", len(instances))
        return new

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        self._called("send", len(messages))
        return ["delivered"] * len(messages)

    async def get_instance(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        self._called("get", len(instance_ids))
        found = [info(key, "completed" if key in self.done else "running") for key in instance_ids]
        return [replace(one, generation=self.existing.get(one.instance_id, one.generation)) for one in found]

    async def list_code(self) -> Sequence[RegisteredCode]:
        return []

    async def notify_workers(self, workers: Mapping[str | None, Hint], owners_of: Collection[str] = ()) -> None:
        self.hints += 1
        self.notified.append((set(workers), set(owners_of)))
        self.hint_sent.set()
        if self.gate is not None:
            await self.gate.wait()
        self._called("notify", len(workers))

    async def _unexpected(self, *args: object) -> object:
        raise AssertionError(args)

    read_journal = watch_changes = get_replies = _unexpected

    def count(self, verb: str) -> int:
        return sum(called == verb for called, _ in self.calls)


@pytest.fixture
def script() -> FailingProvider:
    return FailingProvider()


@pytest.fixture
async def client(script: FailingProvider) -> AsyncIterator[Client]:
    async with Client.from_provider(cast(Provider, script)) as client:
        yield client


# --- waits ------------------------------------------------------------------------------------------------------------


async def test_many_waits_share_one_look_up(script: FailingProvider, client: Client) -> None:
    ids = [f"t-{n}" for n in range(MAX_BATCH + 1)]
    script.done.update(ids)
    async with anyio.create_task_group() as tasks:
        for instance_id in ids:
            tasks.start_soon(client.wait, instance_id)
    assert script.calls == [("get", MAX_BATCH), ("get", 1)]


async def test_waits_for_one_instance_share_its_look_ups(script: FailingProvider, client: Client) -> None:
    results: list[Any] = []

    async def waiter() -> None:
        results.append(await client.wait("t"))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        script.done.add("t")
    assert results == [1] * 10
    assert {size for _, size in script.calls} == {1}


async def test_a_cancelled_wait_makes_no_more_polls(script: FailingProvider, client: Client) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.wait, "t")
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    script.calls.clear()
    await anyio.wait_all_tasks_blocked()
    assert client._waiters._watches == {}
    assert script.calls == []


async def test_a_wait_outlasts_a_database_that_comes_back(script: FailingProvider, client: Client) -> None:
    script.done.add("t")
    script.errors["get"] = [ConnectionLost("restarting"), Contention("busy"), ConnectionLost("restarting")]
    assert await client.wait("t") == 1


async def test_an_error_that_stays_reaches_all_who_wait(
    script: FailingProvider, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "RETRY_SECONDS", 0.0)
    script.errors["get"] = [ConnectionLost("gone"), AccessDenied("password changed")]
    with pytest.raises(ConnectionLost, match="gone"):
        await client.wait("t")
    with pytest.raises(AccessDenied, match="password"):
        await client.wait("t")
    script.done.add("t")
    assert await client.wait("t") == 1


async def test_a_wait_ends_when_the_client_closes(script: FailingProvider) -> None:
    async def waiter(closing: Client) -> None:
        with pytest.raises(ClientError, match="closed"):
            await closing.wait("t")

    async with anyio.create_task_group() as tasks, Client.from_provider(cast(Provider, script)) as closing:
        tasks.start_soon(waiter, closing)
        await anyio.wait_all_tasks_blocked()


# --- retries ----------------------------------------------------------------------------------------------------------


async def test_a_start_whose_answer_was_lost_is_made_again_and_is_ours(script: FailingProvider, client: Client) -> None:
    script.errors["create"] = [ConnectionLost("cut after the commit")]
    assert (await client.start("brew")).outcome == "created"
    assert script.count("create") == 2


@pytest.mark.parametrize("takes", [0.0, 1.0, 10.0, 20.0])
async def test_the_bound_of_retries_is_the_bound_of_the_call(takes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider waits in a call too, such as 10 s for an SQLite file that another process has locked."""
    now, attempts = [0.0], [0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    async def busy() -> None:
        attempts[0] += 1
        now[0] += takes
        raise Contention("the file is locked")

    monkeypatch.setattr("affinity.client.calls.time.monotonic", lambda: now[0])
    monkeypatch.setattr("affinity.client.calls.anyio.sleep", sleep)
    with pytest.raises(Contention):
        await calls_module.retry(busy)
    assert now[0] <= max(calls_module.RETRY_SECONDS + calls_module.LONGEST_PAUSE, takes)
    assert (attempts[0] > 1) is (takes < calls_module.RETRY_SECONDS / 2)


async def test_a_message_is_sent_again_after_contention(script: FailingProvider, client: Client) -> None:
    script.errors["send"] = [Contention("deadlock"), Contention("deadlock")]
    await client.raise_event("t", "pour")
    assert script.count("send") == 3


async def test_a_message_is_not_sent_again_after_a_lost_connection(script: FailingProvider, client: Client) -> None:
    script.errors["send"] = [ConnectionLost("cut")] * 3
    with pytest.raises(ConnectionLost):
        await client.raise_event("t", "pour")
    with pytest.raises(ConnectionLost):
        await client.cancel("t")
    assert script.count("send") == 2


async def test_a_message_is_sent_again_after_a_failure_that_changed_nothing(
    script: FailingProvider, client: Client
) -> None:
    """A full disk, a standby; what a person must mend is raised immediately, and so is an error of the data."""
    script.errors["send"] = [DatabaseFailure("full"), ReadOnly("a standby"), StatementTimeout("slow")]
    await client.raise_event("t", "pour")
    assert script.count("send") == 4
    for error in (AccessDenied("no"), SchemaMismatch("older"), DataRefused("too large")):
        script.errors["send"] = [error]
        with pytest.raises(type(error)):
            await client.raise_event("t", "pour")
    assert script.count("send") == 7


async def test_batches_stay_within_the_bound(script: FailingProvider, client: Client) -> None:
    await client.start_many(Start("brew") for _ in range(2 * MAX_BATCH + 1))
    await client.raise_events(ExternalEvent("t", "pour") for _ in range(MAX_BATCH))
    sizes = [(verb, size) for verb, size in script.calls if verb != "notify"]
    assert sizes == [("create", MAX_BATCH), ("create", MAX_BATCH), ("create", 1), ("send", MAX_BATCH)]
    assert await client.start_many([]) == []
    assert await client.raise_events([]) == []


# --- hints ------------------------------------------------------------------------------------------------------------


async def test_hints_are_coalesced_beside_the_calls(script: FailingProvider, client: Client) -> None:
    script.gate = anyio.Event()
    await client.start("brew")
    await script.hint_sent.wait()
    for _ in range(20):
        await client.raise_event("t", "pour")
    assert script.hints == 1
    script.gate.set()
    await anyio.wait_all_tasks_blocked()
    assert script.hints == 2


async def test_a_start_that_made_no_work_wakes_no_worker(script: FailingProvider, client: Client) -> None:
    script.existing["t"] = Generation("b")
    await client.start("brew", instance_id="t")
    await anyio.wait_all_tasks_blocked()
    assert script.hints == 0


async def test_an_event_notifies_the_owner_of_the_instance(script: FailingProvider, client: Client) -> None:
    """And a start notifies all workers, owners among them."""
    await client.raise_events([ExternalEvent("t", "pour"), ExternalEvent("t", "pour"), ExternalEvent("u", "pour")])
    await anyio.wait_all_tasks_blocked()
    await client.start("brew")
    await client.cancel("t")
    await anyio.wait_all_tasks_blocked()
    assert script.notified == [(set(), {"t", "u"}), ({None}, set())]


async def test_a_failed_hint_has_no_effect_on_the_call(script: FailingProvider, client: Client) -> None:
    script.errors["notify"] = [ConnectionLost("cut")]
    await client.start("brew")
    await script.hint_sent.wait()
    await anyio.wait_all_tasks_blocked()
    await client.start("brew")
    await anyio.wait_all_tasks_blocked()
    assert script.hints == 2


async def test_the_last_hint_is_sent_before_the_client_closes(script: FailingProvider) -> None:
    async with Client.from_provider(cast(Provider, script)) as client:
        await client.start("brew")
    assert script.hints >= 1
    assert script.count("notify") >= 1
