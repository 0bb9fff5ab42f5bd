"""A clerk whose refunds a person approves. Another process, days later, goes on where the run waits."""

import anyio
from agents import Agent, function_tool
from agents_model import model
from agents_plain import find_order

import affinity
from affinity.conversation import UserMessage
from affinity.integrations.openai_agents import openai_conversations


@function_tool(needs_approval=True)
async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € are on their way"


agent = Agent(name="clerk", model=model, tools=[find_order, refund])
clerks = openai_conversations(agent, expires_in=7 * 86_400)
app = affinity.App("clerks")
app.include(clerks)


async def main(url: str = "sqlite:///clerks.db") -> None:
    await affinity.migrate(url)
    async with affinity.Client(url) as client:
        talk = client.conversation(clerks, "chat-7")
        async with affinity.Worker(app, url):
            await talk.ask(UserMessage("The pot of order 7 was broken"))
        (request,) = await talk.requests()  # no worker runs now
        print("waits for", request.kind)
        async with affinity.Worker(app, url):
            seq = await talk.answer(request.request_id, allowed=True)
            print((await talk.reply(seq)).text)


if __name__ == "__main__":
    anyio.run(main)
