import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, ChildEnded, JournalEntry, UserMessage


class Notes(BaseModel):
    """What a conversation keeps between two wakes."""

    facts: list[str] = []


support = affinity.Conversations(Notes, kind="support")
research = affinity.Conversations(Notes, kind="research")


@research.on_wake(max_cycles=3)
async def look_up(wake: affinity.Wake, notes: Notes) -> None:
    """A child: it has a journal and a state of its own."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            notes.facts.append(f"{event.text}: 42 cm")
    wake.finish(notes.facts[-1])


@support.on_wake
async def respond(wake: affinity.Wake, notes: Notes) -> None:
    """Gives work to a child, and is woken by its end."""
    for event in wake.events:
        if isinstance(event, UserMessage):
            await wake.delegate(research, f"{wake.conversation_id}/research", event)
        elif isinstance(event, ChildEnded):
            wake.append(AgentMessage(f"I have found: {event.result}"))


app = affinity.App("support")
app.include(support)
app.include(research)


async def main(url: str = "sqlite:///delegate.db") -> None:
    """The parent answers when the child has."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(support, "chat-7")
        await talk.send(UserMessage("the length of the cable"))
        async with talk.events(kinds=[AgentMessage], follow=True, stream=False) as feed:
            async for item in feed:
                match item:
                    case JournalEntry(event=AgentMessage() as message):
                        print(message.text)
                        break
        async for child in client.list_conversations(parent="chat-7"):
            print(child.conversation_id, child.kind)


if __name__ == "__main__":
    anyio.run(main)
