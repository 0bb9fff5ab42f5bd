"""Session state of the application: what a worker keeps in memory next to the lease of a session."""

from affinity.session.cache import CacheStats, SessionCache
from affinity.session.protocols import SessionContext

__all__ = ["CacheStats", "SessionCache", "SessionContext"]
