"""Collections of blobs as a worker makes them, and the passing of their grace."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg

import affinity
from affinity import Client
from affinity.blobs.collection import Collected, collect_blobs
from affinity.blobs.store.contract import blobs_of
from affinity.payloads import vault_of
from affinity.provider.urls import sqlite_path

GRACE = 3_600.0


async def collect(client: Client, url: str) -> Collected:
    """Collect with the rights of a worker, which a client may lack."""
    vault = vault_of(client._provider)
    assert vault is not None
    worker = await affinity.provider.open_provider(url)
    try:
        return await collect_blobs(vault.blobs.store, blobs_of(worker), vault.prefix, GRACE)
    finally:
        await worker.aclose()


def age_orphans(url: str) -> None:
    """Make all orphans that are noted older than the grace."""
    if (path := sqlite_path(url)) is not None:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as file:
            file.execute("UPDATE orphan_blobs SET found_at = found_at - 7200")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE affinity.orphan_blobs SET found_at = found_at - interval '2 hours'")
