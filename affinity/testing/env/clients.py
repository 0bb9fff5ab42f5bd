"""The client of an `Env`."""

from __future__ import annotations

from typing import Any

from affinity.client import Client
from affinity.client.background import IsAwaited
from affinity.errors import WaitTimeout
from affinity.provider.contract import InstanceInfo
from affinity.testing.env.reasons import explain


class EnvClient(Client):
    """A client whose waits, when their real time is over, end with what was waited for."""

    async def _until(
        self, instance_id: str, timeout: float | None, is_awaited: IsAwaited, otherwise: str
    ) -> InstanceInfo:
        try:
            return await super()._until(instance_id, timeout, is_awaited, otherwise)
        except WaitTimeout as error:
            raise WaitTimeout(f"{error}: {await explain(self, instance_id)}") from None

    async def ask(self, instance_id: str, *args: Any, **kwargs: Any) -> Any:
        """See `Client.ask`."""
        try:
            return await super().ask(instance_id, *args, **kwargs)
        except WaitTimeout as error:
            raise WaitTimeout(f"{error}: {await explain(self, instance_id)}") from None
