"""Every error that affinity raises, in one tree.

::

    AffinityError
    ├── InvalidInput (ValueError)      an argument is refused; nothing was written
    │   ├── InvalidId                  an instance, session, worker or event name out of bounds
    │   ├── PayloadTooLarge            an input, result or event over its limit
    │   ├── NotSerializable            a value that JSON, as its declared type, cannot represent
    │   │   └── PayloadUnreadable      a stored payload that the codec cannot decode, or has no codec for
    │   ├── InvalidOptions             options that contradict each other, with both values
    │   │   ├── CodecMismatch          the codec is missing, or has not the keys of the database
    │   │   ├── InvalidSchedule        a cron line, a zone or another option of a schedule
    │   │   └── InvalidLimit           a limit, its key, its rate, or the limits of some work
    │   ├── InvalidUrl                 a database URL that names no provider, or is malformed
    │   ├── InvalidApp                 MODULE:APP that does not import, or a wrong registration
    │   ├── ActivityMisuse             an activity, or a handler, makes a call that only orchestrations make
    │   ├── OnceMisuse                 a block of `affinity.once` that cannot run once
    │   ├── WakeMisuse                 a handler of a conversation makes a call that can never work
    │   │   └── StepMismatch           a step of this key was done with other arguments
    │   └── SessionRecordRefused       a record that its code could not load is to be imported or copied
    ├── ProviderError                  the database refused or failed; ``retryable`` says whether to retry
    │   ├── Contention                 lost to a concurrent transaction: retry immediately
    │   │   └── LockTimeout            another transaction holds a row of the call: retry the rest of a batch without it
    │   ├── StatementTimeout           the statement took too long: retry less of it, with backoff
    │   ├── ConnectionLost             no connection, or lost during the call: retry with backoff
    │   ├── ReadOnly                   the database takes no writes now: retry with backoff
    │   ├── AccessDenied               wrong credentials, or a right that is missing
    │   ├── SchemaMismatch             the database is too old or too new for the code, or was never migrated
    │   ├── PoolerRefused              a connection pooler shares the sessions of the database
    │   ├── DatabaseFailure            anything else: a full disk, no memory, a limit; retry with backoff
    │   │   └── CodecFailed            the codec of payloads has failed, as when its key service does not answer
    │   ├── BlobStoreFailed            the store of large payloads refused or failed; retry with backoff
    │   ├── DataRefused                the data is at fault; a retry does not help
    │   ├── Duplicate                  a row that must be new exists; a retry does not help
    │   ├── DatabaseChanged            another database, or one that has lost commits: state in memory is invalid
    │   └── WorkerFenced               another process has taken this worker's name
    ├── ClientError                    the request does not fit the instance, or the worker
    │   ├── UnknownInstance
    │   ├── InstanceExists             the id belongs to an instance of another orchestration
    │   ├── InstanceRunning            it has not ended, and the start says if_running="fail"
    │   ├── InstanceFinished
    │   │   ├── NoReply                it ended without a reply to the event of `ask`
    │   │   └── NoValue                it ended without the value of `wait_value`
    │   ├── QuotaExceeded              a limit of the database is reached
    │   │   └── TooManyUnreadEvents    the instance has too many unread events
    │   ├── InstanceNotFinished        delete without force
    │   ├── InstanceNotSuspended       resume of an instance that runs or has ended
    │   ├── UnknownWorker
    │   ├── NotRegistered              no live worker has code for a name that is to be started, or for an event
    │   ├── UnknownSchedule
    │   ├── ScheduleExists             create of a schedule whose name is taken
    │   ├── ScheduleDeclared           update or delete of a schedule that code declares: change the code
    │   ├── UnknownLimit               no code has declared a limit of this name, or the limit has no such key
    │   ├── WrongEventLoop             a client was called from a thread, or on another event loop than its own
    │   ├── ClientForked               a sync client was opened before the fork of this process
    │   ├── WaitTimeout
    │   ├── NothingWillHappen          the end of a wait in `affinity.testing.Env`, where time is virtual
    │   └── ConversationError          the request does not fit the conversation
    │       ├── UnknownConversation
    │       ├── ConversationTerminated it takes no more events
    │       ├── ConversationKindMismatch it is of another kind
    │       ├── ConversationExists       the id of a new one is in use
    │       ├── NotAParent             only its parent, and clients, may address a child
    │       ├── EventIdConflict        another event of the conversation has the event id
    │       ├── RequestNotPending      answered, dropped or expired already, unknown, or of another kind
    │       ├── UnknownEntry           an anchor that is not in the journal
    │       │   ├── TimelineChanged    the database may have lost the entry of a number, or of a position
    │       │   └── EntriesRemoved     retention has removed entries that were to be read
    │       ├── StepInterrupted        a step that is not repeated has begun, and its outcome is not known
    │       ├── StepFailed             a step that is not repeated has raised in an earlier attempt
    │       └── WakeFailed             the wake that was to process the event has failed for good
    ├── OrchestrationError             an orchestration has ended, or broke a rule of replay
    │   ├── OrchestrationFailed        it raised; for its parent or client
    │   ├── OrchestrationCancelled
    │   ├── OrchestrationMisuse        a foreign await, a forgotten await, a misplaced call
    │   ├── UnknownOrchestration       no worker registers it
    │   ├── OrchestrationPoisoned      its turns seem to end the workers that take it
    │   ├── OrchestrationUnreadable    its history, or a message to it, cannot be read by this version
    │   ├── ExecutionLimitReached      its history, or its unread events, are at their limit
    │   └── Nondeterminism             code and history disagree: expected and actual
    ├── ActivityError                  raised where an orchestration awaits an activity
    │   ├── ActivityFailed             the activity raised; carries its type, message, category, bases and fields
    │   ├── ActivityTimeout            it ran longer than its timeout
    │   ├── ActivityPoisoned           it was started too often without ending
    │   ├── UnknownActivity            no worker registers it
    │   ├── SessionTagMismatch         it has another tag than its session
    │   ├── NoWorkerWithTag            no live worker has its tag; raised by option
    │   ├── SessionBusy                it was not started within its fail_after
    │   └── ActivityCancelled          cancelled while it was awaited
    ├── LateAttempt                    a later attempt of the activity has begun: this one must have no effect
    ├── TransactionFailed              `affinity.once` in a transaction of yours that has failed before
    ├── IterationInterrupted           an async iterator cannot go on after a cancelled wait
    ├── CodeExited                     code of the application ended with an exception that is no ``Exception``
    ├── BlobNotFound                   a blob store has no blob of this name
    ├── TokenUnknown                   the ``resume`` of a step finds no call of its token
    ├── CrashMatrixFailed (AssertionError)  runs of `affinity.testing.crash_matrix` have failed
    ├── WorkerStalled                  the worker's event loop made no progress; the worker gave up its lease
    └── SessionError
        ├── UnknownSession             this process has no state for the session
        ├── ResourceClosed             the session has closed this resource
        ├── SessionNotFound            no record has this id, or this beginning of an id
        ├── SessionAmbiguous           several ids have this beginning
        ├── SessionLoadFailed          the state could not be read; the record is untouched
        │   ├── SessionMigrationMissing    no chain of migrations leads to the schema of this code
        │   │   └── SessionRecordTooNew    later code wrote it
        │   ├── SessionMigrationAmbiguous  a step twice, or two shortest chains
        │   └── SessionMigrationFailed     a migration raised
        ├── SessionSaveFailed          the state could not be written
        ├── SessionStateTampered       the state in memory was changed outside its block
        ├── SessionSelfConflict        an activity writes the record of its own session by id
        └── SessionWriteConflict       other code wrote the record, or holds the session: the store wins

``retryable`` and the other fields of `ProviderError` depend on the class only, never on a message, so that both
providers agree on them. Only an error that the data causes is not retryable: an unknown error is attributed to the
environment of the database. No message contains the database's URL or user; hosts and ports are named where there is no
connection to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pydantic import ValidationError

ErrorField: TypeAlias = str | int | float | bool | None
"""The types of fields of an error that are recorded."""


class ErrorDetails(NamedTuple):
    """Recorded details of an exception, beside its class and text."""

    category: str | None = None
    """Its attribute ``category``, or the category of the error that it reports."""
    bases: tuple[str, ...] = ()
    """Names of its base classes; then, of an error that it reports, the class and its bases."""
    fields: tuple[tuple[str, ErrorField], ...] = ()
    """The attributes that its class names in ``recorded_fields``: names and values."""


def details_document(details: ErrorDetails) -> dict[str, Any]:
    """Return the recorded details of an error, beside its class and text, as JSON values without empty ones."""
    document = {"category": details.category, "bases": list(details.bases), "fields": dict(details.fields)}
    return {name: value for name, value in document.items() if value}


class ReportedError:
    """Base of the errors that report an exception of other code: of an activity, or of an orchestration.

    An exception of the application can have a ``category`` (a string) and ``recorded_fields`` (a tuple of names of
    attributes). Both are available where the result is awaited. A field is a string, which is truncated to 256 bytes, a
    number, or None; a Decimal, a date, a time, a UUID or an enum is recorded in its JSON form. A field with any other
    value is left out, and so are names beyond `limits.MAX_ERROR_NAMES`; a line of the log says so.

    Attributes:
        error_type: name of the exception class that was raised.
        message: its text.
        details: its category, bases and fields.
        stack: its traceback as text, of at most `limits.MAX_STACK_BYTES` bytes; empty if no code raised it.
    """

    error_type: str
    message: str
    details: ErrorDetails
    stack: str

    def _set_report(self, error_type: str, message: str, details: ErrorDetails | None, stack: str) -> None:
        self.error_type = error_type
        self.message = message
        self.details = details or ErrorDetails()
        self.stack = stack

    @property
    def category(self) -> str | None:
        """Category of the exception: "load_failed", "migration_missing", …; None if its class has none."""
        return self.details.category

    @property
    def fields(self) -> Mapping[str, ErrorField]:
        """Recorded fields of the exception, by name: ``session_id``, ``from_version``, …"""
        return dict(self.details.fields)

    @property
    def from_version(self) -> int | None:
        """For a migration error: the schema version of the record, or at the beginning of the step."""
        return self._version("from_version")

    @property
    def to_version(self) -> int | None:
        """For a migration error: the schema version of the code, or at the end of the step."""
        return self._version("to_version")

    def is_a(self, kind: type[BaseException] | str) -> bool:
        """Whether this error, or the exception that it reports, is of that class or of a subclass. Classes are compared
        by name.
        """
        name = kind if isinstance(kind, str) else kind.__name__
        own = (each.__name__ for each in type(self).__mro__)
        return name in {self.error_type, *self.details.bases, *own}

    def _version(self, field: str) -> int | None:
        value = self.fields.get(field)
        return value if isinstance(value, int) else None


class AffinityError(Exception):
    """Base of every error in this package.

    Attributes:
        permanent: the same code would raise it again, so no `RetryPolicy` retries it.
    """

    permanent: ClassVar[bool] = False


def errors_in(error: BaseException) -> Sequence[BaseException]:
    """The errors of a group and of the groups within it; the exception of a `CodeExited`; any other error itself."""
    found, left = [], [error]
    while left:
        one = left.pop()
        if isinstance(one, CodeExited):
            left.append(one.error)
        elif isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
        else:
            found.append(one)
    return found


def decisive_error(error: BaseException) -> BaseException:
    """The error of a group that decides what becomes of the attempt that raised it: its only one, or a conflict, after
    which the attempt does not count. Otherwise the error as it is.
    """
    found = errors_in(error)
    if len(found) == 1:
        return found[0]
    whole = error.error if isinstance(error, CodeExited) else error
    return next((each for each in found if isinstance(each, SessionWriteConflict | SessionRecordTooNew)), whole)


# --- arguments ------------------------------------------------------------------------------------------------------


class InvalidInput(AffinityError, ValueError):
    """An argument is refused; nothing was written."""


class InvalidId(InvalidInput):
    """An id or name is empty, too long, or contains control characters."""


class PayloadTooLarge(InvalidInput):
    """An input, result or event is over its limit in bytes, or nested too deep."""

    permanent = True


class NotSerializable(InvalidInput):
    """A value has no JSON form as its declared type, or JSON does not fit the declared type."""

    permanent = True


class PayloadUnreadable(NotSerializable):
    """A stored payload is encoded and cannot be decoded: its key is not given, it was altered, or it was moved from
    another object. Nothing was changed; with the right key it is readable.
    """


class InvalidOptions(InvalidInput):
    """Options are out of range or contradict each other; the message contains the values."""


class CodecMismatch(InvalidOptions):
    """The payloads of the database are encoded, and this process has no codec, or one that cannot decode them."""


class InvalidSchedule(InvalidOptions):
    """A cron line cannot be read, a time zone is not known, or another option of a schedule is refused."""


class InvalidLimit(InvalidOptions):
    """A limit, its key, its rate, or the limits of some work are refused."""


class InvalidUrl(InvalidInput):
    """A database URL names no provider, or is malformed."""


class InvalidApp(InvalidInput):
    """``MODULE:APP`` cannot be imported, or a registration cannot be used."""


class ActivityMisuse(InvalidInput, AttributeError):
    """An activity, or the handler of a conversation, makes a call that only orchestrations make. It is not retried."""

    permanent = True


class OnceMisuse(InvalidInput):
    """A block of `affinity.once` that cannot run once, or whose result cannot be told from none. The activity is not
    retried, and the message names the remedy.

    Examples: the block has committed by itself. Two blocks of one activity have the same name. The connection is of a
    library, or of a database, that ``once`` does not know.
    """

    permanent = True


class WakeMisuse(InvalidInput):
    """The handler of a conversation makes a call that can never work. The wake is not retried.

    Examples: it appends a value that is no event, or an event that only clients or the runtime write. It waits for a
    reply of its own conversation, or of one that waits for it. It gives `run_loop` a model that returns no
    `ModelReply`. The message names the call to use instead.
    """

    permanent = True


class TokenUnknown(AffinityError):
    """Raised by the ``resume`` of a step (`Wake.step`): the service knows no call of this token, or no longer. The step
    runs again.
    """


class StepMismatch(WakeMisuse):
    """A step of a wake has the key of one that an earlier attempt has done with other arguments: use another key."""


class SessionRecordRefused(InvalidInput):
    """A record that is to be imported or copied could not be loaded by the code of its kind, so it is not stored.

    Attributes:
        session_id: whose record it is.
        reason: why it could not be loaded. ``__cause__`` is the error of the load, if one was tried.
    """

    def __init__(self, session_id: str, reason: str, *, where: str = "", then: str = "") -> None:
        """``where`` begins the message, ``then`` ends it."""
        super().__init__(
            f"{where}the record of session {session_id!r} could not be loaded, so it is not stored: {reason}; mend the "
            f"record, or use code whose type and migrations can load it{then}"
        )
        self.session_id: str = session_id
        self.reason: str = reason


# --- the database ---------------------------------------------------------------------------------------------------


class ProviderError(AffinityError):
    """The database refused or failed.

    Attributes:
        retryable: the same call may succeed later, with the same data.
        misconfigured: an operator must act (a password, a right, a migration). The start of a worker and the calls of a
            client fail immediately; a running worker retries, as after any other failure.
        maybe_done: it is unknown whether the call took effect. After every other error it had no effect.
        code: SQLSTATE, or the name of SQLite's result code; None when the database reported none.
    """

    retryable: ClassVar[bool] = True
    misconfigured: ClassVar[bool] = False
    maybe_done: ClassVar[bool] = False

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class Contention(ProviderError):
    """Lost to a concurrent transaction (deadlock, serialization, busy). Nothing was changed: retry immediately."""


class LockTimeout(Contention):
    """Another transaction holds a row that the call needs, and goes on holding it. Nothing was changed. Of a batch, all
    that needs another row can be done without waiting.
    """


class StatementTimeout(ProviderError):
    """The statement was cancelled, as a rule because it took longer than the database allows. Nothing was changed:
    retry less of it, with backoff.
    """


class ConnectionLost(ProviderError):
    """No connection could be made, or it broke; a call in flight may or may not have taken effect."""

    maybe_done = True


class ReadOnly(ProviderError):
    """The database takes no writes now: it is a standby, or its disk is mounted read-only."""


class AccessDenied(ProviderError):
    """Wrong credentials, an unknown database, or a right that is missing."""

    misconfigured = True


class SchemaMismatch(ProviderError):
    """This code cannot use the schema, or the database: it was never migrated, is too old, too new, or damaged. The
    message says what to do, and, for one that is too new, which release it needs.
    """

    misconfigured = True


class PoolerRefused(ProviderError):
    """A connection pooler, such as PgBouncer, is between here and PostgreSQL, and shares the sessions of the server:
    use the address of the server itself, or session mode, or ``?direct=`` in the URL. Clients work through it.
    """

    misconfigured = True


class DatabaseFailure(ProviderError):
    """Any other failure of the database: a full disk, an I/O error, no memory, a limit; no fault of the data."""


class CodecFailed(DatabaseFailure):
    """The codec of payloads has failed, as when its key service does not answer; no fault of the data. Nothing was
    stored.
    """


class BlobStoreFailed(ProviderError):
    """The store of large payloads refused or failed: a network, a right, a full disk; no fault of the data. Of the
    database nothing was changed.
    """


class DataRefused(ProviderError):
    """The database, or its driver, refuses the data of the call: a value is out of range, too large, or forbidden by a
    constraint. The same data is refused again.
    """

    retryable = False


class Duplicate(ProviderError):
    """A row that must be new exists already."""

    retryable = False


class DatabaseChanged(ProviderError):
    """The database is another one than before, or has lost commits (a failover, a restored backup). State that was read
    before may be invalid: the worker starts again with nothing in memory.
    """

    retryable = False


class WorkerFenced(ProviderError):
    """Another process has started under this worker's name: this one must stop immediately."""

    retryable = False


