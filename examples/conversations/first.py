import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage


class Chat(BaseModel):
    """What the agent keeps between two wakes."""

    questions: int = 0


support = affinity.Conversations(Chat, kind="support")


@support.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Runs on the worker that holds the conversation, for what has arrived since the last wake."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            chat.questions += 1
            wake.append(AgentMessage(f"answer {chat.questions}: you said {event.text!r}"))


app = affinity.App("support")
app.include(support)


async def main(url: str = "sqlite:///first.db") -> None:
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(support, "chat-7")
        reply = await talk.ask(UserMessage("hello"), event_id="m-1")
        print(reply.text)  # answer 1: you said 'hello'
        for entry in await talk.history():
            print(entry.seq, entry.kind)  # 1 user.message, … 3 agent.message, … 5 conversation.idle


if __name__ == "__main__":
    anyio.run(main)
