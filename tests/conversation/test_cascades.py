"""Families of conversations that are terminated and deleted while workers are killed: nothing of them comes back."""

from __future__ import annotations

import random
import signal

import anyio
import pytest

from affinity import Client
from affinity.conversation import UserMessage
from affinity.errors import UnknownConversation
from tests.conversation.application import until
from tests.conversation.family_app import parents
from tests.support.all_databases import on_all_databases
from tests.support.worker_processes import Workers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

APP = "tests.conversation.family_app:app"
WORDS = "tea milk bread"
AT_ONCE = 5


async def end_family(client: Client, name: str, chance: random.Random) -> None:
    """Begin a family, then terminate and delete it as soon as that is possible."""
    talk = client.conversation(parents, name)
    await talk.ask(UserMessage(WORDS), timeout=120)
    if chance.random() < 0.5:
        await until(lambda: talk.history(kinds=["child.ended"]), seconds=120)
    await talk.terminate(cascade=True)
    await anyio.sleep(chance.random() * 0.05)  # of the cascade on a worker, the deletion meets each part
    await talk.delete(cascade=True, timeout=120)


async def begin_again(client: Client, name: str) -> None:
    """A conversation under the same id, whose children have the same ids."""
    talk = client.conversation(parents, name)
    await talk.ask(UserMessage(WORDS), timeout=120)

    async def said() -> list[str]:
        found = [each.event.text for each in await talk.history(kinds=["agent.message"])]  # type: ignore[attr-defined]
        return sorted(found) if len(found) == len(WORDS.split()) else []

    assert await until(said, seconds=120) == sorted(f"{name}/{word} completed" for word in WORDS.split())


async def kill_workers(workers: Workers, chance: random.Random, kills: int, done: anyio.Event) -> None:
    """Kill so many, one after the other, as soon as it has run for a moment."""
    for number in range(2, kills + 2):
        await anyio.sleep(0.2 + chance.random())
        killed = chance.choice(workers.running())
        killed.send(signal.SIGKILL)
        await anyio.to_thread.run_sync(killed.wait)
        await anyio.to_thread.run_sync(workers.start, f"w{number}", APP)
    done.set()


async def left(client: Client) -> list[str]:
    """Journals, instances and records of all conversations."""
    found = [f"journal {each.conversation_id}" async for each in client.list_conversations()]
    found += [f"instance {each.instance_id} {each.status}" async for each in client.list_instances()]
    return found + [f"record {each.session_id}" async for each in client.session_manager.list()]


async def play(workers: Workers, client: Client, *, families: int, kills: int, seed: int) -> list[str]:
    """Begin and delete so many families, and more until so many workers are killed; returns the rows that are left
    when all workers have ended.
    """
    chance, done = random.Random(seed), anyio.Event()
    names: list[str] = []
    for name in ("w0", "w1"):
        workers.start(name, APP)
    async with anyio.create_task_group() as killing:
        killing.start_soon(kill_workers, workers, chance, kills, done)
        while len(names) < families or not done.is_set():
            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    names.append(f"family-{len(names)}")
                    tasks.start_soon(end_family, client, names[-1], chance)
    for each in workers.running():  # what they run ends, or goes back to the queue
        each.send(signal.SIGTERM)
        await anyio.to_thread.run_sync(each.wait)
    found = await left(client)
    for name in names:
        with pytest.raises(UnknownConversation):
            await client.conversation(parents, name).status()
    workers.start("last", APP, max_sessions_per_runtime=10 * len(names))  # else some wait until others are idle
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(begin_again, client, name)
    return found


@pytest.mark.slow_cases("-3")
@pytest.mark.parametrize("kills", [0, 3])
@on_all_databases
async def test_nothing_of_a_deleted_family_comes_back(workers: Workers, client: Client, *, kills: int) -> None:
    assert await play(workers, client, families=5, kills=kills, seed=1) == []
