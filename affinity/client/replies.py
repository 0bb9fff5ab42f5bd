"""Events that wait for a reply: calls that are made together share one, and all waits share the hints of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio

from affinity.client.calls import client_batcher, unknown_instance
from affinity.client.changes import Change
from affinity.client.views import read_error
from affinity.errors import InstanceExists, NoReply, UnknownInstance
from affinity.provider.contract import FINISHED, Delivery, Generation, KeyState, MessageKey, NewMessage, Provider
from affinity.provider.hint_sender import HintSender


class Replies:
    """Sends messages with a key, and reads the replies to them, for one client. For one event loop."""

    def __init__(self, provider: Provider, hints: HintSender) -> None:
        self._provider = provider
        self._hints = hints
        self._sends = client_batcher(self._send, lambda message: len(message.payload))
        self._reads = client_batcher(provider.get_replies)

    async def run(self) -> None:
        """Do the work until cancelled."""
        async with self._sends, self._reads:
            await anyio.sleep_forever()

    @property
    def timeline(self) -> str:
        """See `ProviderConnection.timeline`."""
        return self._provider.timeline

    def send(self, message: NewMessage) -> asyncio.Future[Delivery]:
        """Send a message with a key, again after a lost reply if need be. The future raises as of `Batcher.submit`."""
        return self._sends.submit(message)

    async def look_up(self, key: MessageKey, *, name: str | None) -> KeyState | None:
        """The state of a message; None: there is no instance.

        Args:
            key: of the message.
            name: of the orchestration that the instance must have; None: any.

        Raises:
            InstanceExists: it has another name.
            ProviderError: as for `Batcher.submit`.
        """
        state = await self._reads.submit(key)
        if state is not None and name not in {None, state.name}:
            raise InstanceExists(f"the id belongs to another orchestration: {key.instance_id!r} (of {state.name!r})")
        return state

    async def wait(self, key: MessageKey, change: Change, timeline: str, *, name: str | None) -> str | None:
        """The reply to a message that was sent, as JSON; None: the message may be lost, and is to be sent again.

        Args:
            key: of the message.
            change: of the instance, since before the message was sent.
            timeline: before the message was sent.
            name: as for `look_up`.

        Raises:
            NoReply: the instance has ended without a reply.
            UnknownInstance: it was deleted or restarted; another one may have its id by now.
            InstanceExists, ProviderError: as for `look_up`.
        """
        generation: Generation | None = None
        while True:
            state = await self.look_up(key, name=name)
            if self.timeline != timeline:
                return None
            if state is None:
                raise unknown_instance(key.instance_id)
            # A key may be forgotten while one waits, but not before the first look.
            if generation != state.generation and (generation is not None or not state.is_known):
                raise UnknownInstance(
                    f"instance {key.instance_id!r} was deleted or restarted; another one has its id now"
                )
            generation = state.generation
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
        self._hints.notify_owners(message.instance_id for message, one in sent if one in {"delivered", "repeated"})
        return deliveries


def _no_reply(key: MessageKey, state: KeyState) -> NoReply:
    if state.error is None:
        return NoReply(key.instance_id, state.status)
    error = read_error(state.error)
    return NoReply(key.instance_id, state.status, error.error_type, error.message)
