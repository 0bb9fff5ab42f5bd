"""Opening a client, or a store: tried as long as its calls are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
import pytest

from affinity.client import Client, background, calls, client, open_store
from affinity.errors import AccessDenied, ConnectionLost, ProviderError, ReadOnly
from affinity.provider import open_provider

pytestmark = pytest.mark.anyio

OPENED: Final = {"client": Client, "store": open_store}


class Server:
    """Refuses so many attempts to open it, then lets them through."""

    def __init__(self, refusals: int, error: ProviderError) -> None:
        self.refusals, self.error = refusals, error
        self.attempts = 0

    async def open(self, *args: Any, **kwargs: Any) -> Any:
        self.attempts += 1
        if self.attempts <= self.refusals:
            raise self.error
        return await open_provider(*args, **kwargs)


@pytest.fixture(params=OPENED)
def opens(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    found: Callable[[str], Any] = OPENED[request.param]
    return found


def install(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    for module in (background, client):
        monkeypatch.setattr(module, "open_provider", server.open)


@pytest.mark.parametrize("error", [ConnectionLost("the server restarts"), ReadOnly("a standby")])
async def test_a_server_that_restarts_is_waited_for(
    kept_url: str, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], Any], error: ProviderError
) -> None:
    server = Server(4, error)
    install(monkeypatch, server)
    with anyio.fail_after(30):
        async with opens(kept_url):
            assert server.attempts == 5


async def test_for_as_long_as_a_call(
    kept_url: str, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], Any]
) -> None:
    """And what an operator must mend is said at once."""
    monkeypatch.setattr(calls, "RETRY_SECONDS", 0.3)
    install(monkeypatch, server := Server(1_000, ConnectionLost("no server")))
    with anyio.fail_after(10), pytest.raises(ConnectionLost):
        await opens(kept_url).__aenter__()
    assert server.attempts > 1
    install(monkeypatch, server := Server(1_000, AccessDenied("no such user")))
    with pytest.raises(AccessDenied):
        await opens(kept_url).__aenter__()
    assert server.attempts == 1
