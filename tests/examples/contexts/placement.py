"""What the page takes for granted: the activities of an application."""

import affinity

other = affinity.App("other")
text, question, line, session_id = "a text", "why?", "a line", "session-1"


@other.activity
async def embed(ctx: affinity.ActivityContext, text: str) -> list[float]:
    """Its vector."""
    return [float(len(text))]


@other.activity
async def infer(ctx: affinity.ActivityContext, question: str) -> str:
    """Ask it."""
    return question


@other.activity
async def append(ctx: affinity.ActivityContext, line: str) -> None:
    """Write it to the ledger."""
