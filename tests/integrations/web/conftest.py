"""The database of a test of conversations in a browser."""

from __future__ import annotations

from tests.conversation.conftest import postgres_age, url

__all__ = ["postgres_age", "url"]
