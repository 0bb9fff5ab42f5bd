"""All connections to PostgreSQL die at one moment without a word, as behind a firewall that lost its table; new ones
work.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, EventValue, OrchestrationContext, RuntimeOptions, Sessions, Worker
from affinity.errors import ConnectionLost
from affinity.provider import open_provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver.calls import CALL_TIMEOUT
from tests.servers.proxy import proxy
from tests.support.ask_app import Answer, Ask, Question, app, oracle

pytestmark = pytest.mark.anyio

BOUND = CALL_TIMEOUT - 10.0
"""Seconds in which a worker or client that waits for the end of a call cannot go on."""

OPTIONS = RuntimeOptions.make(worker_lease_timeout=3, poll_interval=0.2)


class Steps(BaseModel):
    """The state of a session."""

    steps: int = 0


def _walk(progress: list[int]) -> App:
    """One turn after the other, with session state that is read and saved, until it receives an event."""
    walks, states = App("walks"), Sessions(Steps)
    walks.include(states)

    @walks.activity
    async def step(ctx: ActivityContext, number: int) -> int:
        async with states.open(ctx) as state:
            state.steps += 1
            progress.append(number)
            return state.steps

    @walks.orchestration
    async def walk(ctx: OrchestrationContext, turns: int) -> list[int]:
        session = await ctx.new_guid()
        return [await ctx.schedule_activity(step, number).on_session(session) for number in range(turns)]

    return walks


@pytest.mark.parametrize("at", [1, 40])
async def test_a_worker_goes_on_before_a_call_on_a_dead_connection_ends(postgres_migrated: str, at: int) -> None:
    """Each turn counts once. The first time, connections have been used by few calls or none."""
    progress: list[int] = []
    turns = 80
    with proxy(postgres_migrated) as network:
        async with Client(postgres_migrated) as client, Worker(_walk(progress), network.url, OPTIONS):
            run = await client.start("walk", turns)
            with anyio.fail_after(BOUND):
                while len(progress) < at:
                    await anyio.sleep(0.005)
            network.lose()
            with anyio.fail_after(BOUND):
                assert await run.wait() == [*range(1, turns + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("only_replies", [False, True], ids=["requests are lost", "replies are lost"])
async def test_a_client_repeats_only_what_has_a_key(postgres_migrated: str, only_replies: bool) -> None:
    """Each call meets a dead connection. What has no key raises that its outcome is unknown."""
    with proxy(postgres_migrated) as network:
        provider = await open_provider(network.url, one_connection=True, probe_after=1.0)
        assert isinstance(provider, PostgresProvider)
        async with (
            aclosing(provider),
            Client.from_provider(provider) as client,
            Client(postgres_migrated) as observer,
            Worker(app, postgres_migrated, OPTIONS),
        ):

            async def dead(prepare: Awaitable[Any]) -> None:
                """A dead connection that has the settings and prepared statements of this call: else these are lost."""
                await prepare
                await client._hints.flush()  # else its hint would meet the dead connection, and not the call
                while any(each._current is not None for each in provider.connections._all):
                    await anyio.sleep(0.001)  # so would the hint that goes behind the call, which has its reply before
                network.lose(only_replies=only_replies)

            def send(text: str, key: str | None = None) -> Awaitable[None]:
                """Forced: the reads that check an event would meet the dead connection, and not the call."""
                return client.raise_event("o", "unknown", text, idempotency_key=key, force=True)

            with anyio.fail_after(2 * BOUND):
                await dead(client.start(oracle, 0, instance_id="other"))
                await client.start(oracle, 0, instance_id="o")
                await dead(client.status("o"))
                assert (await client.status("o")).status == "running"
                await dead(client.ask("o", question("a"), idempotency_key="a"))
                assert await client.ask("o", question("b"), idempotency_key="b") == Answer(text="B", number=2)
                await dead(send("1", "1"))
                await send("2", "2")
                await dead(send("3"))
                with pytest.raises(ConnectionLost, match="unknown whether"):
                    await send("4")
                expected = ["1", "2", "3", *["4"] * only_replies]
                while len(raised := await _raised(observer)) < len(expected):
                    await anyio.sleep(0.02)
                assert raised == expected


def question(text: str) -> EventValue[Answer]:
    return Ask(Question(text=text))


async def _raised(client: Client) -> list[str]:
    events = [event.fields for event in await client.history("o") if event.type == "event_raised"]
    return [event["data"] for event in events if event["name"] == "unknown"]
