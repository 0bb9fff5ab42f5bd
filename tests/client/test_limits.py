"""Limits by a client: what is shown, what changes do, what each call refuses, who did it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from affinity import Client, Rate
from affinity.errors import AffinityError, InvalidId, InvalidLimit, InvalidOptions, UnknownLimit
from affinity.flow import Limits
from affinity.flow.store.contract import LimitChange, LimitClosing, LimitSpec, limits_of
from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity_conformance.providers.builders import profile
from tests.support.limits import SPECS, declare, stage, wait_at

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    """Of a database in which instances wait at limits; one worker is alive, which has no code."""
    provider = await open_provider(kept_url)
    identity = WorkerIdentity(worker_id="w", incarnation=Incarnation("one"))
    await provider.register_worker(identity, 60.0, {}, profile=profile())
    await stage(provider)
    async with Client.from_provider(provider) as client:
        yield client
    await provider.aclose()


async def waiting(client: Client, *instance_ids: str) -> list[str]:
    """Those of the instances that wait to begin."""
    found = [(each, await client.explain(each)) for each in instance_ids]
    return [each for each, reason in found if reason is not None and reason.limit is not None]


async def test_what_is_shown(client: Client) -> None:
    model, tenant = await client.limits.list()
    assert (model.name, model.status, model.keyed, model.in_use, model.waiting) == ("model", "open", False, 2, 1)
    assert (model.concurrency, model.declared_concurrency) == (2, 2)
    assert model.rate == model.declared_rate == Rate(600, per=60)
    assert (model.app, model.code_version, model.changed_by, model.changed_at) == ("shop", "1", None, None)
    assert (tenant.name, tenant.keyed, tenant.in_use, tenant.waiting, tenant.keys) == ("tenant", True, 2, 3, 2)
    assert (model.admitted, tenant.admitted) == (2, 2)
    assert model.oldest is not None
    assert await client.limits.get("model") == model
    keys = await client.limits.keys("tenant")
    assert [(key.key, key.in_use, key.waiting, key.status) for key in keys] == [
        ("acme", 1, 2, "open"),
        ("tiny", 1, 1, "open"),
    ]
    assert [key.key for key in (await client.limits.keys("tenant").page("acme")).items] == ["tiny"]
    unused = await client.limits.get_key("tenant", "nobody")
    assert (unused.in_use, unused.waiting, unused.concurrency, unused.is_changed) == (0, 0, 1, False)


async def test_a_higher_bound_admits_at_once_and_a_lower_one_cancels_nothing(client: Client) -> None:
    changed = await client.limits.set("model", concurrency=3)
    assert (changed.concurrency, changed.declared_concurrency, changed.in_use, changed.waiting) == (3, 2, 3, 0)
    lowered = await client.limits.set("model", concurrency=0)
    assert (lowered.concurrency, lowered.in_use) == (0, 3)
    await wait_at(client._provider, "model", "m-4")
    assert await waiting(client, "m-1", "m-4") == ["m-4"]
    assert (await client.limits.set("model", concurrency=None)).waiting == 0
    assert (await client.limits.set("model", rate=Rate(5, per=1, smooth=True))).rate == Rate(5, per=1, burst=1)
    assert (await client.limits.get("model")).concurrency is None, "a bound that is left out stays"
    assert (await client.limits.set("model", rate=None)).rate is None
    reset = await client.limits.reset("model")
    assert (reset.concurrency, reset.rate) == (2, Rate(600, per=60))


async def test_a_key_has_bounds_of_its_own(client: Client) -> None:
    await client.limits.set("tenant", key="acme", concurrency=2)
    key = await client.limits.get_key("tenant", "acme")
    assert (key.concurrency, key.in_use, key.waiting, key.is_changed) == (2, 2, 1, True)
    assert await waiting(client, "a-2", "a-3", "t-2") == ["a-3", "t-2"]
    await client.limits.set("tenant", concurrency=5)
    assert (await client.limits.get_key("tenant", "acme")).concurrency == 2, "it comes before that of the limit"
    assert await waiting(client, "a-3", "t-2") == ["a-3"]
    await client.limits.reset("tenant", key="acme")
    key = await client.limits.get_key("tenant", "acme")
    assert (key.concurrency, key.is_changed, key.waiting) == (5, False, 0)
    await client.limits.set("tenant", key="new", concurrency=7)
    assert (await client.limits.get_key("tenant", "new")).concurrency == 7, "before its first work"


async def test_a_pause_and_its_end(client: Client) -> None:
    assert (await client.limits.pause("model")).status == "paused"
    assert (await client.limits.set("model", concurrency=10)).waiting == 1
    assert (await client.limits.resume("model")).waiting == 0
    await client.limits.pause("tenant", key="acme")
    acme, tiny = await client.limits.keys("tenant")
    assert (acme.status, acme.paused, tiny.status, tiny.paused) == ("paused", True, "open", False)
    await client.limits.set("tenant", concurrency=10)
    assert await waiting(client, "a-2", "a-3", "t-2") == ["a-2", "a-3"]
    await client.limits.pause("tenant")
    acme, tiny = await client.limits.keys("tenant")
    assert (tiny.status, tiny.paused) == ("paused", False)
    assert (await client.limits.resume("tenant")).waiting == 2, "the key is still paused"
    assert (await client.limits.resume("tenant", key="acme")).waiting == 0


async def test_a_ramp_begins_with_nothing(client: Client) -> None:
    await client.limits.pause("model")
    await client.limits.set("model", concurrency=100)
    resumed = await client.limits.resume("model", ramp=0.001)
    assert (resumed.status, resumed.ramp, resumed.waiting) == ("open", 0.001, 1)
    assert resumed.resumed_at is not None
    assert (await client.limits.resume("model", ramp=1e9)).ramp is None, "it is over"
    assert (await client.limits.resume("model")).waiting == 0
    await client.limits.pause("tenant", key="acme")
    await client.limits.set("tenant", concurrency=100)
    assert (await client.limits.resume("tenant", key="acme", ramp=0.001)).waiting == 2


async def test_a_limit_that_is_closed_or_no_longer_declared(client: Client) -> None:
    store = limits_of(client._provider)
    await store.close_limits([LimitClosing(limit="model", seconds=3600.0, reason="429 of the API")])
    closed = await client.limits.get("model")
    assert (closed.status, closed.closed_for) == ("closed", "429 of the API")
    assert closed.closed_until is not None
    await client.limits.set("model", concurrency=100)
    reason = await client.explain("m-3")
    assert reason is not None
    assert (reason.code, reason.due_at) == ("limit_closed", closed.closed_until)
    await declare(client._provider, SPECS[1], code="2")
    assert (await client.limits.get("model")).status == "undeclared"
    assert (await client.limits.pause("model")).waiting == 0, "it holds nothing back"
    await declare(client._provider, code="3")
    assert (await client.limits.get("model")).status == "paused", "changes stay"
    await store.close_limits([LimitClosing(limit="tenant", key="acme", seconds=3600.0)])
    acme, tiny = await client.limits.keys("tenant")
    assert (acme.status, tiny.status) == ("closed", "open")
    assert (await client.limits.resume("tenant", key="acme")).status == "open"
    assert (await client.limits.get_key("tenant", "acme")).status == "open"


Call = Callable[[Limits], Awaitable[Any]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda of: of.get("modle"), UnknownLimit, "no code has declared a limit 'modle': there are 'model', 'tenant'"),
        (lambda of: of.set("modle", concurrency=1), UnknownLimit, "there are"),
        (lambda of: of.pause("modle"), UnknownLimit, "there are"),
        (lambda of: of.resume("modle"), UnknownLimit, "there are"),
        (lambda of: of.reset("modle"), UnknownLimit, "there are"),
        (lambda of: of.keys("modle"), UnknownLimit, "there are"),
        (lambda of: of.get_key("modle", "acme"), UnknownLimit, "there are"),
        (lambda of: of.get(""), InvalidId, "must not be empty"),
        (lambda of: of.set("model"), InvalidLimit, "give a bound to change"),
        (lambda of: of.set("model", weight=1), InvalidLimit, "no bound 'weight'"),
        (lambda of: of.set("model", concurrency=-1), InvalidOptions, "concurrency must be an integer from 0"),
        (lambda of: of.set("model", concurrency=True), InvalidOptions, "concurrency must be an integer from 0"),
        (lambda of: of.set("model", concurrency=1.5), InvalidOptions, "concurrency must be an integer from 0"),
        (lambda of: of.set("model", rate=600), InvalidLimit, "must be an affinity.Rate, as Rate"),
        (lambda of: of.set("model", key="acme", concurrency=1), InvalidLimit, "limit 'model' has no keys"),
        (lambda of: of.pause("model", key="acme"), InvalidLimit, "has no keys"),
        (lambda of: of.resume("model", key="acme"), InvalidLimit, "has no keys"),
        (lambda of: of.reset("model", key="acme"), InvalidLimit, "has no keys"),
        (lambda of: of.keys("model"), InvalidLimit, "has no keys"),
        (lambda of: of.get_key("model", "acme"), InvalidLimit, "has no keys"),
        (lambda of: of.set("tenant", key="", concurrency=1), InvalidId, "key of the limit must not be empty"),
        (lambda of: of.pause("tenant", key="a\0"), InvalidId, "control character"),
        (lambda of: of.resume("model", ramp=0), InvalidLimit, "ramp = 0"),
        (lambda of: of.resume("model", ramp=float("nan")), InvalidLimit, "ramp = nan"),
    ],
)
async def test_what_is_refused_changes_nothing(
    client: Client, call: Call, error: type[AffinityError], text: str
) -> None:
    before = await client.limits.list()
    with pytest.raises(error) as raised:
        await call(client.limits)
    assert text in str(raised.value)
    assert await client.limits.list() == before


async def test_a_database_without_limits_says_so(kept_url: str) -> None:
    async with Client(kept_url) as client:
        assert await client.limits.list() == []
        with pytest.raises(UnknownLimit, match="there are none; workers declare the limits of their apps"):
            await client.limits.get("model")


async def test_who_did_it(client: Client) -> None:
    """The audit log, and the limit itself, have the user; a refusal has an entry."""
    with client.acting_as("ann", source="admin"):
        await client.limits.set("tenant", key="acme", concurrency=2)
        await client.limits.pause("model")
        with pytest.raises(UnknownLimit):
            await client.limits.pause("modle")
        await client.limits.resume("model", ramp=10)
    shown = await client.limits.get("model")
    assert shown.changed_by is not None
    assert shown.changed_by.startswith("ann")
    assert shown.changed_at is not None
    entries = await client.audit()
    assert [(one.action, one.kind, one.target, dict(one.details), one.succeeded) for one in reversed(entries)] == [
        ("set", "limit", "tenant", {"key": "acme", "concurrency": "2"}, True),
        ("pause", "limit", "model", {}, True),
        ("pause", "limit", "modle", {}, False),
        ("resume", "limit", "model", {"ramp": 10}, True),
    ]


async def test_a_verb_outside_an_action_has_an_entry_for_each_limit(client: Client) -> None:
    with client.acting_as("ann"):
        changes = [LimitChange(limit=name, paused=True) for name in ("model", "absent")]
        assert await limits_of(client._provider).change_limits(changes) == [True, False]
    found = {(one.action, one.target, one.succeeded) for one in await client.audit()}
    assert found >= {("change_limits", "model", True)}
    assert ("change_limits", "absent", True) not in found


async def test_why_an_instance_waits_to_begin(client: Client) -> None:
    """At the limit, whatever else is missing: no worker has its code."""
    reason = await client.explain("a-3")
    assert reason is not None
    assert (reason.code, reason.limit, reason.limit_key, reason.name) == ("limited", "tenant", "acme", "report")
    assert reason.sentence.startswith("'a-3' waits to begin, for limit 'tenant' of 'acme': 1 of 1 in use, 1 before it")
    with client.acting_as("ann"):
        await client.limits.pause("tenant")
    reason = await client.explain("a-2")
    assert reason is not None
    assert reason.code == "limit_paused"
    assert "it is paused by 'ann" in reason.sentence
    begun = await client.explain("a-1")
    assert begun is not None
    assert begun.code == "name_not_registered"
    assert sum(work.count for work in await client.unserved_work()) == 4, "those that have a slot"


async def test_keys_come_in_pages(client: Client) -> None:
    await declare(client._provider, *SPECS, LimitSpec(name="many", keyed=True, concurrency=1))
    names = [f"k-{number:03}" for number in range(7)]
    for name in names:
        await client.limits.set("many", key=name, concurrency=2)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = await client.limits.keys("many").page(after, limit=3)
        seen += [key.key for key in page.items]
        if page.next is None:
            break
        after = page.next
    assert seen == names
