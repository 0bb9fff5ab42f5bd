"""Names and values that a client gives without the code are compared with what live workers registered."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from affinity import App, Client, Conversations, Event, ExternalEvent, OrchestrationContext, Start, Wake
from affinity.client import registered
from affinity.conversation import JournalEvent
from affinity.errors import NotRegistered, NotSerializable
from affinity.provider.contract import Incarnation, Provider, WorkerIdentity
from affinity_conformance.providers.builders import profile


class Order(BaseModel):
    items: list[int]


class Chat(BaseModel):
    pass


class Ordered(JournalEvent):
    number: int
    kind: Literal["user.ordered"] = "user.ordered"


app = App("shop")


@app.orchestration
async def review(ctx: OrchestrationContext, order: Order) -> None:
    await ctx.schedule_wait("answer", int)
    await ctx.schedule_wait("other")


@app.orchestration
async def helped(ctx: OrchestrationContext) -> None:
    await review(ctx, Order(items=[]))


@app.orchestration
async def nothing(ctx: OrchestrationContext, order: None) -> None: ...


@app.orchestration(name="ship", version="1.0.0")
async def ship(ctx: OrchestrationContext, number: str) -> None: ...


@app.orchestration(name="ship", version="2.0.0")
async def ship_two(ctx: OrchestrationContext, number: int = 1) -> None: ...


chats = Conversations(Chat, kind="chats", events=[Ordered])


@chats.on_wake
async def respond(wake: Wake, chat: Chat) -> None: ...


app.include(chats)


async def stand_by(provider: Provider, worker_id: str, app: App, lease: float = 300) -> None:
    """Register the code of an app, with a worker that takes no work."""
    identity = WorkerIdentity(worker_id=worker_id, incarnation=Incarnation(worker_id))
    about = profile(registered=app.registered(), interfaces=app.interfaces())
    await provider.register_worker(identity, lease, {}, profile=about)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients read the registrations each time."""
    monkeypatch.setattr(registered, "_AGES", (-1.0,))
    monkeypatch.setattr(registered, "FRESH_SECONDS", -1.0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "affinity.client"]


Call = Callable[[Client], Awaitable[object]]

MISSPELT: Mapping[str, Call] = {
    "start": lambda client: client.start("reviw", {"items": []}),
    "several": lambda client: client.start_many([Start("reviw"), Start("reviw")]),
    "schedule": lambda client: client.schedules.create("nightly", "reviw", every=60),
}


@pytest.mark.parametrize("call", MISSPELT.values(), ids=MISSPELT)
async def test_a_name_that_no_live_worker_has_is_logged_once(
    client: Client, provider: Provider, caplog: pytest.LogCaptureFixture, call: Call
) -> None:
    await stand_by(provider, "a", app)
    await call(client)
    await client.start("reviw")
    assert warnings(caplog) == [
        "no live worker registers the orchestration 'reviw': did you mean 'review'? It is started all the same, and "
        "waits for one."
    ]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("reviw", {}, "'reviw': did you mean 'review'?"),
    ("zzz", {}, "they have"),
    ("ship", {"version": "3.0.0"}, "'ship@3.0.0': they have '1.0.0', '2.0.0'."),
    ("chat", {"kind": "conversations"}, "conversations of kind 'chat': did you mean 'chats'?"),
]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("name", "options", "hint"), REFUSED)
async def test_the_refusal_of_a_name_says_which_are_like_it(
    client: Client, provider: Provider, name: str, options: dict[str, Any], hint: str
) -> None:
    await client.check_registered(name, **options)  # no worker is alive
    await stand_by(provider, "a", app)
    with pytest.raises(NotRegistered) as raised:
        await client.check_registered(name, **options)
    assert hint in str(raised.value)


