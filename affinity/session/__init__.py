"""Session state of the application: cached in the worker that holds the session, and stored in its database.

==============  ========================================================================================
sessions        `Sessions`: the states of one kind, and `Sessions.open`
opening         what `Sessions.open` returns; how a script loads and saves
writer          how an activity changes a state: one at a time, staged, committed with the result
state           a state in memory, and how it is loaded from a record and encoded
state_cache     the entries in memory: pinned, bounded, disposed once
cache           `SessionCache`: for applications that load and save by themselves
codec           state to bytes and back; compression
fields          overrides of fields, and the mapping to a narrower record by name
migrations      from one schema version to another
resources       `Resource`: process-local values beside the states
manager         `SessionManager`: lists, shows, deletes, prunes, exports and imports records
pruning         removal of records or families by age or number
transfer        the lines of an export, and their import
memory          `MemorySessionStore`
retry           `RetryingStore`: repeats calls that the database has failed
context         what the package needs of an activity's context
callbacks       calls of the application's functions: async or sync, bounded, shared
==============  ========================================================================================

`docs/understand/architecture.md` follows the loading of a state through these files.
"""

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
