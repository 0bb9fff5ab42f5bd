"""Step 2: the messages of a user are external events; a reply is the custom status."""

import anyio
from talk import model, say

import affinity

app = affinity.App("chat")


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Ask the model."""
    return model([text])


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> int:
    """Answer messages until one says bye; return how many there were."""
    turns, text = 0, ""
    while text != "bye":
        text = await ctx.schedule_wait("message", str)
        reply = await ctx.schedule_activity(answer, text)
        turns += 1
        ctx.set_custom_status({"turns": turns, "reply": reply})
    return turns


async def main(url: str = "sqlite:///step02.db") -> None:
    """Two messages."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        chat = await client.start(conversation)
        await say(client, chat.instance_id, "hello")
        await say(client, chat.instance_id, "bye")
        print(await chat.wait(), "turns")


if __name__ == "__main__":
    anyio.run(main)
