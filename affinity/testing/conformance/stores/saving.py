"""Saving and loading: what is written is what is read, by anyone, and shares nothing with either side."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, MutableSequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from affinity.records import SessionMetadata, SessionState, SessionStore
from affinity.testing.conformance.stores.base import EVERYTHING, StoreHarness, StoreRules, ids, loaded, plain, state

FULL: Final = SessionMetadata(
    kind="chat",
    name='Zoë\'s "plans" \\ 100%',
    parent="the-parent",
    labels={"tier": "gold", "a.b": 'it\'s "so"', "ключ": "値 🙂", "": ""},
    message_count=2**31 - 1,
    participants=["ann", "bob", "ann"],
)

LARGE: Final = 25 * 1024 * 1024
"""Bytes of the largest state that every store must take."""


class SaveRules(StoreRules):
    """`load` and `save` by one writer."""

    async def test_an_unknown_id_has_no_record(self, store: SessionStore) -> None:
        assert await store.load("s") is None
        await store.save(state("other"))
        assert await store.load("s") is None

    async def test_what_is_saved_is_loaded(self, harness: StoreHarness, store: SessionStore) -> None:
        """Every field, and from another store object."""
        new = SessionState(session_id="s", state=b"\x00\xff{", encoding="zlib", schema_version=7, metadata=FULL)
        assert await store.save(new, epoch=2**40, idempotency_key="i/1/2") == 1
        record = await loaded(await harness.open())
        assert (record.session_id, record.state, record.encoding, record.schema_version) == (
            "s",
            b"\x00\xff{",
            "zlib",
            7,
        )
        assert plain(record.metadata) == plain(FULL)
        assert (record.version, record.epoch, record.idempotency_key) == (1, 2**40, "i/1/2")

    async def test_what_is_left_out_stays_left_out(self, store: SessionStore) -> None:
        """An empty state is a state; there is no name where none was given."""
        await store.save(state(content=b""))
        record = await loaded(store)
        assert (record.state, record.encoding, record.schema_version) == (b"", "plain", 1)
        assert plain(record.metadata) == plain(SessionMetadata())
        assert (record.epoch, record.idempotency_key) == (None, None)

    async def test_the_bytes_are_not_looked_into(self, store: SessionStore) -> None:
        """All of them, and those that say they are packed but are not."""
        everything = bytes(range(256))
        await store.save(replace(state(content=everything), encoding="zlib"))
        assert (await loaded(store)).state == everything

    async def test_a_save_replaces_the_whole_record(self, store: SessionStore) -> None:
        """Nothing of what was there before is left beside it."""
        await store.save(SessionState(session_id="s", state=b"1", encoding="zlib", schema_version=7, metadata=FULL))
        await store.save(state(content=b"2", kind="chat"))
        record = await loaded(store)
        assert (record.state, record.encoding, record.schema_version, record.version) == (b"2", "plain", 1, 2)
        assert plain(record.metadata) == plain(SessionMetadata(kind="chat"))

    async def test_versions_count_the_writes(self, store: SessionStore) -> None:
        """Of one record, from 1, also when nothing changes."""
        assert [await store.save(state()) for _ in range(3)] == [1, 2, 3]
        assert await store.save(state("other")) == 1
        assert [(await loaded(store, name)).version for name in ("s", "other")] == [3, 1]

    async def test_a_record_knows_when_it_was_made_and_last_written(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """By the store's clock; the first stays."""
        await store.save(state())
        first = await loaded(store)
        await harness.advance(100)
        await store.save(state())
        second = await loaded(store)
        assert first.created_at == first.updated_at == second.created_at
        assert timedelta(seconds=100) <= second.updated_at - second.created_at < timedelta(seconds=150)

    async def test_instants_are_aware_and_utc(self, store: SessionStore) -> None:
        await store.save(state())
        record, (summary,) = await loaded(store), await store.list(EVERYTHING, 1)
        instants = [record.created_at, record.updated_at, summary.created_at, summary.updated_at]
        assert [instant.utcoffset() for instant in instants] == [timedelta(0)] * len(instants)

    async def test_a_record_and_its_summary_say_the_same(self, store: SessionStore) -> None:
        """All but the state, of which the summary knows the size, and the holder, which this suite does not play."""
        new = SessionState(session_id="s", state=b"four", encoding="zlib", schema_version=7, metadata=FULL)
        await store.save(new, epoch=3)
        (summary,) = await store.list(EVERYTHING, 1)
        assert (summary.session_id, summary.schema_version, summary.size) == ("s", 7, 4)
        assert (summary.version, summary.epoch, summary.holder) == (1, 3, None)
        assert plain(summary.metadata) == plain(FULL)

    async def test_reading_changes_nothing(self, harness: StoreHarness, store: SessionStore) -> None:
        """Not even the time of the last write: retention counts from it."""
        await store.save(state(), idempotency_key="t")
        before = await loaded(store)
        await harness.advance(100)
        await store.list(EVERYTHING, 10)
        assert await loaded(store) == before

    async def test_later_changes_of_what_was_saved_do_not_reach_the_record(self, store: SessionStore) -> None:
        labels, participants = {"tier": "gold"}, ["ann"]
        await store.save(state(labels=labels, participants=participants))
        labels["tier"] = "lead"
        participants.append("bob")
        record, (summary,) = await loaded(store), await store.list(EVERYTHING, 1)
        for metadata in (record.metadata, summary.metadata):
            assert plain(metadata) == plain(SessionMetadata(labels={"tier": "gold"}, participants=["ann"]))

    async def test_later_changes_of_what_was_loaded_do_not_reach_the_record(self, store: SessionStore) -> None:
        """Nor do those of a listing: where it gives something that can be changed, it is a copy."""
        await store.save(state(labels={"tier": "gold"}, participants=["ann"]))
        (summary,) = await store.list(EVERYTHING, 1)
        for metadata in ((await loaded(store)).metadata, summary.metadata):
            _spoil(metadata)
        again, (listed,) = await loaded(store), await store.list(EVERYTHING, 1)
        for metadata in (again.metadata, listed.metadata):
            assert plain(metadata) == plain(SessionMetadata(labels={"tier": "gold"}, participants=["ann"]))

    async def test_a_large_state_is_kept(self, harness: StoreHarness, store: SessionStore) -> None:
        """25 MB that nothing can compress, written twice, and read from another store object."""
        await store.save(state(content=os.urandom(LARGE)))
        content = os.urandom(LARGE)
        await store.save(state(content=content), expected_version=1)
        assert (await loaded(await harness.open())).state == content
        (summary,) = await store.list(EVERYTHING, 1)
        assert summary.size == LARGE

    async def test_records_outlive_the_store_object(self, harness: StoreHarness) -> None:
        """What one object wrote, another deletes, and a third no longer finds."""
        writer, deleter, reader = await harness.open(), await harness.open(), await harness.open()
        await writer.save(state())
        assert await ids(reader) == ["s"]
        assert list(await deleter.delete(["s"])) == ["s"]
        assert await reader.load("s") is None

    async def test_a_record_and_its_summary_tell_the_same_time(self, store: SessionStore) -> None:
        """So that what was loaded can be the cursor of a listing."""
        await store.save(state())
        (summary,) = await store.list(EVERYTHING, 1)
        record = await loaded(store)
        assert (summary.created_at, summary.updated_at) == (record.created_at, record.updated_at)


def _spoil(metadata: SessionMetadata) -> None:
    """Change what can be changed."""
    labels: Any = metadata.labels
    participants: Any = metadata.participants
    if isinstance(labels, MutableMapping):
        labels["tier"] = "lead"
    if isinstance(participants, MutableSequence):
        participants.append("bob")
