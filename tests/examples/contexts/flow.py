"""What the page takes for granted: an application with a limit, and a model."""

from dataclasses import dataclass

import affinity

model = affinity.Limit("model", concurrency=10)
app = affinity.App("reviews", limits=[model])


@dataclass
class Reply:
    """Of the model."""

    text: str
    tokens: int


async def ask(prompt: str) -> Reply:
    """The model."""
    return Reply(prompt.upper(), len(prompt))