# --- the client -----------------------------------------------------------------------------------------------------


class ClientError(AffinityError):
    """The request does not fit the instance."""


class UnknownInstance(ClientError):
    """No instance has this id."""


class InstanceExists(ClientError):
    """The id belongs to an instance of another orchestration."""


class InstanceRunning(ClientError):
    """The instance has not ended, and is not to be started again before."""


class InstanceFinished(ClientError):
    """The instance has ended and takes no more events."""


class NotRegistered(ClientError):
    """Live workers have no code for a name that is to be started, or that waits for an event. Nothing was done."""


class UnknownSchedule(ClientError):
    """No schedule has this name."""


class ScheduleExists(ClientError):
    """The name belongs to another schedule."""


class ScheduleDeclared(ClientError):
    """The code of an app declares the schedule: change the code. A pause, a trigger and a backfill are allowed."""


class UnknownLimit(ClientError):
    """No code has declared a limit of this name, or the limit has no such key."""


class NoReply(InstanceFinished):
    """The instance has ended without a reply to the event of `Client.ask`.

    Attributes:
        instance_id: of the instance.
        status: "completed", "failed" or "cancelled".
        error_type: name of the exception class that ended it; None when it has completed.
        message: its text.
    """

    def __init__(self, instance_id: str, status: str, error_type: str | None = None, message: str = "") -> None:
        why = "" if error_type is None else f": {error_type}: {message}"
        super().__init__(f"instance {instance_id!r} has ended ({status}) without a reply to the event{why}")
        self.instance_id = instance_id
        self.status = status
        self.error_type = error_type
        self.message = message


