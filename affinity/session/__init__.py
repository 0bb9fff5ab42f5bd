"""Session state of the application: what a worker keeps in memory next to a lease, and what is stored of it."""

from affinity.session.cache import SessionCache
from affinity.session.codec import JsonCodec, StateCodec, scratch
from affinity.session.context import ActivityScope, SessionContext
from affinity.session.manager import SessionManager, SessionPage
from affinity.session.memory import MemorySessionStore
from affinity.session.opening import OpenSession, SyncOpenSession
from affinity.session.pruning import Pruned, SessionFamily
from affinity.session.resources import Resource
from affinity.session.sessions import Sessions
from affinity.session.state_cache import CacheStats
from affinity.session.transfer import Imported, OnExists, readable

__all__ = [
    "ActivityScope",
    "CacheStats",
    "Imported",
    "JsonCodec",
    "MemorySessionStore",
    "OnExists",
    "OpenSession",
    "Pruned",
    "Resource",
    "SessionCache",
    "SessionContext",
    "SessionFamily",
    "SessionManager",
    "SessionPage",
    "Sessions",
    "StateCodec",
    "SyncOpenSession",
    "readable",
    "scratch",
]
