"""The reasons why instances wait, as a sentence and a code, from stored rows."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Worker
from affinity.errors import ConnectionLost, Explanation, UnknownInstance, WaitTimeout
from affinity.explain.names import code_differences
from affinity.explain.reasons import MAX_DEPTH
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, Provider, WorkerIdentity, WorkerInfo
from affinity.testing import Env
from affinity.worker import activities, registrations
from affinity_conformance.providers.builders import profile
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

FAST: dict[str, Any] = {"poll_interval": 0.1, "unregistered_timeout": 0.5}


def options(worker_id: str = "w", **more: Any) -> RuntimeOptions:
    return RuntimeOptions.make(**{**FAST, "worker_node_id": worker_id, **more})


app = App("explained")


@app.activity
async def work(ctx: ActivityContext) -> None:
    await anyio.sleep(60)


@app.activity
async def fails(ctx: ActivityContext) -> None:
    raise ValueError("no tea")


@app.orchestration
async def events(ctx: OrchestrationContext) -> None:
    await ctx.schedule_wait("one")
    await ctx.schedule_wait("two")


@app.orchestration
async def timer(ctx: OrchestrationContext) -> None:
    await ctx.schedule_timer(3_600)


@app.orchestration
async def works(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(work)


@app.orchestration
async def uses(ctx: OrchestrationContext, session: str) -> None:
    await ctx.schedule_activity(work).on_session(session)


@app.orchestration
async def orders(ctx: OrchestrationContext, session: str) -> None:
    await ctx.schedule_activity(work).on_session(session, ordered=True)


@app.orchestration
async def retries(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(fails, retry=RetryPolicy(initial_interval=600.0, max_interval=600.0, max_attempts=5))


@app.orchestration
async def tagged(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(work).with_tag("gpu")


@app.orchestration
async def unknown_activity(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity("nowhere")


@app.orchestration
async def grandparent(ctx: OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration("parent", instance_id="p")


@app.orchestration
async def parent(ctx: OrchestrationContext) -> None:
    await ctx.schedule_sub_orchestration("lost", instance_id="c")


@app.activity
async def quick(ctx: ActivityContext) -> None:
    pass


@app.orchestration
async def visits(ctx: OrchestrationContext, session: str) -> None:
    await ctx.schedule_activity(quick).on_session(session)


@app.orchestration
async def nested(ctx: OrchestrationContext, depth: int) -> None:
    if depth:
        await ctx.schedule_sub_orchestration(nested, depth - 1, instance_id=f"depth-{depth - 1}")
    await ctx.schedule_wait("one")


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


async def explained(client: Client, instance_id: str, code: str) -> Explanation:
    """The explanation, once it has this code."""
    found: Explanation | None = None

    async def look() -> bool:
        nonlocal found
        with suppress(UnknownInstance):
            found = await client.explain(instance_id)
        return found is not None and found.code == code

    try:
        await until(look, 20)
    except BaseException as error:
        error.add_note(f"the last explanation: {found}")
        raise
    assert found is not None
    return found


async def stand_by(provider: Provider, worker_id: str, registered: Mapping[str, Mapping[str, str]]) -> None:
    """Register a worker that is alive, and takes no work."""
    identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(worker_id))
    await provider.register_worker(identity, 300, {}, profile=profile(registered=registered))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Provider]:
    provider = await open_provider(url, one_connection=True)
    try:
        yield provider
    finally:
        await provider.aclose()


async def test_without_a_worker_it_says_so(kept_url: str, client: Client) -> None:
    await client.start(events, instance_id="i")
    with pytest.raises(WaitTimeout, match="none is alive") as raised:
        await client.wait("i", 0.1)
    assert raised.value.waits_for is not None
    assert (raised.value.waits_for.code, raised.value.waits_for.path) == ("no_worker", ("i",))


async def test_an_event_and_a_timer_are_named(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, options(drain_timeout=0.1)):
        await client.start(events, instance_id="e")
        found = await explained(client, "e", "event")
        assert (found.name, found.instance_id) == ("one", "e")
        await client.raise_event("e", "one")
        await client.raise_event("e", "other")

        async def second() -> bool:
            now = await client.explain("e")
            return now is not None and now.name == "two"

        await until(second)
        started = (await client.start(timer, instance_id="t")).instance_id
        due = (await explained(client, started, "timer")).due_at
        assert due is not None
        assert 3_500 < (due - (await client.status("t")).created_at).total_seconds() < 3_700
        await client.cancel("e")
        await client.wait_finished("e", 20)
        assert await client.explain("e") is None


async def test_a_child_that_is_suspended_is_named_with_the_path(kept_url: str, client: Client) -> None:
    """The deepest reason, through all parents; `ask` and `wait` have it in a field."""
    async with Worker(app, kept_url, options(drain_timeout=0.1)):
        await client.start(grandparent, instance_id="g")
        found = await explained(client, "g", "suspended")
        assert (found.path, found.instance_id, found.name) == (("g", "p", "c"), "c", "lost")
        assert "start a worker that registers it" in found.sentence
        with pytest.raises(WaitTimeout, match="UnknownOrchestration") as raised:
            await client.wait("g", 0.1)
        assert raised.value.waits_for == found


async def test_names_that_no_live_worker_registers(
    kept_url: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "affinity")
    async with Worker(app, kept_url, options(unregistered_timeout=300.0, drain_timeout=0.1)):
        await client.start("nowhere", instance_id="o")
        await client.start("nowhere", instance_id="o2")
        await client.start(unknown_activity, instance_id="a")
        assert (await explained(client, "o", "name_not_registered")).name == "nowhere"
        found = await explained(client, "a", "name_not_registered")
        assert (found.name, found.activity_id) == ("nowhere", 2)

        async def warned() -> bool:
            return "no live worker registers the orchestration 'nowhere'" in caplog.text

        await until(warned)
        await anyio.sleep(0.5)
        assert caplog.text.count("its instances wait until") == 1
        await client.start(tagged, instance_id="t")
        await explained(client, "t", "no_worker_with_tag")
        unserved = {one.sentence.partition(":")[0]: one for one in await client.unserved_work()}
        assert {sentence: (one.code, one.count) for sentence, one in unserved.items()} == {
            "no live worker registers the orchestration 'nowhere'": ("name_not_registered", 2),
            "no live worker registers the activity 'nowhere'": ("name_not_registered", 1),
            "no live worker that registers the activity 'work' has the tag 'gpu'": ("no_worker_with_tag", 1),
        }
        assert {one.instance_id for one in unserved.values()} == {"o", "a", "t"}
    assert {one.code for one in await client.unserved_work()} == {"no_worker"}  # none is alive: all work waits


async def test_work_that_waits_since_all_workers_drain(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, options(drain_timeout=0.1)) as worker:
        assert await client.unserved_work() == []
        await client.drain_worker(worker.identity.worker_id)

        async def is_drained() -> bool:
            return all(each.draining for each in await client.workers())

        await until(is_drained)
        await client.start(works, instance_id="i")

        async def is_found() -> bool:
            return bool(await client.unserved_work())

        await until(is_found)
        (found,) = await client.unserved_work()
        assert (found.code, found.instance_id) == ("workers_draining", "i")
        assert f"all workers drain that could take the orchestration 'works' ({worker.identity.worker_id})" in (
            found.sentence
        )
        await client.resume_worker(worker.identity.worker_id)
        await explained(client, "i", "activity_running")
        assert await client.unserved_work() == []


async def test_activities_say_why_they_have_no_result(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, options(drain_timeout=0.1)) as worker:
        await client.start(works, instance_id="runs")
        assert (await explained(client, "runs", "activity_running")).worker_id == worker.identity.worker_id
        await client.start(retries, instance_id="retries")
        found = await explained(client, "retries", "activity_retrying")
        assert "no tea" in found.sentence
        assert found.due_at is not None
        await client.start(tagged, instance_id="tagged")
        assert "'gpu'" in (await explained(client, "tagged", "no_worker_with_tag")).sentence
        await client.start(orders, "s", instance_id="first")
        await explained(client, "first", "activity_running")
        await client.start(orders, "s", instance_id="second")
        assert (await explained(client, "second", "ordered_behind")).session_id == "s"


async def test_a_session_says_why_its_work_waits(kept_url: str, client: Client) -> None:
    """The holder is busy, or drains; or no worker has room for another session."""
    limits = {"worker_concurrency": 1, "max_sessions_per_runtime": 1, "drain_timeout": 0.1}
    async with Worker(app, kept_url, options("w", **limits)):
        await client.start(uses, "s", instance_id="first")
        await explained(client, "first", "activity_running")
        await client.start(uses, "s", instance_id="busy")
        busy = await explained(client, "busy", "holder_busy")
        assert busy.worker_id == "w"
        assert "its 1 slot (worker_concurrency)" in busy.sentence
        assert busy.since is not None
        assert abs((busy.since - (await client.status("busy")).updated_at).total_seconds()) < 60
        await client.start(uses, "other", instance_id="full")
        assert (await explained(client, "full", "workers_full")).session_id == "other"
        await client.drain_worker("w")
        assert (await explained(client, "busy", "holder_draining")).worker_id == "w"
        await explained(client, "full", "workers_draining")


async def test_a_turn_that_no_worker_has_run(kept_url: str, client: Client) -> None:
    async with opened(kept_url) as provider:
        await stand_by(provider, "w", {"orchestrations": {"events": "digest"}})
        await client.start(events, instance_id="i")
        found = await explained(client, "i", "turn")
        assert found.sentence == "'i' waits for a worker to run its next turn"


async def test_children_too_deep_to_be_followed(kept_url: str, client: Client) -> None:
    """The path ends at the limit; the last instance of it says for which child it waits."""
    async with Worker(app, kept_url, options(drain_timeout=0.1)):
        await client.start(nested, MAX_DEPTH, instance_id="top")
        await explained(client, "depth-0", "event")
        found = await explained(client, "top", "child")
        assert found.path == ("top", *(f"depth-{n}" for n in range(MAX_DEPTH - 1, 0, -1)))
        assert found.sentence == (
            f"'depth-1' waits for its sub-orchestration 'depth-0'; 'top' waits for its sub-orchestration "
            f"'depth-{MAX_DEPTH - 1}', which waits for it through {MAX_DEPTH - 3} more"
        )
        assert (await explained(client, f"depth-{MAX_DEPTH - 1}", "event")).instance_id == "depth-0"


async def test_an_activity_for_which_no_worker_has_a_slot(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, options(worker_concurrency=1, drain_timeout=0.1)):
        await client.start(works, instance_id="first")
        await explained(client, "first", "activity_running")
        await client.start(works, instance_id="second")
        found = await explained(client, "second", "activity_queued")
        assert (found.name, found.worker_id) == ("work", None)


def without_work() -> App:
    """An app as `app`, without the activity `work`."""
    made = App("explained")
    made.include(app)
    del made._activities["work"]
    return made


async def test_an_activity_that_was_given_back_for_a_while(
    kept_url: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker without its code gives it back with its session, for the one that has it."""
    monkeypatch.setattr(activities, "UNKNOWN_PAUSE", 600.0)
    async with opened(kept_url) as provider:
        await stand_by(provider, "able", {"activities": {"work": "digest"}})
        async with Worker(without_work(), kept_url, options(unregistered_timeout=900.0)):
            await client.start(uses, "s", instance_id="i")
            found = await explained(client, "i", "activity_delayed")
            assert found.due_at is not None
            assert 500 < (found.due_at - (await client.status("i")).created_at).total_seconds() < 700


