"""The client of an application: the calls of the kernel and of the guests."""

from __future__ import annotations

from affinity.audit.client import AuditCalls
from affinity.blobs.client import BlobCalls
from affinity.conversation.client import ConversationCalls
from affinity.flow.client import LimitCalls
from affinity.schedules.client import ScheduleCalls
from affinity.trends.client import TrendCalls


class Client(ConversationCalls, AuditCalls, BlobCalls, LimitCalls, ScheduleCalls, TrendCalls):
    """Starts orchestrations, sends them events and waits for them, through the database.

    ::

        async with Client("sqlite:///affinity.db") as client:
            handle = await client.start(conversation, Opening(topic="tea"), instance_id="chat-17")
            await handle.raise_event("user_message", {"text": "hello"})
            summary = await handle.wait(timeout=60)

    Calls are retried for `affinity.client.calls.RETRY_SECONDS` while the database fails transiently. Calls that are not
    idempotent (events, requests to cancel) are not retried once the connection was lost in the middle: they raise
    `ConnectionLost`, and may or may not have happened.

    Every call raises a `ProviderError` when the database refuses or fails; its fields classify the error. No message
    contains the URL of the database.
    """
