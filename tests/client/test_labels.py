"""Labels of instances: from their start to listings, counts and calls for many of them."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import trace

from affinity import (
    ActivityContext,
    App,
    Client,
    MiddlewareCall,
    Next,
    OrchestrationContext,
    RuntimeOptions,
    migrate,
    paging,
)
from affinity.client import administration
from affinity.client.requests import Start
from affinity.errors import InvalidId, InvalidInput, InvalidOptions, OrchestrationMisuse
from affinity.limits import MAX_LABELS
from affinity.orchestration import events as ev
from affinity.orchestration.definitions import OrchestrationDefinition, definition_of
from affinity.orchestration.engine import Execution
from affinity.testing import Env, replay
from tests.support.span_exporter import traced

pytestmark = pytest.mark.anyio

logger = logging.getLogger("labels")

ACME = {"tenant": "acme"}
GOLD = {"tenant": "acme", "tier": "gold"}

app = App("labels")


@app.activity
async def look(ctx: ActivityContext) -> dict[str, str]:
    return dict(ctx.labels)


@app.orchestration
async def waits(ctx: OrchestrationContext) -> Any:
    return await ctx.schedule_wait("go")


@app.orchestration
async def shows(ctx: OrchestrationContext) -> list[dict[str, str]]:
    return [dict(ctx.labels), await ctx.schedule_activity(look)]


@app.orchestration
async def starts(ctx: OrchestrationContext) -> list[list[dict[str, str]]]:
    await ctx.start_detached(waits, instance_id="detached")
    await ctx.start_detached(waits, instance_id="other", labels={"tier": "none"})
    inherited = await ctx.schedule_sub_orchestration(shows)
    given = await ctx.schedule_sub_orchestration(shows, labels={"tier": "gold"})
    return [inherited, given, await ctx.schedule_sub_orchestration(shows, labels={})]


@app.orchestration
async def changes(ctx: OrchestrationContext, wanted: dict[str, str]) -> list[Any]:
    before = dict(ctx.labels)
    ctx.set_labels({**ctx.labels, **wanted})
    ctx.set_labels({**ctx.labels, **wanted})
    if ctx.execution_id == 1:
        ctx.continue_as_new(wanted)
    return [before, dict(ctx.labels), await ctx.schedule_activity(look), await ctx.schedule_wait("end")]


@app.orchestration
async def fails(ctx: OrchestrationContext) -> None:
    raise ValueError("no")


@app.orchestration
async def misuses(ctx: OrchestrationContext, labels: Any) -> None:
    ctx.set_labels(labels)


@pytest.fixture
async def env(env_url: str | None) -> AsyncIterator[Env]:
    async with Env(app, url=env_url) as env:
        yield env


async def ids(client: Client, **where: Any) -> list[str]:
    return [each.instance_id for each in await client.list_instances(**where)]


async def test_an_instance_is_found_by_its_labels(env: Env) -> None:
    client = env.client
    first = await client.start(waits, instance_id="a", labels=GOLD)
    await client.start_many([Start(waits, instance_id="b", labels=ACME), Start(waits, instance_id="c")])
    assert (await first.status()).labels == GOLD
    assert await ids(client, labels=ACME, sort="started") == ["a", "b"]
    assert await ids(client, labels=ACME) == ["b", "a"]
    assert await ids(client, labels=GOLD) == ["a"]
    assert await ids(client, labels=ACME, status="failed") == []
    page = await client.list_instances(labels=ACME).page(limit=1)
    assert [each.instance_id for each in page.items] == ["b"]
    rest = await client.list_instances(labels=ACME).page(page.next, limit=1)
    assert [each.instance_id for each in rest.items] == ["a"]


async def test_what_an_instance_starts_has_its_labels_unless_it_is_given_others(env: Env) -> None:
    handle = await env.client.start(starts, labels=ACME)
    tier = {"tier": "gold"}
    assert await handle.wait(30) == [[ACME, ACME], [tier, tier], [{}, {}]]
    assert (await env.client.status("detached")).labels == ACME
    assert (await env.client.status("other")).labels == {"tier": "none"}
    plain = await env.client.start(shows)
    assert await plain.wait(30) == [{}, {}]


async def test_code_sets_labels_which_stay_and_are_replayed(env: Env) -> None:
    handle = await env.client.start(changes, {"tier": "gold"}, labels=ACME)
    await env.run_until_idle()
    assert await ids(env.client, labels=GOLD) == [handle.instance_id]
    await handle.raise_event("end", 1)
    assert await handle.wait(30) == [GOLD, GOLD, GOLD, 1]
    document = await env.client.export_history(handle.instance_id)
    assert sum("labels_set" in str(event) for run in document["executions"] for event in run["events"]) == 1
    replay(app, document)


async def test_a_reset_returns_to_the_labels_of_its_event(env: Env) -> None:
    handle = await env.client.start(changes, {"tier": "gold"}, labels=ACME)
    await env.run_until_idle()
    assert (await handle.status()).labels == GOLD
    await handle.reset(to_event=1)
    await env.run_until_idle()
    assert (await handle.status()).labels == GOLD
    plain = await env.client.start(shows, labels=ACME)
    await plain.wait(30)
    await plain.reset(to_event=1)
    assert (await plain.status()).labels == ACME
    assert await plain.wait(30) == [ACME, ACME]


async def test_a_schedule_gives_labels(env: Env) -> None:
    await env.client.schedules.create("hourly", waits, every=3600, labels=ACME)
    await env.advance(3700)
    await env.run_until_idle()
    found = await env.client.list_instances(labels=ACME)
    assert [each.name for each in found] == ["waits"]


async def test_matching_instances_are_counted(env: Env) -> None:
    client = env.client
    for number in range(3):
        await client.start(waits, instance_id=f"w{number}", labels=ACME)
    failed = await client.start(fails, labels=GOLD)
    await client.wait_finished(failed.instance_id, 30)
    await env.run_until_idle()
    assert await client.count_instances(labels=ACME) == {"running": 3, "failed": 1}
    assert await client.count_instances(labels=GOLD) == {"failed": 1}
    assert await client.count_instances(status=["failed", "completed"]) == {"failed": 1}
    assert await client.count_instances(prefix="w") == {"running": 3}
    assert sum((await client.count_instances(labels=ACME, most=1)).values()) == 1
    assert await client.count_instances(labels={"tenant": "none"}) == {}


async def test_matching_instances_are_cancelled(env: Env) -> None:
    client = env.client
    await client.start_many([Start(waits, instance_id=name, labels=ACME) for name in ("a", "b")])
    await client.start_many([Start(waits, instance_id="c", labels={"tenant": "other"}), Start(waits, instance_id="d")])
    await env.run_until_idle()
    assert await client.cancel_instances(labels=ACME, prefix="a", cancel_reason="enough") == 1
    assert await client.cancel_instances(labels=ACME, created_before=(await client.status("a")).created_at) == 0
    await env.run_until_idle()
    assert await client.count_instances(labels=ACME) == {"running": 1, "cancelled": 1}
    assert await client.cancel_instances(labels=ACME) == 1
    await env.run_until_idle()
    assert await client.count_instances() == {"running": 2, "cancelled": 2}
    assert await client.cancel_many(["a", "c", "none"]) == ["finished", "delivered", "unknown"]


async def test_no_more_are_cancelled_than_a_bound_says(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the instances that were asked first have ended when the next page is read."""
    client = env.client
    monkeypatch.setattr(administration, "MAX_PAGE", 2)
    monkeypatch.setattr(paging, "MAX_PAGE", 2)
    await client.start_many([Start(waits, instance_id=f"w{n}", labels=ACME) for n in range(9)])
    await env.run_until_idle()
    cancel_many = client.cancel_many

    async def cancel_now(ids: Iterable[str], reason: str = "") -> Any:
        deliveries = await cancel_many(ids, reason)
        await env.run_until_idle()
        return deliveries

    monkeypatch.setattr(client, "cancel_many", cancel_now)
    assert await client.cancel_instances(labels=ACME, most=5) == 5
    assert await client.count_instances(labels=ACME) == {"running": 4, "cancelled": 5}
    assert await client.cancel_instances(labels=ACME, most=100) == 4
    with pytest.raises(InvalidInput, match="most = 0"):
        await client.cancel_instances(labels=ACME, most=0)


