"""Session state of the application: what a worker keeps in memory next to a lease, and what is stored of it."""

from affinity.session.cache import SessionCache
from affinity.session.codec import JsonCodec, StateCodec, scratch
from affinity.session.copies import CacheStats
from affinity.session.families import SessionFamily
from affinity.session.importing import Imported
from affinity.session.manager import SessionManager, SessionPage
from affinity.session.memory import MemorySessionStore
from affinity.session.opening import OpenSession, SyncOpenSession
from affinity.session.protocols import ActivityScope, SessionContext
from affinity.session.pruning import Pruned
from affinity.session.resources import Resource
from affinity.session.sessions import Sessions
from affinity.session.transfer import readable

__all__ = [
    "ActivityScope",
    "CacheStats",
    "Imported",
    "JsonCodec",
    "MemorySessionStore",
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
