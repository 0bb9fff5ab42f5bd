"""Histories that were recorded, against the code as it is now. Run with ``pytest examples/testing``."""

from datetime import timedelta
from pathlib import Path

import pytest
from test_reminders import app, reminder

import affinity.testing

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


@pytest.mark.parametrize("history", HISTORIES, ids=lambda path: path.stem)
def test_recorded_histories_match(history: Path) -> None:
    affinity.testing.replay(app, history)


# --- without files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that workers and clients run on."""
    return "asyncio"


@pytest.mark.anyio
async def test_a_longer_pause_does_not_fit_what_runs() -> None:
    """A reminder has waited for six days of its week; the new code would wait for two weeks."""
    async with affinity.testing.Env(app) as env:
        run = await env.client.start(reminder, "ann")
        await env.advance(timedelta(days=6))
        history = await env.client.export_history(run.instance_id)

    new = affinity.App("reminders")

    @new.orchestration(name="reminder")
    async def later(ctx: affinity.OrchestrationContext, name: str) -> None:
        await ctx.schedule_timer(timedelta(days=14).total_seconds())

    with pytest.raises(affinity.errors.Nondeterminism) as caught:
        affinity.testing.replay(new, history)
    assert caught.value.event_id == 2
    assert caught.value.actual == "TimerCreated(1.2096e+06 s)"
