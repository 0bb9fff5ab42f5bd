"""A clerk whose refunds a person confirms. Another process, days later, goes on where the run waits."""

import anyio
from adk_model import model
from adk_plain import find_order
from google.adk.agents import LlmAgent
from google.adk.tools.function_tool import FunctionTool

import affinity
from affinity.conversation import UserMessage
from affinity.integrations.adk import adk_conversations


async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € are on their way"


tools = [find_order, FunctionTool(refund, require_confirmation=True)]
clerks = adk_conversations(LlmAgent(name="clerk", model=model, tools=tools), expires_in=7 * 86_400)
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
