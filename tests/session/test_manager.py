"""Managing records: in the memory of the test, in an SQLite file, in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from affinity import Client, SessionManager, migrate, open_store
from affinity.errors import (
    ClientError,
    InvalidId,
    InvalidInput,
    SessionAmbiguous,
    SessionLoadFailed,
    SessionNotFound,
    SessionWriteConflict,
)
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_PAGE
from affinity.provider.contract import Incarnation, WorkerIdentity
from affinity.session import SessionFilter, SessionState, readable
from affinity.session.stores import MemorySessionStore
from affinity_conformance.providers.builders import profile
from tests.client.conftest import Puppet
from tests.session.clocked import ClockedStore

DAY = 86_400.0
ODD_IDS = (
    "a/b",
    "ab",
    "..",
    "%",
    "_",
    "*",
    "茶" * 85,
    "a" * 256,
    "' OR 1=1 --",
    "Ab",
    "aB",
    "a b",
    "\N{COMBINING ACUTE ACCENT}",
)


# --- looking ----------------------------------------------------------------------------------------------------------


async def test_list_gives_all_pages_newest_first(stage: ClockedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("affinity.session.removal.MAX_PAGE", 2)
    for number in range(5):
        await stage.put(f"s{number}", kind="chat" if number % 2 else "plan")
    assert await stage.ids() == ["s4", "s3", "s2", "s1", "s0"]
    assert await stage.ids(kind="chat") == ["s3", "s1"]
    assert await stage.ids(kind="other") == []


async def test_a_page_ends_with_the_cursor_of_the_next(stage: ClockedStore) -> None:
    for number in range(3):
        await stage.put(f"s{number}")
    first = await stage.manager.list().page(limit=2)
    assert [row.session_id for row in first.items] == ["s2", "s1"]
    second = await stage.manager.list().page(first.next, limit=2)
    assert ([row.session_id for row in second.items], second.next) == (["s0"], None)
    for limit in (0, -1, MAX_PAGE + 1):
        with pytest.raises(InvalidInput, match="limit"):
            await stage.manager.list().page(limit=limit)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="idle_for"):
            await stage.ids(idle_for=seconds)


async def test_resolve_by_the_whole_id_or_a_unique_beginning(stage: ClockedStore) -> None:
    for session_id in ("chat", "chat-17", "chat-18", "plan-1"):
        await stage.put(session_id)
    resolve = stage.manager.resolve
    assert await resolve("chat") == "chat", "a whole id wins over the ids that it begins"
    assert await resolve("chat-17") == "chat-17"
    assert await resolve("p") == "plan-1"
    with pytest.raises(SessionAmbiguous, match="'chat-17', 'chat-18'; give more") as refusal:
        await resolve("chat-")
    assert (refusal.value.prefix, refusal.value.candidates) == ("chat-", ["chat-17", "chat-18"])
    with pytest.raises(SessionNotFound, match="'plan-11'"):
        await resolve("plan-11")
    for bad in ("", "a\nb", "x" * 257):
        with pytest.raises(InvalidId):
            await resolve(bad)


async def test_any_valid_id_is_distinct(stage: ClockedStore) -> None:
    for number, session_id in enumerate(ODD_IDS):
        await stage.put(session_id, str(number).encode())
    for number, session_id in enumerate(ODD_IDS):
        assert readable(await stage.manager.show(session_id))["state"] == number
    with pytest.raises(SessionNotFound):
        await stage.manager.resolve("%%")
    assert await stage.manager.delete("..") == [".."]
    assert sorted(await stage.ids()) == sorted(set(ODD_IDS) - {".."})


async def test_show_gives_a_readable_state(stage: ClockedStore) -> None:
    long = json.dumps(["tea"] * COMPRESS_STATE_ABOVE).encode()
    await stage.put("json", b'{"topic":"Tee gr\xc3\xbcn"}', kind="chat", name="Tea", labels={"team": "a"}, parent="top")
    await stage.put("packed", long, schema_version=3)
    await stage.put("binary", b"\x00\xff")
    shown = readable(await stage.manager.show("js"))
    assert (shown["state"], shown["kind"], shown["name"], shown["labels"]) == (
        {"topic": "Tee grün"},
        "chat",
        "Tea",
        {"team": "a"},
    )
    assert (shown["parent"], shown["schema_version"], shown["version"]) == ("top", 1, 1)
    packed = await stage.manager.show("packed")
    assert packed.encoding == "zlib"
    assert readable(packed)["state"] == ["tea"] * COMPRESS_STATE_ABOVE
    binary = readable(await stage.manager.show("binary"))
    assert binary["state_base64"] == "AP8="
    assert "state" not in binary


async def test_a_damaged_state_is_reported_with_its_session(stage: ClockedStore) -> None:
    await stage.store.save(SessionState(session_id="broken", state=b"no zlib", encoding="zlib"))
    with pytest.raises(SessionLoadFailed, match=r"'broken'.*damaged"):
        readable(await stage.manager.show("broken"))


# --- delete -----------------------------------------------------------------------------------------------------------


async def a_family(stage: ClockedStore) -> None:
    for session_id, parent in (("top", None), ("kid", "top"), ("grandkid", "kid"), ("other", None), ("odd", "gone")):
        await stage.put(session_id, parent=parent)


async def test_delete_removes_the_children_and_returns_them(stage: ClockedStore) -> None:
    await a_family(stage)
    would = await stage.manager.delete("top", dry_run=True)
    assert (would[0], sorted(would)) == ("top", ["grandkid", "kid", "top"])
    assert len(await stage.ids()) == 5
    assert sorted(await stage.manager.delete("top")) == sorted(would)
    assert sorted(await stage.ids()) == ["odd", "other"]


async def test_a_repeated_delete_takes_no_other_session(stage: ClockedStore) -> None:
    """The id of the second begins with the id of the first, which is gone after the first call."""
    for session_id in ("customer-1", "customer-17"):
        await stage.put(session_id)
    assert await stage.manager.delete("customer-1") == ["customer-1"]
    for dry_run in (True, False):
        with pytest.raises(SessionNotFound, match=r"'customer-1'.*whole ids"):
            await stage.manager.delete("customer-1", dry_run=dry_run)
    assert await stage.ids() == ["customer-17"]


async def test_delete_takes_a_beginning_where_that_is_asked_for(stage: ClockedStore) -> None:
    for session_id in ("chat-17", "chat-18", "plan-1"):
        await stage.put(session_id)
    with pytest.raises(SessionAmbiguous, match="'chat-17', 'chat-18'"):
        await stage.manager.delete("chat", allow_prefix=True)
    assert await stage.manager.delete("plan", allow_prefix=True, dry_run=True) == ["plan-1"]
    assert await stage.manager.delete("plan", allow_prefix=True) == ["plan-1"]
    with pytest.raises(SessionNotFound):
        await stage.manager.delete("plan", allow_prefix=True)
    assert await stage.ids() == ["chat-18", "chat-17"]


async def test_delete_without_cascade_leaves_the_children(stage: ClockedStore) -> None:
    await a_family(stage)
    assert await stage.manager.delete("top", cascade=False) == ["top"]
    assert sorted(await stage.ids()) == ["grandkid", "kid", "odd", "other"]


async def test_a_missing_parent_or_no_id_deletes_nothing(stage: ClockedStore) -> None:
    await a_family(stage)
    with pytest.raises(SessionNotFound):
        await stage.manager.delete("gone")
    with pytest.raises(InvalidId):
        await stage.manager.delete("")
    assert len(await stage.ids()) == 5


# --- prune ------------------------------------------------------------------------------------------------------------


async def six_over_six_days(stage: ClockedStore) -> None:
    """s0 is the oldest; odd ones are chats of team a."""
    for number in range(6):
        await stage.put(f"s{number}", kind="chat" if number % 2 else "plan", labels={"team": "ab"[number % 2 == 0]})
        await stage.advance(DAY)


async def test_prune_by_age(stage: ClockedStore) -> None:
    await six_over_six_days(stage)
    seen = list[int]()
    would = await stage.manager.prune(older_than=4 * DAY, dry_run=True)
    assert len(await stage.ids()) == 6
    pruned = await stage.manager.prune(older_than=4 * DAY, progress=seen.append)
    assert pruned == would
    assert (sorted(pruned.removed), pruned.left, seen[-1]) == (["s0", "s1", "s2"], [], 3)
    assert await stage.ids() == ["s5", "s4", "s3"]


async def test_prune_by_count_over_pages(stage: ClockedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("affinity.session.removal.MAX_PAGE", 2)
    await six_over_six_days(stage)
    assert (await stage.manager.prune(keep=6)).removed == []
    assert (await stage.manager.prune(keep=7)).removed == []
    assert sorted((await stage.manager.prune(keep=3)).removed) == ["s0", "s1", "s2"]
    assert sorted((await stage.manager.prune(keep=0)).removed) == ["s3", "s4", "s5"]


async def test_prune_by_both_removes_only_what_is_both(stage: ClockedStore) -> None:
    await six_over_six_days(stage)
    assert (await stage.manager.prune(older_than=4 * DAY, keep=5)).removed == ["s0"]
    assert (await stage.manager.prune(older_than=5 * DAY, keep=1)).removed == ["s1"]
    assert (await stage.manager.prune(older_than=5 * DAY, keep=1)).removed == []


async def test_prune_by_either_removes_what_is_one_of_them(stage: ClockedStore) -> None:
    """In one call, and each record once; whichever of the two asks for more."""
    await six_over_six_days(stage)
    would = await stage.manager.prune(older_than=4 * DAY, keep=5, either=True, dry_run=True)
    pruned = await stage.manager.prune(older_than=4 * DAY, keep=5, either=True)
    assert sorted(would.removed) == sorted(pruned.removed) == ["s0", "s1", "s2"]
    assert (await stage.manager.prune(older_than=4 * DAY, keep=2, either=True)).removed == ["s3"]
    assert (await stage.manager.prune(older_than=4 * DAY, keep=2, either=True)).removed == []
    assert (await stage.manager.prune(keep=1, either=True)).removed == ["s4"]
    assert await stage.ids() == ["s5"]


async def three_families(stage: ClockedStore) -> None:
    """Heads of three days ago; a child of the second is of two days ago, a grandchild of the third of yesterday."""
    for name in ("old", "mid", "new"):
        await stage.put(name, kind="head", message_count=1, participants=[name, "ann"])
    await stage.put("old kid", parent="old", kind="part", message_count=4, participants=["bob"])
    await stage.put("new kid", parent="new", kind="part")
    await stage.advance(DAY)
    await stage.put("mid kid", parent="mid", kind="part", message_count=2, participants=["ann", "cy"])
    await stage.advance(DAY)
    await stage.put("new grandkid", parent="new kid", kind="part")
    await stage.advance(DAY)


async def test_prune_of_families_selects_them_by_their_newest_member(stage: ClockedStore) -> None:
    """And takes all of them: no child stays without its parent, no parent goes before its child."""
    await three_families(stage)
    assert (await stage.manager.prune(older_than=3.5 * DAY, family=True)).removed == []
    would = await stage.manager.prune(older_than=1.5 * DAY, family=True, dry_run=True)
    pruned = await stage.manager.prune(older_than=1.5 * DAY, family=True)
    assert sorted(would.removed) == sorted(pruned.removed) == ["mid", "mid kid", "old", "old kid"]
    assert sorted(await stage.ids()) == ["new", "new grandkid", "new kid"]
    assert (await stage.manager.prune(older_than=0.0, kind="part", family=True)).removed == []
    assert sorted((await stage.manager.prune(older_than=0.0, kind="head", family=True)).removed) == [
        "new",
        "new grandkid",
        "new kid",
    ]


async def test_prune_of_families_by_number(stage: ClockedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over pages; by both, and by either."""
    monkeypatch.setattr("affinity.session.removal.MAX_PAGE", 2)
    await three_families(stage)
    assert (await stage.manager.prune(keep=3, family=True)).removed == []
    assert (await stage.manager.prune(older_than=2.5 * DAY, keep=1, family=True, dry_run=True)).removed == [
        "old",
        "old kid",
    ]
    either = await stage.manager.prune(older_than=2.5 * DAY, keep=1, either=True, family=True, dry_run=True)
    assert sorted(either.removed) == ["mid", "mid kid", "old", "old kid"]
    assert sorted((await stage.manager.prune(keep=1, family=True)).removed) == ["mid", "mid kid", "old", "old kid"]
    assert sorted((await stage.manager.prune(keep=0, family=True)).removed) == ["new", "new grandkid", "new kid"]


