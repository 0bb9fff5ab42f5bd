"""The areas that make up random programs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tests.programs.area import AnyArea
from tests.programs.areas.agents import AGENTS
from tests.programs.areas.conversations import CONVERSATIONS
from tests.programs.areas.orchestrations import ORCHESTRATIONS
from tests.programs.areas.schedules import SCHEDULES
from tests.programs.areas.starts import STARTS

_AREAS: list[AnyArea] = [ORCHESTRATIONS, CONVERSATIONS, AGENTS, SCHEDULES, STARTS]

if find_spec("pydantic_ai") is not None:
    from tests.programs.areas.plugs import PLUGS

    _AREAS.append(PLUGS)

if find_spec("agents") is not None:
    from tests.programs.areas.openai_agents import OPENAI_AGENTS

    _AREAS.append(OPENAI_AGENTS)

if find_spec("langgraph") is not None:
    from tests.programs.areas.graphs import GRAPHS

    _AREAS.append(GRAPHS)

AREAS: Final[Mapping[str, AnyArea]] = {each.name: each for each in _AREAS}
