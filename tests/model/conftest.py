"""How long the model looks for defects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as hypothesis_seed

Judged = Callable[..., None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever asks for more plans than usual waits for them."""
    if config.getoption("model_examples"):
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.timeout(0))


@pytest.fixture
def look(request: pytest.FixtureRequest) -> Callable[[Judged, int], None]:
    """Runs a test function of hypothesis on so many plans: always the same, unless `--model-examples` asks for more."""

    def run(judged: Judged, usual: int) -> None:
        examples: int | None = request.config.getoption("model_examples")
        seed: int | None = request.config.getoption("model_seed")
        options = settings(
            max_examples=examples or usual,
            derandomize=examples is None and seed is None,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        judged = options(judged)
        if seed is not None:
            judged = hypothesis_seed(seed)(judged)
        judged()

    return run
