"""`affinity.testing.Env` with a process for each worker, as in the runs of `crash_matrix` with a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import affinity
from affinity.errors import InvalidInput
from affinity.testing.env.peer import Fields, PeerFailed
from affinity.testing.env.processes import ProcessEnv, find_app

app = affinity.App("processes")


@app.activity
async def wait_for_file(ctx: affinity.ActivityContext, folder: str) -> tuple[str, int]:
    Path(folder, "begun").touch()
    while not Path(folder, "go").exists():
        await anyio.sleep(0.01)
    return ctx.worker_id, ctx.attempt


@app.orchestration
async def waits_for_file(ctx: affinity.OrchestrationContext, folder: str) -> tuple[str, int]:
    return await ctx.schedule_activity(wait_for_file, folder)


@app.orchestration
async def waits(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_wait("go")


async def test_a_drain_lets_an_activity_end(tmp_path: Path) -> None:
    async with ProcessEnv(app, find_app(app)) as env, anyio.create_task_group() as tasks:
        run = await env.client.start(waits_for_file, str(tmp_path))
        while not (tmp_path / "begun").exists():
            await anyio.sleep(0.01)
        (worker,) = env._workers
        asked: Any = worker
        peer, draining = asked._peer.ask, anyio.Event()

        async def note(name: str, **fields: Any) -> Fields:
            if name == "drain":
                draining.set()
            return await peer(name, **fields)  # type: ignore[no-any-return]

        asked._peer.ask = note
        tasks.start_soon(env.drain)
        with anyio.fail_after(20):
            await draining.wait()
        (tmp_path / "go").touch()
        while env.workers:
            await anyio.sleep(0.01)
        assert [one.status for one in await run.activities()] == ["completed"]
        await env._start_worker("worker-1")
        assert await run.wait(timeout=20) == ("worker-0", 1)


async def test_an_env_is_not_at_rest_while_its_only_worker_goes_on() -> None:
    """Until its process has answered, it is not alive yet: nothing would ever happen."""
    async with ProcessEnv(app, find_app(app)) as env, anyio.create_task_group() as tasks:
        (name,) = env.workers
        await env.run_until_idle()
        env.pause(name)
        run = await env.client.start(waits)
        await run.raise_event("go")
        await env.advance(3600)
        tasks.start_soon(env.resume, name)
        await anyio.lowlevel.checkpoint()
        assert env._workers[0].is_recovering
        with anyio.fail_after(60):
            await run.wait()


async def test_a_process_that_cannot_answer_ends_the_waits() -> None:
    async with ProcessEnv(app, find_app(app)) as env:
        await env.run_until_idle()
        (worker,) = env._workers
        asked: Any = worker
        ask = asked._peer.ask

        async def fails(name: str, **fields: Any) -> Fields:
            if name == "look":
                raise PeerFailed("RuntimeError('a defect')")
            return await ask(name, **fields)  # type: ignore[no-any-return]

        asked._peer.ask = fails
        run = await env.client.start(waits)
        with anyio.fail_after(20):
            with pytest.raises(PeerFailed, match="a defect"):
                await run.wait()
            with pytest.raises(PeerFailed, match="a defect"):
                await env.run_until_idle()


async def test_calls_of_a_process_cannot_be_refused() -> None:
    with pytest.raises(InvalidInput, match=r"fail_calls\(3\) does not reach the process of a worker"):
        ProcessEnv(app, find_app(app)).fail_calls(3)
