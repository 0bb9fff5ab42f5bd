"""What the page takes for granted: the models and the activities of an application."""

from pydantic import BaseModel

import affinity


class Order(BaseModel):
    """What was bought."""

    order_id: int
    total: float = 0


class Message(BaseModel):
    """What a user has written."""

    text: str


class Reply(BaseModel):
    """What the application has written."""

    text: str


class Shop:
    """What activities use: a database, a printer."""

    async def read(self, order_id: int) -> Order:
        """An order."""
        return Order(order_id=order_id)

    def print(self, order: Order) -> str:
        """Its bill."""
        return f"order {order.order_id}"


shop = Shop()
other = affinity.App("other")
order, chat, question, session_id, progress = Order(order_id=1), "a chat", "why?", "session-1", 0
transcript = [Message(text="hello")]
urls = ["one", "two"]


@other.activity
async def load_model(ctx: affinity.ActivityContext, name: str) -> None:
    """Load it."""


@other.activity
async def infer(ctx: affinity.ActivityContext, question: str) -> str:
    """Ask it."""
    return question


@other.activity
async def charge(ctx: affinity.ActivityContext, order: Order) -> None:
    """Take the money."""


@other.activity
async def summarise(ctx: affinity.ActivityContext, chat: str) -> str:
    """A few words."""
    return chat[:5]


@other.activity
async def run_turn(ctx: affinity.ActivityContext, message: Message) -> Reply:
    """Answer it."""
    return Reply(text=message.text)


@other.activity
async def restore(ctx: affinity.ActivityContext, transcript: list[Message]) -> None:
    """Read it again."""


@other.activity
async def fetch(ctx: affinity.ActivityContext, url: str) -> str:
    """A page."""
    return url


@other.activity
async def do_next(ctx: affinity.ActivityContext, done: int) -> int:
    """A piece of the work."""
    return done + 1


@other.orchestration
async def archive(ctx: affinity.OrchestrationContext, chat: str) -> str:
    """Put it away."""
    return chat