@pytest.mark.parametrize("call", ["cancel_instances", "resume_instances"])
async def test_a_call_for_many_names_its_instances(env: Env, call: str) -> None:
    change = getattr(env.client, call)
    with pytest.raises(InvalidInput, match="without a condition is about all instances"):
        await change()
    with pytest.raises(InvalidInput, match="without a condition"):
        await change(labels={})
    with pytest.raises(InvalidInput, match="leave out the status"):
        await change(labels=ACME, status="failed")
    with pytest.raises(InvalidInput, match="leave out the status"):
        await change(status=[])
    with pytest.raises(InvalidInput, match="without a condition"):
        await change(most=3)
    with pytest.raises(InvalidInput, match="there is no condition 'label', did you mean 'labels'"):
        await change(label=ACME)
    assert await change(prefix="") == 0


logs = App("logs")


@logs.middleware
async def note(call: MiddlewareCall, next: Next) -> Any:
    logger.warning("around %s of %s", call.name, dict(call.labels))
    return await next()


@logs.activity
async def says(ctx: ActivityContext) -> None:
    logger.warning("activity")
    with trace.get_tracer("mine").start_as_current_span("mine"):
        pass


@logs.orchestration
async def logged(ctx: OrchestrationContext) -> None:
    await ctx.schedule_activity(says)
    ctx.set_labels({**ctx.labels, "tier": "new"})
    logger.warning("orchestration")


