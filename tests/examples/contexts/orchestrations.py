"""What the page takes for granted: the models and the activities of an application."""

from pydantic import BaseModel

import affinity


class Message(BaseModel):
    """What a user has written."""

    text: str


class Reply(BaseModel):
    """What the application has written."""

    text: str


app = affinity.App("shop")
chat, question, session_id, progress = "a chat", "why?", "session-1", 0
transcript = [Message(text="hello")]
urls = ["one", "two"]


@app.activity
async def load_model(ctx: affinity.ActivityContext, name: str) -> None:
    """Load it."""


@app.activity
async def infer(ctx: affinity.ActivityContext, question: str) -> str:
    """Ask it."""
    return question


@app.activity
async def charge(ctx: affinity.ActivityContext, order_id: int) -> str:
    """Take the money."""
    return f"payment {order_id}"


@app.activity
def render_bill(ctx: affinity.ActivityContext, payment: str) -> str:
    """What was paid."""
    return f"bill for {payment}"


@app.orchestration
async def fulfil(ctx: affinity.OrchestrationContext, order_id: int) -> str:
    """In its first version."""
    payment = await ctx.schedule_activity(charge, order_id)
    return await ctx.schedule_activity(render_bill, payment)


@app.activity
async def run_turn(ctx: affinity.ActivityContext, message: Message) -> Reply:
    """Answer it."""
    return Reply(text=message.text)


@app.activity
async def restore(ctx: affinity.ActivityContext, transcript: list[Message]) -> None:
    """Read it again."""


@app.activity
async def fetch(ctx: affinity.ActivityContext, url: str) -> str:
    """A page."""
    return url


@app.activity
async def do_next(ctx: affinity.ActivityContext, done: int) -> int:
    """A piece of the work."""
    return done + 1


@app.orchestration
async def archive(ctx: affinity.OrchestrationContext, chat: str) -> str:
    """Put it away."""
    return chat
