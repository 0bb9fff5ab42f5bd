"""What the other tests stand on."""

from __future__ import annotations

from tests.conftest import Servers


async def test_a_database_can_be_had_within_a_running_loop(servers: Servers) -> None:
    """By async fixtures and tests, whichever test comes first."""
    fresh = servers.without_databases()
    assert fresh.shared("new") != servers.shared("new")
    assert fresh.template("new") != servers.template("new")
