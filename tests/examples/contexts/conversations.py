"""What the page takes for granted: the state of a conversation."""

from pydantic import BaseModel


class Chat(BaseModel):
    """What the agent keeps between two wakes."""
