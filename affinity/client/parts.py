"""The parts that guests add to an open client. A class of a guest's calls names the class of its part as ``_PART``."""

from __future__ import annotations

from dataclasses import dataclass

from affinity.client.changes import Changes
from affinity.provider.contract import Provider
from affinity.provider.hint_sender import HintSender


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientServices:
    """The services that a client shares with the parts of guests."""

    provider: Provider
    hints: HintSender
    changes: Changes


class ClientPart:
    """The state of a guest in one client, and its work beside the calls; made on the client's event loop."""

    def __init__(self, services: ClientServices) -> None:
        raise NotImplementedError

    @classmethod
    def is_wanted(cls, provider: Provider) -> bool:
        """Return whether a client has this part: a provider of another database may lack the guest's verbs."""
        raise NotImplementedError

    async def run(self) -> None:
        """Work until cancelled."""
        raise NotImplementedError