async def test_a_session_that_moves(kept_url: str, client: Client) -> None:
    async with (
        Worker(app, kept_url, options("a", drain_timeout=0.1)),
        opened(kept_url) as provider,
    ):
        await client.start(uses, "s", instance_id="first")
        await explained(client, "first", "activity_running")
        await stand_by(provider, "b", {"activities": {"work": "digest"}})
        assert await client.move_session("s", "b") == "planned"
        await client.start(uses, "s", instance_id="second")
        found = await explained(client, "second", "session_moving")
        assert (found.session_id, found.worker_id) == ("s", "a")
        assert "moves to worker 'b'" in found.sentence


async def test_a_holder_without_the_code_is_not_called_busy(kept_url: str, client: Client) -> None:
    """It gives the session up: more slots would not help."""
    limits = {"worker_concurrency": 1, "drain_timeout": 0.1, "unregistered_timeout": 900.0}
    holder = without_work()

    @holder.activity(name="work2")
    async def other(ctx: ActivityContext) -> None:
        await anyio.sleep(60)

    @holder.orchestration
    async def holds(ctx: OrchestrationContext, session: str) -> None:
        await ctx.schedule_activity(other).on_session(session)

    async with Worker(holder, kept_url, options("a", **limits)), opened(kept_url) as provider:
        await client.start(holds, "s", instance_id="first")
        await explained(client, "first", "activity_running")
        await stand_by(provider, "b", {"activities": {"work": "digest"}})
        await client.start(uses, "s", instance_id="second")
        found = await explained(client, "second", "session_moving")
        assert found.worker_id == "a"
        assert "does not register the activity" in found.sentence


