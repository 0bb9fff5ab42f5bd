"""`AffinitySessionService`: ADK's sessions in a database of affinity, or in any other one."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, Final, Self

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import BaseSessionService, Session, State
from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
from pydantic import JsonValue, PrivateAttr
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import override

from affinity.errors import AffinityError, InvalidId, InvalidOptions, NotSerializable
from affinity.integrations.adk import rows
from affinity.integrations.adk.rows import TABLES, Behind, New, Parts, Place, Revision, Row
from affinity.integrations.database import CONNECTIONS, Database

MAX_ID: Final = 256
"""UTF-8 bytes of the id of an app, a user or a session: three of them fit a row of an index."""

_LOCKS: Final = 64
"""Locks of a service, by session: an event is appended behind the one before it."""


class StaleSession(AffinityError, StaleSessionError):
    """An event was not appended: another writer has appended one since this session was read.

    Nothing was written. Get the session again, and run the agent on it.

    Attributes:
        app_name: of the session.
        user_id: of the session.
        session_id: of the session.
    """

    def __init__(self, app_name: str, user_id: str, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} of user {user_id!r} of app {app_name!r} has been modified in storage since it was "
            "read: get it again"
        )
        self.app_name: str = app_name
        self.user_id: str = user_id
        self.session_id: str = session_id


class _StoredSession(Session):
    """A session that knows what was read of it."""

    _revision: Revision | None = PrivateAttr(default=None)
    _is_cut_off: bool = PrivateAttr(default=False)
    """Whether a call was cancelled whose event may have been appended. Its newest event says what it knows."""


class AffinitySessionService(BaseSessionService):
    """A session service for ADK on SQLite and PostgreSQL, whose sessions have one writer each.

    ::

        runner = Runner(app=app, session_service=AffinitySessionService("sqlite:///affinity.db"))

    Of two runs that have read a session in the same state, the second one to append an event is refused with
    `StaleSession`, which is ADK's ``StaleSessionError`` too; so events of two runs are never mixed.

    The tables, ``affinity_adk_*``, are made when the first call needs them, and belong to this module alone. Every call
    is one transaction, on a thread. A call whose answer is lost is repeated, and has its effect once.

    Raises:
        InvalidUrl: the URL names neither a PostgreSQL database nor an SQLite file.
    """

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        """Open nothing yet.

        Args:
            url: ``postgresql://…`` or ``sqlite:///…``, as of workers and clients.
            connections: to the database, at most; each with a thread.

        Raises:
            InvalidUrl: see above.
            InvalidOptions: ``connections`` is less than 1.
        """
        if connections < 1:
            raise InvalidOptions(f"connections={connections}: at least one is needed")
        self._database = Database(url, TABLES, connections)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    async def setup(self) -> None:
        """Make the tables, unless they are there. The first call of a role that may do so makes them too.

        Raises:
            ProviderError: the database cannot be reached, or has refused it.
        """
        await self._database.arun(lambda _: None)

    def close(self) -> None:
        """Close the connections. The service cannot be used any more."""
        self._database.close()

    async def __aenter__(self) -> Self:
        """Return the service."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    @override
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session, with a new id if none is given.

        Raises:
            AlreadyExistsError: it is there already.
            NotSerializable: a value of the state has no JSON form.
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        place = _place(app_name, user_id, (session_id or "").strip() or secrets.token_hex(16))
        parts, key = parts_of(state or {}), secrets.token_hex(16)
        found = await self._database.arun(lambda each: rows.create(each, place, key, parts, time.time()))
        if found is None:
            raise AlreadyExistsError(f"Session with id {place.session} already exists.")
        return _to_session(found)

    @override
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Return a session, with the events that the config selects; None: there is none.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        config, place = config or GetSessionConfig(), _place(app_name, user_id, session_id.strip())
        most, after = config.num_recent_events, config.after_timestamp
        found = await self._database.arun(lambda each: rows.read(each, place, most, after), "read")
        return None if found is None else _to_session(found)

    @override
    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without their events; the one updated last is the last.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        app, user = _checked(app_name, "app name"), None if user_id is None else _checked(user_id, "user id")
        found = await self._database.arun(lambda each: rows.list_all(each, app, user), "read")
        return ListSessionsResponse(sessions=[_to_session(row) for row in found])

    @override
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, with its events. The state of its user and of its app stays.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        place = _place(app_name, user_id, session_id.strip())
        await self._database.arun(lambda each: rows.delete(each, place))

    async def delete_user(self, *, app_name: str, user_id: str) -> None:
        """Delete all sessions of a user of an app, and the state that they share.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        app, user = _checked(app_name, "app name"), _checked(user_id, "user id")
        await self._database.arun(lambda each: rows.delete_user(each, app, user))

    @override
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that the sessions of a user share; its keys are without ``user:``.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        app, user = _checked(app_name, "app name"), _checked(user_id, "user id")
        return dict(await self._database.arun(lambda each: rows.user_state(each, app, user), "read"))

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event, with its changes of the state, and bring the session up to date. A partial event is not
        stored, and neither are changes of ``temp:``. The newest event again, as it is, is not appended twice.

        Raises:
            StaleSession: another writer, or a call that was cancelled, has appended an event since the session was
                read; nothing was written.
            SessionNotFoundError: it is not there, or no longer.
            NotSerializable: a value of the state, or the event, has no JSON form.
            ProviderError: the database cannot be reached, or has refused it.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        place = _place(session.app_name, session.user_id, session.id)
        new = New(event.timestamp, event_to_json(event), parts_of(event.actions.state_delta))
        try:
            written = await asyncio.wrap_future(self._database.submit(self._append, session, place, new))
        except asyncio.CancelledError:
            if isinstance(session, _StoredSession):
                session._is_cut_off = True
            raise
        if written is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        if isinstance(written, Behind):
            raise StaleSession(place.app, place.user, place.session)
        session.last_update_time = event.timestamp
        if session.events[-1:] != [event]:
            self._update_session_state(session, event)
            session.events.append(event)
        return event

    def _append(self, session: Session, place: Place, new: New) -> Revision | Behind | None:
        """Append an event, on a thread: behind what is appended to the same session object at the same time."""
        with self._locks[hash(place) % _LOCKS]:
            read = session._revision if isinstance(session, _StoredSession) and not session._is_cut_off else None
            last = session.events[-1].id if session.events else None
            written = self._database.call(lambda each: rows.append(each, place, read, last, new))
            if isinstance(written, Revision) and isinstance(session, _StoredSession):
                session._revision = written
        return written


def json_values(state: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return a state as JSON, without what is temporary.

    Raises:
        NotSerializable: a value has no JSON form.
    """
    found: dict[str, JsonValue] = {}
    for key, value in state.items():
        if not key.startswith(State.TEMP_PREFIX):
            try:
                found[key] = to_jsonable_python(value)
                to_json({key: found[key]})  # which refuses half of a surrogate pair
            except ValueError as error:
                raise NotSerializable(f"the state {key!r} of a session has no JSON form: {error}") from error
    return found