class NoValue(InstanceFinished):
    """The instance has ended without the value that `Client.wait_value` waits for."""


class QuotaExceeded(ClientError):
    """A limit of the database is reached; nothing was written.

    Attributes:
        quota: which: "instances", "unread_events" or "instance_bytes".
        limit: instances in the database, or events, or bytes, of one instance.
        remedy: what to do, as text.
    """

    _TEXTS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "instances": ("instances in the database", "remove ended ones (`affinity prune`), or start it again later"),
        "unread_events": ("unread events of one instance", "send it again once the instance has read some"),
        "instance_bytes": ("bytes of one instance", "use continue_as_new, or keep large data in a store"),
    }

    def __init__(self, quota: str, limit: int, instance_id: str | None = None) -> None:
        of, remedy = self._TEXTS[quota]
        self.remedy: str = remedy
        where = "" if instance_id is None else f" by instance {instance_id!r}"
        super().__init__(f"the limit of {limit} {of} is reached{where}: {self.remedy}")
        self.quota: str = quota
        self.limit: int = limit


class TooManyUnreadEvents(QuotaExceeded):
    """The event was refused: its instance has the largest number of unread events, `limits.MAX_UNREAD_EVENTS` or a
    smaller quota. Send it again later.
    """


class InstanceNotFinished(ClientError):
    """The instance, or a sub-orchestration of it, is still running: wait, cancel it, or delete with force."""


