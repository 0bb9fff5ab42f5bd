"""The collection of blobs: which rows name a blob, which blobs are condemned, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from affinity.blob import Blob
from affinity.blobs.store.contract import (
    BlobProvider,
    OrphanBlob,
    OrphanFigures,
    PayloadChange,
    StoredPayload,
    blobs_of,
)
from affinity.errors import InvalidInput
from affinity.limits import MAX_BATCH_BYTES
from affinity.provider.contract import InstanceUpdate, NewMessage, Provider
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import message_ids, new_instance, state, work_item
from affinity_conformance.providers.cluster import Cluster, concurrently


class BlobRules(Rules):
    """The verbs of `BlobProvider`."""

    async def test_one_caller_has_a_round(self, cluster: Cluster) -> None:
        """And after its pause one has the next (contract: begin_blob_round)."""
        workers = [blobs_of((await cluster.worker(name)).provider) for name in "abcd"]
        for _ in range(2):
            begun = await concurrently(*[partial(worker.begin_blob_round, 100.0) for worker in workers])
            assert sorted(begun) == [False, False, False, True]
            await cluster.advance(101.0)

    async def test_condemned_blobs_are_returned_until_they_are_forgiven(self, cluster: Cluster) -> None:
        """Condemning and forgiving again does nothing (contract: condemn_blobs, forgive_blobs)."""
        worker, other = [blobs_of((await cluster.worker(name)).provider) for name in "ab"]
        one, two, three = (digest(n) for n in range(3))
        for _ in range(2):
            await worker.condemn_blobs([one, two])
        assert sorted(await other.get_condemned_blobs([one, two, three])) == [one, two]
        assert list(await other.get_condemned_blobs([])) == []
        for _ in range(2):
            await other.forgive_blobs([one, three])
        assert list(await worker.get_condemned_blobs([one, two, three])) == [two]

    async def test_what_a_killed_collection_has_condemned_is_found(self, cluster: Cluster) -> None:
        """After an hour: until then it may go on (contract: get_condemned_blobs)."""
        worker = blobs_of((await cluster.worker("a")).provider)
        await worker.condemn_blobs([digest(1)])
        await cluster.advance(3_500.0)
        await worker.condemn_blobs([digest(2)])
        assert list(await worker.get_condemned_blobs()) == []
        await cluster.advance(200.0)
        assert list(await worker.get_condemned_blobs()) == [digest(1)]

    async def test_orphans_are_old_by_the_clock_of_the_database(self, cluster: Cluster) -> None:
        """From the first time that they are noted; one that was used since is noted anew (contract: note_orphans,
        get_old_orphans).
        """
        worker, other = [blobs_of((await cluster.worker(name)).provider) for name in "ab"]
        one, two, three = [OrphanBlob(digest(n), "2001-01-01", n) for n in range(3)]
        await worker.note_orphans([one, two])
        await cluster.advance(60.0)
        used = two._replace(used_at="1999-12-31")
        await other.note_orphans([one, used, three])
        assert list(await worker.get_old_orphans(61.0, 10)) == []
        assert list(await worker.get_old_orphans(60.0, 10)) == [one]
        await cluster.advance(60.0)
        assert list(await other.get_old_orphans(60.0, 10)) == [one, used, three]
        assert list(await other.get_old_orphans(60.0, 2)) == [one, used]
        await worker.note_orphans([])
        await worker.forgive_blobs([one.digest, three.digest])
        assert list(await worker.get_old_orphans(0.0, 10)) == [used]

    async def test_orphans_are_measured(self, cluster: Cluster) -> None:
        """With those that are condemned (contract: measure_orphans)."""
        worker = blobs_of((await cluster.worker("a")).provider)
        assert await worker.measure_orphans() == OrphanFigures(0, 0, None, 0)
        await worker.note_orphans([OrphanBlob(digest(n), "t", 2**40) for n in range(3)])
        await worker.condemn_blobs([digest(1)])
        await cluster.advance(30.0)
        count, size, oldest, condemned = await worker.measure_orphans()
        assert (count, size, condemned) == (3, 3 * 2**40, 1)
        assert oldest is not None
        assert 30.0 <= oldest < 40.0

    async def test_blobs_in_rows_of_an_instance_are_named(self, cluster: Cluster) -> None:
        """In messages, work items, events, statuses and results; not once they are removed (contract:
        find_named_blobs).
        """
        peer = await cluster.worker("a")
        starting = new_instance("i", start=naming(1), on_deleted=naming(2), parent_id="parent")
        await peer.provider.create_instance([starting])
        assert await named(peer.provider, limit=1) == {1, 2}
        (at,) = await peer.take_instances()
        item = work_item(at, 1)
        turned = {"history": [naming(3)], "custom_status": naming(4), "consumed": message_ids(at)}
        await peer.commit_one(at, work_items=[replace(item, payload=naming(5))], **turned)
        assert await named(peer.provider) == {2, 3, 4, 5}
        await peer.provider.send_message([NewMessage(instance_id="i", payload=naming(6))])
        assert await named(peer.provider) == {2, 3, 4, 5, 6}
        await peer.provider.delete_instance(["i"], force=True)
        assert await named(peer.provider) == set()

    async def test_blobs_in_results_are_named(self, cluster: Cluster) -> None:
        """And of a suspension (contract: find_named_blobs)."""
        peer = await cluster.worker("a")
        at = await peer.own("done")
        await peer.commit_one(at, consumed=message_ids(at), update=InstanceUpdate(status="completed", output=naming(1)))
        failed = await peer.own("failed")
        await peer.commit_one(
            failed, consumed=message_ids(failed), update=InstanceUpdate(status="failed", error=naming(2))
        )
        assert {1, 2} <= await named(peer.provider)

    async def test_blobs_in_states_are_named(self, cluster: Cluster) -> None:
        """Among bytes that are no text (contract: find_named_blobs)."""
        peer = await cluster.worker("a")
        for number, content in enumerate([b"%b", b"\x00\xff\\%b\x00", b"\xc3\x28" * 5_000 + b"%b"]):
            await peer.provider.states.save(state(f"s{number}", content % naming(number).encode()))
        assert await named(peer.provider) == {0, 1, 2}
        assert await peer.provider.states.delete(["s1"])
        assert await named(peer.provider, limit=1) == {0, 2}

    async def test_a_row_may_name_many_blobs(self, cluster: Cluster) -> None:
        """All of one row are returned (contract: find_named_blobs)."""
        peer = await cluster.worker("a")
        payload = ",".join(naming(number) for number in range(200))
        await peer.provider.create_instance([new_instance("i", start=payload)])
        assert await named(peer.provider) == set(range(200))

    async def test_a_step_has_a_bound(self, cluster: Cluster) -> None:
        """Many rows are read in many steps, none twice (contract: find_named_blobs)."""
        peer = await cluster.worker("a")
        await peer.provider.create_instance([new_instance(f"i{n:02d}", start=naming(n)) for n in range(25)])
        seen = list[str]()
        place: str | None = None
        while True:
            step = await blobs_of(peer.provider).find_named_blobs(place, 10)
            assert len(step.digests) <= 10
            seen += step.digests
            place = step.place
            if place is None:
                break
        assert sorted(seen) == sorted(digest(n) for n in range(25))

    async def test_a_text_that_is_no_reference_names_none(self, cluster: Cluster) -> None:
        """Too short, or of other letters (contract: find_named_blobs)."""
        peer = await cluster.worker("a")
        broken = [naming(1)[:-40], naming(1).replace("0", "g"), "affinity-blob:1:"]
        await peer.provider.create_instance([new_instance(f"i{n}", start=text) for n, text in enumerate(broken)])
        assert await named(peer.provider) == set()

    async def test_what_an_export_names_is_kept(self, cluster: Cluster) -> None:
        """Until the export is forgotten; a later export of it counts (contract: keep_exported_blobs)."""
        provider = (await cluster.worker("a")).provider
        blobs = blobs_of(provider)
        await blobs.keep_exported_blobs([digest(1), digest(2)])
        await cluster.advance(100.0)
        await blobs.keep_exported_blobs([digest(2), digest(2)])
        await blobs.keep_exported_blobs([])
        assert await named(provider, limit=1) == {1, 2}
        assert await blobs.forget_exported_blobs(50.0) == 1
        assert await named(provider) == {2}

    async def test_a_client_may_ask_and_keep(self, cluster: Cluster) -> None:
        """It writes payloads, and exports (contract: get_condemned_blobs, keep_exported_blobs)."""
        worker, client = blobs_of((await cluster.worker("a")).provider), blobs_of((await cluster.enqueuer()).provider)
        await worker.condemn_blobs([digest(1)])
        assert list(await client.get_condemned_blobs([digest(1), digest(2)])) == [digest(1)]
        await client.keep_exported_blobs([digest(3)])
        assert await named(worker) == {3}

    async def test_payloads_are_read_as_they_are_stored(self, cluster: Cluster) -> None:
        """Each once, in steps of rows; of what has none, nothing (contract: read_payloads)."""
        peer = await cluster.worker("a")
        await peer.provider.create_instance([new_instance(f"i{n:02d}", start=f'"start {n}"') for n in range(25)])
        await peer.provider.states.save(state("s", b"\x00\xff"))
        for limit in (1, 10, 1_000):
            found = await stored(peer.provider, limit)
            starts = [one.stored for one in found if one.column == "orchestrator_queue.payload"]
            assert sorted(map(str, starts)) == sorted(f'"start {n}"' for n in range(25))
            assert [one.stored for one in found if one.column == "session_states.state"] == [b"\x00\xff"]
            assert len({(one.column, one.key) for one in found}) == len(found)

    async def test_a_step_of_payloads_has_a_bound_in_bytes(self, cluster: Cluster) -> None:
        """But one row at least (contract: read_payloads)."""
        peer = await cluster.worker("a")
        large = b"x" * (MAX_BATCH_BYTES // 2 + 1)
        for n in range(3):
            await peer.provider.states.save(state(f"s{n}", large))
        place, sizes = None, list[int]()
        while True:
            step = await blobs_of(peer.provider).read_payloads(place, 100)
            sizes += [len([one for one in step.payloads if one.column == "session_states.state"])]
            if (place := step.place) is None:
                break
        assert sum(sizes) == 3
        assert max(sizes) == 1

    async def test_a_payload_is_replaced_if_it_is_as_it_was(self, cluster: Cluster) -> None:
        """What was written since then stays; a row that is gone is no error (contract: replace_payloads)."""
        peer = await cluster.worker("a")
        blobs = blobs_of(peer.provider)
        await peer.provider.create_instance([new_instance(f"i{n}", start=f'"start {n}"') for n in range(3)])
        await peer.provider.states.save(state("s", b"old"))
        read = [
            one
            for one in await stored(peer.provider)
            if one.column in {"orchestrator_queue.payload", "session_states.state"}
        ]
        await peer.provider.delete_instance(["i2"], force=True)
        changes = [
            PayloadChange(one, b"new" if isinstance(one.stored, bytes) else one.stored.replace("start", "begin"))
            for one in read
        ]
        gone = next(place for place, one in enumerate(read) if one.stored == '"start 2"')
        assert sorted(await blobs.replace_payloads(changes)) == sorted({*range(4)} - {gone})
        assert list(await blobs.replace_payloads(changes)) == []
        assert list(await blobs.replace_payloads([])) == []
        now = [one.stored for one in await stored(peer.provider)]
        assert {'"begin 0"', '"begin 1"', b"new"} <= {*now}
        assert not {'"start 0"', '"begin 2"', b"old"} & {*now}
        record = await peer.provider.states.load("s")
        assert record is not None
        assert (record.state, record.version) == (b"new", 1)

    async def test_other_columns_are_not_replaced(self, cluster: Cluster) -> None:
        """An id, or a name from elsewhere, is refused (contract: replace_payloads)."""
        blobs = blobs_of((await cluster.worker("a")).provider)
        for column in ("instances.instance_id", "instances", "exported_blobs.digest", "x.y; DROP TABLE instances"):
            with pytest.raises(InvalidInput):
                await blobs.replace_payloads([PayloadChange(StoredPayload(column, '["i"]', "a"), "b")])


async def stored(provider: Provider, limit: int = 1_000) -> list[StoredPayload]:
    """All payloads."""
    found, place = list[StoredPayload](), None
    while True:
        step = await blobs_of(provider).read_payloads(place, limit)
        found += step.payloads
        if (place := step.place) is None:
            return found


def digest(number: int) -> str:
    """The digest of a blob."""
    return f"{number:064x}"


def naming(number: int) -> str:
    """A JSON text that names a blob."""
    return f'"{Blob(digest(number), number)}"'


async def named(provider: Provider | BlobProvider, limit: int = 1_000) -> set[int]:
    """The blobs that rows name."""
    found, place = set[int](), None
    while True:
        step = await blobs_of(provider).find_named_blobs(place, limit)
        found |= {int(one, 16) for one in step.digests}
        if (place := step.place) is None:
            return found