async def test_a_holder_that_restarts_is_not_called_busy(kept_url: str, client: Client) -> None:
    async with Worker(app, kept_url, options("a", restart_grace=300)):
        await (await client.start(visits, "s")).wait(20)
    async with Worker(app, kept_url, options("b", drain_timeout=0.1)):
        await client.start(visits, "s", instance_id="i")
        found = await explained(client, "i", "holder_restarting")
        assert (found.session_id, found.worker_id) == ("s", "a")


async def test_a_holder_whose_lease_has_ended(kept_url: str) -> None:
    async with Env(app, url=None if kept_url.startswith("sqlite") else kept_url) as env:
        await env.client.start(uses, "s", instance_id="i")
        with env.freeze():
            await env.advance(1)
            await explained(env.client, "i", "activity_running")
            await env.crash(0, restart=False)
            names = {"activities": {"work": "digest"}, "orchestrations": {"uses@1.0.0": "digest"}}
            await stand_by(env._own, "b", names)
            await env.advance(20)
            found = await explained(env.client, "i", "holder_lapsed")
            assert (found.session_id, found.worker_id) == ("s", "worker-0")


async def test_a_failing_explanation_does_not_hide_the_time_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.start("nowhere", instance_id="i")

    async def lost(*_: object) -> Any:
        raise ConnectionLost("gone")

    monkeypatch.setattr(client._provider, "list_workers", lost)
    with pytest.raises(WaitTimeout) as raised:
        await client.wait("i", 0.1)
    assert raised.value.waits_for is None