class InstanceNotSuspended(ClientError):
    """The instance is not suspended, and cannot be resumed."""


class UnknownWorker(ClientError):
    """No worker has this name, nor had it lately."""


class WrongEventLoop(ClientError):
    """A client or store was called without an event loop, or on another loop than its own. Nothing was changed."""


class ClientForked(ClientError):
    """A sync client was opened before the fork of this process: its parent has the connection. Nothing was changed."""


ExplanationCode: TypeAlias = Literal[
    "suspended",  # until an operator resumes it, or other code comes
    "no_worker",  # no worker is alive
    "name_not_registered",  # no live worker has code for the orchestration, the activity, or the kind of conversations
    "no_worker_with_tag",  # no live worker has the tag of the activity
    "workers_draining",  # all live workers that could take the activity drain
    "workers_full",  # all of them hold as many sessions as they may
    "holder_draining",  # the holder of the activity's session drains
    "holder_restarting",  # that holder has left for a restart (restart_grace), and has not come back yet
    "holder_lapsed",  # the lease of that holder has ended; another worker takes the session
    "holder_busy",  # that holder is alive, and has not taken the activity yet
    "session_moving",  # the session goes to another worker, when what runs of it has ended
    "ordered_behind",  # an ordered activity of its session is before it
    "limited",  # a limit has no room for it, or other work is before it there
    "limit_paused",  # an operator has paused that limit
    "limit_closed",  # the service behind that limit takes nothing for some time
    "activity_retrying",  # the activity has failed, and runs again later
    "activity_delayed",  # the activity may not be taken yet
    "activity_queued",  # a worker may take the activity now
    "activity_running",
    "activity_waits",  # the activity runs, and waits for another instance or a conversation
    "child",  # a sub-orchestration: no reason is known for it
    "event",
    "session_move",  # the next move of a session
    "timer",
    "start_delayed",  # it was started with a delay, or for a later time
    "start_queued",  # it was started with `if_running="queue_one"` or "cancel", and the run before it has to end
    "turn",  # a worker is to run its code
    "request",  # of a conversation: an answer of a person, or of a client
    "revisit",  # of a conversation: a later wake
    "wake_retrying",  # of a conversation: its wake has failed, and runs again later
    "wake_failed",  # of a conversation: its wake has failed for good
    "input",  # of a conversation: the next input
]
"""The kinds of reasons why an instance waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason why an instance waits; see `affinity.Client.explain`."""

    code: ExplanationCode
    sentence: str
    """Begins with the deepest reason that is known; then comes what else the instance in question waits for."""
    instance_id: str
    """The instance that has this reason: the last of ``path``."""
    path: tuple[str, ...]
    """Ids from the instance that was asked about to this one; each waits for the next."""
    name: str | None = None
    """Name of the orchestration, activity, event or kind of conversations concerned."""
    session_id: str | None = None
    worker_id: str | None = None
    activity_id: int | None = None
    request_id: str | None = None
    due_at: datetime | None = None
    """When a timer, an attempt, a revisit or a start is due, or a limit opens."""
    since: datetime | None = None
    """Since when the activity runs, a worker could have taken it, or it waits at a limit."""
    limit: str | None = None
    """Name of the limit concerned."""
    limit_key: str | None = None
    """Key of that limit; None: the limit has no keys."""


