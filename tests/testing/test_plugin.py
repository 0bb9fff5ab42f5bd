"""The pytest plugin: its fixture, in parallel too, and what a failed test prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import affinity
import pytest

app = affinity.App("plugin")
pytestmark = pytest.mark.anyio


@app.orchestration
async def waits(ctx: affinity.OrchestrationContext) -> str:
    await ctx.schedule_timer(86_400)
    return await ctx.schedule_wait("paid", str)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def affinity_app():
    return app


@pytest.mark.parametrize("number", range(4))
async def test_passes(affinity_env, number):
    run = await affinity_env.client.start(waits, instance_id="i-1")
    await run.raise_event("paid", "yes")
    assert await run.wait() == "yes"
    assert affinity_env.jumps == 1


@pytest.mark.affinity_env(workers=2)
async def test_fails(affinity_env):
    assert affinity_env.workers == ["worker-0", "worker-1"]
    await affinity_env.client.start(waits, instance_id="i-2")
    await affinity_env.run_until_idle()
    assert False


async def test_fails_in_a_block():
    async with affinity.testing.Env(app) as env:
        await env.client.start(waits, instance_id="i-3")
        await env.run_until_idle()
        assert False
"""


def run(directory: Path, *options: str) -> str:
    (directory / "test_it.py").write_text(TESTS.replace("import affinity\n", "import affinity.testing\n", 1))
    kept = {name: value for name, value in os.environ.items() if name not in {"CI", "BUILD_NUMBER"}}  # prints more
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "affinity.testing.plugin", "-p", "anyio.pytest_plugin", *options, "."],
        cwd=directory,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow_cases("parallel")
@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n2")], ids=["alone", "in parallel"])
def test_the_fixture_and_what_a_failed_test_prints(tmp_path: Path, options: tuple[str, ...]) -> None:
    printed = run(tmp_path, *options)
    assert "2 failed, 4 passed" in printed, printed
    assert "'i-2' waits for the event 'paid'" in printed
    assert "'i-3' waits for the event 'paid'" in printed
    assert printed.count("timer_created delay=86400.0") == 2
    assert "i-1" not in printed


def test_a_test_without_an_app_says_what_to_define(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("async def test_none(affinity_env): pass")
    printed = run(tmp_path, "-k", "test_none")
    assert "define a fixture affinity_app" in printed, printed
