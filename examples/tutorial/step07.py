"""Step 7: the model fails now and then, or takes too long."""

import anyio
from step05 import Chat
from talk import model, say

import affinity
from affinity.errors import ActivityError

app = affinity.App("chat")
chats = affinity.Sessions(Chat, kind="chat")
app.include(chats)


class Overloaded(Exception):
    """The model has no room for a moment."""


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Ask a model that refuses the first attempt, and does not answer some questions at all."""
    async with chats.open(ctx) as chat:
        chat.messages.append(text)
        if ctx.attempt == 1:
            raise Overloaded("try again")
        if text == "what is the last digit of pi?":
            await anyio.sleep_forever()
        return f"attempt {ctx.attempt}: {model(chat.messages)}"


RETRY = affinity.RetryPolicy(max_attempts=3, initial_interval=0.1)


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> int:
    """Answer messages until one says bye; return how many there were."""
    session_id = await ctx.new_guid()
    turns, text = 0, ""
    while text != "bye":
        text = await ctx.schedule_wait("message", str)
        asked = ctx.schedule_activity(answer, text, retry=RETRY, timeout=0.5).on_session(session_id)
        try:
            reply = await asked
        except ActivityError as failure:
            reply = f"sorry: {type(failure).__name__}"
        turns += 1
        ctx.set_custom_status({"turns": turns, "reply": reply})
    return turns


async def main(url: str = "sqlite:///step07.db") -> None:
    """A question that is answered at the second attempt, and one that never is."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        chat = await client.start(conversation)
        for text in ["hello", "what is the last digit of pi?", "bye"]:
            await say(client, chat.instance_id, text)


if __name__ == "__main__":
    anyio.run(main)
