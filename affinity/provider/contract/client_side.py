"""The verbs that clients call: start instances, send messages, read instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract.connection import ProviderConnection
from affinity.provider.contract.instances import (
    Delivery,
    InstanceFilter,
    InstanceInfo,
    KeyState,
    MessageKey,
    NewInstance,
    NewMessage,
    Restart,
)
from affinity.provider.contract.management import MatchingCounts


class ClientProvider(ProviderConnection, Protocol):
    """The client side of a provider."""

    async def create_instance(self, instances: Sequence[NewInstance]) -> Sequence[bool]:
        """Create instances with their start messages. False: the id exists, nothing changed. A child gets the session
        of its parent, as in a turn.

        Raises:
            QuotaExceeded: there would be more instances than `Quotas.instances`, or a start message is larger than
                `Quotas.instance_bytes`; nothing was created.
        """
        ...

    async def restart_instance(self, restarts: Sequence[Restart]) -> Sequence[bool]:
        """Restart ended instances, or let starts wait for them: `Restart.when`. False: there is no instance of this id,
        name and generation, or it is not as ``when`` says; nothing changed.

        Raises:
            QuotaExceeded: a start message is larger than `Quotas.instance_bytes`; nothing was changed.
        """
        ...

    async def send_message(self, messages: Sequence[NewMessage]) -> Sequence[Delivery]:
        """Queue messages for instances, in order.

        A message with an ``unread_limit`` is refused ("full") while its instance has so many unread messages. Unread
        are messages that its turns reported (`Turn.unread`), and messages in its queue that are no timers. The same
        holds for `Quotas.unread_events`. It is refused ("over_quota") when with it the instance would have more bytes
        than `Quotas.instance_bytes`. Concurrent calls do not see each other's messages and may exceed a limit together.

        A message to an instance whose start message is not visible yet becomes visible with it, see `NewInstance.delay`
        and `NewMessage.ends_wait`.

        Of the messages with one ``key`` an instance gets the first that is not refused; any other is "repeated", also
        when the instance has finished since. Keys are kept as long as the instance, but see `prune_histories`.
        """
        ...

    async def get_replies(
        self, keys: Sequence[MessageKey], *, max_bytes: int = MAX_BATCH_BYTES
    ) -> Sequence[KeyState | None]:
        """The states of messages that were sent under these keys, and the replies to them (`Turn.replies`).

        None: there is no such instance. Reads only, in one snapshot. Once replies have ``max_bytes`` UTF-8 bytes, later
        ones are left out; at least one is not.
        """
        ...

    async def get_instance(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        """Instances by id."""
        ...

    async def list_instances(self, where: InstanceFilter, limit: int) -> Sequence[InstanceInfo]:
        """Return one page, newest first unless ``where.oldest_first``; the cursor of the next page is the last row's
        (created_at, instance_id).
        """
        ...

    async def count_matching(self, where: InstanceFilter, limit: int) -> MatchingCounts:
        """Count instances of the listing by status, newest first whatever ``where.oldest_first`` is: ``limit`` of them,
        or some more.
        """
        ...
