"""A clerk that pays back what was broken: an agent as Google's ADK has it."""

import anyio
from adk_model import model
from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner

ORDERS = {7: "a pot of tea, 42.00 €"}


async def find_order(number: int) -> str:
    """Find an order by its number."""
    return ORDERS[number]


async def refund(number: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents / 100:.2f} € for order {number} are on their way"


agent = LlmAgent(name="clerk", model=model, instruction="Pay back what was broken.", tools=[find_order, refund])


async def main(url: str = "sqlite:///clerk.db") -> None:
    events = await InMemoryRunner(agent).run_debug("The pot of order 7 was broken", quiet=True)
    print(events[-1].content.parts[0].text)


if __name__ == "__main__":
    anyio.run(main)