@pytest.mark.usefixtures("fresh")
async def test_names_pass_that_a_worker_has_or_may_have(
    client: Client, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """One of an old and a new version, one that has ended lately, and while no live worker has orchestrations."""
    await client.start("anything", {"a": 1})
    await stand_by(provider, "gpu", App("activities"))
    await client.check_registered("anything")
    former = App("shop")

    @former.orchestration(name="former")
    async def ended(ctx: OrchestrationContext) -> None: ...

    await stand_by(provider, "old", former)
    await stand_by(provider, "new", app)
    await client.check_registered("former")
    await client.check_registered("review")
    old_worker = WorkerIdentity(worker_id="old", incarnation=Incarnation("old"))
    await provider.release_worker(old_worker)
    await client.check_registered("former", version="1.0.0")
    await client.start("former")
    assert not warnings(caplog)


VALUES: list[tuple[Start, str | None]] = [
    (Start("review", {"items": [1, "2"]}), None),
    (Start("review", {"items": [1, "x"]}), "items.1: 'x'"),
    (Start("review"), "'object'"),
    (Start("ship"), None),
    (Start("ship", 7), None),
    (Start("ship", "x"), "'x' is not of type 'integer'"),
    (Start("ship", "x", version="1.0.0"), None),
    (Start("ship", 7, version="1.0.0"), "'string'"),
]


@pytest.mark.parametrize(("start", "problem"), VALUES)
async def test_an_input_that_no_live_worker_takes_is_refused(
    client: Client, provider: Provider, start: Start, problem: str | None
) -> None:
    """By the version that would be started; with ``force`` it is started."""
    await stand_by(provider, "a", app)
    if problem is not None:
        with pytest.raises(NotSerializable) as raised:
            await client.start_many([start])
        assert f"input of orchestration '{start.orchestration}': " in str(raised.value)
        assert problem in str(raised.value)
        assert not [one async for one in client.list_instances()]
    await client.start_many([start], force=problem is not None)
    assert [one async for one in client.list_instances()]


SCHEDULED: list[tuple[str, dict[str, Any], str | None]] = [
    ("helped", {}, None),
    ("helped", {"input": None}, None),
    ("helped", {"input": "x"}, "'x' is not of type 'null'"),
    ("helped", {"due_as": "day"}, "'null'"),
    ("nothing", {}, "'null'"),
    ("nothing", {"input": None}, None),
    ("ship", {"version": "1.0.0"}, None),
    ("ship", {}, "'integer'"),
    ("ship", {"input": 7}, None),
    ("review", {}, "'object'"),
    ("review", {"input": {"items": []}}, None),
]


@pytest.mark.parametrize(("name", "options", "problem"), SCHEDULED)
async def test_the_input_of_a_tick_is_checked_as_its_instance_reads_it(
    client: Client, provider: Provider, name: str, options: dict[str, Any], problem: str | None
) -> None:
    """Without an input it is the due time, which an orchestration that takes none does not read."""
    await stand_by(provider, "a", app)
    await client.schedules.create("before", "other", every=60)
    calls: list[Call] = [
        lambda client: client.schedules.create("nightly", name, every=60, **options),
        lambda client: client.schedules.update("before", name, **options),
    ]
    for call in calls:
        if problem is None:
            await call(client)
        else:
            with pytest.raises(NotSerializable) as raised:
                await call(client)
            assert problem in str(raised.value)


@pytest.mark.usefixtures("fresh")
async def test_an_input_passes_that_one_of_two_releases_takes(client: Client, provider: Provider) -> None:
    """Or that one of them has no schema for."""
    older = App("shop")

    @older.orchestration(name="review")
    async def review_number(ctx: OrchestrationContext, order: int) -> None: ...

    await stand_by(provider, "old", older)
    await stand_by(provider, "new", app)
    await client.start("review", 5)
    await client.start("review", {"items": []})
    with pytest.raises(NotSerializable):
        await client.start("review", "x")
    identity = WorkerIdentity(worker_id="c", incarnation=Incarnation("c"))
    await provider.register_worker(identity, 300, {}, profile=profile(registered=older.registered()))
    await client.start("review", "x")


RAISED: list[tuple[Any, Any, bool]] = [
    ("answer", 5, True),
    ("answer", "5", True),
    ("answer", "x", False),
    ("answer", None, False),
    ("other", "x", True),
    (Event("answer", int)(5), None, True),
    (Event("answer")("x"), None, False),
]


@pytest.mark.parametrize(("name", "data", "fits"), RAISED)
async def test_an_event_that_the_orchestration_does_not_wait_for_is_refused(
    client: Client, provider: Provider, name: Any, data: Any, fits: bool
) -> None:
    await stand_by(provider, "a", app)
    await client.start(review, Order(items=[]), instance_id="i")
    if fits:
        await client.raise_event("i", name, data)
        return
    with pytest.raises(NotSerializable, match="data of event 'answer' for instance 'i'"):
        await client.raise_events([ExternalEvent("i", name, data)])
    await client.raise_event("i", name, data, force=True)


@pytest.mark.usefixtures("fresh")
async def test_an_event_that_no_wait_reads_is_logged_once(
    client: Client, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """Not if the source leaves the names open, or no live worker has the code."""
    await client.start(review, Order(items=[]), instance_id="i")
    await client.start(helped, instance_id="open")
    for name in ("early", "answer"):
        await client.raise_event("i", name, 5)
    await stand_by(provider, "a", app)
    for name in ("other", "answr", "answr"):
        await client.raise_event("i", name, 5)
    await client.raise_event("open", "any")
    await client.raise_event("i", "wrong", force=True)
    assert warnings(caplog) == [
        "orchestration 'review' waits for no event 'answr': did you mean 'answer'? It is sent all the same, and stays "
        "unread."
    ]
    await client.check_awaited("i", "answer")
    await client.check_awaited("open", "any")
    with pytest.raises(NotRegistered, match="waits for no event 'zzz': they have 'answer', 'other'"):
        await client.check_awaited("i", "zzz")


async def test_what_workers_have_is_shown_with_its_schemas(client: Client, provider: Provider) -> None:
    await stand_by(provider, "a", app)
    shown = {(one.name, one.version): one for one in await client.registered()}
    assert {"review", "ship"} <= {name for name, _ in shown}
    found = shown["review", "1.0.0"]
    assert (found.alive, found.needs_input) == (True, True)
    assert found.events == {"answer": {"type": "integer"}, "other": {}}
    assert found.input is not None
    assert found.input["properties"]["items"]["items"] == {"type": "integer"}
    assert not shown["ship", "2.0.0"].needs_input
    (kind,) = await client.registered("conversations")
    assert (kind.name, [*(kind.events or ())]) == ("chats", ["user.ordered"])
    assert shown["helped", "1.0.0"].events is None


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("event", "data", "error"),
    [
        ("user.ordered", {"kind": "user.ordered", "number": 5}, None),
        ("user.ordered", {"kind": "user.ordered", "number": "x"}, NotSerializable),
        ("user.other", {}, None),
    ],
)
async def test_events_of_a_kind_of_conversations_are_checked(
    client: Client, provider: Provider, event: str, data: Any, error: type[Exception] | None
) -> None:
    await client.check_event("conversations", "chats", event, data)  # no worker is alive
    await stand_by(provider, "a", app)
    if error is None:
        await client.check_event("conversations", "chats", event, data)
        return
    with pytest.raises(error):
        await client.check_event("conversations", "chats", event, data)


async def test_registrations_are_read_seldom(
    client: Client, provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for many starts and events, and not for functions."""
    caplog.set_level(logging.WARNING, "affinity.client")
    await stand_by(provider, "a", app)
    reads = 0
    real = provider.list_code

    async def counted() -> Any:
        nonlocal reads
        reads += 1
        return await real()

    monkeypatch.setattr(client._provider, "list_code", counted)
    await client.start(review, Order(items=[]))
    assert reads == 0
    for _ in range(20):
        await client.start("review", {"items": []}, instance_id="i")
        await client.raise_event("i", "other")
    assert reads == 1
