"""Step 9: a deploy changes the state. Records of the release before are migrated when they are loaded."""

from typing import Any

import anyio
import step05
from pydantic import BaseModel
from talk import say

import affinity


class Message(BaseModel):
    """What somebody has said."""

    author: str
    text: str


class Chat(BaseModel):
    """The second version: each message has an author."""

    messages: list[Message] = []


app = affinity.App("chat")
chats = affinity.Sessions(Chat, kind="chat", schema_version=2)
app.include(chats)
app.orchestration(step05.conversation)


@chats.migration(1, 2)
def add_authors(state: dict[str, Any]) -> dict[str, Any]:
    """Before, users were the only authors."""
    return {"messages": [{"author": "user", "text": text} for text in state["messages"]]}


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """The activity of the new release, under the name of the former."""
    async with chats.open(ctx) as chat:
        chat.messages.append(Message(author="user", text=text))
        reply = f"message {len(chat.messages)}, by {chat.messages[0].author} since {chat.messages[0].text!r}"
        chat.messages.append(Message(author="model", text=reply))
        return reply


async def main(url: str = "sqlite:///step09.db") -> None:
    """The first message is answered by the former release, the others by this one."""
    await affinity.migrate(url)
    async with affinity.Client(url) as client:
        async with affinity.Worker(step05.app, url):
            chat = await client.start(step05.conversation)
            await say(client, chat.instance_id, "hello")
        async with affinity.Worker(app, url):
            await say(client, chat.instance_id, "what is new?")
            await say(client, chat.instance_id, "bye")


if __name__ == "__main__":
    anyio.run(main)
