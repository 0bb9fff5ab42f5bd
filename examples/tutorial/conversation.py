"""After step 5: the same chat as a conversation. The journal, the replies and the state need no code."""

import anyio
from pydantic import BaseModel
from talk import model

import affinity
from affinity.conversation import AgentMessage, UserMessage


class Chat(BaseModel):
    """What a conversation knows."""

    messages: list[str] = []


chats = affinity.Conversations(Chat, kind="chat")


@chats.on_wake
async def answer(wake: affinity.Wake, chat: Chat) -> None:
    """Answer what has arrived since the last wake. It runs where the state is in memory."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.messages.append(event.text)
            wake.append(AgentMessage(model(chat.messages)))


app = affinity.App("chat")
app.include(chats)


async def main(url: str = "sqlite:///conversation.db") -> None:
    """Ask, and read what was said."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(chats, "ann")
        for text in ["hello", "bye"]:
            reply = await talk.ask(UserMessage(text), event_id=f"ann-{text}")
            print(text, "->", reply.text)
        said = await talk.history(kinds=[UserMessage, AgentMessage])
        print(len(said), "messages in the journal:", said[0].kind, "first")


if __name__ == "__main__":
    anyio.run(main)
