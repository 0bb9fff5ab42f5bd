import anyio
from pydantic import BaseModel

import affinity
from affinity.conversation import AgentMessage, CallEnded, RunEnded, UserMessage

app = affinity.App("reports")


@app.activity
async def count_orders(ctx: affinity.ActivityContext, region: str) -> int:
    """Stands for a query that takes an hour."""
    return len(region) * 100


@app.orchestration
async def monthly_report(ctx: affinity.OrchestrationContext, regions: list[str]) -> str:
    """Count all of them, at the same time."""
    counts = await ctx.gather(*[ctx.schedule_activity(count_orders, each) for each in regions])
    return f"{sum(counts)} orders in {len(counts)} regions"


class Desk(BaseModel):
    """What the conversation keeps between two wakes."""

    reports: int = 0


reports = affinity.Conversations(Desk, kind="reports")


@reports.on_wake
async def respond(wake: affinity.Wake, desk: Desk) -> None:
    """Start the work, answer, and come back with the result."""
    for event in wake.events:
        match event:
            case UserMessage(text="one"):
                wake.call(count_orders, "north", retry=affinity.RetryPolicy(max_attempts=5))
                wake.append(AgentMessage("I am counting"))
            case UserMessage():
                wake.start(monthly_report, ["north", "south"])
                wake.append(AgentMessage("I am writing the report"))
            case CallEnded() | RunEnded():
                desk.reports += 1
                wake.append(AgentMessage(f"Here it is: {event.error.message if event.error else event.result}"))


app.include(reports)


async def main(url: str = "sqlite:///report.db") -> None:
    """Ask for one count, then for the report."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(reports, "desk-1")
        for text in ("one", "all"):
            reply = await talk.ask(UserMessage(text), until="settled")
            print(reply.text)


if __name__ == "__main__":
    anyio.run(main)
