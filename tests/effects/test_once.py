"""Blocks of `affinity.once` on each library and database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import affinity
from affinity.errors import LateAttempt, NotSerializable, OnceMisuse, SchemaMismatch, TransactionFailed
from affinity.orchestration.signals import ActivityCancelledSignal
from tests.conftest import Servers
from tests.effects.shops import KINDS, Connected, Receipt, Shop, context, done, entered, open_shop, pay_on


@pytest.fixture(params=KINDS)
def shop(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """A shop of each kind, with empty tables."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # applications run it in threads
    kind, _, engine = request.param.partition("-")
    with ExitStack() as stack:
        if engine == "sqlite":
            url = f"sqlite:///{tmp_path}/shop.db"
        else:
            server = servers.server(engine)
            name = server.create_database()
            stack.callback(server.drop_database, name)
            url = server.url(name)
        yield open_shop(kind, url)


class Down(Exception):
    """Something fails in a block."""


async def down() -> None:
    raise Down


async def test_a_later_attempt_gets_the_result_and_runs_nothing(shop: Shop) -> None:
    assert await shop.pay(context(), number=5) == Receipt(number=5)
    assert await shop.pay(context(attempt=2), number=6) == Receipt(number=5)
    assert shop.paid() == ["a"]
    assert [(attempt, result) for _, attempt, result in shop.rows()] == [(1, '{"number":5}')]


async def test_a_block_that_fails_leaves_nothing_and_the_next_attempt_runs(shop: Shop) -> None:
    with pytest.raises(Down):
        await shop.pay(context(), within=down)
    assert (shop.paid(), shop.rows()) == ([], [])
    with pytest.raises(Down):
        await shop.pay(context(attempt=2), within=down)
    assert (shop.paid(), shop.rows()) == ([], [("", 2, None)])
    await shop.pay(context(attempt=3), "b", number=7)
    assert (shop.paid(), shop.rows()) == (["b"], [("", 3, '{"number":7}')])


async def test_an_attempt_that_is_late_is_refused_after_a_later_one_has_failed(shop: Shop) -> None:
    late = context()
    with pytest.raises(Down):
        await shop.pay(context(attempt=2), within=down)
    with pytest.raises(LateAttempt, match="attempt 1"):
        await shop.pay(late)
    assert shop.paid() == []


async def test_a_transaction_that_has_failed_is_refused_with_its_remedy(shop: Shop) -> None:
    """Rolled back, it takes the block. SQLite goes on after a statement that has failed."""
    if shop.url.startswith("sqlite"):
        pytest.skip("its transactions go on")
    async with shop.connect() as connected:
        with _transaction(shop):
            await _fail(connected)
            with pytest.raises(TransactionFailed, match="savepoint"):
                await pay_on(connected, context())
        await done(connected.rollback())
    async with shop.connect() as connected:
        await pay_on(connected, context())
        await done(connected.commit())
    assert shop.paid() == ["a"]


async def test_a_block_whose_transaction_has_failed_is_undone_and_says_so(shop: Shop) -> None:
    if shop.url.startswith("sqlite"):
        pytest.skip("its transactions go on")
    async with shop.connect() as connected:
        with pytest.raises(TransactionFailed, match="savepoint"):
            await pay_on(connected, context(), within=lambda: _fail(connected))
        await pay_on(connected, context(), "b")  # the connection is as it was
        await done(connected.commit())
    assert shop.paid() == ["b"]


async def _fail(connected: Connected) -> None:
    """Have a statement fail, and catch its error."""
    try:
        await done(connected.execute("INSERT INTO payments (reference) VALUES (NULL)"))
    except Exception:
        return
    raise AssertionError("the column may not be NULL")


@contextmanager
def _transaction(shop: Shop) -> Iterator[None]:
    """Of Django, which begins none by a statement."""
    if shop.kind != "django":
        yield
        return
    from django.db import transaction

    with transaction.atomic(using="shop"):
        yield
        transaction.set_rollback(True, using="shop")


async def test_in_an_open_transaction_the_block_commits_with_it(shop: Shop) -> None:
    if shop.kind == "django":
        pytest.skip("its transactions are blocks: below")
    async with shop.connect() as connected:
        await done(connected.execute("INSERT INTO payments (reference) VALUES ('before')"))
        await pay_on(connected, context())
        await done(connected.rollback())
    assert (shop.paid(), shop.rows()) == ([], [])
    async with shop.connect() as connected:
        await done(connected.execute("INSERT INTO payments (reference) VALUES ('before')"))
        with pytest.raises(Down):  # undone alone
            await pay_on(connected, context(), within=down)
        await pay_on(connected, context(), "b")
        await done(connected.commit())
    assert (shop.paid(), len(shop.rows())) == (["b", "before"], 1)


