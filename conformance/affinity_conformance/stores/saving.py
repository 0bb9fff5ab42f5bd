"""Saving and loading: a record is read as it was written, and shares no objects with its writers and readers."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, MutableSequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from affinity import SessionStore
from affinity.session import RecordTimes, SessionMetadata, SessionState
from affinity_conformance.stores.base import EVERYTHING, StoreHarness, StoreRules, ids, loaded, plain, state

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

    async def test_a_record_is_loaded_as_it_was_saved(self, harness: StoreHarness, store: SessionStore) -> None:
        """Every field, also from another store object."""
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

    async def test_optional_fields_stay_empty(self, store: SessionStore) -> None:
        """An empty state is a state, and a missing name stays None."""
        await store.save(state(content=b""))
        record = await loaded(store)
        assert (record.state, record.encoding, record.schema_version) == (b"", "plain", 1)
        assert plain(record.metadata) == plain(SessionMetadata())
        assert (record.epoch, record.idempotency_key) == (None, None)

    async def test_the_bytes_are_stored_as_they_are(self, store: SessionStore) -> None:
        """All byte values, and bytes that do not match their encoding."""
        everything = bytes(range(256))
        await store.save(replace(state(content=everything), encoding="zlib"))
        assert (await loaded(store)).state == everything

    async def test_a_save_replaces_the_whole_record(self, store: SessionStore) -> None:
        """No field keeps its former value."""
        await store.save(SessionState(session_id="s", state=b"1", encoding="zlib", schema_version=7, metadata=FULL))
        await store.save(state(content=b"2", kind="chat"))
        record = await loaded(store)
        assert (record.state, record.encoding, record.schema_version, record.version) == (b"2", "plain", 1, 2)
        assert plain(record.metadata) == plain(SessionMetadata(kind="chat"))

    async def test_versions_count_the_writes(self, store: SessionStore) -> None:
        """They count from 1 for each record, also when nothing changes."""
        assert [await store.save(state()) for _ in range(3)] == [1, 2, 3]
        assert await store.save(state("other")) == 1
        assert [(await loaded(store, name)).version for name in ("s", "other")] == [3, 1]

    async def test_a_record_has_the_times_of_its_first_and_last_write(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """The store's clock counts; the time of the first write stays."""
        await store.save(state())
        first = await loaded(store)
        await harness.advance(100)
        await store.save(state())
        second = await loaded(store)
        assert first.created_at == first.updated_at == second.created_at
        assert timedelta(seconds=100) <= second.updated_at - second.created_at < timedelta(seconds=150)

    async def test_a_record_gets_the_times_that_it_is_given(self, store: SessionStore) -> None:
        """This holds for a new record and for a replaced one; a time in the future becomes now, by the store's clock.
        The next write sets ``updated_at`` as always.
        """
        await store.save(state())
        now = (await loaded(store)).updated_at
        ago = [now - timedelta(days=days) for days in range(5)]
        for name, version in (("s", 2), ("t", 1)):
            assert await store.save(state(name), times=RecordTimes(created_at=ago[4], updated_at=ago[2])) == version
            found = await loaded(store, name)
            assert (found.created_at, found.updated_at) == (ago[4], ago[2])
        await store.save(state("u"), times=RecordTimes(created_at=ago[3], updated_at=now + timedelta(days=9)))
        found = await loaded(store, "u")
        assert found.created_at == ago[3]
        assert now <= found.updated_at < now + timedelta(days=1)
        assert await ids(store) == ["u", "t", "s"]
        await store.save(state("s"))
        found = await loaded(store, "s")
        assert found.created_at == ago[4]
        assert found.updated_at >= now

    async def test_instants_are_aware_and_utc(self, store: SessionStore) -> None:
        await store.save(state())
        record, (summary,) = await loaded(store), await store.list(EVERYTHING, 1)
        instants = [record.created_at, record.updated_at, summary.created_at, summary.updated_at]
        assert [instant.utcoffset() for instant in instants] == [timedelta(0)] * len(instants)

    async def test_a_summary_equals_its_record(self, store: SessionStore) -> None:
        """Except for the state (it has the size instead), and the holder, which needs leases."""
        new = SessionState(session_id="s", state=b"four", encoding="zlib", schema_version=7, metadata=FULL)
        await store.save(new, epoch=3)
        (summary,) = await store.list(EVERYTHING, 1)
        assert (summary.session_id, summary.schema_version, summary.size) == ("s", 7, 4)
        assert (summary.version, summary.epoch, summary.holder) == (1, 3, None)
        assert plain(summary.metadata) == plain(FULL)

    async def test_reading_changes_nothing(self, harness: StoreHarness, store: SessionStore) -> None:
        """The time of the last write stays: retention depends on it."""
        await store.save(state(), idempotency_key="t")
        before = await loaded(store)
        await harness.advance(100)
        await store.list(EVERYTHING, 10)
        assert await loaded(store) == before

    async def test_changes_of_saved_objects_do_not_reach_the_record(self, store: SessionStore) -> None:
        labels, participants = {"tier": "gold"}, ["ann"]
        await store.save(state(labels=labels, participants=participants))
        labels["tier"] = "lead"
        participants.append("bob")
        record, (summary,) = await loaded(store), await store.list(EVERYTHING, 1)
        for metadata in (record.metadata, summary.metadata):
            assert plain(metadata) == plain(SessionMetadata(labels={"tier": "gold"}, participants=["ann"]))

    async def test_changes_of_loaded_objects_do_not_reach_the_record(self, store: SessionStore) -> None:
        """Containers of records and summaries are copies, or immutable."""
        await store.save(state(labels={"tier": "gold"}, participants=["ann"]))
        (summary,) = await store.list(EVERYTHING, 1)
        for metadata in ((await loaded(store)).metadata, summary.metadata):
            _spoil(metadata)
        again, (listed,) = await loaded(store), await store.list(EVERYTHING, 1)
        for metadata in (again.metadata, listed.metadata):
            assert plain(metadata) == plain(SessionMetadata(labels={"tier": "gold"}, participants=["ann"]))

    async def test_a_large_state_is_stored(self, harness: StoreHarness, store: SessionStore) -> None:
        """25 MB of random bytes, written twice, and read from another store object."""
        await store.save(state(content=os.urandom(LARGE)))
        content = os.urandom(LARGE)
        await store.save(state(content=content), expected_version=1)
        assert (await loaded(await harness.open())).state == content
        (summary,) = await store.list(EVERYTHING, 1)
        assert summary.size == LARGE

    async def test_records_outlive_the_store_object(self, harness: StoreHarness) -> None:
        """One store object writes, another deletes, and a third no longer finds the record."""
        writer, deleter, reader = await harness.open(), await harness.open(), await harness.open()
        await writer.save(state())
        assert await ids(reader) == ["s"]
        assert list(await deleter.delete(["s"])) == ["s"]
        assert await reader.load("s") is None

    async def test_a_record_and_its_summary_have_the_same_times(self, store: SessionStore) -> None:
        """A loaded record can thus be the cursor of a listing."""
        await store.save(state())
        (summary,) = await store.list(EVERYTHING, 1)
        record = await loaded(store)
        assert (summary.created_at, summary.updated_at) == (record.created_at, record.updated_at)


def _spoil(metadata: SessionMetadata) -> None:
    """Change the containers that can be changed."""
    labels: Any = metadata.labels
    participants: Any = metadata.participants
    if isinstance(labels, MutableMapping):
        labels["tier"] = "lead"
    if isinstance(participants, MutableSequence):
        participants.append("bob")
