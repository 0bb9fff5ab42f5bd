"""Step 8: conversations without an end. Timers, a session that is held, and a history that stays short."""

import anyio
from pydantic import BaseModel
from step05 import answer, app
from talk import say

import affinity.testing


class Progress(BaseModel):
    """What one execution hands to the next."""

    session_id: str
    turns: int = 0


TURNS_PER_EXECUTION = 2
"""A few hundred, in earnest."""


@app.orchestration(version="2.0.0")
async def long_conversation(ctx: affinity.OrchestrationContext, before: Progress | None = None) -> int:
    """Answer messages until there is none for a day."""
    progress = before or Progress(session_id=await ctx.new_guid())
    for _ in range(TURNS_PER_EXECUTION):
        message = ctx.schedule_wait("message", str, hold_session=progress.session_id, hold_for=600)
        _, text = await ctx.select(message, ctx.schedule_timer(86_400))
        if text is None:  # the timer
            return progress.turns
        reply = await ctx.schedule_activity(answer, text).on_session(progress.session_id)
        progress.turns += 1
        ctx.set_custom_status({"turns": progress.turns, "reply": reply})
    ctx.continue_as_new(progress)


async def main() -> None:
    """Three messages, then a day of silence, in virtual time."""
    async with affinity.testing.Env(app) as env:
        chat = await env.client.start(long_conversation)
        for text in ["hello", "how are you?", "what did I say?"]:
            await say(env.client, chat.instance_id, text)
        print(await chat.wait(), "turns in", (await chat.status()).execution_id, "executions")
        print("one day later:", (env.now() - env.started).days == 1)


if __name__ == "__main__":
    anyio.run(main)