async def test_prune_leaves_a_family_of_which_one_member_is_in_use(database: ClockedStore) -> None:
    assert database.provider is not None
    await three_families(database)
    puppet = Puppet(database.provider, WorkerIdentity(worker_id="puppet", incarnation=Incarnation("one")))
    await database.provider.register_worker(puppet.identity, 60.0, {}, profile=profile())
    async with Client.from_provider(database.provider) as client:
        await client.start("brew", instance_id="i")
        await puppet.hold("i", "new grandkid")
    pruned = await database.manager.prune(keep=0, family=True)
    assert sorted(pruned.removed) == ["mid", "mid kid", "old", "old kid"]
    assert pruned.left == ["new", "new grandkid", "new kid"]


async def test_a_family_has_the_messages_and_participants_of_all_its_members(stage: ClockedStore) -> None:
    """From the head or from a child; by a beginning of an id too."""
    await three_families(stage)
    for text in ("mid", "mid kid", "mid k"):
        family = await stage.manager.family(text)
        assert (family.head.session_id, [row.session_id for row in family.members]) == ("mid", ["mid", "mid kid"])
        assert (family.message_count, list(family.participants)) == (3, ["mid", "ann", "cy"])
        assert family.updated_at == (await stage.manager.show("mid kid")).updated_at
        assert family.idle == pytest.approx(2 * DAY, rel=0.01)
        assert family.size == sum(row.size for row in family.members)
    await stage.put("alone")
    assert (await stage.manager.family("alone")).message_count is None
    with pytest.raises(SessionAmbiguous):
        await stage.manager.family("new ")
    with pytest.raises(SessionNotFound):
        await stage.manager.family("unknown")


