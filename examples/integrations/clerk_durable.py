"""A clerk that pays back what was broken: a crash repeats nothing that it has done."""

import anyio
from clerk_model import model
from pydantic import BaseModel
from pydantic_ai import Agent

from affinity.integrations.pydantic_ai import AffinityDurability, agent_service


class Order(BaseModel):
    """What was bought."""

    number: int
    goods: str
    cents: int


ORDERS = {7: Order(number=7, goods="a pot of tea", cents=4200)}

agent = Agent(model, name="clerk", instructions="Pay back what was broken.", capabilities=[AffinityDurability()])


@agent.tool_plain
async def find_order(number: int) -> Order:
    """Find an order by its number."""
    return ORDERS[number]


@agent.tool_plain
async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € for {ORDERS[number].goods} are on their way"


async def main(url: str = "sqlite:///clerk.db") -> None:
    async with agent_service(agent, url) as clerk:
        answer = await clerk.ask("chat-7", "The pot of order 7 was broken")
    print(answer.text)


if __name__ == "__main__":
    anyio.run(main)
