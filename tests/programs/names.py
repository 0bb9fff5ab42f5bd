"""Names and ids of the orchestrations of random programs, and of what they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import affinity

NAME: Final = "orchestrations"

ASK: Final = affinity.Event("ask", str, reply=str)


LABELS: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"tenant": "acme"},
    {"tenant": "acme", "tier": "gold"},
    {"tenant": "globex", "tier": "gold"},
    {"tier": "gold"},
)
"""The labels of instances, and by which clients find them."""


def instance_id(number: int) -> str:
    return f"{NAME}-{number}"


def child_id(number: int) -> str:
    return f"{NAME}-child-{number}"


SCRIPTED: Final = f"{NAME}-s"
"""Begins the ids of sessions whose states scripts write too."""


def session_id(number: int) -> str:
    return f"{SCRIPTED}{number}"


def event_name(number: int) -> str:
    return f"e{number}"
