"""Whatever workers, clients and scripts do, and whichever replies are late or lost: the promises are kept.

`pytest tests/model --model-examples 5000 --model-seed 1` looks longer, and elsewhere. A plan that fails is made as
short as it can be, and printed as a program that carries it out by itself.
"""

from __future__ import annotations

import pytest

from tests.model.cluster import SimulatedCluster
from tests.model.conftest import Look
from tests.model.steps import PLANS
from tests.model.tables import TABLE_PLANS, TableCluster


@pytest.mark.slow_cases("postgres")
def test_the_contract(look: Look) -> None:
    """Simulated workers say and hear whatever the contract has words for."""
    look(PLANS, SimulatedCluster, usual=20)


def test_instances_in_memory(look: Look) -> None:
    """Real instance tables: nothing is lost, doubled, out of order, or of an instance that is gone."""
    look(TABLE_PLANS, TableCluster, usual=25)
