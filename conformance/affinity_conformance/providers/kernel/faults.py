"""Faults of the environment: no verb is half done, and every fault can be retried."""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar, Final

import pytest

from affinity.errors import (
    ConnectionLost,
    Contention,
    DatabaseFailure,
    Duplicate,
    ProviderError,
    ReadOnly,
    StatementTimeout,
    WorkerFenced,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import turn, work_item
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, fault_parts, fault_verbs
from affinity_conformance.providers.harness import Fault
from affinity_conformance.providers.kernel.fault_verbs import KERNEL

ERRORS: Final[dict[Fault, type[ProviderError]]] = {
    "disk_full": DatabaseFailure,
    "io_error": DatabaseFailure,
    "out_of_memory": DatabaseFailure,
    "read_only": ReadOnly,
    "too_many_connections": ConnectionLost,
    "statement_timeout": StatementTimeout,
    "serialization_failure": Contention,
    "deadlock": Contention,
    "cut_before_reply": ConnectionLost,
    "cut_in_reply": ConnectionLost,
    "cut_after_reply": ConnectionLost,
}
"""The error that each fault is, with every provider."""

NO_REQUEST: Final = frozenset({"hints", "notify_workers", "watch_changes", "notify_changes"})
"""Verbs that need not ask the database."""

MOST_TRIES: Final = 5
"""Calls of a verb until it succeeds after a fault: several connections may have been lost with one."""

PARTS: Final = 4
"""An attempt leaves rows, and each is followed by a look at all rows: a part of the verbs has a database of its own."""


class FaultRules(Rules):
    """Both providers agree on which error it is and on whether to try again (contract: rules for every verb)."""

    fault_part: ClassVar[FaultPart] = KERNEL

    @pytest.mark.parametrize("fault", ERRORS)
    @pytest.mark.parametrize("part", range(PARTS))
    async def test_every_verb_survives(self, cluster: Cluster, fault: Fault, part: int) -> None:
        """A fault at any request of a verb raises a typed, retryable error, leaves nothing half done, and a retry
        succeeds (contract: rules for every verb).
        """
        if fault not in cluster.harness.faults:
            pytest.skip("this database has no connection")
        fixtures = await FaultFixtures.build(cluster, fault_parts(type(self)))
        for name, prepare in [*fault_verbs(type(self)).items()][part::PARTS]:
            for after in count():
                fixtures.number += 1
                attempt = await prepare(fixtures)
                try:
                    met = await self._survives(fixtures, attempt, fault, after)
                except BaseException as error:
                    error.add_note(f"{name}, with {fault} after {after} requests")
                    raise
                if not met:
                    break
            assert after or name in NO_REQUEST, f"{name} never met {fault}"

    async def _survives(self, fixtures: FaultFixtures, attempt: Attempt, fault: Fault, after: int) -> bool:
        """Return True if the fault was met."""
        before = await fixtures.snapshot()
        fixtures.faulty.inject(fault, after)
        for _ in range(MOST_TRIES):
            result = await _outcome(attempt)
            if not isinstance(result, ProviderError):
                await attempt.check(result)
                return fixtures.faulty.met
            assert type(result) is ERRORS[fault]
            assert result.retryable
            assert str(result)
            if result.maybe_done:
                attempt.unknown = True
                await attempt.recover()
            else:
                assert await fixtures.snapshot() == before, "half done"
        raise AssertionError(f"it did not succeed in {MOST_TRIES} tries")

    async def test_a_row_that_was_there_is_a_duplicate(self, cluster: Cluster) -> None:
        """A turn that repeats a key is refused as `Duplicate`, is not retryable and changes nothing (contract:
        commit_turn).
        """
        a, at = await cluster.owner("a", "i")
        with pytest.raises(Duplicate) as caught:
            await a.commit_one(at, work_items=[work_item(at, 1), work_item(at, 1)])
        assert caught.value.retryable is False
        assert await a.history(at) == []
        assert (await a.commit(turn(at, work_items=[work_item(at, 1)])))[0].committed

    async def test_losing_the_name_is_not_to_be_retried(self, cluster: Cluster) -> None:
        """`WorkerFenced` is not retryable (contract: renew_worker)."""
        first = await cluster.worker("a")
        await cluster.worker("a")
        with pytest.raises(WorkerFenced) as caught:
            await first.renew_lease()
        assert caught.value.retryable is False
        assert "a" in str(caught.value)


async def _outcome(attempt: Attempt) -> Any:
    try:
        return await attempt.call()
    except ProviderError as error:
        return error
