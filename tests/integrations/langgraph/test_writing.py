"""Writes of runs at the same time are committed together, and each has its own end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import anyio
import psycopg
import pytest
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata
from langgraph.checkpoint.serde.types import ERROR

from affinity.errors import Contention, DataRefused
from affinity.integrations import database
from affinity.integrations.langgraph import AffinitySaver, ThreadConflict, writing
from affinity.integrations.langgraph.fence import Place, Token
from affinity.integrations.langgraph.threads import TABLES, Put, Results, Stored

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


def of_run(saver: AffinitySaver, thread: str) -> Any:
    """The config with which a run of an empty or of a written thread writes."""
    config: Any = {"configurable": {**generate_config(thread)["configurable"], "__pregel_runtime": None}}
    found = saver.get_tuple(config)
    return config if found is None else found.config


async def put(saver: AffinitySaver, config: Any) -> Any:
    return await saver.aput(config, generate_checkpoint(), generate_metadata(), {})


def length(saver: AffinitySaver, thread: str) -> int:
    return len(list(saver.list(generate_config(thread))))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many writes each group has had."""
    sizes, write = list[int](), writing._write

    def counted(fence: Any, group: Any, connection: Any) -> Any:
        sizes.append(len(group))
        return write(fence, group, connection)

    monkeypatch.setattr(writing, "_write", counted)
    return sizes


async def test_writes_of_one_step_of_the_event_loop_are_one_commit(saver: AffinitySaver, groups: list[int]) -> None:
    names = [str(uuid4()) for _ in range(20)]
    await asyncio.gather(*(put(saver, of_run(saver, name)) for name in names))
    assert groups == [20]
    assert [length(saver, name) for name in names] == [1] * 20


async def test_results_of_a_task_go_with_the_checkpoint_that_follows(saver: AffinitySaver, groups: list[int]) -> None:
    name = str(uuid4())
    first = await put(saver, of_run(saver, name))
    config = of_run(saver, name)
    await asyncio.gather(saver.aput_writes(config, [("x", 1)], "task"), put(saver, config))
    assert groups == [1, 2]
    found = saver.get_tuple(first)
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]
    assert length(saver, name) == 2


async def test_what_is_refused_in_a_group_refuses_nothing_else(saver: AffinitySaver, other: AffinitySaver) -> None:
    """A stale run, and one whose parent was deleted."""
    names = [str(uuid4()) for _ in range(4)]
    for name in names:
        await put(saver, of_run(saver, name))
    configs = [of_run(saver, name) for name in names]
    await put(other, of_run(other, names[1]))
    await other.adelete_thread(names[2])
    ends = await asyncio.gather(*(put(saver, config) for config in configs), return_exceptions=True)
    assert [type(each) for each in ends] == [dict, ThreadConflict, ThreadConflict, dict]
    assert [length(saver, name) for name in names] == [2, 2, 0, 2]
    assert of_run(saver, names[2])["configurable"]["__affinity_writer"].startswith("0."), "nothing is left of it"


@pytest.mark.parametrize("url", ["new"], indirect=True)
async def test_a_value_that_the_database_refuses_fails_its_own_write(saver: AffinitySaver) -> None:
    names = [str(uuid4()) for _ in range(3)]
    for name in names:
        await put(saver, of_run(saver, name))
    writes = [
        saver.aput_writes(of_run(saver, name), [(name[:1] + "\0" * (name == names[1]), 1)], "task") for name in names
    ]
    ends = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(each) for each in ends] == [type(None), DataRefused, type(None)]


async def test_the_last_one_of_a_special_channel_counts_and_the_first_one_of_others(saver: AffinitySaver) -> None:
    name = str(uuid4())
    await put(saver, of_run(saver, name))
    config = of_run(saver, name)
    await saver.aput_writes(config, [(ERROR, "first"), (ERROR, "second"), ("x", 1)], "task")
    await asyncio.gather(
        saver.aput_writes(config, [(ERROR, "third"), ("y", 2), ("x", 2)], "task"),
        saver.aput_writes(config, [(ERROR, "fourth")], "task"),
    )
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", ERROR, "fourth"), ("task", "y", 2), ("task", "x", 1)]


@contextmanager
def transaction(url: str) -> Iterator[psycopg.Connection[Any]]:
    """One of another process, which is under way."""
    with psycopg.connect(url) as connection:
        yield connection


@pytest.mark.parametrize("url", ["new"], indirect=True)
@pytest.mark.parametrize("together", [True, False])
async def test_a_row_that_another_transaction_holds_keeps_nothing_else(
    saver: AffinitySaver, url: str, together: bool
) -> None:
    held, free = str(uuid4()), str(uuid4())
    for name in (held, free):
        await put(saver, of_run(saver, name))
    with anyio.fail_after(PATIENCE), transaction(url) as holder:
        holder.execute("SELECT 1 FROM affinity_langgraph_threads WHERE thread_id = %s FOR UPDATE", [held])
        waiting = asyncio.create_task(put(saver, of_run(saver, held)))
        if not together:
            await anyio.sleep(0.01)
        await put(saver, of_run(saver, free))
        await put(saver, of_run(saver, free))
        assert not waiting.done()
        holder.rollback()
        await waiting
    assert (length(saver, held), length(saver, free)) == (2, 3)


