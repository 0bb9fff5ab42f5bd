"""The workers, and what a drain of one will move."""

from __future__ import annotations

from typing import Any

from affinity.composed.client import Client
from affinity.console.pages.base import ROWS, Query, required
from affinity.console.payloads import Payloads
from affinity.provider.contract import LEFT_BEHIND, SLOTS, WorkerInfo


def state_of(worker: WorkerInfo) -> str:
    """One word, which is a class of the style sheet too."""
    if not worker.alive:
        return "ended"
    return "restarting" if worker.restarting else "draining" if worker.draining else "alive"


async def workers(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """All workers, and the last moves."""
    moves = await client.session_moves(limit=ROWS)
    return {
        "workers": [(one, state_of(one)) for one in sorted(await client.workers(), key=lambda one: not one.alive)],
        "slots": SLOTS,
        "left_behind": LEFT_BEHIND,
        "suspended": (await client.load()).suspended,
        "moves": [*reversed(moves)],
    }


async def drain(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """What a drain of a worker will move, before it is asked for; afterwards, what is left."""
    preview = await client.drain_preview(required(query, "worker"), limit=ROWS)
    return {"preview": preview, "worker": preview.worker, "state": state_of(preview.worker)}
