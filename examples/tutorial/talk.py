"""What all steps of the tutorial share: the model, and how a user talks with it."""

from typing import Any

import anyio

import affinity


def model(messages: list[str]) -> str:
    """Stands for a language model: the same answer to the same messages."""
    return f"message {len(messages)}: you said {messages[-1]!r}"


async def say(client: affinity.Client, chat_id: str, text: str) -> None:
    """Send a message, wait until its reply is shown, and print both."""
    before = _turns((await client.status(chat_id)).custom_status)
    await client.raise_event(chat_id, "message", text)
    while True:
        status = (await client.status(chat_id)).custom_status
        if _turns(status) > before:
            print(f"{text} -> {status['reply']}")
            return
        await anyio.sleep(0.02)


def _turns(status: Any) -> int:
    return status["turns"] if status else 0
