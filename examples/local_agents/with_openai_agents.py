"""``python -m examples.local_agents.with_openai_agents [--local]``: an agent of the OpenAI Agents SDK."""

from typing import Any

import anyio
from agents import Agent, ItemHelpers, Model, ModelResponse, Usage, set_tracing_disabled
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from affinity.integrations.openai_agents import openai_service
from examples.local_agents.model import check_packages, reply
from examples.local_llm.model import Message

set_tracing_disabled(True)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class LocalModel(Model):
    """Answers the conversation."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        """Return the next line of the conversation."""
        items: list[Any] = ItemHelpers.input_to_new_input_list(input)
        said = [Message(role=item["role"], content=_text(item["content"])) for item in items if "role" in item]
        text = ResponseOutputText(type="output_text", text=await reply(said), annotations=[])
        line = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[line], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **options: Any) -> Any:
        """Not asked for here."""
        raise NotImplementedError


agent = Agent(name="tea-clerk", model=LocalModel())


async def main(url: str = "sqlite:///tea-clerk.db") -> None:
    """Ask twice."""
    check_packages()
    async with openai_service(agent, url) as clerk:
        for text in ("Which tea is black?", "And which one is green?"):
            print((await clerk.ask("tea-1", text)).text)


if __name__ == "__main__":
    anyio.run(main)
