import anyio
from pydantic import BaseModel

import affinity
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.conversation import ToolResult, UserMessage


class Chat(BaseModel):
    """Nothing is kept here beside the journal."""


support = affinity.Conversations(Chat, kind="support")


@tool(confirm=lambda arguments: arguments["cents"] > 1000, confirm_within=86_400)
async def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents are on their way"


async def model(request: ModelRequest) -> ModelReply:
    """Stands for a language model; a real one gets ``request.openai_messages()`` and ``openai_tools()``."""
    last = request.events[-1]
    if isinstance(last, ToolResult):
        return ModelReply(content=f"Done: {last.result}.", usage={"output_tokens": 5})
    arguments = '{"cents": 5000}'
    return ModelReply(calls=[ToolCall("call-1", "refund", arguments)], usage={"output_tokens": 9})


@support.on_wake
async def respond(wake: affinity.Wake, chat: Chat) -> None:
    """Call the model and its tools, until it answers, or waits for a person."""
    result = await run_loop(wake, model=model, tools=[refund], system="You are a clerk.")
    wake.logger.info("the loop has ended: %s", result.stop)


app = affinity.App("support")
app.include(support)


async def main(url: str = "sqlite:///approval.db") -> None:
    """A person allows what the model wants to do."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(support, "chat-7")
        reply = await talk.ask(UserMessage("I want my money back"))
        print(reply.stop_reason, await talk.status())
        (request,) = await talk.requests()
        seq = await talk.answer(request.request_id, allowed=True)
        print((await talk.reply(seq)).text)


if __name__ == "__main__":
    anyio.run(main)
