"""The database of a test of ADK's sessions, and two processes that use it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conversation.conftest import postgres_age, server, url

if TYPE_CHECKING:
    from affinity.integrations.adk import AffinitySessionService

__all__ = ["postgres_age", "server", "url"]


def _opened(url: str) -> Iterator[AffinitySessionService]:
    from affinity.integrations.adk import AffinitySessionService  # the tests that use it are skipped without ADK

    service = AffinitySessionService(url)
    yield service
    service.close()


@pytest.fixture
def service(url: str) -> Iterator[AffinitySessionService]:
    """The sessions, as one process has them."""
    yield from _opened(url)


@pytest.fixture
def other(url: str) -> Iterator[AffinitySessionService]:
    """The sessions, as another process has them."""
    yield from _opened(url)
