"""The verbs on blobs under faults."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from affinity.blobs.store.contract import OrphanBlob, PayloadChange, StoredPayload, blobs_of
from affinity_conformance.providers.builders import state
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, same


def _digest(fixtures: FaultFixtures) -> str:
    return f"{fixtures.number:064x}"


async def begin_blob_round(fixtures: FaultFixtures) -> Attempt:
    """One caller has it. A round whose reply was lost is nobody's: the next one comes after its pause."""
    await fixtures.cluster.advance(11.0)

    async def check(begun: bool) -> None:
        assert begun or attempt.unknown
        assert not await blobs_of(fixtures.clean.provider).begin_blob_round(10.0)

    attempt = Attempt(lambda: blobs_of(fixtures.provider).begin_blob_round(10.0), check)
    return attempt


async def find_named_blobs(fixtures: FaultFixtures) -> Attempt:
    await blobs_of(fixtures.clean.provider).keep_exported_blobs([_digest(fixtures)])
    return same(fixtures, lambda provider: blobs_of(provider).find_named_blobs(None, 3))


async def condemn_blobs(fixtures: FaultFixtures) -> Attempt:
    digest = _digest(fixtures)

    async def check(_: object) -> None:
        clean = blobs_of(fixtures.clean.provider)
        assert list(await clean.get_condemned_blobs([digest])) == [digest]
        await clean.forgive_blobs([digest])

    return Attempt(lambda: blobs_of(fixtures.provider).condemn_blobs([digest]), check)


async def get_condemned_blobs(fixtures: FaultFixtures) -> Attempt:
    digest = _digest(fixtures)
    await blobs_of(fixtures.clean.provider).condemn_blobs([digest])
    return same(fixtures, lambda provider: blobs_of(provider).get_condemned_blobs([digest]))


async def forgive_blobs(fixtures: FaultFixtures) -> Attempt:
    digest = _digest(fixtures)
    await blobs_of(fixtures.clean.provider).condemn_blobs([digest])

    async def check(_: object) -> None:
        assert list(await blobs_of(fixtures.clean.provider).get_condemned_blobs([digest])) == []

    return Attempt(lambda: blobs_of(fixtures.provider).forgive_blobs([digest]), check)


async def note_orphans(fixtures: FaultFixtures) -> Attempt:
    orphan = OrphanBlob(_digest(fixtures), "t", 1)
    clean = blobs_of(fixtures.clean.provider)

    async def check(_: object) -> None:
        assert list(await clean.get_old_orphans(-1.0, 10)) == [orphan]
        await clean.forgive_blobs([orphan.digest])

    return Attempt(lambda: blobs_of(fixtures.provider).note_orphans([orphan]), check)


async def get_old_orphans(fixtures: FaultFixtures) -> Attempt:
    return same(fixtures, lambda provider: blobs_of(provider).get_old_orphans(0.0, 10))


async def measure_orphans(fixtures: FaultFixtures) -> Attempt:
    return same(fixtures, lambda provider: blobs_of(provider).measure_orphans())


async def keep_exported_blobs(fixtures: FaultFixtures) -> Attempt:
    async def check(_: object) -> None:
        assert await blobs_of(fixtures.clean.provider).forget_exported_blobs(-1.0) == 1

    await blobs_of(fixtures.clean.provider).forget_exported_blobs(-1.0)
    return Attempt(lambda: blobs_of(fixtures.provider).keep_exported_blobs([_digest(fixtures)]), check)


async def forget_exported_blobs(fixtures: FaultFixtures) -> Attempt:
    clean = blobs_of(fixtures.clean.provider)
    await clean.forget_exported_blobs(-1.0)
    await clean.keep_exported_blobs([_digest(fixtures)])

    async def check(removed: int) -> None:
        assert removed == 1 or attempt.unknown
        assert await clean.forget_exported_blobs(-1.0) == 0

    attempt = Attempt(lambda: blobs_of(fixtures.provider).forget_exported_blobs(-1.0), check)
    return attempt


async def read_payloads(fixtures: FaultFixtures) -> Attempt:
    return same(fixtures, lambda provider: blobs_of(provider).read_payloads(None, 3))


async def replace_payloads(fixtures: FaultFixtures) -> Attempt:
    """Done once. After a lost reply there is nothing that is stored as it was."""
    clean = blobs_of(fixtures.clean.provider)
    name = f"replaced-{fixtures.number}"
    assert await fixtures.clean.provider.states.save(state(name, b"old"))
    payload = StoredPayload("session_states.state", json.dumps([name]), b"old")

    async def check(replaced: Collection[int]) -> None:
        assert list(replaced) == [0] or attempt.unknown
        assert list(await clean.replace_payloads([PayloadChange(payload, b"newer")])) == []
        record = await fixtures.clean.provider.states.load(name)
        assert record is not None
        assert record.state == b"new"

    attempt = Attempt(lambda: blobs_of(fixtures.provider).replace_payloads([PayloadChange(payload, b"new")]), check)
    return attempt


BLOBS: Final = FaultPart(
    verbs={
        prepare.__name__: prepare
        for prepare in (
            begin_blob_round,
            find_named_blobs,
            condemn_blobs,
            get_condemned_blobs,
            forgive_blobs,
            note_orphans,
            get_old_orphans,
            measure_orphans,
            keep_exported_blobs,
            forget_exported_blobs,
            read_payloads,
            replace_payloads,
        )
    },
)
