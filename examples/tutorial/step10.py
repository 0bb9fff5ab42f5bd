"""Step 10: workers as processes of their own. One of them is killed."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process
from step05 import conversation
from talk import say

import affinity

URL = f"sqlite:///{Path.cwd() / 'step10.db'}"


@asynccontextmanager
async def worker(name: str) -> AsyncIterator[Process]:
    """What a container runs: `affinity worker step05:app`."""
    options = ["--url", URL, "--node-id", name, "--worker-lease-timeout", "2"]
    command = [sys.executable, "-m", "affinity", "worker", "step05:app", *options]
    process = await anyio.open_process(command, cwd=Path(__file__).parent, stderr=None)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def main() -> None:
    """A conversation that outlives its worker."""
    await affinity.migrate(URL)
    async with affinity.Client(URL) as client:
        async with worker("worker-a") as process:
            chat = await client.start(conversation)
            await say(client, chat.instance_id, "hello")
            process.kill()
        async with worker("worker-b"):
            await say(client, chat.instance_id, "still there?")
            await say(client, chat.instance_id, "bye")
            print(await chat.wait(timeout=30), "turns")


if __name__ == "__main__":
    anyio.run(main)
