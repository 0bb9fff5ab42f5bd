"""Step 3: the worker ends in the middle of a conversation; the next one goes on."""

import anyio
from step02 import app, conversation
from talk import say

import affinity


async def main(url: str = "sqlite:///step03.db") -> None:
    """Two workers, one after the other; between them a message is sent that no worker can take."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        chat = await client.start(conversation)
        await say(client, chat.instance_id, "hello")

    async with affinity.Client(url) as client:
        await client.raise_event(chat.instance_id, "message", "is anybody there?")

    async with affinity.Worker(app, url), affinity.Client(url) as client:
        await client.raise_event(chat.instance_id, "message", "bye")
        print(await client.wait(chat.instance_id), "turns")
        for event in await client.history(chat.instance_id):
            print(event.event_id, event.type)


if __name__ == "__main__":
    anyio.run(main)
