"""Parked work items on SQLite: what removes them, and what they cost."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from affinity.provider.contract import Incarnation, NewWorkItem, WorkerIdentity
from affinity.provider.sqlite import SqliteProvider
from affinity_conformance.providers.builders import work_item
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, new_input
from affinity_conformance.providers.peer import Peer
from tests.provider.sqlite_files import create_file
from tests.provider.sqlite_steps import FEW, MUCH, Verb, cost_in_steps, fill_tables, opened_file, steps

__all__ = ["steps"]

pytestmark = pytest.mark.anyio

CROWD: Final = (
    "INSERT INTO instances (instance_id, generation, name, created_at, updated_at)"
    " SELECT 'z' || i, '1', 'flow', 0, 0 FROM numbers",
    "INSERT INTO journals (journal_id, session_id, kind, last_seq, processed, oldest_at, created_at, updated_at)"
    " SELECT i, 'z' || i, 'chat', 1, 1, 0, 0, 0 FROM numbers",
    "INSERT INTO journal_entries (journal_id, seq, kind, is_input, recorded_at, payload)"
    " SELECT i, 1, 'user.message', 1, 0, '1' FROM numbers",
    "INSERT INTO journal_entries (journal_id, seq, kind, is_input, recorded_at, payload)"
    " SELECT j.journal_id, j.last_seq + i, 'agent.message', 0, 0, '1'"
    " FROM journals AS j, numbers WHERE j.session_id = 's'",
    "UPDATE journals SET last_seq = last_seq + (SELECT count(*) FROM numbers) WHERE session_id = 's'",
    "INSERT INTO parked_items (instance_id, execution_id, activity_id, name, session_id, payload)"
    " SELECT 'z' || i, 1, 1, 'work', 'z' || i, '' FROM numbers",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_file(path := tmp_path / "affinity.db")
    return path


@pytest.fixture
async def peer(path: Path) -> AsyncIterator[Peer]:
    async with aclosing(await SqliteProvider.open(path)) as provider:
        peer = Peer(provider, WorkerIdentity(worker_id="a", incarnation=Incarnation("a-1")))
        await peer.register()
        yield peer


def new_item(owner: ConversationOwner, activity_id: int = 1) -> NewWorkItem:
    return replace(work_item(owner.at, activity_id, "s"), parked=True)


async def with_parked_item(peer: Peer) -> ConversationOwner:
    """A conversation with a parked item, whose session is held."""
    await Conversation(peer.provider).append()
    owner = await ConversationOwner.of(peer)
    await owner.commit(await owner.new_write(), work_items=[work_item(owner.at, 9, "s")])
    await peer.ack(*await peer.take())
    await peer.take_instances()
    assert (await owner.commit(await owner.new_write(), work_items=[new_item(owner)])).placed[0].parked
    return owner


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def count_parked(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (number,) = connection.execute("SELECT count(*) FROM parked_items").fetchone()
        return int(number)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE instances SET status = 'completed' WHERE instance_id = 's'",
        "UPDATE instances SET execution_id = execution_id + 1 WHERE instance_id = 's'",
    ],
)
async def test_the_end_of_an_execution_removes_its_item(path: Path, peer: Peer, statement: str) -> None:
    """Whichever statement ends it."""
    await with_parked_item(peer)
    run(path, statement)
    assert count_parked(path) == 0


async def test_the_deletion_of_an_instance_removes_its_item(path: Path, peer: Peer) -> None:
    await with_parked_item(peer)
    assert await peer.provider.delete_instance(["s"], force=True) == ["deleted"]
    assert count_parked(path) == 0


async def test_an_item_that_is_queued_already_refuses_no_input(path: Path, peer: Peer) -> None:
    owner = await with_parked_item(peer)
    await owner.commit(await owner.new_write(), work_items=[replace(new_item(owner), parked=False)])
    assert (await owner.conversation.append()).outcome == "appended"
    assert len(await peer.take_all()) == 1
    assert count_parked(path) == 0


async def test_parking_and_unparking_cost_the_same_among_many(tmp_path: Path, steps: Iterator[int]) -> None:
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            await Conversation(peer.provider).append()
            owner = await ConversationOwner.of(peer)
            await owner.commit_wake()
            fill_tables(path, CROWD, rows)
            write = await owner.new_write()
            verbs: list[Verb] = [
                partial(owner.commit, write, work_items=[new_item(owner)]),
                partial(owner.conversation.journals.append_journal, [new_input()]),
            ]
            costs.append([await cost_in_steps(steps, verb) for verb in verbs])
            assert count_parked(path) == rows
    assert costs[1] == costs[0]
