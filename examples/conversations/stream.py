import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, JournalEntry, Retracted, Streamed, UserMessage


class Chat(BaseModel):
    """Nothing is kept here beside the journal."""


support = affinity.Conversations(Chat, kind="support")


@support.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Shows each word as the model makes it; the message that is appended in the end is what stays."""
    words = ["Your", "order", "is", "on", "its", "way."]
    for word in words:
        wake.stream(f"{word} ")
        await anyio.sleep(0.1)
    wake.append(AgentMessage(" ".join(words)))


app = affinity.App("support")
app.include(support)


async def main(url: str = "sqlite:///stream.db") -> None:
    """Follow a conversation, as a web handler does for a browser."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(support, "chat-7")
        seq = await talk.send(UserMessage("where is my order?"))
        said = ""
        async with talk.events(after=seq, follow=True) as feed:
            async for item in feed:
                match item:
                    case Streamed():
                        said += item.text
                    case Retracted():
                        print("streamed:", said)
                        said = ""
                    case JournalEntry(event=AgentMessage() as message):
                        print("appended:", message.text)
                        break


if __name__ == "__main__":
    anyio.run(main)
