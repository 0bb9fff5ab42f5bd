"""How long the model looks for defects, and on which databases."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as from_seed
from hypothesis.strategies import SearchStrategy

from tests.conftest import Servers
from tests.model.databases import ModelDatabase, PostgresModelDatabase, SqliteModelDatabase
from tests.model.replay import Runner, script
from tests.model.shrink import shrink


class Look(Protocol):
    """Carries plans out; raises what the first one that fails has found, after making it as short as it can be."""

    def __call__(
        self,
        plans: SearchStrategy[Any],
        cluster: type[Runner],
        *,
        usual: int,
        made_plain: bool = True,
        seed: int | None = None,
    ) -> None:
        """``usual``: how many plans, unless `--model-examples` says otherwise; the same ones each time. ``seed``: of
        other plans, as `--model-seed`.
        """
        ...


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run with more plans than usual has no timeout."""
    if config.getoption("model_examples"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.timeout(0))


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The loop on which the plans of one test run."""
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture
def sqlite(runner: asyncio.Runner, tmp_path: Path) -> ModelDatabase:
    """The embedded default."""
    return runner.run(SqliteModelDatabase.create(tmp_path))


@pytest.fixture
def postgres(runner: asyncio.Runner, servers: Servers) -> Iterator[ModelDatabase]:
    """The engine for many replicas; of that, the conformance suite sees all versions."""
    made = runner.run(PostgresModelDatabase.create(servers.shared("old")))
    yield made
    runner.run(made.aclose())


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> ModelDatabase:
    """Each of them."""
    made: ModelDatabase = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def look(request: pytest.FixtureRequest, runner: asyncio.Runner, database: ModelDatabase) -> Look:
    """Looks for defects on the database of the test."""
    failed: list[Any] = []  # the plan that failed last

    def run(
        plans: SearchStrategy[Any],
        cluster: type[Runner],
        *,
        usual: int,
        made_plain: bool = True,
        seed: int | None = None,
    ) -> None:
        examples: int | None = request.config.getoption("model_examples")
        chosen: int | None = request.config.getoption("model_seed")
        seed = seed if chosen is None else chosen

        def carry_out(plan: list[Any]) -> None:
            runner.run(cluster(database).run(plan))

        def judged(plan: list[Any]) -> None:
            try:
                carry_out(plan)
            except AssertionError:
                failed[:] = plan
                raise

        def fails(plan: list[Any]) -> bool:
            try:
                carry_out(plan)
            except AssertionError:
                return True
            return False

        options = settings(
            max_examples=examples or usual,
            derandomize=examples is None and seed is None,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # `shrink` knows what a plan is, and is much faster
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        test = options(given(plans)(judged))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Generating overly large repr")  # of a plan that fails and is long
                (test if seed is None else from_seed(seed)(test))()
        except AssertionError:
            if made_plain:
                _fail(carry_out, shrink(failed, fails), cluster)
            raise

    return run


def _fail(carry_out: Callable[[list[Any]], None], plan: list[Any], cluster: type[Runner]) -> None:
    """Raise what the plan has found, with a program that finds it again."""
    try:
        carry_out(plan)
    except AssertionError as error:
        error.add_note(script(cluster, plan))
        raise
