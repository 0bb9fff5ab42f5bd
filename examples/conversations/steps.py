import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, UserMessage


class Order(BaseModel):
    """How far it has come."""

    status: str = "new"


orders = affinity.Conversations(Order, kind="order")


async def charge(cents: int) -> str:
    """Stands for a call of a payment service."""
    return f"payment of {cents} cents"


@orders.on_wake
async def handle(wake: affinity.Wake, order: Order) -> None:
    """Pay once, and tell the customer before the rest is done."""
    payment = await wake.step("charge", charge, 4200)
    order.status = "paid"
    wake.append(AgentMessage(f"Thank you: {payment}"))
    await wake.commit()
    wake.append(AgentMessage("The parcel is on its way"))


app = affinity.App("shop")
app.include(orders)


async def main(url: str = "sqlite:///steps.db") -> None:
    """Order something."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        reply = await client.conversation(orders, "order-1").ask(UserMessage("tea, please"))
        print(*[event.text for event in reply.events if isinstance(event, AgentMessage)], sep="\n")


if __name__ == "__main__":
    anyio.run(main)
