import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, Reply, Retracted, Streamed, UserMessage


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
    """Follow a reply, as a web handler does for a browser."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(support, "chat-7")
        said = ""
        async for item in talk.stream_reply(UserMessage("where is my order?"), event_id="m-1"):
            match item:
                case Streamed():
                    said += item.text
                case Retracted():
                    print("streamed:", said)
                    said = ""
                case Reply():
                    print("replied:", item.text)


if __name__ == "__main__":
    anyio.run(main)