class WaitTimeout(ClientError, TimeoutError):
    """The instance did not end, change or reply within the timeout.

    Attributes:
        waits_for: what it waits for; None: that is not known. The message has its sentence.
    """

    def __init__(self, message: str, waits_for: Explanation | None = None) -> None:
        super().__init__(message if waits_for is None else f"{message}: {waits_for.sentence}")
        self.waits_for = waits_for


class NothingWillHappen(ClientError):
    """A wait in `affinity.testing.Env` cannot end: nothing runs, and nothing is due, or not within ``max_jump``."""


class CrashMatrixFailed(AffinityError, AssertionError):
    """Runs of `affinity.testing.crash_matrix` have failed. The error of the first one is the cause.

    Attributes:
        points: for each of them the number of the commit, and what happened there; for ``only``.
    """

    def __init__(self, message: str, points: Sequence[tuple[int, str]]) -> None:
        super().__init__(message)
        self.points = points


# --- conversations --------------------------------------------------------------------------------------------------


class ConversationError(ClientError):
    """The request does not fit the conversation.

    Attributes:
        conversation_id: which.
    """

    recorded_fields: ClassVar[tuple[str, ...]] = ("conversation_id",)

    def __init__(self, conversation_id: str, message: str) -> None:
        super().__init__(f"conversation {conversation_id!r}: {message}")
        self.conversation_id = conversation_id


class UnknownConversation(ConversationError):
    """There is no conversation with this id."""


class ConversationTerminated(ConversationError):
    """The conversation was terminated, and takes no more events."""


class ConversationKindMismatch(ConversationError):
    """The conversation is of another kind, or its id belongs to another orchestration."""