def parts_of(state: Mapping[str, Any]) -> Parts:
    """Return a state by who shares it, without what is temporary.

    Raises:
        NotSerializable: see `json_values`.
    """
    parts = Parts({}, {}, {})
    for key, value in json_values(state).items():
        if key.startswith(State.APP_PREFIX):
            parts.app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            parts.user[key.removeprefix(State.USER_PREFIX)] = value
        else:
            parts.session[key] = value
    return parts


def event_to_json(event: Event) -> str:
    """Return the stored form of an event.

    Raises:
        NotSerializable: it has no JSON form.
    """
    try:
        return event.model_dump_json(by_alias=True, exclude_none=True)
    except ValueError as error:
        raise NotSerializable(f"an event of {event.author!r} has no JSON form: {error}") from error


def _to_session(row: Row) -> Session:
    session = _StoredSession(
        id=row.place.session,
        app_name=row.place.app,
        user_id=row.place.user,
        state={
            **row.state,
            **{f"{State.APP_PREFIX}{key}": value for key, value in row.app_state.items()},
            **{f"{State.USER_PREFIX}{key}": value for key, value in row.user_state.items()},
        },
        events=[Event.model_validate_json(event) for event in row.events],
        last_update_time=row.updated_at,
    )
    session._revision = row.revision
    return session


def _place(app: str, user: str, session: str) -> Place:
    return Place(_checked(app, "app name"), _checked(user, "user id"), _checked(session, "session id"))


def _checked(text: str, what: str) -> str:
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):
        size = -1
    if not 1 <= size <= MAX_ID or "\0" in text:
        raise InvalidId(f"the {what} is a text of 1 to {MAX_ID} bytes without NUL, not {text!r:.80}")
    return text
