"""Rules for the blobs of a program that is at rest."""

from __future__ import annotations

from affinity.blob import digests_in
from affinity.blobs.store.contract import blobs_of
from affinity.payloads import vault_of
from affinity.testing import Env
from tests.payloads.memory import MemoryStore
from tests.programs.tables import Tables, read_tables


async def check(env: Env) -> None:
    """Assert that the collection of blobs finds each reference in each row, and that each blob is there.

    Raises:
        AssertionError: one is missing.
    """
    vault = vault_of(env._own)
    if vault is None:
        return
    store = vault.blobs.store
    assert isinstance(store, MemoryStore)
    async with env._by_hand():
        named = await _named(env)
        in_rows = digests_in_rows(await read_tables(env))
    assert in_rows <= named, f"the collection would delete blobs that rows name: {in_rows - named}"
    assert named <= store.digests, f"blobs are missing: {named - store.digests}"


def digests_in_rows(tables: Tables) -> set[str]:
    """The digests of all blobs that texts of rows name."""
    texts = (value for rows in tables.rows.values() for row in rows for value in row.values() if isinstance(value, str))
    return {digest for text in texts for digest in digests_in(text)}


async def _named(env: Env) -> set[str]:
    found, place = set[str](), None
    while True:
        step = await blobs_of(env._own).find_named_blobs(place, 50)
        found.update(step.digests)
        if (place := step.place) is None:
            return found
