"""A conversation whose transcript lives in the memory of the worker that holds its session.

Messages are external events; each is a turn on the session; ``continue_as_new`` keeps the history short. Half-way the
worker ends and another takes over: it hydrates the transcript from the last checkpoint and goes on under a new epoch.

Run it with ``python examples/chat.py``.
"""

import tempfile

import anyio
from pydantic import BaseModel

import affinity
from affinity import Client, Handle, SessionCache

MESSAGES = ["hello", "how are you?", "what did I say first?", "and now?", "still there?", "bye"]
TURNS_PER_EXECUTION = 2
"""A real conversation takes more; here it shows that nothing is lost between two executions."""

app = affinity.App("chat")


class Chat(BaseModel):
    """What a session keeps in memory; a real one would hold a model's cache or a child process."""

    lines: list[str] = []
    replies: list[str] = []  # by turn: what makes a repeated turn harmless


class Question(BaseModel):
    """One message and its number."""

    number: int
    text: str


class Progress(BaseModel):
    """What one execution hands to the next."""

    session_id: str
    turns: int = 0


# --- the session's state: where it comes from, where it is saved ------------------------------------------------------

checkpoints = anyio.Path()  # a folder, set in main; in production a store that every worker reaches


async def load(session_id: str) -> Chat:
    """Hydrate: the last checkpoint, or a new chat."""
    file = checkpoints / f"{session_id}.json"
    chat = Chat.model_validate_json(await file.read_text()) if await file.exists() else Chat()
    print(f"  hydrated with {len(chat.replies)} turns")
    return chat


async def save(session_id: str, chat: Chat) -> None:
    """Checkpoint: whole or not at all."""
    file = checkpoints / f"{session_id}.json"
    draft = file.with_suffix(".draft")
    await draft.write_text(chat.model_dump_json())
    await draft.replace(file)


chats = SessionCache[Chat](hydrate=load, checkpoint=save, max_sessions=50)
app.include(chats)  # a worker of this app notifies the cache which leases it has lost


# --- activities and orchestrations ------------------------------------------------------------------------------------


@app.activity
async def answer(ctx: affinity.ActivityContext, turn: Question) -> str:
    """Take a turn. It may run again after its checkpoint, so it looks whether it has been applied already."""
    async with chats.use(ctx) as chat:
        if turn.number < len(chat.replies):
            return chat.replies[turn.number]
        chat.lines.append(turn.text)
        reply = f"{ctx.worker_id} (epoch {ctx.session_epoch}): line {len(chat.lines)}; the first was {chat.lines[0]!r}"
        chat.replies.append(reply)
        return reply


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext, before: Progress | None = None) -> int:
    """Answer messages until one says bye; returns the number of turns."""
    progress = before or Progress(session_id=await ctx.new_guid())
    for _ in range(TURNS_PER_EXECUTION):
        text = await ctx.schedule_wait("user_message", str)
        turn = Question(number=progress.turns, text=text)
        reply = await ctx.schedule_activity(answer, turn).on_session(progress.session_id)
        progress.turns += 1
        ctx.set_custom_status({"turns": progress.turns, "reply": reply})
        if text == "bye":
            return progress.turns
    ctx.continue_as_new(progress)


# --- the other side ---------------------------------------------------------------------------------------------------


async def say(chat: Handle[int], number: int) -> None:
    """Send a message and wait for its reply, which the orchestration shows as its custom status."""
    print(f"you: {MESSAGES[number]}")
    await chat.raise_event("user_message", MESSAGES[number])
    while True:
        shown = (await chat.status()).custom_status or {"turns": 0}
        if shown["turns"] > number:
            print(f"  {shown['reply']}")
            return
        await anyio.sleep(0.02)


async def main(url: str) -> None:
    """Half of the conversation on one worker, half on another."""
    middle = len(MESSAGES) // 2
    async with affinity.Worker(app, url, affinity.RuntimeOptions(worker_node_id="worker-a")), Client(url) as client:
        chat = await client.start(conversation, instance_id="chat-1")
        for number in range(middle):
            await say(chat, number)
    print("worker-a has left; worker-b takes over")
    async with affinity.Worker(app, url, affinity.RuntimeOptions(worker_node_id="worker-b")), Client(url) as client:
        chat = await client.start(conversation, instance_id="chat-1")  # the one that is there
        for number in range(middle, len(MESSAGES)):
            await say(chat, number)
        print(f"{await chat.wait(timeout=30)} turns in {(await chat.status()).execution_id} executions")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = anyio.Path(folder)
        anyio.run(main, f"sqlite:///{folder}/affinity.db")
