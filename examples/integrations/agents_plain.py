"""A clerk that pays back what was broken: an agent as the OpenAI Agents SDK has it."""

import anyio
from agents import Agent, Runner, function_tool
from agents_model import model

ORDERS = {7: "a pot of tea, 42.00 €"}


@function_tool
async def find_order(number: int) -> str:
    """Find an order by its number."""
    return ORDERS[number]


@function_tool
async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € for order {number} are on their way"


agent = Agent(name="clerk", model=model, instructions="Pay back what was broken.", tools=[find_order, refund])


async def main(url: str = "sqlite:///clerk.db") -> None:
    answer = await Runner.run(agent, "The pot of order 7 was broken")
    print(answer.final_output)


if __name__ == "__main__":
    anyio.run(main)