async def test_records_are_counted(stage: ClockedStore) -> None:
    await three_families(stage)
    manager = stage.manager
    found = [await manager.count(), await manager.count(SessionFilter(kind="part", idle_for=1.5 * DAY))]
    assert found == [7, 3]
    assert await manager.count(SessionFilter(participant="ann")) == 4
    with pytest.raises(InvalidInput, match="idle_for"):
        await manager.count(SessionFilter(idle_for=-1.0))


async def test_prune_of_a_kind_or_label_counts_only_these(stage: ClockedStore) -> None:
    await six_over_six_days(stage)
    assert (await stage.manager.prune(keep=2, kind="chat")).removed == ["s1"]
    assert (await stage.manager.prune(keep=2, labels={"team": "b"})).removed == ["s0"]
    assert (await stage.manager.prune(keep=0, labels={"team": "c"})).removed == []


async def test_prune_leaves_young_children_of_the_old(stage: ClockedStore) -> None:
    await stage.put("top")
    await stage.advance(DAY)
    await stage.put("kid", parent="top")
    assert (await stage.manager.prune(older_than=DAY / 2)).removed == ["top"]
    assert await stage.ids() == ["kid"]


async def test_prune_needs_a_rule(stage: ClockedStore) -> None:
    await stage.put("s")
    with pytest.raises(InvalidInput, match="older_than, keep, or both"):
        await stage.manager.prune(kind="chat")
    for seconds in (-1.0, float("nan"), float("inf"), 1e12):
        with pytest.raises(InvalidInput, match="older_than"):
            await stage.manager.prune(older_than=seconds)
    with pytest.raises(InvalidInput, match="keep"):
        await stage.manager.prune(keep=-1)
    for keep in (1.5, "1", True):
        wrong: Any = keep
        with pytest.raises(InvalidInput, match="must be a whole number of records"):
            await stage.manager.prune(keep=wrong)
    assert await stage.ids() == ["s"]


