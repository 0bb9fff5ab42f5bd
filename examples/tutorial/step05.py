"""Step 5: state. What a session knows commits together with the result of the activity that changed it."""

import anyio
from pydantic import BaseModel
from talk import model, say

import affinity


class Chat(BaseModel):
    """What a session knows."""

    messages: list[str] = []


app = affinity.App("chat")
chats = affinity.Sessions(Chat, kind="chat")
app.include(chats)


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Ask the model; the state of the session is loaded when it is not in memory."""
    async with chats.open(ctx) as chat:
        chat.messages.append(text)
        return f"{ctx.worker_id}: {model(chat.messages)}"


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> int:
    """Answer messages until one says bye; return how many there were."""
    session_id = await ctx.new_guid()
    turns, text = 0, ""
    while text != "bye":
        text = await ctx.schedule_wait("message", str)
        reply = await ctx.schedule_activity(answer, text).on_session(session_id)
        turns += 1
        ctx.set_custom_status({"turns": turns, "reply": reply})
    return turns


async def main(url: str = "sqlite:///step05.db") -> None:
    """Talk, and look at what is kept."""
    options = affinity.RuntimeOptions(worker_node_id="worker-a")
    async with affinity.Worker(app, url, options), affinity.Client(url) as client:
        chat = await client.start(conversation)
        for text in ["hello", "bye"]:
            await say(client, chat.instance_id, text)
        async for record in client.session_manager.list():
            print(record.metadata.kind, "version", record.version, "by", record.holder)


if __name__ == "__main__":
    anyio.run(main)
