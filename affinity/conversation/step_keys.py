"""Keys of the rows of steps (`affinity.conversation.journal.Step`)."""

from __future__ import annotations

from typing import Final

from pydantic_core import to_json


def step_key(*parts: str | int) -> str:
    """Return the key of the row of a step. Different parts give different keys, whatever characters they have."""
    return to_json(parts).decode()


GIVEN: Final = step_key("given")
"""Key of the row with the work that the wake was given: see `known_wakes.Given`."""

TOKEN: Final = "token"  # noqa: S105 - no password
"""Part of the keys of tokens, before the place of the step: see `Wake.keep_token`."""
