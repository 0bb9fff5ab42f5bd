"""Events that orchestrations raise for instances that do not exist."""

from __future__ import annotations

import logging

import pytest

from affinity import App, Client, OrchestrationContext, RuntimeOptions, Worker
from affinity.errors import UnknownInstance
from affinity.worker import sent_events
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

app = App("sent-events")


@app.orchestration
async def sender(ctx: OrchestrationContext, receivers: list[tuple[str, str]]) -> None:
    for receiver, event in receivers:
        ctx.raise_event(receiver, event, 1)


@app.orchestration
async def receiver(ctx: OrchestrationContext) -> int:
    return await ctx.schedule_wait("there", int)


@app.orchestration
async def starter(ctx: OrchestrationContext) -> None:
    ctx.start_detached(receiver, instance_id="new")
    ctx.raise_event("new", "there", 2)


async def test_an_event_for_no_instance_is_warned_of_once(
    kept_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sent_events, "LOOK_UP_SECONDS", 0.01)

    def warned() -> list[str]:
        return sorted(
            record.getMessage().split(",")[0]
            for record in caplog.records
            if "does not exist" in record.message and record.levelno == logging.WARNING
        )

    async def has_warned(number: int) -> bool:
        return len(warned()) == number

    async with Worker(app, kept_url, RuntimeOptions.make(poll_interval=0.2)), Client(kept_url) as client:
        await client.start(receiver, instance_id="here")
        await (await client.start(starter)).wait(30)
        await client.start(sender, [("here", "there"), ("gone", "e"), ("gone", "e"), ("gone", "f")], instance_id="s")
        assert await client.wait("here", 30) == 1
        assert await client.wait("new", 30) == 2
        await until(lambda: has_warned(2))
        await (await client.start(sender, [("gone", "e"), ("other", "e")], instance_id="t")).wait(30)
        await until(lambda: has_warned(3))
    assert warned() == [
        "instance s has raised event 'e' for instance gone",
        "instance s has raised event 'f' for instance gone",
        "instance t has raised event 'e' for instance other",
    ]


async def test_a_client_is_refused(kept_url: str) -> None:
    """Its event, request to cancel, and every other call for an id that nothing has."""
    async with Client(kept_url) as client:
        calls = (
            client.raise_event("gone", "e"),
            client.raise_event("gone", "e", idempotency_key="k"),
            client.cancel("gone"),
            client.wait("gone"),
            client.wait_status("gone"),
            client.status("gone"),
            client.history("gone"),
            client.executions("gone"),
            client.activities("gone"),
            client.tree("gone"),
            client.resume("gone"),
            client.reset("gone", to_event=1),
            client.delete("gone"),
        )
        for call in calls:
            with pytest.raises(UnknownInstance, match="'gone'"):
                await call
