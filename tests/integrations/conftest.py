"""The databases of tests of integrations, and of an `Env`."""

from __future__ import annotations

from tests.conversation.conftest import postgres_age, server, url

__all__ = ["postgres_age", "server", "url"]
