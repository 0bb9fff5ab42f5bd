"""Session state of the application: cached in the worker that holds the session, and stored in its database.

==============  ========================================================================================
sessions        `Sessions`: the states of one kind, and `Sessions.open`
opening         what `Sessions.open` returns; how a script loads and saves
writer          how an activity changes a state: one at a time, staged, committed with the result
state           a state in memory, and how it is loaded from a record and encoded
state_cache     the entries in memory: pinned, bounded, disposed once
cache           `SessionCache`: for applications that load and save by themselves
codec           state to bytes and back; compression; overrides of fields; the mapping to a narrower record
migrations      from one schema version to another
resources       `Resource`: process-local values beside the states; calls of the application's callbacks
manager         `SessionManager`: lists, shows, deletes, prunes, exports and imports records
removal         deletion with descendants, and pruning, in steps
transfer        the lines of an export, and their import
stores          `MemorySessionStore`, and `RetryingStore`, which repeats calls that the database has failed
==============  ========================================================================================

`docs/understand/architecture.md` follows the loading of a state through these files.
"""

from affinity.session.cache import SessionCache
from affinity.session.codec import JsonCodec, StateCodec, scratch
from affinity.session.manager import SessionFamily, SessionManager
from affinity.session.opening import OpenSession, SyncOpenSession
from affinity.session.removal import Pruned
from affinity.session.resources import RESOURCE_LABEL, Resource
from affinity.session.sessions import Sessions
from affinity.session.state_cache import CacheStats, SessionContext
from affinity.session.stores import MemorySessionStore, RetryingStore
from affinity.session.transfer import Imported, ImportTimes, OnExists, check_lines, readable
from affinity.session.writer import ActivityScope

__all__ = [
    "RESOURCE_LABEL",
    "ActivityScope",
    "CacheStats",
    "ImportTimes",
    "Imported",
    "JsonCodec",
    "MemorySessionStore",
    "OnExists",
    "OpenSession",
    "Pruned",
    "Resource",
    "RetryingStore",
    "SessionCache",
    "SessionContext",
    "SessionFamily",
    "SessionManager",
    "Sessions",
    "StateCodec",
    "SyncOpenSession",
    "check_lines",
    "readable",
    "scratch",
]
