"""A crash of the server, whose table of streams is empty afterwards, while the wake that streams goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

import anyio
import pytest

from affinity import App, Client, Conversations, RuntimeOptions, Wake, Worker, migrate
from affinity.conversation import AgentMessage, Retracted, Streamed, UserMessage
from affinity.errors import ProviderError
from tests.conversation.application import Chat, make
from tests.servers.base import PostgresServer
from tests.servers.programs import programs
from tests.support.waiting import run_on_a_thread, until

pytestmark = pytest.mark.anyio

PARTS = 60
WHOLE = "".join(f"{number} " for number in range(PARTS))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server for this test alone."""
    with max(programs(), key=lambda offer: offer.major).open() as server:
        run_on_a_thread(migrate, server.url())
        yield server


@dataclass
class Reader:
    """Follows the stream, as a page in a browser does: it has the text since the last retraction."""

    client: Client
    conversations: Conversations[Chat]
    text: str = ""
    position: str = "0"
    retracted: int = 0

    async def read(self, until_text: str = "") -> None:
        """Read until the text is this long; without one, to the end of the wake. It never has a gap."""
        while True:
            with suppress(ProviderError):
                async for text in self._texts():
                    assert WHOLE.startswith(text), f"a gap in {text!r}"
                    if until_text and len(text) >= len(until_text):
                        return
                return
            await anyio.sleep(0.1)

    async def _texts(self) -> AsyncIterator[str]:
        talk = self.client.conversation(self.conversations, "c")
        async with talk.events(after=self.position, follow=True) as feed:
            async for item in feed:
                if isinstance(item, Retracted):
                    self.text, self.retracted = "", self.retracted + 1
                elif isinstance(item, Streamed):
                    self.text += item.text
                self.position = feed.position
                yield self.text
                if getattr(item, "kind", "") == "agent.message":
                    return


async def test_no_reader_has_a_gap_after_a_crash_of_the_server(own_server: PostgresServer) -> None:
    """Neither one that was there, one that comes back with the position of an early part, nor one that is new."""
    numbers, may_write = count(), PARTS // 3

    async def stream(wake: Wake, _: Chat) -> None:
        for number in numbers:
            if number == PARTS:
                break
            while number >= may_write:
                await anyio.sleep(0.01)
            wake.stream(f"{number} ")
            await anyio.sleep(0.02)
        wake.append(AgentMessage("done"))

    conversations = make(stream)
    app = App("streams")
    app.include(conversations)
    options = RuntimeOptions.make(worker_lease_timeout=60.0, poll_interval=0.3)
    async with Worker(app, own_server.url(), options), Client(own_server.url()) as client:
        stays, returns, comes = (Reader(client, conversations) for _ in range(3))
        await client.conversation(conversations, "c").send(UserMessage("go"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stays.read)
            await returns.read(until_text=WHOLE[:10])
            await until(partial(_has, stays, WHOLE[:40]))
            await anyio.to_thread.run_sync(own_server.restart, "immediate")
            may_write = PARTS - 5
            tasks.start_soon(returns.read)
            tasks.start_soon(comes.read)
            for reader in (stays, returns, comes):
                await until(partial(_has, reader, WHOLE[:120]))
            may_write = PARTS
        assert [reader.retracted >= 1 for reader in (stays, returns, comes)] == [True] * 3


async def _has(reader: Reader, text: str) -> bool:
    return len(reader.text) >= len(text)
