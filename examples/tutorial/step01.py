"""Step 1: an activity and an orchestration."""

import anyio

import affinity

app = affinity.App("chat")


def model(messages: list[str]) -> str:
    """Stands for a language model: the same answer to the same messages."""
    return f"message {len(messages)}: you said {messages[-1]!r}"


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Ask the model. It runs at least once, so a second run must do no harm."""
    return model([text])


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext, text: str) -> str:
    """Its calls and their results are recorded."""
    return await ctx.schedule_activity(answer, text)


async def main(url: str = "sqlite:///step01.db") -> None:
    """A worker and a client in one process."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        chat = await client.start(conversation, "hello")
        print(await chat.wait())


if __name__ == "__main__":
    anyio.run(main)
