"""The conformance suite through a real PgBouncer in transaction mode: all of it but what is about a worker's lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from affinity.provider.contract import Provider
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres.driver import attempts
from affinity.provider.timeline import Timeline
from affinity_conformance.providers import Harness, ProviderConformance
from tests.provider.harnesses import PostgresHarness
from tests.servers.pgbouncer import PROGRAM, pooler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(PROGRAM is None, reason="this machine has no program pgbouncer"),
]

OF_WORKERS: Final = (
    # They follow a timeline, which a client does not.
    "test_a_migration_repairs_lost_counters",
    "test_a_new_timeline_ends_every_lease",
    "test_a_timeline_has_a_name",
    "test_a_timeline_that_begins_moves_nothing",
    "test_an_incarnation_ends_with_its_timeline",
    "test_no_message_id_comes_back",
    "test_the_ids_jump_though_what_is_left_has_seen_no_message",
    "test_the_next_incarnation_goes_on_and_no_epoch_comes_back",
    "test_who_follows_nothing_goes_on",
    # Two calls at the same time, for which a client has no second connection.
    "test_a_watch_that_meets_a_sweep_keeps_its_session",
    # They weigh connections that have ended; the pooler's do not.
    "test_foreign_work_does_not_make_a_fetch_dearer",
    "test_items_that_wait_cost_a_fetch_nothing",
)


class SharedHarness(PostgresHarness):
    """Providers are a client's, and all but LISTEN goes through the pooler; what the test does itself does not."""

    pooled = ""

    async def open(self, timeline: Timeline | None = None) -> Provider:
        url = f"{self.pooled}&direct={quote(self._url, safe='')}"
        return await PostgresProvider.open(url, application_name="through a pooler", one_connection=True)


@pytest.mark.parametrize("postgres_age", ["new"], indirect=True)
class TestShared(ProviderConformance):
    """On the newer PostgreSQL: whether a rule holds does not depend on the version and the pooler together."""

    locals().update(dict.fromkeys(OF_WORKERS))  # None hides the method of the base class

    @pytest.fixture
    async def harness(
        self, postgres_shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Harness]:
        monkeypatch.setattr(attempts, "LONGEST_PAUSE", 0.02)
        harness = await SharedHarness.create(postgres_shared)
        with pooler(tmp_path, postgres_shared, mode="transaction") as url:
            harness.pooled = urlunsplit(urlsplit(harness._url)._replace(netloc=urlsplit(url).netloc))
            yield harness
            await harness.aclose()


def test_what_is_left_out_is_there() -> None:
    """So that a rule that gets another name is not lost."""
    assert [name for name in OF_WORKERS if not hasattr(ProviderConformance, name)] == []
