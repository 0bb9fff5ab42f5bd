"""A database of another kind, whose provider lacks the verbs of guests: the client's other calls work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, cast

import pytest

from affinity import Client
from affinity.errors import InvalidOptions
from affinity.provider.contract import Provider
from tests.support.kernel_only import KernelOnly

pytestmark = pytest.mark.anyio


@pytest.fixture
def plain(client: Client) -> Client:
    return Client.from_provider(cast(Provider, KernelOnly(client._open_provider)))


async def test_the_calls_of_the_kernel_work(plain: Client) -> None:
    async with plain:
        started = await plain.start("chat", instance_id="i")
        assert (await started.status()).status == "pending"
        reason = await started.explain()
        assert reason is not None
        assert reason.code == "no_worker"


CALLS: Final[dict[str, Callable[[Client], Awaitable[object]]]] = {
    "conversation": lambda client: client.get_conversation("c"),
    "conversations": lambda client: client.list_conversations().page(),
    "requests": lambda client: client.requests().page(),
    "audit": lambda client: client.audit().page(),
    "schedules": lambda client: client.schedules.list(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_of_a_guest_is_refused(plain: Client, call: str) -> None:
    async with plain:
        with pytest.raises(InvalidOptions, match="the provider of this database lacks"):
            await CALLS[call](plain)
