"""Durable workflows whose activities stay with the worker that holds their in-memory state.

Here are the names that a first program of each kind needs. Every public name has one place: `docs/learn/names.md` lists
the places, and an error for a name that is not here says where it is.
"""

import difflib
import importlib
import importlib.util
import sys
import typing

import affinity_workflows

affinity_workflows.check_installation()

if typing.TYPE_CHECKING:
    from affinity import agent as agent
    from affinity import client as client
    from affinity import console as console
    from affinity import conversation as conversation
    from affinity import encryption as encryption
    from affinity import errors as errors
    from affinity import provider as provider
    from affinity import schedules as schedules
    from affinity import session as session
    from affinity import sync as sync
    from affinity import telemetry as telemetry
    from affinity import testing as testing
    from affinity.blob import Blob
    from affinity.client.client import Handle, open_store
    from affinity.client.middleware import ClientCall
    from affinity.client.requests import Start
    from affinity.client.views import Instance
    from affinity.composed.app import App
    from affinity.composed.client import Client
    from affinity.composed.options import RuntimeOptions
    from affinity.composed.worker import Worker
    from affinity.conversation.conversations import Conversations
    from affinity.conversation.handle import ConversationHandle
    from affinity.conversation.kinds import ConversationLimits
    from affinity.conversation.wake import Wake
    from affinity.effects.once import once
    from affinity.flow.limit import Limit, LimitKey, Rate
    from affinity.headers import current_headers, use_headers
    from affinity.orchestration.activity import ActivityContext
    from affinity.orchestration.app import SessionListener
    from affinity.orchestration.combine import Selected
    from affinity.orchestration.context import OrchestrationContext
    from affinity.orchestration.definitions import ActivityDefinition, OrchestrationDefinition
    from affinity.orchestration.futures import ActivityFuture
    from affinity.orchestration.middleware import MiddlewareCall, Next, ObservedTurn, SyncNext
    from affinity.orchestration.retry import RetryPolicy, RetryStrategy
    from affinity.orchestration.scheduler import DurableFuture
    from affinity.orchestration.signals import (
        ActivityCancelledSignal,
        BranchCancelledSignal,
        OrchestrationCancelledSignal,
        RetryAfter,
    )
    from affinity.orchestration.typed import Event, EventValue, ExternalEvent, ReceivedEvent
    from affinity.orchestration.waits import SessionMoved
    from affinity.payloads.contract import PayloadCodec, PayloadContext
    from affinity.provider.opening import migrate
    from affinity.records import SessionStore
    from affinity.session.cache import SessionCache
    from affinity.session.codec import StateCodec
    from affinity.session.manager import SessionManager
    from affinity.session.opening import OpenSession, SyncOpenSession
    from affinity.session.resources import Resource
    from affinity.session.sessions import Sessions
    from affinity.session.stores import MemorySessionStore

__all__ = [
    "ActivityCancelledSignal",
    "ActivityContext",
    "ActivityDefinition",
    "ActivityFuture",
    "App",
    "Blob",
    "BranchCancelledSignal",
    "Client",
    "ClientCall",
    "ConversationHandle",
    "ConversationLimits",
    "Conversations",
    "DurableFuture",
    "Event",
    "EventValue",
    "ExternalEvent",
    "Handle",
    "Instance",
    "Limit",
    "LimitKey",
    "MemorySessionStore",
    "MiddlewareCall",
    "Next",
    "ObservedTurn",
    "OpenSession",
    "OrchestrationCancelledSignal",
    "OrchestrationContext",
    "OrchestrationDefinition",
    "PayloadCodec",
    "PayloadContext",
    "Rate",
    "ReceivedEvent",
    "Resource",
    "RetryAfter",
    "RetryPolicy",
    "RetryStrategy",
    "RuntimeOptions",
    "Selected",
    "SessionCache",
    "SessionListener",
    "SessionManager",
    "SessionMoved",
    "SessionStore",
    "Sessions",
    "Start",
    "StateCodec",
    "SyncNext",
    "SyncOpenSession",
    "Wake",
    "Worker",
    "current_headers",
    "migrate",
    "once",
    "open_store",
    "use_headers",
]