@pytest.mark.parametrize("url", ["new"], indirect=True)
@pytest.mark.parametrize("writes", [put, lambda saver, config: saver.aput_writes(config, [("x", 1)], "task")])
async def test_a_thread_that_is_deleted_while_a_run_writes_is_not_written_anew(
    saver: AffinitySaver, url: str, writes: Any
) -> None:
    """The write began when the thread was there, and waits for the transaction that deletes it."""
    name = str(uuid4())
    await put(saver, of_run(saver, name))
    config = of_run(saver, name)
    with anyio.fail_after(PATIENCE), transaction(url) as deleting:
        for table in ("threads", "writes", "checkpoints"):
            deleting.execute(f"DELETE FROM affinity_langgraph_{table} WHERE thread_id = %s", [name])
        waiting = asyncio.create_task(writes(saver, config))
        with psycopg.connect(url, autocommit=True) as watching:
            while not watching.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                await asyncio.sleep(0.01)
        deleting.commit()
        with pytest.raises(ThreadConflict):
            await waiting
        for table in ("threads", "writes", "checkpoints"):
            found = deleting.execute(f"SELECT 1 FROM affinity_langgraph_{table} WHERE thread_id = %s", [name])
            assert found.fetchall() == []


@pytest.mark.parametrize("url", ["new"], indirect=True)
async def test_a_parent_that_is_deleted_while_a_run_writes_refuses_it(saver: AffinitySaver, url: str) -> None:
    """By `prune`, which holds the thread."""
    name = str(uuid4())
    await put(saver, of_run(saver, name))
    config = of_run(saver, name)
    with anyio.fail_after(PATIENCE), transaction(url) as pruning:
        pruning.execute("SELECT 1 FROM affinity_langgraph_threads WHERE thread_id = %s FOR UPDATE", [name])
        pruning.execute("DELETE FROM affinity_langgraph_checkpoints WHERE thread_id = %s", [name])
        waiting = asyncio.create_task(put(saver, config))
        with psycopg.connect(url, autocommit=True) as watching:
            while not watching.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                await asyncio.sleep(0.01)
        pruning.commit()
        with pytest.raises(ThreadConflict, match="was deleted"):
            await waiting
    assert length(saver, name) == 0


@pytest.mark.parametrize("url", ["new"], indirect=True)
async def test_groups_that_lose_to_each_other_are_written_one_by_one(
    saver: AffinitySaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, failed = database._Postgres.fetch, list[str]()

    def deadlock(driver: Any, name: str, *given: Any) -> Any:
        if name == "write":
            failed.append(name)
            raise Contention("a deadlock", "40P01")
        return fetch(driver, name, *given)

    monkeypatch.setattr(database._Postgres, "fetch", deadlock)
    names = [str(uuid4()) for _ in range(3)]
    await asyncio.gather(*(put(saver, of_run(saver, name)) for name in names))
    assert failed == ["write"]
    assert [length(saver, name) for name in names] == [1, 1, 1]


async def test_a_saver_that_is_closed_writes_what_it_was_given(saver: AffinitySaver, other: AffinitySaver) -> None:
    name = str(uuid4())
    config = of_run(saver, name)
    given = asyncio.create_task(put(saver, config))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.to_thread(saver.close)
    await given
    assert length(other, name) == 1
    with pytest.raises(RuntimeError):
        await put(saver, config)


# -- groups, without a database


def a_put(thread: str, size: int = 1, writer: str = "a") -> Put:
    place, value = Place(thread, ""), Stored("bytes", b"x" * size)
    return Put(place, Token(place, 0, writer), str(uuid4()), None, None, value, value, True)


def results(thread: str, task: str = "task") -> Results:
    place = Place(thread, "")
    return Results(place, Token(place, 0, "a"), "checkpoint", task, "", [(0, "x", Stored("bytes", b"x"))])


def taken(*writes: writing.Write) -> list[bool]:
    group = writing.Group()
    return [group.take(each) for each in writes]


def test_a_group_has_for_each_place_one_writer_one_checkpoint_and_each_result_once() -> None:
    assert taken(a_put("1"), a_put("2"), results("1"), results("1", "second")) == [True] * 4
    assert taken(a_put("1"), a_put("1"), results("1"), a_put("2")) == [True, False, False, True]
    assert taken(results("1"), results("1"), a_put("1")) == [True, False, False]
    assert taken(a_put("1", writer="b"), results("1")) == [True, False]


def test_a_group_is_bounded_in_writes_and_in_bytes() -> None:
    assert sum(taken(*(a_put(str(place)) for place in range(2 * writing.MAX_GROUP)))) == writing.MAX_GROUP
    half = writing.MAX_GROUP_BYTES // 4 + 1
    assert taken(a_put("1", half), a_put("2", half), a_put("3")) == [True, False, True]
    assert taken(a_put("1", writing.MAX_GROUP_BYTES), a_put("2")) == [True, False]


@pytest.mark.parametrize("url", ["new"], indirect=True)
def test_no_write_and_no_read_of_a_run_scans_a_table(saver: AffinitySaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tables had in them when the plan was made."""
    plans, fetch = dict[str, str](), database._Postgres.fetch

    def explained(driver: Any, name: str, parameters: Any = {}) -> Any:  # noqa: B006 -- not changed
        if name in {"write", "latest", "one", "writes_of"}:
            text = TABLES.statement(name, "postgresql")
            plans[name] = str(driver._connection.execute(f"EXPLAIN {text}", parameters).fetchall())
        return fetch(driver, name, parameters)

    monkeypatch.setattr(database._Postgres, "fetch", explained)
    name = str(uuid4())
    saver.put(of_run(saver, name), generate_checkpoint(), generate_metadata(), {})
    saver.put_writes(of_run(saver, name), [("x", 1)], "task")
    assert saver.get_tuple(of_run(saver, name)) is not None
    assert plans.keys() == {"write", "latest", "one", "writes_of"}
    assert [name for name, plan in plans.items() if "Seq Scan on affinity" in plan] == []
