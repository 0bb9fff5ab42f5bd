"""`Sessions`: typed session state that is stored with the results of activities."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast, overload

from tenacity import AsyncRetrying, Retrying

from affinity.errors import InvalidOptions, OrchestrationMisuse, SessionError
from affinity.limits import UPDATE_ATTEMPTS, check_id, check_integer
from affinity.records import SessionMetadata, SessionRecord, SessionState, SessionStore, SessionSummary
from affinity.session.codec import FieldOverrides, JsonCodec, StateCodec, projection_of
from affinity.session.migrations import Migrate
from affinity.session.opening import (
    OpenOptions,
    OpenSession,
    RunOnLoop,
    StandaloneUnitOfWork,
    StoreOnLoop,
    SyncOpenSession,
    UnitOfWork,
    repeat_conflicts,
    run_shielded,
)
from affinity.session.state import CachedState, StateSchema, override_metadata
from affinity.session.state_cache import CacheLeaseListener, StateCache
from affinity.session.writer import ActivityScope, WriteQueue
from affinity.telemetry import session_scope
from affinity.user_code import check_function, refuse_in_orchestration

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Migrate)

_NO_SCOPE: Final = nullcontext()


class Sessions(CacheLeaseListener[CachedState[S]], Generic[S]):
    """The states of sessions of one kind: hydrated, cached while the lease lasts, migrated, committed with results.

    ::

        chats = Sessions(Chat, kind="chat", schema_version=2)
        app.include(chats)

        @app.activity
        async def run_turn(ctx: ActivityContext, message: Message) -> Reply:
            async with chats.open(ctx) as chat:
                return await chat.answer(message)

    A session has one state: an activity that opens its session through two of these objects is refused, unless at most
    one of them changes anything in the worker's database. One object serves one event loop. It is a `SessionListener`
    (of `affinity.orchestration.app`): a worker that includes it notifies it of the leases that end.
    """

    def __init__(
        self,
        state: type[S],
        *,
        kind: str | None = None,
        schema_version: int = 1,
        initial: Callable[[str], S] | None = None,
        codec: StateCodec[Any] | None = None,
        record: type[R] | None = None,
        to_record: Callable[[S], R] | None = None,
        from_record: Callable[[R], S] | None = None,
        metadata: Callable[[S], SessionMetadata] | None = None,
        store: SessionStore | None = None,
        auto_save: bool = True,
        follow_leases: bool = True,
        fresh_scratch: bool = False,
        dispose: Callable[[str, S], Awaitable[None] | None] | None = None,
        max_sessions: int = 100,
        max_bytes: int | None = None,
        size_of: Callable[[S], int] | None = None,
        idle_timeout: float | None = 600.0,
        movable: bool = True,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Define the states of one kind; nothing is loaded yet.

        Args:
            state: the type: a pydantic model, dataclass, TypedDict, ``list[...]``, or any other with a ``codec``. A
                form that is no class, such as a union, needs a cast for type checkers.
            kind: of the records; a record of another kind is refused. Default: the name of the type.
            schema_version: of the type in this code; a `migration` converts records of other versions.
            initial: returns the state of a session without a record, given its id, or "" without a session. Default:
                the type called without arguments.
            codec: of the state, or of ``record``. Default: JSON by pydantic (`affinity.session.codec.JsonCodec`).
            record: a narrower type that is stored in place of the state. Of models and dataclasses, fields of the same
                name are mapped, at any depth; fields that the record lacks start from their default at a hydrate.
            to_record: converts a state to its record, in place of the mapping by name.
            from_record: converts a record to a state, in place of the mapping by name.
            metadata: returns the searchable metadata of a state: name, message_count, participants, labels.
            store: an external store. Default: the database of the worker, where state commits with the result.
            auto_save: whether a block that ends without an error saves; each `open` may override it.
            follow_leases: an activity may open a state only on a worker that notifies this object of leases that end:
                by ``app.include(...)``, or the worker's ``listeners``. False: on any worker. Then states of lost
                sessions stay in memory up to ``idle_timeout``, and work that needs a reader of its record is not routed
                to this worker.
            fresh_scratch: fields of a state that are not stored (scratch fields, or fields that a narrower ``record``
                lacks) have their default at each opening, not only after a hydrate. So code sees the same on any
                worker. The state is a new object each time, and ``dispose`` is called for the former one. An opening
                within another one of the same activity shares its state. Costs one encoding and decoding per opening.
            dispose: frees what a state holds beside its memory; called once for each state that leaves memory. What it
                raises is logged; it has `affinity.session.resources.DISPOSE_SECONDS`.
            max_sessions: states in memory at most, unless more are in use at the same time.
            max_bytes: of all states at most, unless the states in use have more. None: no bound.
            size_of: how many bytes a state takes. Default: the size of its encoded form.
            idle_timeout: seconds without use after which a state is removed from memory; None: never.
            movable: whether a session may be offered to a worker with more room while its state is idle in memory here.
            timer: a monotonic clock in seconds, of this process: it decides on memory only, never on a lease.

        Raises:
            InvalidOptions: options out of range or in contradiction, a function that takes other arguments, a state
                without a JSON form, a scratch field without a default, or a record that cannot be mapped by name.
            InvalidId: the kind is not a valid id.
        """
        if initial is None and not callable(state):
            raise InvalidOptions(f"the state {state!r} cannot be called to make a new one: give initial=")
        for function, what, parameters in (
            (initial, "initial", ("session_id",)),
            (to_record, "to_record", ("state",)),
            (from_record, "from_record", ("record",)),
            (metadata, "metadata", ("state",)),
            (dispose, "dispose", ("session_id", "state")),
            (size_of, "size_of", ("state",)),
        ):
            if function is not None:
                check_function(function, what, *parameters)
        projection = projection_of(state, record, to_record, from_record)
        self._schema = StateSchema[S](
            kind=check_id(kind if kind is not None else getattr(state, "__name__", str(state)), "kind"),
            version=check_integer(schema_version, "schema_version"),
            codec=codec if codec is not None else JsonCodec(state if record is None else record),
            projection=projection,
            initial=initial,
            metadata_of=metadata,
            size_of=size_of,
            dispose=dispose,
            fresh_scratch=fresh_scratch,
            overrides=FieldOverrides(state),
        )
        self._store, self._auto_save, self._follow_leases = store, auto_save, follow_leases
        self._movable = movable
        self._cache = StateCache[CachedState[S]](
            CachedState,
            dispose=self._schema.close,
            max_sessions=max_sessions,
            max_bytes=max_bytes,
            idle_timeout=idle_timeout,
            timer=timer,
        )
        self._queue = WriteQueue(self._schema, self._cache)

    @property
    def kind(self) -> str:
        """The kind of the records."""
        return self._schema.kind

    def _readable_versions(self) -> frozenset[int]:
        """The schema versions that this code can read: its own, and versions from which migrations lead to it."""
        return self._schema.migrations.leading_to(self._schema.version)

    async def _check_record(self, record: SessionRecord | SessionState) -> None:
        """Load a record as an opening does, and drop its state: for a record that is to be stored.

        Raises:
            SessionRecordRefused: it is of another kind, damaged, fits the type no more, or no migration leads to it.
        """
        await self._schema.check(record)

    def _check_version(self, record: SessionRecord | SessionSummary) -> None:
        """Compare the kind and the schema version of a record that is to be copied. A version later than this code's is
        for workers with later code.

        Raises:
            SessionRecordRefused: it is of another kind, or no migration leads to this code.
        """
        self._schema.check_version(record)

    # -- opening

    def open(
        self,
        ctx_or_id: ActivityScope | str | None,
        *,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        overrides: S | Mapping[str, Any] | None = None,
        store: SessionStore | None = None,
        auto_save: bool | None = None,
        allow_transient: bool = False,
    ) -> OpenSession[S]:
        """Open the state of a session, for one ``async with``.

        *In an activity* (``ctx_or_id`` is its context): the state comes from memory if it was cached under this lease,
        else from the store. One activity of a session at a time; the others wait. When the block ends without an error,
        the change is staged, and commits with the activity's result, or not at all; unchanged state is not written.
        After an error in the block, or when the result is not committed, the cached state is dropped, and the next
        opening hydrates. Do not change the state after the block, nor in another task while the block ends. To an
        external store the change is written just before the result (see `OpenSession.already_applied`). Without any
        store the state is in memory only, and is lost when it is dropped.

        `OpenSession.checkpoint` writes immediately, before the result.

        *In a script or web handler* (``ctx_or_id`` is a session id): the state is loaded, and saved when the block ends
        without an error, unless the record was written since. It is not cached.

        *Without a session* (an activity that has none, or None), or by id without a store, it is an error: the block's
        changes would be lost. With ``allow_transient`` the block gets a new state that is not stored.

        Args:
            ctx_or_id: whose state.
            parent: of the session, from now on; deleting the parent deletes this session's record.
            labels: of the session, from now on, in place of its present labels.
            overrides: fields that replace fields of the loaded state; all others stay. A model of the state's type
                overrides the fields that were set explicitly, a mapping the fields that it names.
            store: where to load and save, in place of this object's store.
            auto_save: whether a block that ends without an error saves, in place of this object's option. Changes that
                are not saved, by `OpenSession.save` either, are lost with the activity or script.
            allow_transient: without a session, or by id without a store, return a new state that is not stored.

        Raises:
            InvalidInput: an argument is out of bounds.
            InvalidOptions: an id without a store; or the activity's worker does not notify this object of leases that
                end (``follow_leases``).
            SessionError: there is no session; or the context has one and no epoch.

        The ``async with`` raises, at its beginning:
            SessionLoadFailed: the state could not be read; the record is untouched.
            SessionWriteConflict: the process has the session under a newer lease than the context's.

        and at its end:
            NotSerializable, PayloadTooLarge, InvalidInput: the state, or its metadata, cannot be stored.
            SessionWriteConflict: in a script, the record was written since.
            SessionSelfConflict: an activity has opened its own session by id, and changed the state.
            SessionSaveFailed: in a script, the store failed; the error carries the state.
        """
        return OpenSession(
            self._schema,
            *self._work(ctx_or_id, store, allow_transient),
            self._options(ctx_or_id, parent, labels, overrides, auto_save),
        )

    def _open_in_activity(self, ctx: ActivityScope, parent: str | None, *, is_new: bool) -> OpenSession[S]:
        """`open` for a layer above, in an activity or in a scope that stands for one.

        Args:
            ctx: of the activity, or with another session and epoch than it has.
            parent: of the session, from now on.
            is_new: the worker's database has no record of the session, as the caller has read: it is not looked for.
        """
        begin, scope = self._work(ctx, None, False)
        if is_new and self._store is None:
            begin = partial(self._queue.join, ctx, ctx.session_store, is_new=True)
        return OpenSession(self._schema, begin, scope, self._options(ctx, parent, None, None, None))

    def open_sync(
        self,
        ctx_or_id: ActivityScope | str | None,
        *,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        overrides: S | Mapping[str, Any] | None = None,
        store: SessionStore | StoreOnLoop | None = None,
        auto_save: bool | None = None,
        allow_transient: bool = False,
    ) -> SyncOpenSession[S]:
        """`open` for one ``with`` of a sync activity, in the thread that anyio started for it. Other sync code gives a
        store of `affinity.sync`.
        """
        given, run = _store_and_loop(store)
        return SyncOpenSession(
            self._schema,
            *self._work(ctx_or_id, given, allow_transient),
            self._options(ctx_or_id, parent, labels, overrides, auto_save),
            run,
        )

    # -- updating

    @overload
    async def update(
        self,
        session_id: str,
        function: Callable[[S], Awaitable[T]],
        *,
        store: SessionStore | None = ...,
        attempts: int = ...,
    ) -> T: ...
    @overload
    async def update(
        self, session_id: str, function: Callable[[S], T], *, store: SessionStore | None = ..., attempts: int = ...
    ) -> T: ...
    async def update(
        self,
        session_id: str,
        function: Callable[[S], Any],
        *,
        store: SessionStore | None = None,
        attempts: int = UPDATE_ATTEMPTS,
    ) -> Any:
        """Open the state of a session, change it by a function, and save it; from the beginning when other code has
        written the record meanwhile. For scripts and web handlers.

        ::

            count = await chats.update("chat-17", lambda chat: chat.add("hello"), store=client.session_store)

        Args:
            session_id: whose state.
            function: changes the state, and may be called again with a fresh one, so it should do nothing else. A sync
                one runs on the event loop too: it must not block.
            store: as for `open`.
            attempts: calls of the function at most.

        Returns:
            What the function returned.

        Raises:
            SessionWriteConflict: by the last attempt.
            InvalidOptions: ``attempts`` is no integer from 1; or as for `open`.
            Exception: what the function raised, which saves nothing; or as for `open`.
        """

        async def change() -> Any:
            async with self.open(session_id, store=store, auto_save=True) as state:
                result = function(state)
                return await result if inspect.isawaitable(result) else result

        return await AsyncRetrying(**repeat_conflicts(attempts))(change)

    def update_sync(
        self,
        session_id: str,
        function: Callable[[S], T],
        *,
        store: SessionStore | StoreOnLoop | None = None,
        attempts: int = UPDATE_ATTEMPTS,
    ) -> T:
        """`update` for sync code, with a store as for `open_sync`. The function runs in the caller's thread."""

        def change() -> T:
            with self.open_sync(session_id, store=store, auto_save=True) as state:
                return function(state)

        return Retrying(**repeat_conflicts(attempts))(change)

    def _work(
        self, ctx_or_id: ActivityScope | str | None, store: SessionStore | None, allow_transient: bool
    ) -> tuple[Callable[[], UnitOfWork[S]], AbstractContextManager[None]]:
        """A function that begins the unit of work, and a context that names the session in logs."""
        store = self._store if store is None else store
        session_id = _session_id(ctx_or_id)
        refuse_in_orchestration("the state of a session")
        if isinstance(ctx_or_id, str | None) or session_id is None:
            if not allow_transient:
                _check_stored(session_id, store)
            begin = partial(StandaloneUnitOfWork, self._schema, self._queue, session_id, store)
            return begin, _NO_SCOPE if session_id is None else session_scope(session_id)
        self._check_followed(ctx_or_id)
        return partial(self._queue.join, ctx_or_id, ctx_or_id.session_store if store is None else store), _NO_SCOPE

    def _check_followed(self, ctx: ActivityScope) -> None:
        if self._follow_leases and ctx.session_listeners is not None and self not in ctx.session_listeners:
            raise InvalidOptions(
                f"no app of the worker includes the Sessions of kind {self.kind!r}, so it does not learn which leases"
                f" end: app.include(...) it, or make it with follow_leases=False"
            )

    def _keeps_open(self, entry: CachedState[S]) -> bool:
        return bool(entry.resources) or self._schema.dispose is not None

    def _options(
        self,
        ctx_or_id: ActivityScope | str | None,
        parent: str | None,
        labels: Mapping[str, str] | None,
        overrides: S | Mapping[str, Any] | None,
        auto_save: bool | None,
    ) -> OpenOptions:
        session_id = _session_id(ctx_or_id)
        override_metadata(SessionMetadata(), session_id, parent, labels)  # raises if one is out of bounds
        return OpenOptions(
            session_id=session_id,
            parent=parent,
            labels=labels,
            overrides=self._schema.overrides.values(overrides),
            save=self._auto_save if auto_save is None else auto_save,
        )

    # -- migrations

    def migration(self, from_version: int, to_version: int) -> Callable[[F], F]:
        """Register the decorated function as a migration; see `register_migration`."""

        def register(migrate: F) -> F:
            self.register_migration(from_version, to_version, migrate)
            return migrate

        return register

    def register_migration(self, from_version: int, to_version: int, migrate: Migrate) -> None:
        """Add a step: ``migrate`` takes the plain form of a state (a dict, for JSON objects) and returns the new one.

        A record of another schema version is converted to this object's by the shortest chain of steps. It is written
        in the new version at the end of the next block without an error, changed or not.

        Raises:
            SessionMigrationAmbiguous: there is a step between these versions.
            InvalidOptions: the versions are the same, or one of them is no integer from 0 to `limits.MAX_INTEGER`; or
                the function takes other arguments.
        """
        self._schema.migrations.register(from_version, to_version, migrate)

    def _check_migrations(self) -> None:
        """Check the registered migrations before any record is loaded, as a worker does at its start.

        Raises:
            SessionMigrationAmbiguous: from some version two shortest chains lead to this object's.
        """
        self._schema.migrations.check_all(self._schema.version)


