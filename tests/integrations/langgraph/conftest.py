"""The database of a test of LangGraph, and a checkpointer on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from affinity.integrations.langgraph import AffinitySaver
from tests.conversation.conftest import postgres_age, url

__all__ = ["postgres_age", "url"]


@pytest.fixture
def saver(url: str) -> Iterator[AffinitySaver]:
    """A checkpointer of one process."""
    with AffinitySaver(url) as saver:
        yield saver


@pytest.fixture
def other(url: str) -> Iterator[AffinitySaver]:
    """The checkpointer of another process."""
    with AffinitySaver(url) as saver:
        yield saver
