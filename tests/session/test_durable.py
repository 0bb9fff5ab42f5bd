"""Resources that outlive a process: created once, committed with the state, shared by forks, destroyed when unused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import pytest

import affinity
from affinity import ActivityContext, OrchestrationContext
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import InvalidApp, InvalidId, InvalidOptions, OrchestrationFailed, PayloadTooLarge, SessionError
from affinity.limits import MAX_LABELS
from affinity.provider import open_provider
from affinity.session import SessionMetadata, SessionState
from affinity.worker import resources as sweeping
from tests.conversation.application import Chat, make, stage, until
from tests.conversation.lineage_helpers import rebuild

pytestmark = pytest.mark.anyio


class Boxes:
    """A service outside: what it has, and how often each was destroyed."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.destroyed: list[str] = []
        self.opened = 0
        self.resource = affinity.Resource(
            name="box", create=self.create, destroy=self.destroy, open=self.open, close=lambda *_: None
        )

    def create(self, resource_id: str, session_id: str) -> dict[str, str]:
        """A new one; its handle."""
        self.there[resource_id] = session_id
        return {"box": resource_id}

    def open(self, handle: dict[str, str]) -> str:
        """A connection to it: its id."""
        self.opened += 1
        return handle["box"]

    def destroy(self, resource_id: str, _: object) -> None:
        """Its end; again is no error."""
        self.there.pop(resource_id, None)
        self.destroyed.append(resource_id)


