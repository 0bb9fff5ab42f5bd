"""The databases of tests of conversations."""

from tests.conversation.conftest import maybe_traced, postgres_age, url

__all__ = ["maybe_traced", "postgres_age", "url"]
