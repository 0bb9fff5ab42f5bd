"""Step 6: the session moves. Its worker leaves, and another one loads the state."""

import anyio
from step05 import app, chats, conversation
from talk import say

import affinity


async def main(url: str = "sqlite:///step06.db") -> None:
    """A first worker drains; a second one takes the session over."""
    await affinity.migrate(url)  # workers do so when they start; here the client is the first
    async with affinity.Client(url) as client:
        first = affinity.RuntimeOptions(worker_node_id="worker-a")
        async with affinity.Worker(app, url, first):
            chat = await client.start(conversation)
            await say(client, chat.instance_id, "hello")
            await say(client, chat.instance_id, "how are you?")
        second = affinity.RuntimeOptions(worker_node_id="worker-b")
        async with affinity.Worker(app, url, second):
            await say(client, chat.instance_id, "what did I say?")
            await say(client, chat.instance_id, "bye")
    print(chats.stats.hydrations, "hydrations,", chats.stats.hits, "hits")


if __name__ == "__main__":
    anyio.run(main)
