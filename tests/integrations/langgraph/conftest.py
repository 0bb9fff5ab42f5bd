"""The database of a test of LangGraph, and a checkpointer on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.conversation.conftest import postgres_age, url

if TYPE_CHECKING:
    from affinity.integrations.langgraph import AffinitySaver

__all__ = ["postgres_age", "url"]


@contextmanager
def _opened(url: str) -> Iterator[AffinitySaver]:
    from affinity.integrations.langgraph import AffinitySaver  # the tests that use it are skipped without LangGraph

    with AffinitySaver(url) as saver:
        yield saver


@pytest.fixture
def saver(url: str) -> Iterator[AffinitySaver]:
    """A checkpointer of one process."""
    with _opened(url) as saver:
        yield saver


@pytest.fixture
def other(url: str) -> Iterator[AffinitySaver]:
    """The checkpointer of another process."""
    with _opened(url) as saver:
        yield saver