class ConversationExists(ConversationError):
    """The id of a conversation that is to be created, or made from others, belongs to another one, a record or an
    instance.
    """


class NotAParent(ConversationError):
    """The conversation is no child of the one whose wake addresses it, or is not below the one whose handle does."""


class EventIdConflict(ConversationError):
    """Another event of the conversation has this event id; nothing was sent."""


class RequestNotPending(ConversationError):
    """The request is answered, dropped or expired already, unknown, or of another kind than the answer."""


class UnknownEntry(ConversationError):
    """The journal has no entry with this number or event id."""


class StepInterrupted(ConversationError):
    """A step with ``repeat="never"`` has begun in an earlier attempt of the wake, and its outcome is not known: its
    process ended. It may have had its effect or not. Not retried, unless the handler catches it.
    """

    permanent = True


class StepFailed(ConversationError, ReportedError):
    """A step with ``repeat="never"`` has raised in an earlier attempt of the wake, and is not run again. This error has
    the text of that exception; see `ReportedError`. Where the process has its class, this is an instance of that class
    too, so that the same ``except`` catches it in each attempt. Not retried, unless the handler catches it.
    """

    permanent = True

    def __init__(
        self, conversation_id: str, error_type: str, message: str, details: ErrorDetails | None = None, stack: str = ""
    ) -> None:
        Exception.__init__(self, message)  # not that of a further class, which takes other arguments
        self.conversation_id = conversation_id
        self._set_report(error_type, message, details, stack)

    def __str__(self) -> str:
        return self.message


class TimelineChanged(UnknownEntry):
    """The database has another timeline than when the number or position was given: the entry may be another one now.

    It has become another database, or may have lost commits (a failover, a restored backup).

    Attributes:
        after: from where to read on: 0, the beginning. Entries that were read before may not be in it any more.
    """

    after: int = 0


class EntriesRemoved(UnknownEntry):
    """Retention has removed entries that were to be read.

    Attributes:
        first_seq: number of the oldest entry that is kept.
    """

    recorded_fields: ClassVar[tuple[str, ...]] = ("conversation_id", "first_seq")

    def __init__(self, conversation_id: str, message: str, first_seq: int) -> None:
        super().__init__(conversation_id, message)
        self.first_seq = first_seq


class WakeFailed(ConversationError, ReportedError):
    """The wake that was to process the event has failed for good. A resume tries again; when the next event comes
    first, this one becomes a dead letter, which `ConversationHandle.retry` sends again. It reports the exception that
    the handler raised last; see `ReportedError`.
    """

    def __init__(self, conversation_id: str, error_type: str, message: str, stack: str = "") -> None:
        super().__init__(conversation_id, f"its wake has failed: {error_type}: {message}")
        self._set_report(error_type, message, None, stack)


# --- orchestrations -------------------------------------------------------------------------------------------------


class OrchestrationError(AffinityError):
    """An orchestration has ended, or broke a rule of replay."""


class OrchestrationFailed(OrchestrationError, ReportedError):
    """The orchestration raised. If it raised the error of an activity or sub-orchestration, it has the category and
    fields of that error; see `ReportedError`.
    """

    def __init__(self, error_type: str, message: str, details: ErrorDetails | None = None, stack: str = "") -> None:
        super().__init__(f"{error_type}: {message}")
        self._set_report(error_type, message, details, stack)


class OrchestrationCancelled(OrchestrationError):
    """The orchestration was cancelled."""


class OrchestrationMisuse(OrchestrationError):
    """Orchestration code awaits a foreign object, lacks an await, or makes a misplaced call; the message says which."""


class UnknownOrchestration(OrchestrationError):
    """No worker registers an orchestration of this name (and version)."""


class OrchestrationPoisoned(OrchestrationError):
    """Several workers in a row took the instance, and none committed a turn of it: its code seems to end them."""


class OrchestrationUnreadable(OrchestrationError):
    """The history of the instance, or a message to it, cannot be read by this version."""


class ExecutionLimitReached(OrchestrationError):
    """The history of one execution, or its unread events, are at their limit."""


class Nondeterminism(OrchestrationError):
    """The code requests another command than its history records.

    Compared are the kind of each call; an activity's name, session, order and tag; a timer's delay; a wait's event and
    held session; a watched or released session; another instance's name and id; a sent event's receiver and name; a
    reply's key; and what a cancellation cancels. Not compared are inputs, timeouts and ``hold_for``.

    Attributes:
        expected: the recorded event, as text.
        actual: what the code does, as text.
        difference: the text of the error without ``source``.
        event_id: number of the recorded event; where the history ends, the number of the next one.
        execution_id: which execution of the instance; None: not known.
        source: the line of the application's code, as "support.py:17, in conversation", that makes the request; in a
            worker, the line that waits for it. If code makes none, the line where it waits; if it has ended, where it
            last waited, or raised. None: not known.
    """

    def __init__(self, expected: str, actual: str, *, event_id: int) -> None:
        self.difference: str = f"nondeterministic orchestration: history has {expected}, but the code now does {actual}"
        super().__init__(self.difference)
        self.expected = expected
        self.actual = actual
        self.event_id = event_id
        self.execution_id: int | None = None
        self.source: str | None = None

    def __str__(self) -> str:
        return self.difference if self.source is None else f"{self.difference} ({self.source})"