_PLACES: typing.Final = {
    "blob": ("Blob",),
    "client.client": ("Handle", "open_store"),
    "client.middleware": ("ClientCall",),
    "client.requests": ("Start",),
    "client.views": ("Instance",),
    "composed.app": ("App",),
    "composed.client": ("Client",),
    "composed.options": ("RuntimeOptions",),
    "composed.worker": ("Worker",),
    "conversation.conversations": ("Conversations",),
    "conversation.handle": ("ConversationHandle",),
    "conversation.kinds": ("ConversationLimits",),
    "conversation.wake": ("Wake",),
    "effects.once": ("once",),
    "flow.limit": ("Limit", "LimitKey", "Rate"),
    "headers": ("current_headers", "use_headers"),
    "orchestration.activity": ("ActivityContext",),
    "orchestration.app": ("SessionListener",),
    "orchestration.combine": ("Selected",),
    "orchestration.context": ("OrchestrationContext",),
    "orchestration.definitions": ("ActivityDefinition", "OrchestrationDefinition"),
    "orchestration.futures": ("ActivityFuture",),
    "orchestration.middleware": ("MiddlewareCall", "Next", "ObservedTurn", "SyncNext"),
    "orchestration.retry": ("RetryPolicy", "RetryStrategy"),
    "orchestration.scheduler": ("DurableFuture",),
    "orchestration.signals": (
        "ActivityCancelledSignal",
        "BranchCancelledSignal",
        "OrchestrationCancelledSignal",
        "RetryAfter",
    ),
    "orchestration.typed": ("Event", "EventValue", "ExternalEvent", "ReceivedEvent"),
    "orchestration.waits": ("SessionMoved",),
    "payloads.contract": ("PayloadCodec", "PayloadContext"),
    "provider.opening": ("migrate",),
    "records": ("SessionStore",),
    "session.cache": ("SessionCache",),
    "session.codec": ("StateCodec",),
    "session.manager": ("SessionManager",),
    "session.opening": ("OpenSession", "SyncOpenSession"),
    "session.resources": ("Resource",),
    "session.sessions": ("Sessions",),
    "session.stores": ("MemorySessionStore",),
}
"""The modules that define the public names."""

_MODULES: typing.Final = frozenset(
    {
        "agent",
        "audit",
        "client",
        "console",
        "conversation",
        "effects",
        "encryption",
        "errors",
        "limits",
        "provider",
        "records",
        "schedules",
        "session",
        "sync",
        "telemetry",
        "testing",
    }
)
"""What ``import affinity`` gives without an import of its own."""

_ELSEWHERE: typing.Final = (
    "errors",
    "client",
    "conversation",
    "session",
    "schedules",
    "audit",
    "effects",
    "agent",
    "testing",
    "conversation.journal",
    "telemetry",
    "provider.contract",
    "provider",
)
"""Where a name is looked for that is not here, for the message."""


def _not_here(name: str) -> Exception:
    """The error for a name that is not public here, with the place where it is. Of ``from affinity import`` it is an
    ``ImportError``: the interpreter would drop the text of another one.
    """
    text = f"module 'affinity' has no attribute {name!r}"
    remedy = "" if name.startswith("_") or importlib.util.find_spec(f"affinity.{name}") else _remedy(name)
    is_import = remedy and sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    return ImportError(text + remedy, name="affinity") if is_import else AttributeError(text + remedy)


def _remedy(name: str) -> str:
    for place in _ELSEWHERE:
        try:
            module = importlib.import_module(f"affinity.{place}")
        except ImportError:  # of an extra that is not installed
            continue
        defined_in = getattr(getattr(module, name, None), "__module__", "")
        if name in getattr(module, "__all__", ()) or defined_in == module.__name__:
            return f": it is in affinity.{place}, as in `from affinity.{place} import {name}`"
    close = difflib.get_close_matches(name, __all__, 1)
    return f": did you mean {close[0]!r}?" if close else ""


if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name or a module when it is first used."""
        if name in _MODULES:
            return importlib.import_module(f"affinity.{name}")
        place = next((module for module, names in _PLACES.items() if name in names), None)
        if place is None:
            raise _not_here(name)
        value = globals()[name] = getattr(importlib.import_module(f"affinity.{place}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
