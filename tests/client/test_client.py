"""The client against a real provider: what it writes, reads and refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from affinity import App, Client, ExternalEvent, OrchestrationContext, Start, batching
from affinity.errors import (
    ClientError,
    ConnectionLost,
    InstanceExists,
    InstanceFinished,
    InstanceNotFinished,
    InvalidApp,
    InvalidId,
    InvalidInput,
    InvalidUrl,
    NotSerializable,
    OrchestrationCancelled,
    OrchestrationFailed,
    OrchestrationMisuse,
    PayloadTooLarge,
    UnknownInstance,
    WaitTimeout,
)
from affinity.limits import MAX_ID_BYTES, MAX_PAYLOAD_BYTES
from affinity.orchestration.events import CancelRequested, EventRaised, GuidCreated, OrchestrationStarted
from affinity.orchestration.waits import moved_name
from affinity.orchestration.wire import ANY_EXECUTION
from tests.client.conftest import Puppet
from tests.support.messages import decode_message

pytestmark = pytest.mark.anyio

app = App("client-tests")


class Tea(BaseModel):
    kind: str
    cups: int


@app.orchestration(name="brew")
async def brew(context: OrchestrationContext, tea: Tea) -> Tea:
    return tea


@app.orchestration(name="rest")
async def rest(context: OrchestrationContext) -> None:
    pass


# --- start ------------------------------------------------------------------------------------------------------------


async def test_start_by_function_writes_a_typed_start_message(client: Client, puppet: Puppet) -> None:
    handle = await client.start(brew, Tea(kind="green", cups=2), instance_id="t")
    assert handle.outcome == "created"
    item = await puppet.take("t")
    assert item.name == "brew"
    assert item.version is None
    (message,) = item.messages
    execution, event = decode_message(message.payload)
    assert execution == ANY_EXECUTION
    assert event == OrchestrationStarted(name="brew", version="", input='{"kind":"green","cups":2}')


async def test_start_by_name_with_a_version_and_a_random_id(client: Client) -> None:
    handle = await client.start("brew", {"kind": "black"}, version="2.0.0")
    instance = await handle.status()
    assert (instance.name, instance.version, instance.status) == ("brew", "2.0.0", "pending")
    assert not instance.finished
    other = await client.start("brew")
    assert other.instance_id != handle.instance_id


async def test_start_is_idempotent_by_id(client: Client) -> None:
    first = await client.start("brew", 1, instance_id="t")
    again = await client.start("brew", 2, instance_id="t")
    assert (first.outcome, again.outcome) == ("created", "running")
    with pytest.raises(InstanceExists, match="'t' \\(of 'brew'\\)"):
        await client.start("rest", instance_id="t")


async def test_many_starts_and_events_in_few_calls(client: Client, puppet: Puppet) -> None:
    handles = await client.start_many(Start("brew", n, f"t-{n:04}") for n in range(1200))
    assert {handle.outcome for handle in handles} == {"created"}
    assert [handle.instance_id for handle in handles[:2]] == ["t-0000", "t-0001"]
    await puppet.end("t-0001")
    deliveries = await client.raise_events(
        [ExternalEvent("t-0000", "a", 1), ExternalEvent("t-0001", "a", 1), ExternalEvent("unknown", "a", 1)]
    )
    assert deliveries == ["delivered", "finished", "unknown"]


async def test_one_conflict_among_many_starts_does_not_stop_the_others(client: Client) -> None:
    await client.start("brew", instance_id="taken")
    with pytest.raises(InstanceExists, match="taken"):
        await client.start_many([Start("rest", instance_id="taken"), Start("rest", instance_id="free")])
    assert (await client.status("free")).name == "rest"


@pytest.mark.parametrize("bad", ["", "x" * (MAX_ID_BYTES + 1), "ä" * MAX_ID_BYTES, "a\nb", "a\x00b", "\x7f"])
async def test_bad_ids_are_refused_everywhere(client: Client, bad: str) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.start(bad),
        lambda: client.start("brew", instance_id=bad),
        lambda: client.start("brew", version=bad),
        lambda: client.raise_event(bad, "e"),
        lambda: client.raise_event("t", bad),
        lambda: client.cancel(bad),
        lambda: client.wait(bad),
        lambda: client.status(bad),
        lambda: client.history(bad),
        lambda: client.delete(bad),
    ]
    for call in calls:
        with pytest.raises(InvalidId):
            await call()


async def test_events_that_only_affinity_raises_cannot_be_forged(client: Client, puppet: Puppet) -> None:
    await client.start("brew", instance_id="t")
    for name in ("affinity:", moved_name("s")):
        with pytest.raises(InvalidId, match="reserved"):
            await client.raise_event("t", name, {"session_id": "s"})
        with pytest.raises(InvalidId, match="reserved"):
            await client.raise_events([ExternalEvent("t", "fine"), ExternalEvent("t", name)])
    await client.raise_event("t", "affinity")
    messages = [decode_message(message.payload)[1] for message in (await puppet.take("t")).messages]
    assert messages[1:] == [EventRaised("affinity", "null")]  # behind the start


async def test_bad_inputs_are_refused_and_nothing_is_written(client: Client) -> None:
    with pytest.raises(PayloadTooLarge, match=str(MAX_PAYLOAD_BYTES)):
        await client.start("brew", "x" * MAX_PAYLOAD_BYTES, instance_id="t")
    with pytest.raises(NotSerializable):
        await client.start("brew", object(), instance_id="t")
    with pytest.raises(NotSerializable):
        await client.start("brew", float("nan"), instance_id="t")
    with pytest.raises(NotSerializable, match="brew"):
        await client.start(brew, {"kind": "green"}, instance_id="t")  # type: ignore[arg-type]
    with pytest.raises(OrchestrationMisuse, match="takes no input"):
        await client.start(rest, 5, instance_id="t")  # type: ignore[arg-type]

    async def stranger(context: OrchestrationContext) -> None:
        pass

    with pytest.raises(InvalidApp, match="not registered"):
        await client.start(stranger, instance_id="t")
    with pytest.raises(UnknownInstance):
        await client.status("t")


# --- events and cancellation ------------------------------------------------------------------------------------------


async def test_events_arrive_in_order(client: Client, puppet: Puppet) -> None:
    handle = await client.start("brew", instance_id="t")
    await handle.raise_event("pour", {"cups": 1})
    await client.raise_event("t", "pour", 2)
    await handle.cancel("enough")
    messages = [decode_message(message.payload) for message in (await puppet.take("t")).messages]
    assert messages[1:] == [
        (ANY_EXECUTION, EventRaised(name="pour", data='{"cups":1}')),
        (ANY_EXECUTION, EventRaised(name="pour", data="2")),
        (ANY_EXECUTION, CancelRequested(reason="enough")),
    ]


async def test_an_unknown_or_finished_instance_takes_no_events(client: Client, puppet: Puppet) -> None:
    with pytest.raises(UnknownInstance, match="'t'"):
        await client.raise_event("t", "pour")
    with pytest.raises(UnknownInstance, match="'t'"):
        await client.cancel("t")
    await client.start("brew", instance_id="t")
    await puppet.end("t")
    with pytest.raises(InstanceFinished, match="'t'"):
        await client.raise_event("t", "pour")
    with pytest.raises(InstanceFinished, match="'t'"):
        await client.cancel("t")


async def test_event_data_is_checked(client: Client) -> None:
    await client.start("brew", instance_id="t")
    with pytest.raises(PayloadTooLarge):
        await client.raise_event("t", "pour", "x" * MAX_PAYLOAD_BYTES)
    with pytest.raises(NotSerializable):
        await client.raise_event("t", "pour", {1, object()})


# --- wait -------------------------------------------------------------------------------------------------------------


async def test_wait_gives_the_typed_output(client: Client, puppet: Puppet) -> None:
    handle = await client.start(brew, Tea(kind="green", cups=2), instance_id="t")
    results: list[Any] = []

    async def waiter() -> None:
        results.append(await handle.wait(timeout=30))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        await puppet.end("t", output='{"kind":"green","cups":2}')
    assert results == [Tea(kind="green", cups=2)]
    assert await client.wait("t") == {"kind": "green", "cups": 2}
    assert await client.wait("t", type=Tea) == Tea(kind="green", cups=2)
    with pytest.raises(NotSerializable, match="output"):
        await client.wait("t", type=int)


async def test_wait_raises_how_it_ended(client: Client, puppet: Puppet) -> None:
    await client.start("brew", instance_id="f")
    await puppet.end_badly("f", "failed", '{"type":"ValueError","message":"no water"}')
    with pytest.raises(OrchestrationFailed, match="ValueError: no water") as failed:
        await client.wait("f")
    assert (failed.value.error_type, failed.value.message) == ("ValueError", "no water")
    await client.start("brew", instance_id="c")
    await puppet.end_badly("c", "cancelled", '{"type":"OrchestrationCancelled","message":"closing time"}')
    with pytest.raises(OrchestrationCancelled, match="closing time"):
        await client.wait("c")
    ended = [await client.wait_finished(instance_id, timeout=30) for instance_id in "fc"]
    assert [(instance.status, instance.error.message) for instance in ended if instance.error] == [
        ("failed", "no water"),
        ("cancelled", "closing time"),
    ]


async def test_wait_times_out_and_refuses_what_is_not_there(client: Client, puppet: Puppet) -> None:
    with pytest.raises(UnknownInstance, match="'t'"):
        await client.wait("t")
    with pytest.raises(UnknownInstance, match="'t'"):
        await client.wait("t", timeout=0)
    await client.start("brew", instance_id="t")
    with pytest.raises(WaitTimeout, match=r"'t' has not ended within 0\.01 s"):
        await client.wait("t", timeout=0.01)
    with pytest.raises(TimeoutError):
        await client.wait("t", timeout=0)
    await puppet.end("t", output="7")
    assert await client.wait("t", timeout=0) == 7
    for timeout in (-1, float("nan")):
        with pytest.raises(InvalidInput, match="timeout"):
            await client.wait("t", timeout=timeout)


async def test_a_wait_ends_with_an_error_when_its_instance_is_deleted(client: Client) -> None:
    handle = await client.start("brew", instance_id="t")

    async def waiter() -> None:
        with pytest.raises(UnknownInstance):
            await handle.wait(timeout=30)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter)
        await anyio.wait_all_tasks_blocked()
        await client.delete("t", force=True)


# --- looking ----------------------------------------------------------------------------------------------------------


async def test_status_and_history(client: Client, puppet: Puppet) -> None:
    await client.start("brew", {"kind": "green"}, instance_id="t")
    assert await client.history("t") == []
    await puppet.end("t", output="[1]")
    instance = await client.status("t")
    assert (instance.status, instance.output, instance.error, instance.version) == ("completed", [1], None, "1.0.0")
    assert instance.finished
    assert instance.owner == "puppet"
    started, completed = await client.history("t")
    assert (started.event_id, started.type) == (1, "orchestration_started")
    assert started.fields["input"] == {"kind": "green"}
    assert (completed.event_id, completed.type, completed.fields) == (2, "orchestration_completed", {"result": [1]})
    assert await client.history("t", execution_id=99) == []
    with pytest.raises(UnknownInstance):
        await client.history("unknown")


async def test_events_that_come_while_pages_are_read_have_their_time(
    client: Client, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("brew", {"kind": "green"}, instance_id="t")
    await puppet.record("t", GuidCreated("g"))
    monkeypatch.setattr(client._provider, "read_history", partial(client._provider.read_history, max_bytes=1))
    records = client.history("t")
    first = await anext(records)
    await client.raise_event("t", "e")
    await puppet.end("t")
    found = [first, *[record async for record in records]]
    assert [record.type for record in found][-1] == "orchestration_completed"
    assert all(record.recorded_at is not None and record.worker_id == "puppet" for record in found)


async def test_a_history_is_read_in_pages(client: Client, puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.start("brew", {"kind": "green"}, instance_id="t")
    await puppet.end("t")
    whole = await client.history("t")
    read, pages = client._provider.read_history, []

    async def small(cursors: Any) -> Any:
        found = await read(cursors, max_bytes=1)
        pages.append([len(page.events) for page in found])
        return found

    monkeypatch.setattr(client._provider, "read_history", small)
    assert await client.history("t") == whole
    assert [record async for record in client.history("t", after=1)] == whole[1:]
    assert max(sum(sizes) for sizes in pages) == 1
    assert await client.reset("t", to_event=1) == 2


async def test_large_events_go_in_several_calls(
    client: Client, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("brew", instance_id="t")
    monkeypatch.setattr(batching, "MAX_BATCH_BYTES", 1_000)
    send, sizes = client._provider.send_message, []

    async def counted(messages: Any) -> Any:
        sizes.append(len(messages))
        return await send(messages)

    monkeypatch.setattr(client._provider, "send_message", counted)
    events = [ExternalEvent("t", "go", "x" * length) for length in (300, 300, 300, 5_000, 10, 10)]
    assert set(await client.raise_events(events)) == {"delivered"}
    assert sizes == [2, 1, 1, 2]


async def test_the_error_of_an_instance_is_shown(client: Client, puppet: Puppet) -> None:
    await client.start("brew", instance_id="t")
    await puppet.end_badly("t", "failed", '{"type":"ValueError","message":"no water"}')
    assert (await client.status("t")).error == ("ValueError", "no water")


async def test_list_filters_and_pages(client: Client, puppet: Puppet) -> None:
    await client.start_many([Start("brew", instance_id=f"tea-{n}") for n in range(5)])
    await client.start("rest", instance_id="nap")
    await puppet.end("tea-3")
    everything = [instance.instance_id async for instance in client.list_instances()]
    assert sorted(everything) == ["nap", *(f"tea-{n}" for n in range(5))]
    assert [i.instance_id async for i in client.list_instances(status=["completed"])] == ["tea-3"]
    assert [i.instance_id async for i in client.list_instances(name="rest")] == ["nap"]
    assert len([i async for i in client.list_instances(prefix="tea-")]) == 5
    assert [i async for i in client.list_instances(parent_id="tea-0")] == []

    paged: list[str] = []
    after = None
    for _ in range(3):
        page = await client.list_instances().page(after, limit=2)
        paged += [instance.instance_id for instance in page.items]
        after = page.next
    assert paged == everything
    assert (await client.list_instances().page(after, limit=2)).next is None
    for limit in (0, -1, 1001):
        with pytest.raises(InvalidInput, match="limit"):
            await client.list_instances().page(limit=limit)
    with pytest.raises(InvalidInput, match="cursor"):
        await client.list_instances().page("yesterday")


async def test_sessions_and_workers(client: Client, puppet: Puppet) -> None:
    await client.start("brew", instance_id="t")
    await puppet.hold("t", "kettle")
    (session,) = [session async for session in client.sessions()]
    assert (session.session_id, session.worker_id, session.held, session.queued) == ("kettle", "puppet", True, 1)
    (worker,) = await client.workers()
    assert (worker.worker_id, worker.alive, worker.sessions) == ("puppet", True, 1)


async def test_release_session(client: Client, puppet: Puppet) -> None:
    await client.start("brew", instance_id="t")
    await puppet.hold("t", "kettle")
    assert await client.release_session("kettle") == "busy"
    (session,) = [session async for session in client.sessions()]
    assert session.held
    await client.delete("t", force=True)  # with all its work
    assert await client.release_session("kettle") == "released"
    assert await client.release_session("kettle") == "not_held"
    with pytest.raises(InvalidId):
        await client.release_session("")


async def test_delete(client: Client, puppet: Puppet) -> None:
    with pytest.raises(UnknownInstance):
        await client.delete("t")
    await client.start("brew", instance_id="t")
    with pytest.raises(InstanceNotFinished, match="force"):
        await client.delete("t")
    await client.delete("t", force=True)
    with pytest.raises(UnknownInstance):
        await client.status("t")
    await client.start("brew", instance_id="t")
    await puppet.end("t")
    await client.delete("t")
    assert (await client.start("brew", instance_id="t")).outcome == "created"


# --- opening ----------------------------------------------------------------------------------------------------------


async def test_a_client_opens_its_url_and_closes(url: str) -> None:
    async with Client(url) as client:
        await client.start("brew", instance_id="t")
    with pytest.raises(ClientError, match="async with"):
        await client.status("t")
    async with Client(url) as again:
        assert (await again.status("t")).name == "brew"


async def test_an_error_of_the_block_leaves_as_itself(url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Client(url):
            raise ZeroDivisionError


@pytest.mark.parametrize("url", ["", "mysql://host/db", "sqlite://affinity.db", "not a url"])
async def test_wrong_urls(url: str) -> None:
    with pytest.raises(InvalidUrl):
        async with Client(url):
            pass


async def test_an_unreachable_database() -> None:
    with pytest.raises(ConnectionLost):
        async with Client("postgresql://someone@127.0.0.1:1/db?connect_timeout=2"):  # nothing listens on port 1
            pass
