import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, ToolConfirmation, UserMessage


class Chat(BaseModel):
    """Nothing is kept here beside the journal."""


refunds = affinity.Conversations(Chat, kind="refunds")


async def plan(complaint: str) -> int:
    """Stands for a call of a model, which takes long."""
    return 4200 if "tea" in complaint else 0


async def pay(cents: int) -> str:
    """Stands for a call of a payment service."""
    return f"payment of {cents} cents"


@refunds.on_wake
async def handle(wake: affinity.Wake, chat: Chat) -> None:
    """Plan, ask a person, and pay. The wake that has the answer does not plan again."""
    async with wake.run("refund") as run:
        cents = await run.step("plan", plan, str(getattr(run.events[0], "text", "")))
        answer = await run.require(ToolConfirmation("refund", {"cents": cents}))
        paid = await run.step("pay", pay, cents) if answer.allowed else "nothing"
        wake.append(AgentMessage(f"Done: {paid}"))


app = affinity.App("refunds")
app.include(refunds)


async def main(url: str = "sqlite:///refund.db") -> None:
    """A customer complains, and a person allows the refund."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(refunds, "order-1")
        await talk.ask(UserMessage("The tea was cold"))
        (request,) = await talk.requests()
        reply = await talk.reply(await talk.answer(request.request_id, allowed=True))
        print(reply.text)


if __name__ == "__main__":
    anyio.run(main)