def _store_and_loop(store: SessionStore | StoreOnLoop | None) -> tuple[SessionStore | None, RunOnLoop]:
    if hasattr(store, "on_loop"):
        return cast(StoreOnLoop, store).on_loop()
    return store, run_shielded


def _session_id(ctx_or_id: ActivityScope | str | None) -> str | None:
    if isinstance(ctx_or_id, str):
        return check_id(ctx_or_id, "session id")
    if hasattr(type(ctx_or_id), "schedule_activity"):
        raise OrchestrationMisuse(
            "a session's state is opened in an activity, and this is the context of an orchestration, whose code runs "
            "again in each replay: move the block to an activity, and schedule that with .on_session(session_id)"
        )
    return None if ctx_or_id is None else ctx_or_id.session_id


def _check_stored(session_id: str | None, store: SessionStore | None) -> None:
    if session_id is None:
        raise SessionError(
            "the activity is on no session, so the state would be lost: stamp it with .on_session(session_id); with"
            " .on_session(ctx.session_id) where the instance was started for a session, which binds no activity by"
            " itself; or open the state with allow_transient=True"
        )
    if store is None:
        raise InvalidOptions(
            f"session {session_id!r} is opened by id and without a store, so the state would be lost: give store=, for"
            " example from open_store(url), or open it with allow_transient=True"
        )