async def test_reading_removes_nothing(stage: ClockedStore) -> None:
    await stage.put("s")
    await stage.advance(10_000 * DAY)
    assert (await stage.ids(), len(await stage.lines()), (await stage.manager.show("s")).version) == (["s"], 1, 1)
    assert (await stage.manager.list())[0].version == 1


async def test_prune_leaves_what_was_written_since_it_was_listed(stage: ClockedStore) -> None:
    """A writer who comes between the listing and the removal keeps the record; so does one who recreates it."""

    class Raced(MemorySessionStore):
        async def delete(
            self,
            session_ids: Collection[str],
            *,
            idle_only: bool = False,
            versions: Mapping[str, int] | None = None,
            generations: Mapping[str, str] | None = None,
            families: Mapping[str, str] | None = None,
            dry_run: bool = False,
        ) -> Sequence[str]:
            await stage.put("s1")
            await stage.store.delete(["s3"])
            await stage.put("s3")
            return await stage.store.delete(
                session_ids,
                idle_only=idle_only,
                versions=versions,
                generations=generations,
                families=families,
                dry_run=dry_run,
            )

        list = stage.store.list

    for session_id in ("s1", "s2", "s3"):
        await stage.put(session_id)
    pruned = await SessionManager(Raced()).prune(keep=0)
    assert (pruned.removed, pruned.left) == (["s2"], ["s1", "s3"])


