"""LangGraph's own suite for checkpointers, in full, and what it does not ask."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import (
    ALL_CAPABILITIES,
    BASE_CAPABILITIES,
    EXTENDED_CAPABILITIES,
    Capability,
)
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import INTERRUPT
from psycopg import sql

from affinity.errors import AccessDenied, ConnectionLost, InvalidId, InvalidOptions, InvalidUrl, SchemaMismatch
from affinity.integrations.langgraph import AffinitySaver, AffinityStore, ThreadConflict, checkpointer
from affinity.integrations.langgraph.threads import TABLES
from tests.conftest import Servers
from tests.integrations.langgraph.graphs import chain, says
from tests.provider.roles import plain_role

pytestmark = pytest.mark.anyio


async def test_the_suite_passes_in_full(url: str) -> None:
    """All capabilities that it knows, base and extended, none skipped."""

    @checkpointer_test(name="AffinitySaver")
    async def checkpointers() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        with AffinitySaver(url) as saver:
            yield saver

    report = await validate(checkpointers)
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {name for name, result in report.results.items() if result.passed} == {each.value for each in Capability}
    assert report.conformance_level() == "FULL"
    assert BASE_CAPABILITIES | EXTENDED_CAPABILITIES == ALL_CAPABILITIES == {*Capability}
    passed = {name: result.tests_passed for name, result in report.results.items()}
    assert sum(passed[each.value] for each in BASE_CAPABILITIES) >= 58
    assert sum(passed[each.value] for each in EXTENDED_CAPABILITIES) >= 23


def put(saver: AffinitySaver, thread: str, parent: str | None = None, ns: str = "", **metadata: Any) -> str:
    checkpoint = generate_checkpoint(channel_values={"x": len(metadata)}, channel_versions={"x": 1})
    config = generate_config(thread, checkpoint_ns=ns, checkpoint_id=parent)
    saver.put(config, checkpoint, generate_metadata(**metadata), {"x": 1})
    return checkpoint["id"]


def ids(found: list[CheckpointTuple]) -> list[str]:
    return [each.checkpoint["id"] for each in found]


async def test_the_sync_form_and_the_async_form_are_one(saver: AffinitySaver) -> None:
    thread = str(uuid4())
    config = generate_config(thread)
    first = put(saver, thread)
    second = put(saver, thread, first)
    saver.put_writes(generate_config(thread, checkpoint_id=second), [("x", 1), (INTERRUPT, "why")], "task", "path")
    assert saver.get_tuple(config) == await saver.aget_tuple(config)
    assert list(saver.list(config)) == [each async for each in saver.alist(config)]
    found = saver.get_tuple(config)
    assert found is not None
    assert sorted(found.pending_writes or [], key=str) == [("task", INTERRUPT, "why"), ("task", "x", 1)]
    assert found.config["configurable"].keys() == {"thread_id", "checkpoint_ns", "checkpoint_id"}


def test_writes_of_tasks_come_in_the_order_of_their_paths(saver: AffinitySaver) -> None:
    """As a run applies them; not by the ids of the tasks, and not in the order in which they were stored."""
    thread = str(uuid4())
    config = generate_config(thread, checkpoint_id=put(saver, thread))
    for task, path in (("a", "~2"), ("c", "~1"), ("b", "~1")):
        saver.put_writes(config, [("x", f"{task}0"), ("x", f"{task}1")], task, path)
    found = saver.get_tuple(config)
    assert found is not None
    assert [value for _, _, value in found.pending_writes or []] == ["b0", "b1", "c0", "c1", "a0", "a1"]


def test_a_result_that_is_stored_again_stays_and_an_error_is_replaced(saver: AffinitySaver) -> None:
    thread = str(uuid4())
    config = generate_config(thread, checkpoint_id=put(saver, thread))
    for value in ("first", "second"):
        saver.put_writes(config, [("x", value), (INTERRUPT, value)], "task")
    found = saver.get_tuple(config)
    assert found is not None
    assert {channel: value for _, channel, value in found.pending_writes or []} == {"x": "first", INTERRUPT: "second"}


def test_a_checkpoint_that_is_put_again_replaces_itself(saver: AffinitySaver) -> None:
    """As after a lost answer of the database."""
    thread = str(uuid4())
    checkpoint = generate_checkpoint()
    for step in (1, 2):
        saver.put(generate_config(thread), checkpoint, generate_metadata(step=step), {})
    (found,) = saver.list(generate_config(thread))
    assert found.metadata["step"] == 2


def test_a_long_thread_is_listed_in_pages(saver: AffinitySaver) -> None:
    thread, made = str(uuid4()), list[str]()
    for step in range(230):
        made.append(put(saver, thread, made[-1] if made else None, step=step))
    config = generate_config(thread)
    assert ids(list(saver.list(config))) == made[::-1]
    assert ids(list(saver.list(config, limit=150))) == made[:79:-1]
    assert ids(list(saver.list(config, filter={"step": 3}))) == [made[3]]
    assert list(saver.list(config, limit=0)) == []


def test_threads_are_listed_together(saver: AffinitySaver) -> None:
    threads = sorted(str(uuid4()) for _ in range(2))
    made = [put(saver, thread, run_id=threads[0]) for thread in threads]
    assert ids(list(saver.list(None, filter={"run_id": threads[0]}))) == made[::-1]


def test_pruning_keeps_what_a_delta_channel_is_made_of(saver: AffinitySaver) -> None:
    """The checkpoints back to the last one that has its whole value."""
    thread, made = str(uuid4()), list[str]()
    for step, values in enumerate([{}, {"log": "whole"}, {}, {}]):
        checkpoint = generate_checkpoint(channel_values=values, channel_versions={"log": step + 1})
        counters = {} if values else {"log": (1, 1)}
        metadata = generate_metadata(step=step, counters_since_delta_snapshot=counters)
        parent = made[-1] if made else None
        saver.put(generate_config(thread, checkpoint_id=parent), checkpoint, metadata, {})
        made.append(checkpoint["id"])
    saver.put_writes(generate_config(thread, checkpoint_id=made[1]), [("log", "and more")], "task")
    saver.prune([thread])
    assert ids(list(saver.list(generate_config(thread)))) == made[:0:-1]
    history = saver.get_delta_channel_history(config=generate_config(thread), channels=["log"])
    assert history["log"].get("seed") == "whole"
    assert [write[2] for write in history["log"]["writes"]] == ["and more"]


def test_a_thread_is_copied_again_without_a_change_but_not_over_another_one(saver: AffinitySaver) -> None:
    source, target, full = (str(uuid4()) for _ in range(3))
    put(saver, source)
    put(saver, full)
    saver.copy_thread(source, target)
    saver.copy_thread(source, target)
    saver.copy_thread(source, source)
    assert ids(list(saver.list(generate_config(target)))) == ids(list(saver.list(generate_config(source))))
    with pytest.raises(ThreadConflict, match="has checkpoints of its own"):
        saver.copy_thread(source, full)
    assert len(list(saver.list(generate_config(full)))) == 1


@pytest.mark.parametrize(("current", "following"), [(None, 1), (7, 8)])
def test_versions_are_numbers(saver: AffinitySaver, current: int | None, following: int) -> None:
    assert saver.get_next_version(current, None) == following


def test_versions_of_other_checkpointers_go_on(saver: AffinitySaver) -> None:
    """Their threads can be copied into a database of this one."""
    version = f"{41:032}.{0.5:016}"
    assert version < saver.get_next_version(version, None) < saver.get_next_version(f"{42:032}.9", None)


@pytest.mark.parametrize("thread", ["", "x" * 257, "a\0b", "\ud800"])
def test_an_id_that_cannot_be_stored_is_refused(saver: AffinitySaver, thread: str) -> None:
    with pytest.raises(InvalidId, match="thread id"):
        saver.get_tuple(generate_config(thread) if thread else {"configurable": {"thread_id": ""}})
    with pytest.raises(InvalidId):
        saver.delete_thread(thread)


def test_misuse_is_refused(url: str, saver: AffinitySaver) -> None:
    with pytest.raises(InvalidOptions, match="thread_id"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(InvalidOptions, match="checkpoint_id"):
        saver.put_writes(generate_config("t"), [("x", 1)], "task")
    with pytest.raises(InvalidOptions, match="keep_latest or delete"):
        saver.prune([], strategy="all")
    with pytest.raises(InvalidOptions, match="at least one"):
        AffinitySaver(url, connections=0)
    with pytest.raises(InvalidUrl):
        AffinitySaver("mysql://localhost/x")


def test_a_saver_that_nobody_closes_closes_its_connections_itself(url: str) -> None:
    """A graph of a module lives as long as its program."""
    saver = AffinitySaver(url)
    saver.setup()
    drivers = saver._database._drivers
    assert len(drivers) == 1
    del saver
    gc.collect()
    assert drivers == []


async def test_tables_of_a_later_release_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written to them."""
    with AffinitySaver(url) as saver:
        await saver.asetup()
    monkeypatch.setattr(checkpointer, "TABLES", replace(TABLES, version=0))
    with (
        AffinitySaver(url) as saver,
        pytest.raises(SchemaMismatch, match="version 1, and this release knows version 0"),
    ):
        put(saver, str(uuid4()))


