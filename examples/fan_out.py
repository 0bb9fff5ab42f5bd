"""Many concurrent activities: without a session they go to any worker, and ``gather`` waits for all of them.

A synchronous activity runs on a thread. One chunk fails at first, and is tried again by its retry policy; a timer
bounds the whole.

Run it with ``python examples/fan_out.py``.
"""

import tempfile
from hashlib import sha256

import anyio
from pydantic import BaseModel

import affinity
from affinity import Client

app = affinity.App("fan-out")
RETRY = affinity.RetryPolicy(max_attempts=3, initial_interval=0.05)


class Chunk(BaseModel):
    """A part of the work."""

    number: int
    size: int


@app.activity
def count_zeros(ctx: affinity.ActivityContext, chunk: Chunk) -> int:
    """Blocking code, on a thread: digests of the chunk that begin with a zero."""
    if chunk.number == 0 and ctx.attempt == 1:
        raise OSError("the first attempt of the first chunk fails")
    first = chunk.number * chunk.size
    return sum(sha256(str(n).encode()).hexdigest().startswith("0") for n in range(first, first + chunk.size))


@app.orchestration
async def count_all(ctx: affinity.OrchestrationContext, chunks: int) -> int:
    """The sum over all chunks."""
    work = [
        ctx.schedule_activity(count_zeros, Chunk(number=n, size=1_000), retry=RETRY, timeout=30) for n in range(chunks)
    ]
    everything = ctx.gather(*work)
    chosen = await ctx.select(everything, ctx.schedule_timer(60))
    if chosen.future is not everything:
        raise TimeoutError("the chunks took more than a minute")
    return sum(await everything)


async def main(url: str) -> None:
    """Two workers share the chunks."""
    async with affinity.Worker(app, url), affinity.Worker(app, url), Client(url) as client:
        run = await client.start(count_all, 50)
        print(f"{await run.wait(timeout=60)} of 50000 digests begin with a zero")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, f"sqlite:///{folder}/affinity.db")