# --- activities -----------------------------------------------------------------------------------------------------


class ActivityError(AffinityError, ReportedError):
    """Raised in an orchestration where it awaits a failed activity. See `ReportedError` for the fields of the exception
    that the activity raised.

    Attributes:
        activity: registered name of the activity.
        error_type: name of the exception class that the activity raised, or of this class.
    """

    def __init__(
        self, activity: str, error_type: str, message: str, details: ErrorDetails | None = None, stack: str = ""
    ) -> None:
        super().__init__(f"activity {activity!r}: {error_type}: {message}")
        self.activity = activity
        self._set_report(error_type, message, details, stack)


class ActivityFailed(ActivityError):
    """The activity raised, and its retry policy (if any) allows no further attempt. The exception itself is not raised
    again: it was raised in another process, or at another time. Look with `is_a`.
    """

    def __init__(
        self, activity: str, error_type: str, message: str, details: ErrorDetails | None = None, stack: str = ""
    ) -> None:
        super().__init__(activity, error_type, message, details, stack)
        self.add_note(f"catch ActivityFailed, and use error.is_a({error_type}): {error_type} itself is not raised here")


class ActivityTimeout(ActivityError):
    """The activity ran longer than its ``timeout``."""


class ActivityPoisoned(ActivityError):
    """The activity was started too often without ending: it seems to end its worker."""


class UnknownActivity(ActivityError):
    """No worker has registered an activity of this name for ``unregistered_timeout``."""


class SessionTagMismatch(ActivityError):
    """The activity has a tag, and its session has another one, or none: a session has the tag of its first work."""


class NoWorkerWithTag(ActivityError):
    """No worker with the activity's tag was alive for ``unregistered_timeout``, and a worker's option
    ``missing_tag="fail"`` says that such work fails.
    """


class SessionBusy(ActivityError):
    """The activity was not started within the ``fail_after`` of its session: the session's holder had no free slot, or
    no worker held the session.
    """


class ActivityCancelled(ActivityError):
    """The activity was cancelled while it was awaited."""


# --- workers --------------------------------------------------------------------------------------------------------


class LateAttempt(AffinityError):
    """A later attempt of the activity has begun, and the table of `affinity.once` says so: this one runs no block, and
    its result is not used.
    """


class TransactionFailed(AffinityError):
    """`affinity.once` was used in a transaction of the application in which a statement has failed before, and whose
    error was caught: the database takes no further statement of it. Roll it back, or have what may fail in a savepoint.
    """


class IterationInterrupted(AffinityError):
    """A wait for an item of this iterator was cancelled, or failed, and the iterator cannot go on: begin it again."""


class BlobNotFound(AffinityError):
    """A blob store answers, and has no blob of this name: it was deleted, or never written."""


class CodeExited(AffinityError):
    """Code of the application ended with an exception that is no ``Exception``: ``SystemExit``, ``CancelledError`` of a
    task that it awaited, or the panic of a compiled module. Where an error is recorded, it is recorded as that one.

    Attributes:
        error: the exception.
    """

    def __init__(self, error: BaseException) -> None:
        text = text_of_error(error)
        super().__init__(f"the code ended with {type(error).__name__}" + (f": {text}" if text else ""))
        self.error: BaseException = error


class WorkerStalled(AffinityError):
    """The worker's event loop made no progress for longer than ``stall_timeout``, so it gave up its lease."""


# --- sessions -------------------------------------------------------------------------------------------------------


class SessionError(AffinityError):
    """Base of the errors about a session's state."""


class UnknownSession(SessionError):
    """This process holds no state for the session at this epoch: load it, and call `SessionCache.put`."""


