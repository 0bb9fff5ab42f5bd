"""Each call that returns a page takes a limit from 1 to a maximum, and refuses all else before it reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import affinity
from affinity.errors import InvalidInput
from affinity.limits import MAX_COUNT, MAX_PAGE
from tests.conversation.application import make

pytestmark = pytest.mark.anyio

MOST = {"statistics": MAX_COUNT}
"""Calls whose limit is not that of a page."""


def calls(owner: object) -> Iterator[tuple[str, Any, str]]:
    """The public methods with a limit, and the name of its parameter."""
    for name, method in inspect.getmembers(owner, callable):
        if not name.startswith("_"):
            yield from (
                (name, method, each) for each in inspect.signature(method).parameters if each in {"limit", "last"}
            )


async def test_a_limit_out_of_range_is_refused_in_every_call(url: str) -> None:
    async with affinity.Client(url) as client:
        talk = client.conversation(make(), "c")
        await talk.create()
        owners = (client, client.schedules, client.session_manager, talk, client.audit())
        found = [call for owner in owners for call in calls(owner)]
        assert len(found) >= len(owners) + 5
        accepted = []
        for name, method, limit in found:
            needed = [
                "c"
                for each in inspect.signature(method).parameters.values()
                if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
            ]
            for value in (0, -1, MOST.get(name, MAX_PAGE) + 1, True, "5", 2.5):
                try:
                    await method(*needed, **{limit: value})
                except InvalidInput:
                    continue
                accepted.append((name, value))
        assert accepted == []
