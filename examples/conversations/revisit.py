from datetime import timedelta

import anyio
from pydantic import BaseModel

import affinity.testing
from affinity.conversation import AgentMessage, JournalEntry, UserMessage


class Chat(BaseModel):
    """What the agent keeps between two wakes."""

    nudges: int = 0


support = affinity.Conversations(Chat, kind="support")


@support.on_wake(retry=affinity.RetryPolicy(max_attempts=5))
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Come back by itself, unless something else happens first."""
    if wake.interrupt is not None:
        wake.append(AgentMessage("I leave you alone."))
        return
    for revisit in wake.due:
        chat.nudges += 1
        wake.append(AgentMessage(f"Are you still there? ({revisit.reason}, {chat.nudges})"))
    if chat.nudges < 2:
        wake.revisit(timedelta(days=1), key="nudge", reason="no reply yet")


app = affinity.App("support")
app.include(support)


async def main() -> None:
    """No answer comes, for two days of virtual time."""
    async with affinity.testing.Env(app) as env:
        talk = env.client.conversation(support, "chat-7")
        await talk.ask(UserMessage("I have a question"))
        async with talk.events(kinds=[AgentMessage], follow=True, stream=False) as feed:
            async for item in feed:
                match item:
                    case JournalEntry(event=AgentMessage() as message):
                        print(message.text)
                        if message.text.endswith("2)"):
                            break
        seq = await talk.interrupt(reason="the customer hung up")
        print((await talk.reply(seq)).text, await talk.status())


if __name__ == "__main__":
    anyio.run(main)
