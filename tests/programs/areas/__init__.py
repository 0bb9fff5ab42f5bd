"""The areas that make up random programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.programs.area import AnyArea
from tests.programs.areas.agents import AGENTS
from tests.programs.areas.conversations import CONVERSATIONS
from tests.programs.areas.orchestrations import ORCHESTRATIONS
from tests.programs.areas.schedules import SCHEDULES
from tests.programs.areas.starts import STARTS

AREAS: Final[Mapping[str, AnyArea]] = {
    each.name: each for each in (ORCHESTRATIONS, CONVERSATIONS, AGENTS, SCHEDULES, STARTS)
}
