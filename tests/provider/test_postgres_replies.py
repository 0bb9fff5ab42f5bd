"""PostgreSQL: plans of the statements on keys and replies, and what concurrent ones do to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import psycopg
import pytest

from affinity.provider.contract import MessageKey, MessageReply, NewMessage
from tests.provider.postgres_plans import MANY, Crowd, check_plans, crowd_tables, each_crowd
from tests.provider.postgres_stage import PATIENCE, SOMEBODY_WAITS, administrator, opened, registered, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def admin(postgres_migrated: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection to the test's database."""
    with administrator(postgres_migrated) as connection:
        yield connection


def keyed(key: str, instance_id: str = "i", limit: int = 100) -> NewMessage:
    return NewMessage(instance_id=instance_id, payload="m", unread_limit=limit, key=key)


@pytest.mark.slow
@each_crowd
async def test_statements_on_keys_read_what_they_need(
    postgres_migrated: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, crowd: Crowd
) -> None:
    """Among 20,000 keys of other instances and 20,000 of the same one, with statistics and without."""
    async with opened(postgres_migrated) as provider:
        peer = await registered(provider)
        at = await peer.own("i")
        crowd_tables(admin, crowd)
        for instance, generation in (("'x' || i", "''"), ("'i'", "%s")):
            admin.execute(
                f"INSERT INTO message_keys SELECT {instance}, {generation}, 'key' || i, '1', clock()"
                f" FROM generate_series(1, {MANY}) i",
                [at.generation] if "%s" in generation else None,
            )
        if crowd != "unknown":
            admin.execute("VACUUM ANALYZE")
        async with check_plans(postgres_migrated, monkeypatch) as (watched, check):
            mine = replace(peer, provider=watched)
            messages = [
                keyed("key7"),
                keyed("new"),
                keyed("new"),
                keyed("key7", "x7"),
                keyed("k", "none"),
                keyed("l", limit=1),
            ]
            sent = await check(partial(watched.send_message, messages))
            assert list(sent) == ["repeated", "delivered", "repeated", "delivered", "unknown", "full"]
            wanted = [MessageKey("i", "key7"), MessageKey("i", "new"), MessageKey("none", "k")]
            found = await check(partial(watched.get_replies, wanted))
            assert [one and one.reply for one in found] == ["1", None, None]
            replies = [MessageReply("new", "2"), MessageReply("older", "3")]
            assert (await check(partial(mine.commit_one, at, replies=replies))).committed
            await check(partial(watched.delete_instance, ["x7"], force=True))
        assert admin.execute("SELECT count(*) FROM message_keys WHERE instance_id = 'x7'").fetchone() == (0,)


async def test_a_message_with_a_key_waits_for_no_turn(postgres_migrated: str, admin: psycopg.Connection[Any]) -> None:
    """Which has the instance's row locked."""
    async with opened(postgres_migrated) as provider:
        await (await registered(provider)).own("i")
        with admin.transaction(), anyio.fail_after(PATIENCE):
            admin.execute("UPDATE instances SET event_count = event_count + 1 WHERE instance_id = 'i'")
            assert list(await provider.send_message([keyed("k")])) == ["delivered"]


async def test_a_deletion_waits_for_the_message_and_removes_its_key(
    postgres_migrated: str, admin: psycopg.Connection[Any]
) -> None:
    """A key that is added at the same time would stay forever."""
    async with opened(postgres_migrated) as provider, opened(postgres_migrated) as other:
        await (await registered(provider)).own("i")
        with administrator(postgres_migrated) as sender, anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                with sender.transaction():
                    sender.execute(
                        "SELECT send_keyed_messages(ARRAY['i'], ARRAY[NULL], ARRAY['m'], ARRAY[0.0::float8],"
                        " ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[100::bigint], ARRAY['k'])"
                    )
                    tasks.start_soon(partial(other.delete_instance, ["i"], force=True))
                    await until(admin, SOMEBODY_WAITS)
        assert admin.execute("SELECT count(*) FROM message_keys").fetchone() == (0,)
        assert await provider.get_replies([MessageKey("i", "k")]) == [None]
