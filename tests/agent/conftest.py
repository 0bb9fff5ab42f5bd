"""The databases of tests of conversations."""

from tests.conversation.conftest import postgres_age, url

__all__ = ["postgres_age", "url"]