async def test_prune_leaves_held_sessions_and_sessions_with_queued_work(database: ClockedStore) -> None:
    assert database.provider is not None
    for session_id in ("held", "queued", "idle"):
        await database.put(session_id)
    await database.advance(DAY)
    puppet = Puppet(database.provider, WorkerIdentity(worker_id="puppet", incarnation=Incarnation("one")))
    await database.provider.register_worker(puppet.identity, 60.0, {}, profile=profile())
    async with Client.from_provider(database.provider) as client:
        for session_id in ("held", "queued"):
            await client.start("brew", instance_id=session_id)
            await puppet.hold(session_id, session_id)
    held = await database.ids(holder="puppet")
    assert sorted(held) == ["held", "queued"]
    await database.provider.release_worker(puppet.identity)  # frees both; their work items wait for another worker
    assert await database.ids(holder="puppet") == []
    pruned = await database.manager.prune(older_than=DAY / 2)
    assert (pruned.removed, pruned.left) == (["idle"], ["held", "queued"])


# --- of a database ----------------------------------------------------------------------------------------------------


async def test_the_store_and_the_manager_of_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await migrate(url)
    async with open_store(url) as store:
        await store.save(SessionState(session_id="s", state=b"1"))
        with pytest.raises(SessionWriteConflict):
            await store.save(SessionState(session_id="s", state=b"2"), expected_version=0)
    client = Client(url)
    with pytest.raises(ClientError, match="not open"):
        _ = client.session_manager
    async with client:
        assert await client.session_manager.resolve("s") == "s"
        assert [row.session_id for row in await client.session_store.list(SessionFilter(), 10)] == ["s"]
        assert await client.session_store.delete(["s"]) == ["s"]
        assert await client.session_store.load("s") is None
