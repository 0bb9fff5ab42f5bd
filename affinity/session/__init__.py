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

from affinity.field_words import show_all_in_help
from affinity.records import (
    Participant,
    RecordTimes,
    SessionFilter,
    SessionMetadata,
    SessionRecord,
    SessionState,
    SessionSummary,
    StateEncoding,
    StateWrite,
)
from affinity.session.cache import SessionCache as SessionCache
from affinity.session.codec import JsonCodec, scratch
from affinity.session.codec import StateCodec as StateCodec
from affinity.session.manager import SessionFamily
from affinity.session.manager import SessionManager as SessionManager
from affinity.session.opening import OpenSession as OpenSession
from affinity.session.opening import SyncOpenSession as SyncOpenSession
from affinity.session.removal import Pruned
from affinity.session.resources import RESOURCE_LABEL
from affinity.session.resources import Resource as Resource
from affinity.session.sessions import Sessions as Sessions
from affinity.session.state_cache import CacheStats
from affinity.session.state_cache import SessionContext as SessionContext
from affinity.session.stores import MemorySessionStore as MemorySessionStore
from affinity.session.stores import RetryingStore
from affinity.session.transfer import Imported, ImportTimes, OnExists, check_lines, readable
from affinity.session.writer import ActivityScope as ActivityScope

# A name imported as itself, `X as X`, is for the rest of this tree: its public place is another (docs/learn/names.md).
__all__ = [
    "RESOURCE_LABEL",
    "CacheStats",
    "ImportTimes",
    "Imported",
    "JsonCodec",
    "OnExists",
    "Participant",
    "Pruned",
    "RecordTimes",
    "RetryingStore",
    "SessionFamily",
    "SessionFilter",
    "SessionMetadata",
    "SessionRecord",
    "SessionState",
    "SessionSummary",
    "StateEncoding",
    "StateWrite",
    "check_lines",
    "readable",
    "scratch",
]


show_all_in_help(globals())
