"""Typed session state that survives its worker: `Sessions`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Generic, TypeVar

from affinity.errors import InvalidOptions, SessionError
from affinity.limits import check_id, check_integer
from affinity.records import SessionMetadata, SessionStore
from affinity.session.codec import JsonCodec, StateCodec
from affinity.session.context import ActivityScope
from affinity.session.fields import FieldOverrides, projection_of
from affinity.session.migrations import Migrate
from affinity.session.opening import OpenOptions, OpenSession, StandaloneUnitOfWork, SyncOpenSession, UnitOfWork
from affinity.session.state import CachedState, StateSchema, override_metadata
from affinity.session.state_cache import CacheLeaseListener, StateCache
from affinity.session.writer import WriteQueue
from affinity.telemetry import session_scope

S = TypeVar("S")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_NO_SCOPE: Final = nullcontext()


class Sessions(CacheLeaseListener[CachedState[S]], Generic[S]):
    """The state of sessions of one kind: hydrated, cached beside the lease, migrated, committed with results.

    ::

        chats = Sessions(Chat, kind="chat", schema_version=2)
        app.include(chats)

        @app.activity
        async def run_turn(ctx: ActivityContext, message: Message) -> Reply:
            async with chats.open(ctx) as chat:
                return await chat.answer(message)

    A session has one state: an activity that opens its session through two of these objects is refused, unless at most
    one of them changes anything in the worker's database. One object serves one event loop. It is a `SessionListener`
    (of `affinity.orchestration.app`): a worker that is given it tells it which leases end.
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
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """The states of one kind; nothing is loaded yet.

        Args:
            state: the type: a pydantic model, dataclass, TypedDict, ``list[...]``, or any other with a ``codec``. A
                form that is no class, such as a union, needs a cast for type checkers.
            kind: what the records are called; one of another kind is refused. Default: the name of the type.
            schema_version: of the type as the code has it now; `migration` leads here from what older code wrote.
            initial: the state of a session without a record, given its id, or "" without a session. Default: the type
                called without arguments.
            codec: of the state, or of ``record``. Default: JSON by pydantic (`JsonCodec`).
            record: a narrower type that is kept in place of the state. Of models and dataclasses, fields of the same
                name are mapped, at any depth; what the record does not have starts from its default at a hydrate.
            to_record: the record of a state, in place of the mapping by name.
            from_record: the state from a record, in place of the mapping by name.
            metadata: says what is kept in columns beside a state: name, message_count, participants, labels.
            store: a store elsewhere. Default: the database of the worker, where state commits with the result.
            auto_save: whether a clean end of a block saves; each `open` may say otherwise.
            follow_leases: an activity may open it only on a worker that tells it which leases end: by
                ``app.include(...)``, or the worker's ``listeners``. False: anywhere; then copies of sessions that the
                worker has lost stay in memory up to ``idle_timeout``, and no activity is given to this worker because
                it can read a record.
            fresh_scratch: what is not kept of a state (scratch fields, or all that a narrower ``record`` does not have)
                starts from its default at each opening, not only after a hydrate: code then sees the same wherever it
                runs. The state is a new object each time, and ``dispose`` is called for the former one. An opening
                within another one of the same activity shares its state. Costs one encoding and decoding each.
            dispose: frees what a state holds beside its memory; called once for each copy. What it raises is logged; it
                has `DISPOSE_SECONDS`.
            max_sessions: copies in memory at most, unless more are in use at once.
            max_bytes: of all copies at most, unless those in use have more. None: no bound.
            size_of: how many bytes a state takes. Default: the size of its encoded form.
            idle_timeout: seconds without use after which a copy is given up; None: never.
            timer: a monotonic clock in seconds, of this process: it decides on memory only, never on a lease.

        Raises:
            InvalidOptions: options out of range or in contradiction, a state without a JSON form, a scratch field
                without a default, or a record that cannot be mapped by name.
            InvalidId: the kind is none.
        """
        if initial is None and not callable(state):
            raise InvalidOptions(f"the state {state!r} cannot be called to make a new one: give initial=")
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
        """What the records are called."""
        return self._schema.kind

    def readable_versions(self) -> frozenset[int]:
        """The schema versions of the records that this code can read: its own, and those that migrations lead from."""
        return self._schema.migrations.leading_to(self._schema.version)

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
        """The state of a session, for one ``async with``.

        *In an activity* (``ctx_or_id`` is its context): the state comes from memory when this lease's copy is there,
        else from the store. One activity of a session at a time; the others wait. At a clean end of the block the
        change is staged, and commits with the activity's result, or not at all; unchanged state is not written. After
        an error in the block, or when the result is not committed, the copy is dropped, and the next opening hydrates.
        Do not change the state after the block, nor let another task do so while it ends. To a store elsewhere the
        change is written just before the result (see `OpenSession.already_applied`). Without any store the state lives
        in memory only, and is lost where a copy is dropped.

        To save at once, before the result, there is `OpenSession.checkpoint`.

        *In a script or web handler* (``ctx_or_id`` is a session id): the state is loaded, and saved at a clean end,
        unless somebody has written it since; nothing is saved after an error. No copy stays.

        Without a session (an activity that has none, or None), and by id without a store, there is nothing to load, and
        what the block does would be lost: it is an error, unless ``allow_transient`` asks for a new state that is kept
        nowhere.

        Args:
            ctx_or_id: whose state.
            parent: of the session, from now on; deleting the parent deletes this session's record.
            labels: of the session, from now on, in place of those that it has.
            overrides: fields that replace those of the loaded state; all others stay. A model of the state's type
                overrides the fields that were set explicitly, a mapping those that it names.
            store: where to load and save, other than this object's.
            auto_save: whether a clean end saves, other than this object does. What is not saved, `OpenSession.save`
                apart, is gone with the activity or script.
            allow_transient: without a session, or by id without a store, give a new state that is kept nowhere.

        Raises:
            InvalidInput: an argument that cannot be.
            InvalidOptions: an id without a store; or the activity's worker does not tell this object which leases end
                (``follow_leases``).
            SessionError: there is no session; or the context has one and no epoch.

        The ``async with`` raises, at its beginning:
            SessionLoadFailed: the state could not be read; the record is untouched.
            SessionWriteConflict: the process has the session under a newer lease than the context's.

        and at its end:
            NotSerializable, PayloadTooLarge, InvalidInput: the state, or its metadata, cannot be kept.
            SessionWriteConflict: in a script, somebody else has written since.
            SessionSelfConflict: an activity has opened its own session by id, and changed the state.
            SessionSaveFailed: in a script, the store failed; the error carries the state.
        """
        return OpenSession(
            self._schema,
            *self._work(ctx_or_id, store, allow_transient),
            self._options(ctx_or_id, parent, labels, overrides, auto_save),
        )

    def open_sync(
        self,
        ctx_or_id: ActivityScope | str | None,
        *,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        overrides: S | Mapping[str, Any] | None = None,
        store: SessionStore | None = None,
        auto_save: bool | None = None,
        allow_transient: bool = False,
    ) -> SyncOpenSession[S]:
        """`open` for a sync activity, in its thread, which anyio started: for one ``with``."""
        return SyncOpenSession(
            self._schema,
            *self._work(ctx_or_id, store, allow_transient),
            self._options(ctx_or_id, parent, labels, overrides, auto_save),
        )

    def _work(
        self, ctx_or_id: ActivityScope | str | None, store: SessionStore | None, allow_transient: bool
    ) -> tuple[Callable[[], UnitOfWork[S]], AbstractContextManager[None]]:
        """What begins the unit of work, and what names the session in logs: in an activity, the worker has done so."""
        store = self._store if store is None else store
        session_id = _session_id(ctx_or_id)
        if isinstance(ctx_or_id, str | None) or session_id is None:
            if not allow_transient:
                _check_stored(session_id, store)
            begin = partial(StandaloneUnitOfWork, self._schema, self._queue, session_id, store)
            return begin, _NO_SCOPE if session_id is None else session_scope(session_id)
        self._check_followed(ctx_or_id)
        return partial(self._queue.writer, ctx_or_id, ctx_or_id.session_store if store is None else store), _NO_SCOPE

    def _check_followed(self, ctx: ActivityScope) -> None:
        if self._follow_leases and ctx.session_listeners is not None and self not in ctx.session_listeners:
            raise InvalidOptions(
                f"no app of the worker includes the Sessions of kind {self.kind!r}, so it does not learn which leases"
                f" end: app.include(...) it, or make it with follow_leases=False"
            )

    def _options(
        self,
        ctx_or_id: ActivityScope | str | None,
        parent: str | None,
        labels: Mapping[str, str] | None,
        overrides: S | Mapping[str, Any] | None,
        auto_save: bool | None,
    ) -> OpenOptions:
        session_id = _session_id(ctx_or_id)
        override_metadata(SessionMetadata(), session_id, parent, labels)  # raises what is out of bounds
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

        A record of another schema version is led to this object's by the shortest chain of steps. It is written in the
        new version at the next clean end, changed or not.

        Raises:
            SessionMigrationAmbiguous: there is a step between these versions.
            InvalidOptions: the versions are the same, or one of them is no integer from 0 to `limits.MAX_INTEGER`.
        """
        self._schema.migrations.register(from_version, to_version, migrate)

    def check_migrations(self) -> None:
        """Find now what a load would find of the registered migrations, as a worker does at its start.

        Raises:
            SessionMigrationAmbiguous: from some version two shortest chains lead to this object's.
        """
        self._schema.migrations.check_all(self._schema.version)


def _session_id(ctx_or_id: ActivityScope | str | None) -> str | None:
    if isinstance(ctx_or_id, str):
        return check_id(ctx_or_id, "session id")
    return None if ctx_or_id is None else ctx_or_id.session_id


def _check_stored(session_id: str | None, store: SessionStore | None) -> None:
    if session_id is None:
        raise SessionError(
            "there is no session, so the state would be lost: schedule the activity with .on_session(session_id), or"
            " open it with allow_transient=True"
        )
    if store is None:
        raise InvalidOptions(
            f"session {session_id!r} is opened by id and without a store, so the state would be lost: give store=, for"
            " example from open_store(url), or open it with allow_transient=True"
        )
