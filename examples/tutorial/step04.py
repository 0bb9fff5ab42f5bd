"""Step 4: a session. All turns of a conversation run on one worker, beside what it has in memory."""

import anyio
from talk import model, say

import affinity

app = affinity.App("chat")
memory: dict[str, list[str]] = {}
"""Of this process: what has been said, by session. It is gone when the process ends."""


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Ask the model, with all that has been said."""
    assert ctx.session_id is not None
    messages = memory.setdefault(ctx.session_id, [])
    messages.append(text)
    return f"{ctx.worker_id}: {model(messages)}"


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


async def main(url: str = "sqlite:///step04.db") -> None:
    """One of the workers is the session's holder."""
    options = affinity.RuntimeOptions(worker_node_id="worker-a")
    async with affinity.Worker(app, url, options), affinity.Client(url) as client:
        chat = await client.start(conversation)
        for text in ["hello", "how are you?", "bye"]:
            await say(client, chat.instance_id, text)


if __name__ == "__main__":
    anyio.run(main)
