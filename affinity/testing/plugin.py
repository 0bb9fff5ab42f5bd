"""The pytest plugin: the fixture `affinity_env`, for tests that the pytest plugin of anyio runs.

::

    @pytest.fixture
    def affinity_app() -> affinity.App:
        return app

    async def test_reminders(affinity_env: affinity.testing.Env) -> None:
        run = await affinity_env.client.start(reminder, "ann")
        assert await run.wait() == "sent"

A failed test prints the histories of the instances, and what they wait for. Each test has a database of its own, so
tests may run in parallel, as with xdist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from affinity.composed.app import App
    from affinity.testing import Env

_FAILED: Final = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "affinity_env(**options): how `affinity_env` is made: the arguments of `affinity.testing.Env`"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note whether the test has failed."""
    report = yield
    if report.when == "call":  # type: ignore[attr-defined]
        item.stash[_FAILED] = report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture
def affinity_app() -> App:
    """The app that `affinity_env` runs: to be defined by the tests."""
    raise pytest.UsageError("define a fixture affinity_app that returns the App that affinity_env is to run")


@pytest.fixture
async def affinity_env(affinity_app: App, request: pytest.FixtureRequest) -> AsyncIterator[Env]:
    """An `affinity.testing.Env` of `affinity_app`, for one test."""
    from affinity.testing import Env  # imported late: most runs of pytest on a machine do not use it

    marker = request.node.get_closest_marker("affinity_env")
    async with Env(affinity_app, **(marker.kwargs if marker is not None else {})) as env:
        yield env
        if request.node.stash.get(_FAILED, False):
            print(await env.describe())