@pytest.mark.parametrize(
    ("shown", "seen"),
    [((), []), (("tenant",), ["tenant"]), (("tier", "tenant", "tenant", "none"), ["none", "tenant", "tier"])],
)
async def test_logs_and_spans_have_the_labels_that_an_operator_names(
    shown: tuple[str, ...], seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the moment of a record, and no others; the records of an instance without the label have None."""
    with traced() as spans:
        async with Env(logs, options=RuntimeOptions(log_labels=shown)) as env:
            await (await env.client.start(logged, labels={**GOLD, "secret": "x"})).wait(30)
            await (await env.client.start(logged, instance_id="plain")).wait(30)
    records = [record for record in caplog.records if record.name == logger.name]
    labels = [{key: value for key, value in vars(record).items() if "label" in key} for record in records]
    prefix = "affinity.label."
    assert records[0].getMessage().startswith("around says of {")
    assert "'secret': 'x'" in records[0].getMessage()
    for found, tier in zip(labels, ("gold", "gold", "new"), strict=False):
        assert found == {f"{prefix}{key}": {**GOLD, "tier": tier}.get(key) for key in seen}
    tiers = [None, None, "new"]
    for found, plain_tier in zip(labels[3:], tiers, strict=True):
        assert found == {f"{prefix}{key}": {"tier": plain_tier}.get(key) for key in seen}
    attributes = {
        span.name: {key: value for key, value in (span.attributes or {}).items() if "label" in key}
        for span in spans.get_finished_spans()[::-1]  # the first of each name
    }
    gold = {f"{prefix}{key}": value for key, value in GOLD.items() if key in seen}
    assert attributes["run says"] == attributes["mine"] == gold
    ended = {f"{prefix}{key}": value for key, value in {**GOLD, "tier": "new"}.items() if key in seen}
    assert attributes["execute logged"] == ended
    logger.warning("outside")
    assert not [key for key in vars(caplog.records[-1]) if "label" in key]


def test_the_labels_of_logs_are_keys() -> None:
    assert RuntimeOptions.from_environment({"AFFINITY_LOG_LABELS": "tenant, tier"}).log_labels == ("tenant", "tier")
    for wrong in ("a\nb", ",".join(map(str, range(MAX_LABELS + 1)))):
        with pytest.raises(InvalidOptions, match="log_labels"):
            RuntimeOptions.from_environment({"AFFINITY_LOG_LABELS": wrong})


async def test_labels_that_no_database_keeps_are_refused(env: Env) -> None:
    client = env.client
    many = {str(n): "x" for n in range(MAX_LABELS + 1)}
    for labels, error in (
        (many, InvalidOptions),
        ({"": "x"}, InvalidId),
        ({"a": "\n"}, InvalidId),
        ({"a": 1}, InvalidId),
    ):
        with pytest.raises(error):
            await client.start(waits, labels=cast(dict[str, str], labels))
        with pytest.raises(error):
            await client.list_instances(labels=cast(dict[str, str], labels))
    with pytest.raises(InvalidOptions, match="labels are texts by key"):
        await client.start(waits, labels=cast(dict[str, str], "tenant=acme"))
    with pytest.raises(InvalidInput, match="sort"):
        await client.list_instances(sort=cast(Any, "name"))
    assert await client.count_instances() == {}
    wrong: list[Any] = ["tenant=acme", {"a": 1}, many]
    for given in wrong:
        handle = await client.start(misuses, given)
        failed = await client.wait_finished(handle.instance_id, 30)
        assert failed.error is not None
        assert failed.error.type in {"InvalidOptions", "InvalidId"}


def test_labels_are_set_by_running_code_only() -> None:
    taken: list[OrchestrationContext] = []
    other = App("other")

    @other.orchestration
    async def leaks(ctx: OrchestrationContext) -> None:
        taken.append(ctx)

    definition = cast(OrchestrationDefinition, definition_of(leaks))
    execution = Execution(definition, "i", 1)
    start = ev.OrchestrationStarted("leaks", "1.0.0", "null", labels=ACME)
    execution.advance([start], now=float, new_guid=str)
    assert taken[0].labels == ACME
    with pytest.raises(OrchestrationMisuse):
        taken[0].set_labels(GOLD)


async def test_a_count_goes_on_after_a_page(tmp_path: Path) -> None:
    """With more instances than the page of a listing has, of each phase and in total."""
    url = f"sqlite:///{tmp_path / 'many.db'}"
    await migrate(url)
    with closing(sqlite3.connect(tmp_path / "many.db")) as db, db:
        db.execute(
            "INSERT INTO instances (instance_id, generation, name, status, created_at, updated_at, labels)"
            " WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999)"
            " SELECT 'i' || i, 'g', 'waits', iif(i % 2, 'failed', 'completed'), i, i, '{\"tenant\":\"acme\"}' FROM n"
        )
    async with Client(url) as client:
        assert await client.count_instances(labels=ACME) == {"completed": 2500, "failed": 2500}
        assert await client.count_instances(labels=ACME, status="failed") == {"failed": 2500}
        assert await client.count_instances() == {"completed": 2500, "failed": 2500}
