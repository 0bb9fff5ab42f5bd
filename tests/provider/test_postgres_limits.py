"""PostgreSQL: counts of the work at limits that are wrong."""

from __future__ import annotations

import pytest

from affinity.flow.store.contract import limits_of
from affinity.orchestration.gates import LimitUse
from affinity_conformance.providers.builders import new_instance
from affinity_conformance.providers.flow.driver import gate, slots
from tests.provider.postgres_stage import administrator, opened

pytestmark = pytest.mark.anyio


async def test_a_count_that_is_too_low_is_corrected_and_the_log_says_so(postgres_migrated: str) -> None:
    """It would be below 0, and give the limit more slots than it has."""
    with administrator(postgres_migrated) as admin:
        async with opened(postgres_migrated) as provider:
            limits = limits_of(provider)
            await limits.declare_limits("shop", "1", [slots(1)])
            for name in "ij":
                await provider.create_instance([new_instance(name, gate=gate(LimitUse("model")))])
            assert (await limits.admit(most=10)).admitted == 1
            admin.execute("UPDATE limit_keys SET in_use = 0, waiting = 0")
            admin.execute("UPDATE limit_lines SET waiting = 0")
            await provider.delete_instance(["i", "j"], force=True)
            await limits.admit(most=10)
            (row,) = await limits.list_limits(["model"])
            assert (row.in_use, row.waiting) == (0, 0)
            assert admin.execute("SELECT drifts FROM limit_admissions").fetchone() == (3,)
            notices: list[str] = []
            admin.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
            admin.execute("SELECT correct_count('key', 7)")
            assert notices == ["affinity: the count of work of key 7 was too low, and is corrected"]
