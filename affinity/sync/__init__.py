"""The client for code without an event loop: Django, Flask, Celery, notebooks, scripts.

Type checkers read ``__init__.pyi``, which ``python -m tests.sync.stubs`` writes.
"""

from affinity.sync.proxies import (
    Client,
    ConversationHandle,
    EventFeed,
    Handle,
    Limits,
    Pages,
    ReplyStream,
    RequestFeed,
    Schedules,
    SessionManager,
    SessionStore,
    open_store,
)
from affinity.sync.proxy import Items

__all__ = [
    "Client",
    "ConversationHandle",
    "EventFeed",
    "Handle",
    "Items",
    "Limits",
    "Pages",
    "ReplyStream",
    "RequestFeed",
    "Schedules",
    "SessionManager",
    "SessionStore",
    "open_store",
]
