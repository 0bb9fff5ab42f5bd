"""What the page takes for granted: an orchestration, a kind of conversations, and the state of sessions."""

from pydantic import BaseModel

import affinity


class Chat(BaseModel):
    """The state of a session, and of a conversation."""

    title: str = ""


chats = affinity.Sessions(Chat, kind="chat")
support = affinity.Conversations(Chat, kind="support")
app = affinity.App("shop")


@app.orchestration
async def summary(ctx: affinity.OrchestrationContext, text: str) -> str:
    """Make a text shorter."""
    return text[:100]
