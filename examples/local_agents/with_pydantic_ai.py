"""``python -m examples.local_agents.with_pydantic_ai [--local]``: an agent of pydantic-ai."""

import anyio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from affinity.integrations.pydantic_ai import AffinityDurability, agent_service
from examples.local_agents.model import check_packages, reply
from examples.local_llm.model import Message


async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer the conversation."""
    said = list[Message]()
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                said.append(Message(role="user", content=str(part.content)))
            elif isinstance(part, TextPart):
                said.append(Message(role="assistant", content=part.content))
    return ModelResponse(parts=[TextPart(await reply(said))])


agent = Agent(FunctionModel(respond), name="tea-clerk", capabilities=[AffinityDurability()])


async def main(url: str = "sqlite:///tea-clerk.db") -> None:
    """Ask twice."""
    check_packages()
    async with agent_service(agent, url) as clerk:
        for text in ("Which tea is black?", "And which one is green?"):
            print((await clerk.ask("tea-1", text)).text)


if __name__ == "__main__":
    anyio.run(main)
