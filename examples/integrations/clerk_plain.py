"""A clerk that pays back what was broken: an agent as pydantic-ai has it."""

import anyio
from clerk_model import model
from pydantic import BaseModel
from pydantic_ai import Agent


class Order(BaseModel):
    """What was bought."""

    number: int
    goods: str
    cents: int


ORDERS = {7: Order(number=7, goods="a pot of tea", cents=4200)}

agent = Agent(model, name="clerk", instructions="Pay back what was broken.")


@agent.tool_plain
async def find_order(number: int) -> Order:
    """Find an order by its number."""
    return ORDERS[number]


@agent.tool_plain
async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € for {ORDERS[number].goods} are on their way"


async def main(url: str = "sqlite:///clerk.db") -> None:
    answer = await agent.run("The pot of order 7 was broken")
    print(answer.output)


if __name__ == "__main__":
    anyio.run(main)
