"""Two attempts at the same time; connections without transactions; blocks that end theirs by themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiosqlite
import anyio
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import affinity
from affinity.effects import create_table, delete_older_than
from affinity.errors import ConnectionLost, InvalidOptions, InvalidUrl, LateAttempt, OnceMisuse, SchemaMismatch
from affinity.orchestration.signals import RetryAfter
from tests.conftest import Servers
from tests.effects.shops import Receipt, Shop, context, open_shop

PAY = "INSERT INTO payments (reference) VALUES ('a')"


class Down(Exception):
    """Something fails in a block."""


@pytest.fixture
def postgres(servers: Servers) -> Iterator[Shop]:
    server = servers.server("new")
    with ExitStack() as stack:
        name = server.create_database()
        stack.callback(server.drop_database, name)
        yield open_shop("psycopg_async", server.url(name))


@pytest.fixture
def file(tmp_path: Path) -> Shop:
    return open_shop("sqlite3", f"sqlite:///{tmp_path}/shop.db")


async def wait_for_lock(shop: Shop) -> None:
    """Wait until a transaction waits for another one."""
    with shop.plain() as run:
        while not run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"):
            await anyio.sleep(0.01)


@pytest.mark.parametrize("second", [1, 2])
async def test_the_second_waits_and_gets_the_result_of_the_first(postgres: Shop, second: int) -> None:
    got: list[Receipt] = []

    async def pay_too() -> None:
        got.append(await postgres.pay(context(second), "b", number=2))

    async with anyio.create_task_group() as tasks:

        async def within() -> None:
            tasks.start_soon(pay_too)
            await wait_for_lock(postgres)

        await postgres.pay(context(), "a", number=1, within=within)
    assert (got, postgres.paid()) == ([Receipt(number=1)], ["a"])


@pytest.mark.parametrize("second", [1, 2])
async def test_the_second_runs_when_the_first_rolls_back(postgres: Shop, second: int) -> None:
    got: list[Receipt] = []

    async def pay_too() -> None:
        got.append(await postgres.pay(context(second), "b", number=2))

    async with anyio.create_task_group() as tasks:

        async def within() -> None:
            tasks.start_soon(pay_too)
            await wait_for_lock(postgres)
            raise Down

        with pytest.raises(Down):
            await postgres.pay(context(), "a", number=1, within=within)
    assert (got, postgres.paid()) == ([Receipt(number=2)], ["b"])


async def test_the_first_is_refused_while_a_later_one_runs_and_fails(postgres: Shop) -> None:
    refused: list[LateAttempt] = []

    async def pay_late() -> None:
        with pytest.raises(LateAttempt) as error:
            await postgres.pay(context())
        refused.append(error.value)

    async with anyio.create_task_group() as tasks:

        async def within() -> None:
            tasks.start_soon(pay_late)
            await wait_for_lock(postgres)
            raise Down

        with pytest.raises(Down):
            await postgres.pay(context(2), within=within)
    assert (len(refused), postgres.paid()) == (1, [])


async def test_a_late_attempt_gets_the_result_when_there_is_one(postgres: Shop) -> None:
    await postgres.pay(context(2), number=2)
    assert await postgres.pay(context(1), number=1) == Receipt(number=2)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_lost_transaction_is_no_failure(postgres: Shop, level: str) -> None:
    """In a snapshot from before the commit of another attempt, its row cannot be seen."""
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        await connection.execute(f"SET default_transaction_isolation = '{level.lower()}'".encode())
        await connection.commit()
        with pytest.raises(RetryAfter):  # noqa: PT012
            async with connection.transaction():
                await connection.execute("SELECT * FROM payments")
                await postgres.pay(context(), number=1)
                await affinity.once(context(2), connection, Receipt).__aenter__()
        async with affinity.once(context(2), connection, Receipt) as step:
            assert (step.is_recorded, step.result) == (True, Receipt(number=1))


async def test_a_lock_of_another_is_no_failure(file: Shop, postgres: Shop) -> None:
    with file.plain() as run:
        run("BEGIN IMMEDIATE")
        for attempt in (1, 2):
            with pytest.raises(RetryAfter):
                await file.pay(context(attempt))
        run("ROLLBACK")
    async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
        await connection.execute("SET lock_timeout = 10")
        await connection.commit()

        async def within() -> None:
            with pytest.raises(RetryAfter):
                await affinity.once(context(2), connection).__aenter__()

        await postgres.pay(context(), within=within)
    assert (file.paid(), postgres.paid()) == ([], ["a"])


async def test_an_autocommit_connection_has_a_transaction_for_the_block(postgres: Shop, file: Shop) -> None:
    path = file.url.removeprefix("sqlite:///")
    with (
        psycopg.connect(postgres.url, autocommit=True) as connection,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        with pytest.raises(Down), affinity.once(context(), connection, Receipt):  # noqa: PT012
            connection.execute(PAY)
            raise Down
        with pytest.raises(Down), affinity.once(context(), other, Receipt):  # noqa: PT012
            other.execute(PAY)
            raise Down
    assert (postgres.paid(), file.paid()) == ([], [])


@pytest.mark.parametrize("how", ["engine", "options"])
def test_autocommit_of_sqlalchemy_is_refused(postgres: Shop, file: Shop, how: str) -> None:
    for url in (postgres.url.replace("postgresql:", "postgresql+psycopg:"), file.url):
        engine = sqlalchemy.create_engine(url, **({"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}))
        chosen = engine if how == "engine" else engine.execution_options(isolation_level="AUTOCOMMIT")
        with chosen.connect() as connection, pytest.raises(OnceMisuse, match="AUTOCOMMIT"):
            affinity.once(context(), connection).__enter__()
        with chosen.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT 1"))
            with pytest.raises(OnceMisuse, match="AUTOCOMMIT"):
                affinity.once(context(), connection).__enter__()
        engine.dispose()
    assert (postgres.rows(), file.rows()) == ([], [])


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_block_that_ends_its_transaction_is_refused(file: Shop, ending: str, joined: bool) -> None:
    """What it has committed by itself is not done again."""
    ctx = context()
    with closing(sqlite3.connect(file.url.removeprefix("sqlite:///"))) as connection:
        if joined:
            connection.execute("INSERT INTO payments (reference) VALUES ('before')")
        with pytest.raises(OnceMisuse, match="by itself"), affinity.once(ctx, connection) as step:  # noqa: PT012
            connection.execute(PAY)
            getattr(connection, ending)()
            connection.execute("INSERT INTO payments (reference) VALUES ('b')")
            step.result = 1
        assert not connection.in_transaction
    before = ["before"] if joined else []
    if ending == "rollback":
        assert (file.paid(), file.rows()) == ([], [])
        return
    assert (file.paid(), file.rows()) == (["a", *before], [("", 1, "")])
    with closing(sqlite3.connect(file.url.removeprefix("sqlite:///"))) as connection:
        for again in (ctx, context(2)):
            with pytest.raises(OnceMisuse, match="find out"):
                affinity.once(again, connection).__enter__()


def test_psycopg_refuses_to_commit_in_a_block(postgres: Shop) -> None:
    refused = pytest.raises(psycopg.ProgrammingError, match="commit")
    with psycopg.connect(postgres.url) as connection, refused, affinity.once(context(), connection) as step:
        connection.execute(PAY)
        connection.commit()
        step.result = 1
    assert (postgres.paid(), postgres.rows()) == ([], [])


def test_a_rollback_of_psycopg_ends_in_the_block(postgres: Shop) -> None:
    with psycopg.connect(postgres.url) as connection:
        with affinity.once(context(), connection) as step:
            connection.execute(PAY)
            raise psycopg.Rollback
        assert step.result is None
    assert (postgres.paid(), postgres.rows()) == ([], [])


def test_a_loop_of_the_application_may_try_again(postgres: Shop) -> None:
    """In one attempt of the activity, when the transaction was rolled back after the block."""
    ctx = context()
    with psycopg.connect(postgres.url) as connection:
        for number in range(3):
            with connection.transaction(force_rollback=number < 2), affinity.once(ctx, connection, int) as step:
                if not step.is_recorded:
                    connection.execute(PAY)
                    step.result = number
    assert (postgres.paid(), postgres.rows()) == (["a"], [("", 1, "2")])


async def test_what_is_no_connection_is_refused(file: Shop) -> None:
    for other in (None, file, "postgresql://", object()):
        with pytest.raises(OnceMisuse, match="once takes a connection of psycopg"):
            affinity.once(context(), other)  # type: ignore[call-overload]
    engine: Any = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(OnceMisuse, match="AsyncEngine"):
        affinity.once(context(), engine)
    async with aiosqlite.connect(":memory:") as connection:
        with pytest.raises(OnceMisuse, match="context of an activity"):
            affinity.once("pay", connection)  # type: ignore[call-overload]


@pytest.mark.parametrize("where", ["file", "postgres"])
def test_old_rows_are_removed_in_batches(
    request: pytest.FixtureRequest, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop: Shop = request.getfixturevalue(where)
    monkeypatch.setattr("affinity.effects.table.BATCH", 2)
    create_table(shop.url)  # is there already
    ages = [0.0, 1.9, 2.1, 3, 4, 5, 6]
    ago = {"file": "strftime('%Y-%m-%d %H:%M:%f', 'now', '-{} days')", "postgres": "now() - make_interval(hours => {})"}
    with shop.plain() as run:
        for age in ages:
            at = ago[where].format(age if where == "file" else int(age * 24))
            run(
                "INSERT INTO affinity_once (work, name, instance_id, activity, attempt, result, written_at) "
                f"VALUES ('{age}', '', 'i', 'a', 1, '1', {at})"
            )
    counts: list[int] = []
    assert delete_older_than(shop.url, 2 * 86_400.0, counts.append) == 5
    assert (counts, len(shop.rows())) == ([2, 4, 5], 2)
    with pytest.raises(InvalidOptions, match="at least"):
        delete_older_than(shop.url, 86_399)
    with shop.plain() as run:
        run("DROP TABLE affinity_once")
    with pytest.raises(SchemaMismatch):
        delete_older_than(shop.url, 86_400)


def test_a_database_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/none/shop.db", "postgresql://localhost:1/shop?connect_timeout=2"):
        with pytest.raises(ConnectionLost):
            create_table(url)
    with pytest.raises(InvalidUrl, match="postgresql"):
        create_table("mysql://localhost/shop")