def test_savers_that_start_together_make_the_tables_once(tmp_path: Path, servers: Servers) -> None:
    """On a database without them."""
    server = servers.server("new")
    name = server.create_database()
    for place in (f"sqlite:///{tmp_path / 'new.db'}", server.url(name)):
        savers = [AffinitySaver(place) for _ in range(6)]
        with ThreadPoolExecutor(len(savers)) as pool:
            made = [*pool.map(lambda saver: put(saver, str(uuid4())), savers)]
        assert {*ids(list(savers[0].list(None)))} == {*made}
        for saver in savers:
            saver.close()
    server.drop_database(name)


def test_a_database_that_is_not_there_is_an_error_of_a_provider(tmp_path: Path) -> None:
    for place in (f"sqlite:///{tmp_path / 'missing' / 'x.db'}", "postgresql://u@127.0.0.1:9/x"):
        with AffinitySaver(place) as saver, pytest.raises(ConnectionLost):
            saver.get_tuple(generate_config("t"))


def test_the_url_of_workers_leads_past_a_pooler(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose sessions would lose settings and prepared statements; ``schema=`` is affinity's."""
    server = servers.server("new")
    name = server.create_database()
    direct, pooler = server.url(name), "postgresql://u@127.0.0.1:9/x"
    quoted = f"{pooler}?connect_timeout=2&direct={quote(f'{direct}?schema=other', safe='')}&schema=other"
    for number, place in enumerate((quoted, f"{direct}?schema=other", pooler)):
        monkeypatch.setenv("AFFINITY_URL", pooler)
        monkeypatch.setenv("AFFINITY_DIRECT_URL", f"{direct}?application_name=threads")
        with AffinitySaver(place) as saver:
            found = put(saver, f"t{number}")
            assert found in ids(list(saver.list(None)))
    server.drop_database(name)


class Xor:
    """A cipher for a test."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """The name of the cipher, and the bytes."""
        return "xor", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """The bytes."""
        return self.encrypt(ciphertext)[1]


async def test_with_an_encrypted_serializer_no_value_and_no_metadata_is_in_the_clear(tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "t"}, "metadata": {"who": "a secret"}}
    with AffinitySaver(f"sqlite:///{tmp_path / 'x.db'}", serde=EncryptedSerializer(Xor())) as saver:
        graph = chain(saver, first=says("one secret"), second=says("two secrets"))
        assert (await graph.ainvoke({"said": ["in secret"]}, config))["said"] == [
            "in secret",
            "one secret",
            "two secrets",
        ]
        found = [each async for each in saver.alist(config, filter={"who": "a secret"})]
        assert len(found) == 4
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"thread_id" in stored
    assert b"secret" not in stored


def test_a_role_with_four_rights_on_the_tables(servers: Servers) -> None:
    """Another role makes the tables. Without them the error says what to do."""
    server = servers.server("new")
    name = server.create_database()
    owner = server.url(name)
    with psycopg.connect(owner, autocommit=True) as admin, plain_role(admin) as role:
        url = owner.replace("postgres@", f"{role}@")
        with AffinitySaver(url) as saver, AffinityStore(url) as store:
            with pytest.raises(AccessDenied, match=r"call `AffinitySaver\(url\).setup\(\)` once"):
                put(saver, "t")
            with AffinitySaver(owner) as privileged:
                privileged.setup()
            found = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'affinity_langgraph_%'"
            for (table,) in admin.execute(found).fetchall():
                grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}")
                admin.execute(grant.format(sql.Identifier(table), sql.Identifier(role)))
            checkpoint = put(saver, "t")
            saver.put_writes(generate_config("t", checkpoint_id=checkpoint), [("x", 2)], "task")
            saver.copy_thread("t", "copy")
            saver.delete_thread("t")
            assert len(list(saver.list(None))) == 1
            store.put(("a",), "key", {"n": 1})
            store.delete(("a",), "key")
            assert store.search(("a",)) == []
    server.drop_database(name)
