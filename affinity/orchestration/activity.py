"""The context of an activity."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from pydantic_core import from_json, to_json

from affinity.blob import Blob, BlobPath, BlobSource, OpensBlobs
from affinity.errors import ActivityMisuse, ClientError
from affinity.headers import NO_HEADERS, Headers
from affinity.limits import check_integer
from affinity.orchestration.codec import Codec
from affinity.orchestration.definitions import ActivityDefinition
from affinity.orchestration.gates import ChargesLimits, HasLimitUse, check_declared, check_limit
from affinity.orchestration.signals import ActivityCancelledSignal
from affinity.records import AnyParticipant, CommitPart, Labels, SessionStore, StateWrite, WaitNotes
from affinity.redaction import redacted
from affinity.user_code import call_sync

_LOGGER = logging.getLogger("affinity.activity")
_OF_ORCHESTRATIONS: Final = frozenset({"start_detached", "continue_as_new", "new_guid", "gather", "select"})
_LOCK = threading.Lock()  # for the creation of an event, which is rare: one lock serves all contexts

_NO_GUESTS: Final[Mapping[str, object]] = MappingProxyType({})
_NO_LABELS: Final[Labels] = MappingProxyType({})

PartCommit: TypeAlias = Callable[[StateWrite | None, Sequence[CommitPart]], Awaitable[None]]
"""See `ActivityContext._commit_now`."""


class HasClients(Protocol):
    """The clients of a worker: see `ActivityContext.client`."""

    def get_client(self) -> Any:
        """Return the client."""
        ...

    def get_sync_client(self) -> Any:
        """Return its sync form."""
        ...


class _RunState:
    """The mutable state of a run: its participants, what it has done once, and its cancellation. The event is made when
    code waits for it.
    """

    __slots__ = ("_event", "done", "error", "outcome", "participants", "reason")

    def __init__(self) -> None:
        self.participants: tuple[AnyParticipant, ...] | None = ()  # None: the run is over
        self.reason: str | None = None
        self.error: BaseException | None = None
        self.outcome = "completed"
        self.done: set[tuple[str, str]] | None = None
        self._event: threading.Event | None = None

    def set(self, reason: str) -> None:
        with _LOCK:
            if self.reason is None:
                self.reason = reason
            event = self._event
        if event is not None:
            event.set()

    def wait(self, timeout: float | None) -> bool:
        with _LOCK:
            if self.reason is not None:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityContext:
    """The first argument of every activity. Safe to use from any thread."""

    instance_id: str
    """Id of the instance that scheduled the activity."""

    execution_id: int
    """Execution of that instance: 1, and one more after each ``continue_as_new``."""

    activity_id: int
    """Event id of the scheduling: with instance and execution it names this activity, in all its attempts; with
    ``instance_generation``, never an activity of a later instance of the same id.
    """

    name: str
    """Under which the activity is registered."""

    orchestration_name: str
    """Name of the orchestration that scheduled the activity."""

    orchestration_version: str
    """The version of that orchestration on which the instance runs."""

    instance_generation: str | None = None
    """Generation of the instance: differs from a later instance of the same id. None in a context that a test makes."""

    session_id: str | None = None
    """The session set by ``on_session``; None: it runs on any worker."""

    session_epoch: int | None = None
    """Epoch of the session: greater with every change of its holder, and when its record is written by other code.
    None: no session.
    """

    labels: Labels = field(default_factory=lambda: _NO_LABELS)
    """Labels of that instance when it scheduled the activity."""

    attempt: int = 1
    """1 for the first attempt. Attempts that a drain interrupted do not count."""

    worker_id: str
    """Stable name of the worker that runs it."""

    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """Texts by name, which the call that has caused the activity was sent with: see `affinity.use_headers`."""

    session_store: SessionStore | None = None
    """Store of the worker's database: state written there commits with the activity's result."""

    session_listeners: Collection[object] | None = None
    """The worker's session listeners; None in a context that a test makes."""

    _guests: Mapping[str, object] = field(default_factory=lambda: _NO_GUESTS, repr=False, compare=False)

    _waits: WaitNotes | None = field(default=None, repr=False, compare=False)

    _commit_part: PartCommit | None = field(default=None, repr=False, compare=False)

    _clients: HasClients | None = field(default=None, repr=False, compare=False)

    _middleware: tuple[Callable[..., Any], ...] = field(default=(), repr=False, compare=False)

    _input: str = field(default="null", repr=False, compare=False)

    _definition: ActivityDefinition | None = field(default=None, repr=False, compare=False)

    _run: _RunState = field(default_factory=_RunState, init=False, repr=False, compare=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"an ActivityContext has no {name!r}"
            if name.startswith("schedule_") or name in _OF_ORCHESTRATIONS:
                raise ActivityMisuse(
                    f"{message}: only orchestrations schedule work. In an activity, or in a handler, call a "
                    "plain function, or start an orchestration with `affinity.Client`"
                )
            raise AttributeError(message, name=name, obj=self)

    @staticmethod
    def _of(
        instance_id: str,
        execution_id: int,
        activity_id: int,
        *,
        name: str,
        orchestration_name: str,
        orchestration_version: str,
        instance_generation: str | None,
        session_id: str | None,
        session_epoch: int | None,
        attempt: int,
        worker_id: str,
        headers: Headers | None,
        session_store: SessionStore,
        session_listeners: Collection[object],
        guests: Mapping[str, object],
        waits: WaitNotes,
        commit_part: PartCommit,
        middleware: tuple[Callable[..., Any], ...] = (),
        input: str,
        definition: ActivityDefinition,
        clients: HasClients | None = None,
        labels: Labels | None = None,
    ) -> ActivityContext:
        """Does the same as the constructor, in a tenth of the time; called by the worker for each activity."""
        made: Any = _Unfrozen()
        made.instance_id = instance_id
        made.execution_id = execution_id
        made.activity_id = activity_id
        made.name = name
        made.orchestration_name = orchestration_name
        made.orchestration_version = orchestration_version
        made.instance_generation = instance_generation
        made.session_id = session_id
        made.session_epoch = session_epoch
        made.labels = _NO_LABELS if labels is None else labels
        made.attempt = attempt
        made.worker_id = worker_id
        made.headers = NO_HEADERS if headers is None else headers
        made.session_store = session_store
        made.session_listeners = session_listeners
        made._guests = guests
        made._waits = waits
        made._commit_part = commit_part
        made._middleware = middleware
        made._input = input
        made._definition = definition
        made._clients = clients
        made._run = _RunState()
        made.__class__ = ActivityContext
        return cast(ActivityContext, made)

    @property
    def client(self) -> Any:
        """The `affinity.Client` of the worker, for async code: on the worker's connections, opened at its first use,
        and closed when the worker ends. Do not close it.

        Raises:
            ClientError: the caller runs in a thread, the worker has ended, or a test has made this context.
        """
        return self._worker_clients().get_client()

    @property
    def sync_client(self) -> Any:
        """The `affinity.sync.Client` of the worker, for code that is not async: see `client`.

        Raises:
            ClientError: the caller runs on the event loop, or a test has made this context.
        """
        return self._worker_clients().get_sync_client()

    def _worker_clients(self) -> HasClients:
        if self._clients is None:
            raise ClientError("the client of a context is the worker's: run the activity on a worker")
        return self._clients

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger ``affinity.activity``, with instance, activity, attempt and session in ``extra``."""
        return logging.LoggerAdapter(
            _LOGGER,
            {
                "instance_id": self.instance_id,
                "execution_id": self.execution_id,
                "activity": self.name,
                "activity_id": self.activity_id,
                "attempt": self.attempt,
                "session_id": self.session_id,
                "worker_id": self.worker_id,
            },
        )

    @property
    def idempotency_key(self) -> str:
        """An idempotency key for a service that the activity calls: 64 hexadecimal digits, the same in each attempt,
        and of no other activity. For several calls in one activity, add a name to it.

        It is made of the ids of the activity, its name and its input. So an activity that takes its place has another
        one, as after a reset, or where the database has lost commits.
        """
        place = (self.instance_generation, self.instance_id, self.execution_id, self.activity_id, self.name)
        return sha256(to_json([*place, from_json(self._input)])).hexdigest()  # read, since the text may be another one

    @property
    def cancelled(self) -> bool:
        """Whether this run should stop: its result will not be used, or its time is over."""
        return self._run.reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why it is cancelled; None while it is not."""
        return self._run.reason

    @property
    def error(self) -> BaseException | None:
        """The exception of the run, once it has ended."""
        return self._run.error

    @property
    def ended(self) -> bool:
        """Whether the run has ended. Code that still runs in a thread was abandoned, and its result is not used."""
        return self._run.participants is None

    def raise_if_cancelled(self) -> None:
        """Raise if the activity is cancelled; for loops in synchronous code.

        Raises:
            ActivityCancelledSignal: it is. Not an ``Exception``, so that ``except Exception`` does not catch it.
        """
        reason = self._run.reason
        if reason is not None:
            raise ActivityCancelledSignal(reason)

    def wait_cancelled(self, timeout: float | None = None) -> bool:
        """Block the calling thread until cancellation or for ``timeout`` seconds; return whether it is cancelled.

        For synchronous activities, in place of ``time.sleep``. Asynchronous ones are cancelled at their await.
        """
        return self._run.wait(timeout)

    async def consume(self, limit: HasLimitUse, units: int) -> None:
        """Count units that the activity has used in the rate of a limit, such as the tokens of a model's reply. So a
        limit with ``rate=Rate(200_000, per=86_400)`` is a budget: it is counted after the fact, also above the rate,
        and then the limit admits nothing until the window has room again.

        They count immediately, whatever becomes of the activity, and again with each attempt. After a lost connection
        they may count twice. A sync activity calls ``anyio.from_thread.run(ctx.consume, limit, units)``. In a context
        that a test makes, nothing is counted.

        Args:
            limit: a limit, or a key as of ``tokens.key("acme")``.
            units: an integer from 0.

        Raises:
            InvalidLimit: it is no limit, has keys and none is named, or no app declares it.
            InvalidOptions: ``units`` is no integer from 0.
            ActivityMisuse: the worker's database keeps no limits.
        """
        use = check_limit(limit)._use
        check_declared(limit)
        if not check_integer(units, "units") or self._commit_part is None:
            return
        charging = next((guest for guest in self._guests.values() if isinstance(guest, ChargesLimits)), None)
        if charging is None:
            raise ActivityMisuse(f"limit {use.limit!r} cannot count units: the worker's database keeps no limits")
        await charging.charge_limit(use, units)

    async def put_blob(self, source: BlobSource) -> Blob:
        """Keep large data outside the database; return the small value that names it, for results and states.

        If the attempt is repeated, it puts another blob; one that no row names is deleted later. A sync activity calls
        ``anyio.from_thread.run(ctx.put_blob, path)``. In a wake: ``wake.context.put_blob``.

        Args:
            source: bytes, a ``pathlib.Path``, a file that is open for reading bytes, or an async iterator of bytes. At
                most `limits.MAX_BLOB_BYTES`; a part of it is in memory, the rest in a temporary file.

        Raises:
            ActivityMisuse: the worker has no blob store, or a test has made this context.
            PayloadTooLarge, InvalidInput: of the source.
            BlobStoreFailed: the store fails.
        """
        return await self._blobs().put(source)

    def open_blob(self, blob: Blob) -> AsyncIterator[bytes]:
        """Return the data of a blob as a stream: parts of up to 1 MiB, each of them checked.

        ::

            async for part in ctx.open_blob(document): ...

        Raises:
            ActivityMisuse: as `put_blob`.
            PayloadUnreadable: from the iterator: the blob is lost, was altered, or has no key here.
            BlobStoreFailed: from the iterator: the store fails. All parts before are right.
        """
        return self._blobs().open(blob)

    async def save_blob(self, blob: Blob, path: BlobPath) -> None:
        """Write the data of a blob to a file, which is there when all of it was checked, or not at all.

        Raises:
            ActivityMisuse, PayloadUnreadable, BlobStoreFailed: as `open_blob`.
            OSError: the file cannot be written.
        """
        await self._blobs().save(blob, path)

    def _blobs(self) -> OpensBlobs:
        found = next((guest for guest in self._guests.values() if isinstance(guest, OpensBlobs)), None)
        if found is None:
            raise ActivityMisuse("there is no blob store: give the worker one, Worker(…, blobs=Blobs(store))")
        return found

    def _enlist(self, participant: AnyParticipant) -> None:
        """Commit ``participant`` with this activity's result (see `Participant`); call it on the event loop.

        For implementations of session state.

        Raises:
            ActivityCancelledSignal: the run has ended; the caller is code in an abandoned thread.
        """
        self._run.participants = (*self._check_running(), participant)

    async def _commit_now(self, *, state: StateWrite | None = None, part: CommitPart | None = None) -> None:
        """Commit writes now, in one transaction, under the lock of this activity, which goes on.

        For implementations of session state.

        Raises:
            SessionWriteConflict: they were refused, or may have been written or not: the activity is to end, and runs
                again.
            ActivityCancelledSignal: the run has ended.
            ActivityMisuse: a test has made this context.
        """
        self._check_running()
        if self._commit_part is None:
            raise ActivityMisuse("a part of a result is committed by a worker: run the activity on one")
        await self._commit_part(state, [] if part is None else [part])

    def _withdraw(self, error: BaseException, *, retried: bool) -> None:
        """Drop the writes enlisted so far, for an activity whose result says that it failed with this error. The run
        goes on, and its result commits with the writes that are enlisted from now on. Metrics count the run as failed,
        or as ``retried`` if its orchestration tries again.

        Raises:
            ActivityCancelledSignal: the run has ended.
        """
        participants = self._check_running()
        self._run.participants, self._run.error = (), error
        self._run.outcome = "retried" if retried else "failed"
        settle(participants, applied=False)

    def _check_running(self) -> tuple[AnyParticipant, ...]:
        """The participants of a run that has not ended."""
        if self._run.participants is None:
            raise ActivityCancelledSignal(self._run.reason or "the activity has ended")
        return self._run.participants

    def _close(self, error: BaseException | None = None) -> tuple[AnyParticipant, ...]:
        """End the run and return its participants; called by the worker."""
        self._run.error = error
        participants, self._run.participants = self._run.participants, None
        return participants or ()

    @property
    def _outcome(self) -> str:
        """The outcome under which the worker's metrics count a run that has a result."""
        return self._run.outcome

    @property
    def _result_codec(self) -> Codec | None:
        """Codec of the activity's result; None in a context that a test makes."""
        return None if self._definition is None else self._definition.result_codec

    @property
    def _done(self) -> set[tuple[str, str]]:
        """What this run has done once, by keys and names: for `affinity.once`."""
        if self._run.done is None:
            self._run.done = set()
        return self._run.done

    def _repeats(self) -> Callable[[], None]:
        """Return a function for a middleware to call before each call of the code inside it. From the second call on,
        what the code has done once since the first one may be asked for again: it is found in the tables.
        """
        before: list[frozenset[tuple[str, str]]] = []

        def begin() -> None:
            if not before:
                before.append(frozenset(self._done))
            self._done.intersection_update(before[0])

        return begin

    def _cancel(self, reason: str) -> None:
        """Cancel the run; called by the worker. The first reason stays."""
        self._run.set(reason)


class _Unfrozen:
    """An `ActivityContext` while its fields are set: the constructor of a frozen dataclass sets each of them through
    ``object.__setattr__``.
    """

    __slots__ = ActivityContext.__slots__


def settle(participants: Iterable[AnyParticipant], applied: bool) -> None:
    """Notify participants whether the result was committed. They may be the application's code: what one raises is
    logged, and changes nothing here.
    """
    for each in participants:
        try:
            call_sync(each.settled, applied)
        except Exception as error:
            _LOGGER.exception("a participant of an activity failed", exc_info=redacted(error))
