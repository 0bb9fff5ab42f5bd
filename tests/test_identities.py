"""Identities that are joined texts: other parts give another text, whatever characters are in them, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from affinity import App, Client, OrchestrationContext
from affinity.agent.builtins import _child_id
from affinity.conversation import UserMessage
from affinity.conversation.events import check_input
from affinity.conversation.follow import FeedPosition, JournalIdentity, read_position
from affinity.conversation.journal import StreamCursor
from affinity.conversation.step_keys import step_key
from affinity.errors import InvalidId, InvalidInput
from affinity.limits import check_code_name
from affinity.orchestration.futures import _default_id
from affinity.schedules.firing import tick_id

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _tick(name: str, generation: str) -> str:
    row: Any = SimpleNamespace(name=name, generation=generation)
    return tick_id(row, NOON)


def _started(instance_id: str, number: int, position: int) -> str:
    scheduler: Any = SimpleNamespace(instance_id=instance_id, history=SimpleNamespace(position=position))
    return _default_id(scheduler, number)


def _child(conversation_id: str, child: str) -> str:
    wake: Any = SimpleNamespace(conversation_id=conversation_id)
    return _child_id(wake, child)


def _code(name: str, version: str) -> str:
    return f"{check_code_name(name, 'name')}@{check_code_name(version, 'version')}"


def _position(seq: int, timeline: str, wake_id: str, attempt: int, number: int) -> str:
    at = StreamCursor(wake_id=wake_id, attempt=attempt, number=number)
    position = FeedPosition(seq, at, JournalIdentity(2, timeline))
    assert read_position(str(position)) == position
    return str(position)


JOINED: Any = [
    (step_key, [("step", "pay", "order/7"), ("step", "pay/order", "7"), ("step", 'pay","order/7')]),
    (step_key, [("step", "a", 1), ("step", "a", "1"), ("step", "a#1"), ("step", "a,1"), ("step", "a\n1")]),
    (step_key, [("begun", "step", "a", 1), ("begun", "step/a#1"), ("step", "begun", "a", 1)]),
    (_tick, [("a", "b"), ("a/b", "b"), ("a/b@2026-01-01T12:00:00Z", "b"), ("a@b", "b")]),
    (_started, [("a", 1, 5), ("a", 15, 5), ("a/1:6", 1, 5), ("a/1", 1, 5), ("a", 1, 51), ("a/1:6/1", 1, 5)]),
    (_child, [("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a/b/c", "d"), ("a", "b%2Fc"), ("ab", "c")]),
    (_code, [("a", "1@2"), ("a@1", "2"), ("a", "1"), ("a@1", "")]),
    (_position, [(1, "t", "w", 1, 1), (1, "t", "1.w", 1, 1), (1, "t", "1.1.w", 1, 1), (12, "t-1", "w", 1, 1)]),
]
"""How something is joined, and parts of which a plain text with separators is the same, or may be."""


@pytest.mark.parametrize(("join", "parts"), JOINED)
def test_other_parts_give_another_identity(join: Callable[..., str], parts: list[tuple[Any, ...]]) -> None:
    made: list[str] = []
    for each in parts:
        try:
            made.append(join(*each))
        except InvalidInput:  # a separator is refused, by name
            continue
    assert len(set(made)) == len(made) >= 1


def test_an_orchestration_is_not_named_by_name_and_version() -> None:
    """Workers would take it for the version of that name that they have, and none would run it."""
    app = App("names")

    @app.orchestration(version="1.0.0")
    async def order(ctx: OrchestrationContext) -> None:
        """Do nothing."""

    with pytest.raises(InvalidId, match="it parts name and version"):
        app.schedule("daily", "order@1.0.0", cron="0 0 * * *")


@pytest.mark.anyio
async def test_nor_by_a_client(sqlite_url: str) -> None:
    async with Client(sqlite_url) as client:
        with pytest.raises(InvalidId, match="Give a version by itself"):
            await client.start("order@1.0.0", instance_id="i")
        with pytest.raises(InvalidId, match="Give a version by itself"):
            await client.start("order", version="1@2", instance_id="i")


@pytest.mark.parametrize("event_id", ["trace/w/1.1", "cancelled/w", "delegation/w.1", "run.ended/w.1", "interrupt/1/2"])
def test_no_event_of_a_client_takes_the_place_of_one_of_the_conversation(event_id: str) -> None:
    with pytest.raises(InvalidId, match="choose another"):
        check_input(UserMessage("x"), event_id)