@pytest.fixture(params=["sqlite", "new"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated database."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_kept")
    return found


@pytest.fixture
def postgres_age() -> str:
    """The newer of the two servers."""
    return "new"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps come soon."""
    monkeypatch.setattr(sweeping, "SWEEP_SECONDS", 0.05)


@pytest.fixture
def boxes() -> Boxes:
    """Of one test."""
    return Boxes()


@asynccontextmanager
async def serving(url: str, boxes: Boxes) -> AsyncIterator[tuple[affinity.Client, affinity.App]]:
    """A worker whose activities use boxes."""
    app, chats = affinity.App("boxes"), affinity.Sessions(Chat)
    app.include(chats)
    app.include(boxes.resource)

    @app.activity
    async def use(ctx: ActivityContext, what: str) -> str:
        opening = chats.open(ctx, labels={"what": what})
        async with opening:
            box = await opening.resource(boxes.resource)
            if what == "close":
                await opening.close_resource(boxes.resource)
            if what == "fail" and ctx.attempt < 3:
                raise ValueError(what)
        if what == "late":
            raise ValueError(what)
        return box

    @app.orchestration
    async def work(ctx: OrchestrationContext, what: str) -> str:
        retry = affinity.RetryPolicy(initial_interval=0.01) if what == "fail" else None
        return await ctx.schedule_activity(use, what, retry=retry).on_session("s")

    async with affinity.Worker(app, url), affinity.Client(url) as client:
        yield client, app


async def run(client: affinity.Client, what: str) -> str:
    """One activity of the session."""
    found: str = await client.wait((await client.start("work", what)).instance_id, 30)
    return found


async def test_it_is_created_once_and_outlives_the_worker(url: str, boxes: Boxes) -> None:
    async with serving(url, boxes) as (client, _):
        box = await run(client, "a")
        assert await run(client, "b") == box
        assert boxes.opened == 1
        record = await client.session_store.load("s")
        assert record is not None
        assert dict(record.metadata.labels) == {"what": "b", "affinity.resource/box": box}
    async with serving(url, boxes) as (client, _):
        assert await run(client, "c") == box
        assert (boxes.opened, list(boxes.there), boxes.destroyed) == (2, [box], [])
        await client.session_store.delete(["s"])
        await until(lambda: _is(boxes.destroyed == [box]))


async def _is(value: bool) -> bool:
    return value


async def test_attempts_that_fail_share_one(url: str, boxes: Boxes) -> None:
    async with serving(url, boxes) as (client, _):
        box = await run(client, "fail")
        await anyio.sleep(0.3)
        assert (list(boxes.there), boxes.destroyed, boxes.opened) == ([box], [], 1)


async def test_an_activity_of_a_reused_id_has_one_of_its_own(url: str, boxes: Boxes) -> None:
    """An activity with the same instance, execution and number ran before, and its session uses its box."""
    async with serving(url, boxes) as (client, app):

        @app.orchestration
        async def visit(ctx: OrchestrationContext, session_id: str) -> str:
            box: str = await ctx.schedule_activity("use", "a").on_session(session_id)
            return box

        found = []
        for session_id in ("ann", "bob"):
            await client.start("visit", session_id, instance_id="reused")
            found.append(await client.wait("reused", 30))
            await client.delete("reused")
        assert found[0] != found[1]
        assert boxes.there == {found[0]: "ann", found[1]: "bob"}


async def test_it_takes_no_label_over_the_limit(url: str, boxes: Boxes) -> None:
    """An export of such a record could not be imported, and no labels could be given to the session any more."""
    async with serving(url, boxes) as (client, app):
        labels = {str(n): "x" for n in range(MAX_LABELS)}
        record = SessionMetadata(kind="Chat", labels=labels)
        await client.session_store.save(SessionState(session_id="s", state=b"{}", metadata=record))

        @app.activity
        async def look(ctx: ActivityContext) -> None:
            opening = affinity.Sessions(Chat, follow_leases=False).open(ctx)
            async with opening:
                await opening.resource(boxes.resource)

        @app.orchestration
        async def visit(ctx: OrchestrationContext) -> None:
            await ctx.schedule_activity(look).on_session("s")

        with pytest.raises(OrchestrationFailed, match="no label is left"):
            await client.wait((await client.start("visit")).instance_id, 30)
        await until(lambda: _is(len(boxes.destroyed) == 1 and not boxes.there))


async def test_what_no_result_committed_is_destroyed(url: str, boxes: Boxes) -> None:
    async with serving(url, boxes) as (client, _):
        with pytest.raises(OrchestrationFailed):
            await run(client, "late")
        await until(lambda: _is(len(boxes.destroyed) == 1 and not boxes.there))
        box = await run(client, "a")
        assert box not in boxes.destroyed
        await anyio.sleep(0.2)
        assert list(boxes.there) == [box]


async def test_a_closed_one_is_destroyed_and_never_replaced(url: str, boxes: Boxes) -> None:
    async with serving(url, boxes) as (client, _):
        box = await run(client, "close")
        await until(lambda: _is(boxes.destroyed == [box]))
        with pytest.raises(OrchestrationFailed, match="has closed this resource"):
            await run(client, "a")
    assert boxes.there == {}


async def test_one_that_is_gone_is_an_error_and_not_an_empty_one(url: str, boxes: Boxes) -> None:
    async with serving(url, boxes) as (client, _):
        await run(client, "a")
        record = await client.session_store.load("s")
        assert record is not None
        new = SessionState(
            session_id="s",
            state=record.state,
            schema_version=record.schema_version,
            metadata=SessionMetadata(kind=record.metadata.kind, labels={"affinity.resource/box": "other"}),
        )
        await client.session_store.save(new)
        with pytest.raises(OrchestrationFailed, match="has closed this resource"):
            await run(client, "b")


async def test_forks_share_it_and_the_last_one_ends_it(url: str, boxes: Boxes) -> None:
    async def act(wake: affinity.Wake, chat: Chat) -> None:
        chat.wakes += 1
        box = await wake.resource(boxes.resource)
        wake.append(AgentMessage(box))

    async with stage(url, make(act)) as found:
        found.app.include(boxes.resource)
        talk = found.talk("a")
        box = (await talk.ask(UserMessage("one"), timeout=30)).text
        fork = await talk.fork("b")
        assert (await fork.ask(UserMessage("two"), timeout=30)).text == box
        detached = await talk.detach("c")
        assert (await detached.ask(UserMessage("three"), timeout=30)).text == box
        assert list(boxes.there) == [box]
    async with serving(url, boxes) as (client, _):
        kind = make(act)
        for name in ("a", "c"):
            await client.conversation(kind, name).delete()
        await anyio.sleep(0.3)
        assert boxes.destroyed == []
        await client.conversation(kind, "b").delete()
        await until(lambda: _is(boxes.destroyed == [box]))


async def test_a_merge_of_sides_with_different_ones_needs_the_one_to_keep(url: str, boxes: Boxes) -> None:
    async def act(wake: affinity.Wake, chat: Chat) -> None:
        chat.received.append(wake.conversation_id)
        wake.append(AgentMessage("none"))
        if wake.conversation_id != "plain":
            box = await wake.resource(boxes.resource)
            wake.append(AgentMessage(box))

    async with stage(url, make(act)) as found:
        names = ("l", "r", "plain")
        left, right, plain = [
            (await found.talk(name).ask(UserMessage("one"), timeout=30)).text.split()[-1] for name in names
        ]
        assert (len({left, right}), plain) == (2, "none")
        with pytest.raises(InvalidOptions, match="name the side to keep"):
            await found.talk("l").merge("r", into="m")
        merges = {
            "kept-left": await found.talk("l").merge("r", into="kept-left", keep="left"),
            "kept-right": await found.talk("l").merge("r", into="kept-right", keep="right"),
            "given": await found.talk("l").merge("r", into="given", keep="right", state=Chat(received=["x"])),
            "only": await found.talk("plain").merge("r", into="only"),
            "both": await (await found.talk("l").fork("f")).merge("l", into="both"),
        }
        used = {}
        for name in merges:
            record = await found.client.session_store.load(name)
            assert record is not None
            used[name] = record.metadata.labels["affinity.resource/box"]
        assert used == {"kept-left": left, "kept-right": right, "given": right, "only": right, "both": left}
        assert (await found.state("kept-right")).received == ["l"]
        assert (await found.state("only")).received == ["plain"]
        assert (await found.state("given")).received == ["x"]
        assert right in (await merges["kept-right"].ask(UserMessage("go"), timeout=30)).text


async def test_a_script_has_none(url: str, boxes: Boxes) -> None:
    async with affinity.Client(url) as client:
        opening = affinity.Sessions(Chat).open("s", store=client.session_store)
        async with opening:
            with pytest.raises(SessionError, match="use it in an activity"):
                await opening.resource(boxes.resource)
    assert boxes.there == {}


def test_options_and_apps(boxes: Boxes) -> None:
    for wrong in ({}, {"create": boxes.create}, {"open": boxes.open, "destroy": boxes.destroy}):
        with pytest.raises(InvalidOptions, match="needs open="):
            affinity.Resource(**wrong)
    app = affinity.App("boxes")
    app.include(boxes.resource)
    app.include(boxes.resource)
    with pytest.raises(InvalidApp, match="named 'box'"):
        app.include(Boxes().resource)
    with pytest.raises(InvalidApp, match="with create="):
        app.include(affinity.Resource(open=boxes.open))  # type: ignore[arg-type]
    outer = affinity.App("outer")
    outer.include(app)
    assert outer.resources == (boxes.resource,)


async def test_parts_that_run_at_the_same_time_share_one(url: str, boxes: Boxes) -> None:
    found: list[str] = []

    async def create(resource_id: str, session_id: str) -> dict[str, str]:
        await anyio.sleep(0.05)
        return boxes.create(resource_id, session_id)

    resource = affinity.Resource(name="box", create=create, destroy=boxes.destroy, open=boxes.open)

    async def act(wake: affinity.Wake, chat: Chat) -> None:
        async def part() -> None:
            found.append(await wake.resource(resource))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(part)
            tasks.start_soon(part)
        wake.append(AgentMessage("done"))

    async with stage(url, make(act)) as found_stage:
        await found_stage.talk("a").ask(UserMessage("go"), timeout=30)
        assert found == [*boxes.there] * 2
    assert len(resource) == 0


async def test_a_handle_is_any_json_within_bounds(url: str, boxes: Boxes) -> None:
    opened: list[object] = []
    handles: list[object] = [None, "x" * 3_000_000]

    def resource(name: str) -> affinity.Resource[object]:
        return affinity.Resource(
            name=name,
            create=lambda *_: handles.pop(0),
            destroy=boxes.destroy,
            open=opened.append,
        )

    small, large = resource("small"), resource("large")

    async def act(wake: affinity.Wake, _: Chat) -> None:
        await wake.resource(small)
        wake.append(AgentMessage("ok"))
        with pytest.raises(PayloadTooLarge, match="the handle of resource 'large'"):
            await wake.resource(large)

    async with stage(url, make(act)) as found:
        await found.talk("a").ask(UserMessage("go"), timeout=30)
    assert opened == [None]
    with pytest.raises(InvalidId, match="the label of the resource"):
        resource("x" * 250)


async def test_what_is_made_with_another_state_uses_it_too(url: str, boxes: Boxes) -> None:
    """A fork at an earlier entry, and a compression; what has no state cannot, and says so."""

    async def act(wake: affinity.Wake, chat: Chat) -> None:
        chat.wakes += 1
        box: str = await wake.resource(boxes.resource)
        wake.append(AgentMessage(box))

    async def summarise(_: object) -> str:
        return "short"

    async with stage(url, make(act, rebuild=rebuild)) as found:
        talk = found.talk("a")
        box = (await talk.ask(UserMessage("one"), timeout=30)).text
        await talk.fork("fork", at=1)
        await talk.compress(into="short", summarise=summarise)
        await talk.compress(into="given", summarise=summarise, state=Chat())
        for name in ("fork", "short", "given"):
            record = await found.client.session_store.load(name)
            assert record is not None
            assert record.metadata.labels["affinity.resource/box"] == box
    async with stage(url, make(act), workers=0) as found:
        await found.talk("new").send(UserMessage("waits"))
        with pytest.raises(InvalidOptions, match="'new' has no state"):
            await found.talk("new").merge("a", into="m")
        await found.talk("new").merge("a", into="m", state=Chat())


@asynccontextmanager
async def unused(url: str, app: affinity.App, handles: dict[str, str]) -> AsyncIterator[affinity.Worker]:
    """A worker, in whose database these resources are unused."""
    async with aclosing(await open_provider(url)) as provider:
        for number, (resource_id, handle) in enumerate(handles.items()):
            await provider.begin_resource(resource_id, "box", ("gone", 1, number), held=None)
            await provider.set_resource_handle(resource_id, handle)
    async with affinity.Worker(app, url) as worker:
        yield worker


async def test_an_unreadable_handle_stays_and_ends_no_worker(url: str, boxes: Boxes) -> None:
    app = affinity.App("boxes")
    app.include(boxes.resource)
    async with unused(url, app, {"bad": "{no", "good": "1"}):
        await until(lambda: _is(boxes.destroyed == ["good"]))


async def test_one_that_no_worker_includes_is_reported_until_one_does(
    url: str, boxes: Boxes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sweeping, "REPORT_SECONDS", 0.05)

    def shown(worker: affinity.Worker) -> float | None:
        registry = worker.metrics.registry
        (family,) = [each for each in registry.collect() if each.name == "affinity_unclaimed_resources"]
        return next((each.value for each in family.samples if each.labels["resource"] == "box"), None)

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "no running worker destroys" in each.getMessage()]

    app = affinity.App("boxes")
    app.include(boxes.resource)
    async with unused(url, affinity.App("other"), {"a": "1", "b": "2"}) as worker:
        await until(lambda: _is(len(warnings()) > 1))
        assert all(text.startswith("resource box: nothing uses 2 ") for text in warnings())
        assert shown(worker) == 2
        async with affinity.Worker(app, url):
            await until(lambda: _is(sorted(boxes.destroyed) == ["a", "b"]))
            await until(lambda: _is(shown(worker) is None))
            logged = len(warnings())
            await anyio.sleep(0.2)
            assert len(warnings()) == logged


async def test_one_that_is_slow_delays_no_other(url: str) -> None:
    """So that all are destroyed before another worker may take them."""
    begun: list[str] = []
    both = anyio.Event()

    async def destroy(resource_id: str, _: object) -> None:
        begun.append(resource_id)
        if len(begun) == 2:
            both.set()
        await both.wait()

    app = affinity.App("boxes")
    app.include(affinity.Resource(name="box", create=lambda *_: None, destroy=destroy))
    async with unused(url, app, {"a": "1", "b": "2"}):
        await until(lambda: _is(sorted(begun) == ["a", "b"]))
