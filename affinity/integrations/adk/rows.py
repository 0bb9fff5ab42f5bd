"""The reads and writes of ADK's sessions, each within a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from affinity.integrations.database import Connection, Tables

TABLES: Final = Tables("adk", __package__, 1, "ADK's sessions", "await AffinitySessionService(url).setup()")

_ALL: Final = 2**62
"""Events of a session that has no limit."""

Values = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Place:
    """A session."""

    app: str
    user: str
    session: str

    @property
    def parameters(self) -> dict[str, object]:
        """The parameters that name it in statements."""
        return {"app": self.app, "user": self.user, "session": self.session}


class Revision(NamedTuple):
    """What a writer has read: which session of this id, and how many events it had."""

    key: str
    number: int


class Row(NamedTuple):
    """A session, with the state of its user and its app."""

    place: Place
    revision: Revision
    state: Values
    user_state: Values
    app_state: Values
    updated_at: float
    events: Sequence[str]
    """As JSON, oldest first."""


class Parts(NamedTuple):
    """A state, or changes of it, by who shares it; its keys are without their prefix."""

    session: dict[str, JsonValue]
    user: dict[str, JsonValue]
    app: dict[str, JsonValue]


class New(NamedTuple):
    """An event to append."""

    at: float
    event: str
    changes: Parts


class Behind(NamedTuple):
    """An event was not appended: the session has others that its writer has not read."""

    revision: Revision


def create(connection: Connection, place: Place, key: str, state: Parts, at: float) -> Row | None:
    """Create a session; None: another one is there already. The same call again, with this key, creates it once."""
    given = {**place.parameters, "key": key, "state": _merged({}, state.session), "at": at}
    if connection.fetch("create", given):
        _change_shared(connection, place, state)
    found = read(connection, place, 0, None)
    return None if found is None or found.revision.key != key else found


def read(connection: Connection, place: Place, most: int | None, after: float | None) -> Row | None:
    """Return a session with its newest events; None: there is none.

    Args:
        connection: to the database.
        place: of the session.
        most: of its events; None: all.
        after: seconds since 1970: events from then on; None: all.
    """
    rows = connection.fetch("session", place.parameters)
    if not rows:
        return None
    ((key, state, updated_at, number),) = rows
    given = {"key": key, "revision": number, "after": after, "most": _ALL if most is None else most}
    events = [] if most == 0 else [event for (event,) in connection.fetch("events", given)]
    return Row(
        place,
        Revision(key, number),
        from_json(state),
        user_state(connection, place.app, place.user),
        _state(connection.fetch("app_state", place.parameters)),
        updated_at,
        events[::-1],
    )


def list_all(connection: Connection, app: str, user: str | None) -> Sequence[Row]:
    """Return the sessions of an app, or of a user of it, without their events, oldest update first."""
    given = {"app": app, "user": user}
    of_app = _state(connection.fetch("app_state", given))
    of_users = {name: from_json(state) for name, state in connection.fetch("user_states", given)}
    return [
        Row(
            Place(app, found, session),
            Revision(key, number),
            from_json(state),
            of_users.get(found, {}),
            of_app,
            updated_at,
            (),
        )
        for found, session, key, state, updated_at, number in connection.fetch("sessions", given)
    ]


def append(
    connection: Connection, place: Place, read: Revision | None, last: str | None, new: New
) -> Revision | Behind | None:
    """Append an event, and return the new `Revision`; `Behind`: nothing was written; None: there is no such session.

    Args:
        connection: to the database.
        place: of the session.
        read: what the writer has read. None: it does not know, and the newest event must be ``last``.
        last: id of the newest event that the writer has, if ``read`` is None.
        new: the event. The same one again, as after a lost answer, is not appended twice.
    """
    rows = connection.fetch("lock", place.parameters)
    if not rows:
        return None
    ((key, state, _, number),) = rows
    found = Revision(key, number)
    newest = connection.fetch("event", {"key": key, "number": number})
    if newest == [(new.event,)]:
        return found
    if read is None and last == (from_json(newest[0][0])["id"] if newest else None):
        read = found
    if read != found:
        if read is not None and read.key == key:
            after = Revision(key, read.number + 1)
            if connection.fetch("event", {"key": key, "number": after.number}) == [(new.event,)]:
                return after  # the same call has appended it, and another writer the next one
        return Behind(found)
    given = {**place.parameters, "key": key, "number": number + 1, "at": new.at}
    connection.fetch("append", {**given, "event": new.event})
    _change_shared(connection, place, new.changes)
    connection.fetch("update", {**given, "state": _merged(from_json(state), new.changes.session)})
    return Revision(key, number + 1)


def delete(connection: Connection, place: Place) -> None:
    """Delete a session, with its events."""
    for (key,) in connection.fetch("delete", place.parameters):
        connection.fetch("delete_events", {"key": key})


def delete_user(connection: Connection, app: str, user: str) -> None:
    """Delete the sessions of a user of an app, and the state that they share."""
    given = {"app": app, "user": user}
    for _, session, *_ in connection.fetch("sessions", given):
        delete(connection, Place(app, user, session))
    connection.fetch("delete_user_state", given)


def user_state(connection: Connection, app: str, user: str) -> Values:
    """Return the state that the sessions of a user share."""
    return _state(connection.fetch("user_state", {"app": app, "user": user}))


def _change_shared(connection: Connection, place: Place, changes: Parts) -> None:
    """Change the states of the app and of the user, always in this order."""
    for name, part in (("app_state", changes.app), ("user_state", changes.user)):
        if part:
            ((state,),) = connection.fetch(f"lock_{name}", place.parameters)
            connection.fetch(f"set_{name}", {**place.parameters, "state": _merged(from_json(state), part)})


def _merged(state: Values, changes: Values) -> str:
    return to_json({**state, **changes}).decode()


def _state(rows: Iterable[tuple[Any, ...]]) -> Values:
    for (state,) in rows:
        found: Values = from_json(state)
        return found
    return {}