class ResourceClosed(SessionError):
    """The session has closed this resource: it is not opened again by itself.

    Attributes:
        session_id: whose resource it was.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} has closed this resource")
        self.session_id = session_id


class SessionNotFound(SessionError):
    """No record has this session id, and no session id has this beginning."""


class SessionAmbiguous(SessionError):
    """Several session ids have this beginning.

    Attributes:
        prefix: the beginning.
        candidates: the ids, or the first of them when there are many.
    """

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        listed = ", ".join(map(repr, candidates))
        super().__init__(f"{prefix!r} is the beginning of several session ids: {listed}; give more of it")
        self.prefix = prefix
        self.candidates: list[str] = list(candidates)


class SessionLoadFailed(SessionError):
    """The state could not be read from its record, which is unchanged.

    Attributes:
        session_id: whose state it is.
        reason: why; the message has it too.
    """

    category: ClassVar[str] = "load_failed"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id",)

    def __init__(self, session_id: str, message: str) -> None:
        super().__init__(f"the state of session {session_id!r} could not be loaded: {message}")
        self.session_id: str = session_id
        self.reason: str = message


class SessionMigrationMissing(SessionLoadFailed):
    """No chain of registered migrations leads from the record's schema version to the one of this code.

    Attributes:
        from_version: of the record.
        to_version: of the code.
        registered: how many migrations are registered.
        description: they and the gap, in words.
    """

    permanent = True
    category = "migration_missing"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id", "from_version", "to_version")

    def __init__(self, session_id: str, from_version: int, to_version: int, registered: int, description: str) -> None:
        super().__init__(session_id, f"no migration from schema version {from_version} to {to_version}: {description}")
        self.from_version: int = from_version
        self.to_version: int = to_version
        self.registered: int = registered
        self.description: str = description


class SessionRecordTooNew(SessionMigrationMissing):
    """Later code wrote the record, and no chain of migrations leads back to the schema version of this code.

    A worker gives the activity back, with its session, for workers that can read the record. If there is none within
    ``unregistered_timeout``, the activity fails with this error.

    Attributes:
        kind: of the record.
    """

    def __init__(self, kind: str, missing: SessionMigrationMissing) -> None:
        super().__init__(
            missing.session_id, missing.from_version, missing.to_version, missing.registered, missing.description
        )
        self.kind = kind


class SessionMigrationAmbiguous(SessionLoadFailed):
    """A migration step is registered twice (raised at the registration), or two chains are equally short (at a load).

    Attributes:
        from_version: where they begin.
        to_version: where they end.
    """

    permanent = True
    category = "migration_chain_ambiguous"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id", "from_version", "to_version")

    def __init__(self, session_id: str, from_version: int, to_version: int, message: str) -> None:
        super().__init__(session_id, message)
        self.from_version: int = from_version
        self.to_version: int = to_version


class SessionMigrationFailed(SessionLoadFailed):
    """A migration raised (``__cause__``); later ones were not run.

    Attributes:
        from_version: of the step that raised.
        to_version: of the step that raised.
    """

    permanent = True
    category = "migration_failed"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id", "from_version", "to_version")

    def __init__(self, session_id: str, from_version: int, to_version: int, message: str) -> None:
        super().__init__(session_id, f"the migration from {from_version} to {to_version} raised {message}")
        self.from_version: int = from_version
        self.to_version: int = to_version


class SessionSaveFailed(SessionError):
    """The state could not be written.

    Attributes:
        session_id: whose state it is.
        state: the state, for the caller to save elsewhere.
    """

    category: ClassVar[str] = "save_failed"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id",)

    def __init__(self, session_id: str, state: object, message: str) -> None:
        super().__init__(f"the state of session {session_id!r} could not be saved: {message}")
        self.session_id = session_id
        self.state = state


class SessionStateTampered(SessionError):
    """Code has changed the state of a session in memory outside its block, or outside its wake. The change is
    discarded: the next opening reads the state as it was saved.

    An activity that opens the session finds it, which need not be the one whose code has made the change.

    Attributes:
        session_id: whose state it is.
    """

    category: ClassVar[str] = "tampered"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id",)

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"the state of session {session_id!r} was changed outside its block after it was saved; the change is "
            "discarded: change a state within its `async with`, or before the handler of its wake returns"
        )
        self.session_id = session_id


class SessionSelfConflict(SessionError):
    """An activity has opened its own session by id and changed the state; nothing was written.

    Such a write would be one without a lease. It would end the epoch of the activity's own lease, so that the result of
    the activity would be refused in every attempt.

    Attributes:
        session_id: whose state it is.
    """

    permanent = True
    category: ClassVar[str] = "self_conflict"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id",)

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"an activity of session {session_id!r} opens it by id, so its own result would be a conflict: open it "
            "with the activity's context, open(ctx); to save before the result, use `await opening.checkpoint()`"
        )
        self.session_id = session_id


class SessionWriteConflict(SessionError):
    """The write was refused: the record has changed since it was read, or the session has a newer epoch.

    The store wins. In an activity the error needs no handling: the worker drops its copy and runs the activity again.

    Attributes:
        session_id: whose state it is.
        expected_version: of the record from which the write was made; None when the writer named none.
        version: of the record; None when there is none, or it is not known.
    """

    category: ClassVar[str] = "write_conflict"
    recorded_fields: ClassVar[tuple[str, ...]] = ("session_id", "expected_version", "version")

    def __init__(self, session_id: str, expected_version: int | None, version: int | None, message: str) -> None:
        super().__init__(f"session {session_id!r}: {message}")
        self.session_id = session_id
        self.expected_version: int | None = expected_version
        self.version: int | None = version


_PROBLEMS_SHOWN: Final = 3

_MEANINGS: Final[Mapping[str, str]] = {
    "CancelledError": "the code was cancelled, and not by its caller: it may have awaited a task that something has "
    "cancelled"
}
"""The texts of exceptions that have none, by class."""


def text_of_error(error: BaseException) -> str:
    """The text of an exception of any class, or what one without a text means. To make the text may fail."""
    try:
        return str(error) or _MEANINGS.get(type(error).__name__, "")
    except BaseException:
        return "(its text could not be read)"


def problem_of(error: Exception) -> str:
    """The error's class and message, for the message of another error; of a `pydantic.ValidationError` the fields and
    reasons, without the values, which may be large or secret.
    """
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {text_of_error(error)}"
    details = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in details[:_PROBLEMS_SHOWN]]
    more = [f"and {len(details) - _PROBLEMS_SHOWN} more"] if len(details) > _PROBLEMS_SHOWN else []
    if any(each["type"] == "missing" for each in details):
        more.append("a field without a default is required, also one that may be None")
    return "; ".join(shown + more)