def other_work() -> App:
    """An app whose activity has the name of another one."""
    made = App("explained")

    @made.activity(name="work")
    async def something_else(ctx: ActivityContext) -> None:
        pass

    return made


async def test_a_declared_schedule_without_code_is_logged_at_the_start(
    kept_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not if this app has the code, or another live worker."""
    declaring = App("declaring")
    declaring.include(app)
    for name, target in {"mistake": "ordes", "known": "orders", "elsewhere": "moved"}.items():
        declaring.schedule(name, target, cron="0 0 1 1 *")

    def missing() -> list[str]:
        return [one.getMessage() for one in caplog.records if "its instances wait until" in one.getMessage()]

    async def logged() -> bool:
        return bool(missing())

    async with opened(kept_url) as provider:
        await stand_by(provider, "other", {"orchestrations": {"moved@1.0.0": "0f"}})
        async with Worker(declaring, kept_url, options("a")):
            await until(logged)
            await anyio.sleep(0.3)
    assert ["the orchestration 'ordes'" in one for one in missing()] == [True]


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (("shop", "place.sign"), ("shop", "place.sign"), False),
        (("shop", "place.sign"), ("shop", "place.another"), False),  # a rollout
        (("shop", "place.sign"), ("shop", "elsewhere.sign"), True),
        (("shop", "place.sign"), ("books", "place.sign"), False),  # a library of both
        (("shop", "place.sign"), ("books", "place.another"), True),
    ],
)
def test_two_apps_differ_in_a_name_and_two_releases_do_not(
    one: tuple[str, str], other: tuple[str, str], differ: bool
) -> None:
    found = code_differences(
        [worker("a", *one), worker("b", *other), worker("dead", "shop", "else.where", alive=False)]
    )
    assert [(each.what, each.worker_ids) for each in found] == [("activity 'reply'", ["a", "b"])] * differ


def worker(worker_id: str, app_name: str, digest: str, *, alive: bool = True) -> WorkerInfo:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return WorkerInfo(
        worker_id=worker_id,
        incarnation=Incarnation("i"),
        alive=alive,
        draining=False,
        expires_in=1.0,
        started_at=now,
        sessions=0,
        capacity=1,
        code_version="1",
        code_since=now,
        labels={"app": app_name},
        registered={"activities": {"reply": digest}},
    )


async def test_workers_with_different_code_for_a_name_warn_once(
    kept_url: str, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both warn, once; the same code under one name is no difference, and a worker that has ended is none."""
    monkeypatch.setattr(registrations, "COMPARE_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "affinity.worker")

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if "other code" in one.getMessage()]

    async with Worker(app, kept_url, options("a")), Worker(app, kept_url, options("b")):
        await anyio.sleep(0.5)
        assert not warnings()
        async with Worker(other_work(), kept_url, options("c")):

            async def all_warned() -> bool:
                return len(warnings()) == 3

            await until(all_warned)
            await anyio.sleep(0.5)
            assert len(warnings()) == 3
            assert all("activity 'work'" in one for one in warnings())
            rows = {one.worker_id: one.registered["activities"]["work"] for one in await client.workers()}
            assert rows["a"] == rows["b"] != rows["c"]
