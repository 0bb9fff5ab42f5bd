"""Tokens of locks."""

from __future__ import annotations

import secrets
from itertools import count

from affinity.provider.contract import Token


class Tokens:
    """Tokens that no other provider object issues: a random prefix and a counter, since a random number for each costs
    more.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = count(1)

    def next(self) -> Token:
        """A token that was never issued."""
        return Token(f"{self._prefix}:{next(self._numbers):x}")
