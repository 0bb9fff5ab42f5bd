"""Events that wait for a reply: calls that are made together share one, and all waits share the hints of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio

from affinity.client.batching import Batcher
from affinity.client.calls import unknown_instance
from affinity.client.changes import Change
from affinity.client.journals import Waker
from affinity.client.views import read_error
from affinity.errors import InstanceExists, NoReply
from affinity.provider.contract import FINISHED, Delivery, KeyState, MessageKey, NewMessage, Provider


class Replies:
    """Sends messages with a key, and reads the replies to them, for one client. For one event loop."""

    def __init__(self, provider: Provider, waker: Waker) -> None:
        self._provider = provider
        self._waker = waker
        self._sends = Batcher[NewMessage, Delivery](self._send, lambda message: len(message.payload))
        self._reads = Batcher[MessageKey, KeyState | None](provider.get_replies, lambda _: 0)

    async def run(self) -> None:
        """Do the work until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sends.run)
            tasks.start_soon(self._reads.run)

    def send(self, message: NewMessage) -> asyncio.Future[Delivery]:
        """Send a message with a key, which may be sent again after a lost reply; see `Batcher.submit` for what the
        future raises.
        """
        return self._sends.submit(message)

    async def wait(self, key: MessageKey, change: Change, *, name: str | None) -> str:
        """The reply to a message, as JSON.

        Args:
            key: of the message.
            change: of the instance, since before the message was sent.
            name: that of the orchestration, if it must have that one.

        Raises:
            InstanceExists: it has another name.
            NoReply: the instance has ended without a reply.
            UnknownInstance: it was deleted.
            ProviderError: as for `Batcher.submit`.
        """
        while True:
            state = await self._reads.submit(key)
            if state is None:
                raise unknown_instance(key.instance_id)
            if name is not None and state.name != name:
                raise InstanceExists(
                    f"the id belongs to another orchestration: {key.instance_id!r} (of {state.name!r})"
                )
            if state.reply is not None:
                return state.reply
            if state.is_answered:  # this one did not fit into the batch
                continue
            if state.status in FINISHED:
                raise _no_reply(key, state)
            await change.wait()

    async def _send(self, batch: Sequence[NewMessage]) -> Sequence[Delivery]:
        deliveries = await self._provider.send_message(batch)
        sent = zip(batch, deliveries, strict=True)
        # Also of repeated ones: the reply to the first attempt may be lost, and its hint was not sent.
        self._waker.wake_owners(message.instance_id for message, one in sent if one in {"delivered", "repeated"})
        return deliveries


def _no_reply(key: MessageKey, state: KeyState) -> NoReply:
    if state.error is None:
        return NoReply(key.instance_id, state.status)
    error = read_error(state.error)
    return NoReply(key.instance_id, state.status, error.error_type, error.message)
