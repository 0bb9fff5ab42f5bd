"""Documents through an orchestration of five steps, for `test_documents`: ``python -m tests.payloads.documents``.

The first argument is the database, the second the directory of blobs, the third the worker's name. The process has at
most `MEMORY` bytes of data.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import threading
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Final

from pydantic import BaseModel

from affinity import ActivityContext, App, Blob, OrchestrationContext, RuntimeOptions, Worker
from affinity.blobs import Blobs, DirectoryStore

MEMORY: Final = 512 * 1024 * 1024
STEPS: Final = 5
OVER: Final = 16 * 1024

app = App("documents")


class Document(BaseModel):
    number: int
    data: Blob
    note: str  # larger than a row should be
    digests: list[str]


@app.activity
async def step(ctx: ActivityContext, document: Document) -> Document:
    """Turn each byte into its complement; return the digest of what was read."""
    digest = sha256()

    async def complement() -> AsyncIterator[bytes]:
        async for part in ctx.open_blob(document.data):
            digest.update(part)
            yield part.translate(COMPLEMENT)

    data = await ctx.put_blob(complement())
    note = document.note[1:] + document.note[:1]
    return Document(number=document.number, data=data, note=note, digests=[*document.digests, digest.hexdigest()])


COMPLEMENT: Final = bytes(255 - byte for byte in range(256))


@app.orchestration
async def convert(ctx: OrchestrationContext, document: Document) -> Document:
    for _ in range(STEPS):
        document = await ctx.schedule_activity(step, document)
    return document


def blobs_in(root: str) -> Blobs:
    return Blobs(DirectoryStore(root), over=OVER)


async def _work(url: str, root: str, name: str) -> None:
    options = RuntimeOptions(
        worker_node_id=name,
        worker_concurrency=4,
        poll_interval=0.2,
        worker_lease_timeout=4.0,
        max_batch_bytes=4 * 1024 * 1024,
    )
    async with Worker(app, url, options, blobs=blobs_in(root), migrate=False) as worker:
        print("ready", flush=True)
        await worker.wait_ended()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    threading.stack_size(1024 * 1024)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    asyncio.run(_work(*sys.argv[1:]))
