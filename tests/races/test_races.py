"""Races on purpose: that they find violations, the pairs that had one, and a sample of all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import pytest

from affinity.conversation.handle import ConversationHandle
from tests.conftest import Servers
from tests.programs.databases import Copies
from tests.races.driver import Area, Finding, Races, Where
from tests.races.operations import AREAS

RUNS: Final = 20
"""Of each area, in the sample."""

AREA: Final = {area.name: area for area in AREAS}

MENDED: Final = (
    ("new", "delete,send", "client"),  # what began between two steps of a deletion lost its journal
    ("new", "delete_cascade,ask", "client"),
    ("new", "delegate,terminate_child", "get_pending#3"),  # the parent of a child that ends as its wake begins waited
    ("new", "delegate,interrupt_child", "after worker.fetch_work_item#2"),  # reads its first input and the interrupt
    ("ended", "reset,remove_alone", "worker.commit_turn#2"),  # a child that is kept while its parent runs
    ("talks", "interrupt_cascade,remove_child", "before worker.list_journals#2"),  # what a removed child has not read
    ("talks", "delegate,cancel_child", "after client.append_journal#1"),  # comes while a cancelled child ends
    ("talks", "fork_beside,prune_journals", "before client.read_journal"),  # a reply that retention removes meanwhile
)
"""Area, operations and points that have found something, in the product or in what may come out."""


async def findings(races: Races, only: str, at: str) -> Sequence[Finding]:
    return [each async for each in races.look(only.split(","), at=at)]


async def test_a_race_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion in the wrong order takes the record of a conversation that has begun meanwhile, not its instance."""

    async def remove_rest(talk: ConversationHandle, conversation_id: str) -> bool:
        (journal,) = await talk._client.journals.delete([conversation_id])
        state = await talk._client.session_store.delete([conversation_id])
        return bool(state) or journal

    monkeypatch.setattr(ConversationHandle, "_remove_rest", remove_rest)
    async with Races(AREA["talks"]) as races:
        found = await findings(races, "delete,send", "states.delete")
    assert {str(each.race) for each in found} == {
        "delete held before client.states.delete#1, send",
        "delete held before client.states.delete#1 together, send",
    }
    assert all("c is (None, 'running', False)" in each.wrong[0] for each in found)
    assert races.missed == 0


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.parametrize(("area", "only", "at"), MENDED)
async def test_mended_races(area: str, only: str, at: str) -> None:
    async with Races(AREA[area]) as races:
        assert not await findings(races, only, at)
    assert races.runs > races.missed


@pytest.fixture(params=["sqlite", "old", "new"])
def where(request: pytest.FixtureRequest, servers: Servers) -> Where:
    """SQLite, or copies of a database."""
    return None if request.param == "sqlite" else Copies(servers.server(request.param))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.nightly_cases(r"\[(new|old)-")
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
async def test_a_sample(area: Area, where: Where) -> None:
    async with Races(area, where) as races:
        found = [str(each) async for each in races.look(draw=random.Random(1), runs=RUNS)]
    assert not found, "\n".join(found)
    assert races.missed < RUNS / 5
