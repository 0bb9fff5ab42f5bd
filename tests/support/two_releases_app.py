"""An app and a client that run on two releases of affinity at the same time.

As a program it is the client: it sends words, one after another, and prints how many were received. When its standard
input is closed, it prints the result of the instance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

import affinity

Word = affinity.Event("word", str, reply=int)
"""Replied to with how many words were heard."""

CODE = str(Path(affinity.__file__).parent.parent)

app = affinity.App("talk")
heard = affinity.Sessions(list[str], kind="heard", initial=lambda _: [])
app.include(heard)


@app.activity
async def hear(context: affinity.ActivityContext, word: str) -> dict[str, Any]:
    """How many words the session has heard, and by whose code this one."""
    async with heard.open(context) as words:
        words.append(word)
        return {"word": word, "heard": len(words), "code": CODE}


@app.orchestration
async def talk(context: affinity.OrchestrationContext, session_id: str) -> list[dict[str, Any]]:
    """Until the word is empty."""
    said: list[dict[str, Any]] = []
    while (word := await context.schedule_wait(Word)).data:
        said.append(await context.schedule_activity(hear, word.data).on_session(session_id))
        context.set_custom_status(len(said))
        word.reply(len(said))
    return said


async def say(client: affinity.Client, instance_id: str, count: int) -> None:
    """Say the word of that number, and wait until it is heard."""
    await client.raise_event(instance_id, "word", str(count))
    while (await client.status(instance_id)).custom_status != count:
        await anyio.sleep(0.02)


async def main(url: str) -> None:
    closed = anyio.Event()
    async with affinity.Client(url) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(_wait_for_end, closed)
        handle = await client.start(talk, "s", instance_id="talk")
        count = 0
        while not closed.is_set():
            count += 1
            await say(client, handle.instance_id, count)
            print(count, flush=True)
        await client.raise_event(handle.instance_id, "word", "")
        print(json.dumps(await handle.wait(timeout=30)))


async def _wait_for_end(closed: anyio.Event) -> None:
    await anyio.to_thread.run_sync(sys.stdin.read)
    closed.set()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