async def test_a_transaction_that_has_only_read_is_open_too(shop: Shop) -> None:
    if shop.kind in {"django", "sqlite3", "aiosqlite"}:
        pytest.skip("a statement that reads begins no transaction there")
    async with shop.connect() as connected:
        await done(connected.execute("SELECT 1"))
        await pay_on(connected, context())
        assert shop.rows() == []
        await done(connected.commit())
    assert (shop.paid(), len(shop.rows())) == (["a"], 1)


async def test_each_block_of_an_activity_has_a_name(shop: Shop) -> None:
    for attempt in (1, 2):
        ctx = context(attempt)
        assert await shop.pay(ctx, "debit", name="debit", number=1) == Receipt(number=1)
        assert await shop.pay(ctx, "credit", name="credit", number=2) == Receipt(number=2)
    assert shop.paid() == ["credit", "debit"]
    ctx = context(activity_id=9)
    await shop.pay(ctx, "first")
    with pytest.raises(OnceMisuse, match="give each block of an activity a name"):
        await shop.pay(ctx, "second")
    assert shop.paid() == ["credit", "debit", "first"]


async def test_other_work_has_a_row_of_its_own(shop: Shop) -> None:
    others: list[dict[str, Any]] = [
        {"instance_generation": "h"},
        {"execution_id": 2},
        {"activity_id": 3},
        {"name": "pay2"},
        {"_input": "1"},
    ]
    for number, other in enumerate([{}, *others]):
        await shop.pay(context(**other), str(number))
    assert shop.paid() == ["0", "1", "2", "3", "4", "5"]


async def test_blocks_within_blocks(shop: Shop) -> None:
    async with shop.connect() as connected:
        ctx = context()
        async with entered(affinity.once(ctx, connected.raw, str, name="outer")) as outer:
            await pay_on(connected, ctx, "inner", name="inner")
            with pytest.raises(Down):
                await pay_on(connected, ctx, "other", name="other", within=down)
            with pytest.raises(OnceMisuse, match="name"):
                await pay_on(connected, ctx, "again", name="inner")
            outer.result = "done"
    assert (shop.paid(), [name for name, *_ in shop.rows()]) == (["inner"], ["inner", "outer"])


async def test_none_needs_a_look(shop: Shop) -> None:
    async with shop.connect() as connected:
        with pytest.raises(OnceMisuse, match="is_recorded"):  # noqa: PT012
            async with entered(affinity.once(context(), connected.raw)) as step:
                if step.result is None:
                    await done(connected.execute("INSERT INTO payments (reference) VALUES ('a')"))
        for attempt in (1, 2):
            async with entered(affinity.once(context(attempt), connected.raw)) as step:
                if not step.is_recorded:
                    await done(connected.execute("INSERT INTO payments (reference) VALUES ('b')"))
    assert (shop.paid(), shop.rows()) == (["b"], [("", 1, "null")])


async def test_a_block_without_a_look_is_undone(shop: Shop) -> None:
    await shop.pay(context())
    async with shop.connect() as connected:
        with pytest.raises(OnceMisuse, match="has run again"):  # noqa: PT012
            async with entered(affinity.once(context(2), connected.raw, Receipt)) as step:
                await done(connected.execute("INSERT INTO payments (reference) VALUES ('b')"))
                step.result = Receipt(number=2)
    assert shop.paid() == ["a"]


async def test_a_result_of_another_type_is_refused(shop: Shop) -> None:
    async with shop.connect() as connected:
        with pytest.raises(NotSerializable, match="result of once"):  # noqa: PT012
            async with entered(affinity.once(context(), connected.raw, Receipt)) as step:
                await done(connected.execute("INSERT INTO payments (reference) VALUES ('a')"))
                step.result = "five"
    assert (shop.paid(), shop.rows()) == ([], [])


async def test_a_cancelled_attempt_is_refused_before_and_after(shop: Shop) -> None:
    ctx = context()

    async def cancel() -> None:
        ctx._cancel("its lease has ended")

    for _ in range(2):
        with pytest.raises(ActivityCancelledSignal, match="lease"):
            await shop.pay(ctx, within=cancel)
    assert (shop.paid(), shop.rows()) == ([], [])
    ended = context()
    ended._close()
    with pytest.raises(ActivityCancelledSignal):
        await shop.pay(ended)


async def test_without_the_table_the_error_says_what_to_do(shop: Shop) -> None:
    with shop.plain() as run:
        run("DROP TABLE affinity_once")
    with pytest.raises(SchemaMismatch, match="affinity once-table"):
        await shop.pay(context())
    assert shop.paid() == []
