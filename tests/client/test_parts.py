"""A database of another kind, whose provider lacks the verbs of guests: the client's other calls work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import pytest

from affinity import Client
from affinity.audit.store.contract import AuditProvider
from affinity.conversation.store.contract import JournalProvider
from affinity.errors import InvalidOptions
from affinity.provider.contract import Provider
from affinity.schedules.store.contract import ScheduleProvider

pytestmark = pytest.mark.anyio

OF_GUESTS: Final = {name for protocol in (AuditProvider, JournalProvider, ScheduleProvider) for name in vars(protocol)}


class KernelOnly:
    """The provider, without the verbs of guests."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        if name in OF_GUESTS:
            raise AttributeError(name)
        return getattr(self._provider, name)


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
