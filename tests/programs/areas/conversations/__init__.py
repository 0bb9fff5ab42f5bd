"""Conversations: journals, wakes, requests, revisits, delegations, streams, feeds and lineage.

The handler does what its inputs say; see `script`. The oracle folds each journal, and compares.
"""

from __future__ import annotations

from typing import Final

from hypothesis.strategies import SearchStrategy

import affinity
from tests.programs.area import Area
from tests.programs.areas.conversations.checks import Checks
from tests.programs.areas.conversations.clients import Played, play_clients
from tests.programs.areas.conversations.handler import NAME, make, work
from tests.programs.areas.conversations.script import ConversationScript, parts
from tests.programs.play import Play
from tests.programs.program import Size


class ConversationsArea(Area[ConversationScript, Played]):
    """See the module."""

    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[ConversationScript]:
        """See `Area`."""
        return parts(size)

    def include(self, app: affinity.App) -> None:
        """See `Area`."""
        for each in (*make(), work):
            app.include(each)

    async def run(self, play: Play, part: ConversationScript) -> Played:
        """See `Area`."""
        return await play_clients(play, part)

    async def check(self, play: Play, part: ConversationScript, seen: Played) -> None:
        """See `Area`."""
        await Checks(play, seen).run()


CONVERSATIONS: Final = ConversationsArea()
