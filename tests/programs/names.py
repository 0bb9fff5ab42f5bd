"""Names and ids of the orchestrations of random programs, and of what they use."""

from __future__ import annotations

from typing import Final

import affinity

NAME: Final = "orchestrations"

ASK: Final = affinity.Event("ask", str, reply=str)


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
