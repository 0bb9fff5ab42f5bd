"""ADK's sessions on SQLite and PostgreSQL: what ADK says of a session service, one writer, and lost answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import anyio
import psycopg
import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from psycopg import sql

from affinity.errors import (
    AccessDenied,
    AffinityError,
    ConnectionLost,
    InvalidId,
    InvalidOptions,
    InvalidUrl,
    NotSerializable,
    SchemaMismatch,
)
from affinity.integrations import database
from affinity.integrations.adk import AffinitySessionService, StaleSession, rows, session_service
from affinity.integrations.adk.rows import TABLES
from tests.conftest import Servers
from tests.provider.roles import plain_role

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.nightly_cases(r"^(?!test_the_state|test_what_is_stored|test_of_two|test_an_answer).*\[new"),
]

APP, USER = "shop", "ann"


def said(text: str = "hello", author: str = "user", at: float | None = None, **state: Any) -> Event:
    """An event with a text, and changes of the state: two underscores of a name stand for a colon."""
    event = Event(
        author=author,
        invocation_id="i",
        content=types.Content(role=author, parts=[types.Part(text=text)]),
        actions=EventActions(state_delta=colons(state)),
    )
    return event if at is None else event.model_copy(update={"timestamp": at})


def colons(state: dict[str, Any]) -> dict[str, Any]:
    """The state, with a colon for two underscores of a name."""
    return {name.replace("__", ":"): value for name, value in state.items()}


def texts(session: Session | None) -> list[str]:
    """What was said in a session."""
    assert session is not None
    return [event.content.parts[0].text for event in session.events if event.content and event.content.parts]  # type: ignore[misc]


async def load(service: AffinitySessionService, session: Session, **config: Any) -> Session:
    """The session as it is stored."""
    wanted = GetSessionConfig(**config) if config else None
    found = await service.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id, config=wanted
    )
    assert found is not None
    return found


async def new(service: AffinitySessionService, user: str = USER, app: str = APP, **state: Any) -> Session:
    """A new session, with names of its state as `said` has them."""
    return await service.create_session(app_name=app, user_id=user, state=colons(state))


# -- what is stored


async def test_what_is_stored_is_what_the_writer_has(
    service: AffinitySessionService, other: AffinitySessionService
) -> None:
    """Bytes, sets, times and fields that few events have are as they were, in another process too."""
    session = await new(service, count=1)
    assert session == await load(other, session)
    event = Event(
        author="clerk",
        invocation_id="i",
        content=types.Content(role="model", parts=[types.Part.from_bytes(data=b"\0\xff", mime_type="image/png")]),
        actions=EventActions(
            artifact_delta={"file": 2}, transfer_to_agent="boss", escalate=True, state_delta={"a": [1]}
        ),
        long_running_tool_ids={"call-1"},
        custom_metadata={"nul": "\0", "deep": {"x": [None, 1.5]}},
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=7),
        grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
        error_code="E",
        turn_complete=True,
        branch="a.b",
        timestamp=1700000000.123456,
    )
    assert await service.append_event(session, event) is event
    await service.append_event(session, said("and more", "clerk"))
    found = await load(other, session)
    assert found == session
    assert found.events[0] == event
    assert found.last_update_time == found.events[1].timestamp
    assert found.state == {"count": 1, "a": [1]}


async def test_a_session_that_is_not_there(service: AffinitySessionService) -> None:
    session = await new(service)
    name: Any = {"app_name": APP, "user_id": USER, "session_id": session.id}
    await service.append_event(session, said())
    await service.delete_session(**name)
    await service.delete_session(**name)
    assert await service.get_session(**name) is None
    with pytest.raises(SessionNotFoundError, match=session.id):
        await service.append_event(session, said())
    assert await service.get_session(**{**name, "user_id": "bob"}) is None


async def test_an_id_is_taken_once_for_a_user(service: AffinitySessionService) -> None:
    """Blanks around an id are no part of it."""
    name = str(uuid4())
    given: Any = {"app_name": APP, "user_id": USER}
    session = await service.create_session(session_id=f" {name}\n", **given)
    assert session.id == name
    with pytest.raises(AlreadyExistsError, match=name):
        await service.create_session(session_id=name, **given)
    other = await service.create_session(session_id=name, app_name=APP, user_id="bob")
    await service.append_event(other, said())
    assert texts(await load(service, session)) == []
    assert (await service.get_session(session_id=f"{name} ", **given)) == session
    await service.delete_session(session_id=f" {name}", **given)
    assert await service.get_session(session_id=name, **given) is None


async def test_a_part_of_the_events(service: AffinitySessionService) -> None:
    session = await new(service)
    for number in range(1, 6):
        await service.append_event(session, said(str(number), at=float(number)))
    assert texts(await load(service, session)) == ["1", "2", "3", "4", "5"]
    assert texts(await load(service, session, num_recent_events=0)) == []
    assert texts(await load(service, session, num_recent_events=2)) == ["4", "5"]
    assert texts(await load(service, session, after_timestamp=4.0)) == ["4", "5"]
    assert texts(await load(service, session, after_timestamp=2.0, num_recent_events=3)) == ["3", "4", "5"]
    assert texts(await load(service, session, after_timestamp=5.5)) == []
    part = await load(service, session, num_recent_events=0)
    await service.append_event(part, said("6"))
    assert texts(await load(service, session, num_recent_events=2)) == ["5", "6"]


async def test_listings_end_with_what_was_updated_last(service: AffinitySessionService) -> None:
    app = str(uuid4())
    first, second = await new(service, app=app, n=1), await new(service, app=app, user__color="red")
    bob = await new(service, user="bob", app=app, app__open=True)
    await service.append_event(first, said(at=second.last_update_time + 50))
    await service.append_event(bob, said(at=second.last_update_time + 20))
    found = (await service.list_sessions(app_name=app)).sessions
    assert [session.id for session in found] == [second.id, bob.id, first.id]
    assert [session.events for session in found] == [[], [], []]
    assert found[2].state == {"n": 1, "user:color": "red", "app:open": True}
    assert found[1].state == {"app:open": True}
    mine = (await service.list_sessions(app_name=app, user_id=USER)).sessions
    assert [session.id for session in mine] == [second.id, first.id]
    assert (await service.list_sessions(app_name=app, user_id="nobody")).sessions == []
    await service.append_event(mine[1], said("again"))
    assert texts(await load(service, first)) == ["hello", "again"]


async def test_partial_events_are_not_stored(service: AffinitySessionService) -> None:
    session = await new(service)
    event = said("ha").model_copy(update={"partial": True})
    assert await service.append_event(session, event) is event
    assert session.events == []
    assert (await load(service, session)).events == []


# -- states


async def test_the_state_is_shared_by_prefix(service: AffinitySessionService) -> None:
    app = str(uuid4())
    state = {"app:a": 1, "user:u": {"deep": [1]}, "temp:t": 1, "own": 1}
    first = await service.create_session(app_name=app, user_id=USER, state=state)
    assert first.state == {"app:a": 1, "user:u": {"deep": [1]}, "own": 1}
    await service.append_event(first, said(app__b=2, user__v=None, temp__t=2, own=2))
    assert first.state == {"app:a": 1, "app:b": 2, "user:u": {"deep": [1]}, "user:v": None, "own": 2, "temp:t": 2}
    assert "temp:t" not in first.events[0].actions.state_delta
    stored = await load(service, first)
    assert stored.state == {"app:a": 1, "app:b": 2, "user:u": {"deep": [1]}, "user:v": None, "own": 2}
    assert (await new(service, app=app)).state == {"app:a": 1, "app:b": 2, "user:u": {"deep": [1]}, "user:v": None}
    assert (await new(service, user="bob", app=app)).state == {"app:a": 1, "app:b": 2}
    assert await service.get_user_state(app_name=app, user_id=USER) == {"u": {"deep": [1]}, "v": None}
    assert await service.get_user_state(app_name=app, user_id="carol") == {}
    assert await service.get_user_state(app_name=str(uuid4()), user_id=USER) == {}


async def test_the_state_of_sessions_that_are_written_at_the_same_time(
    service: AffinitySessionService, other: AffinitySessionService
) -> None:
    """No change is lost: neither of the app, nor of the user."""
    app = str(uuid4())
    sessions = [await new(service, app=app) for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        for number, session in enumerate(sessions):
            change = {f"app__{number}": number, f"user__{number}": number}
            tasks.start_soon((service, other)[number % 2].append_event, session, said("hello", "user", None, **change))
    found = await load(service, sessions[0])
    assert found.state == {f"{kind}:{number}": number for kind in ("app", "user") for number in range(8)}


async def test_a_user_who_is_deleted(service: AffinitySessionService) -> None:
    """With all sessions, and the state that they share; of others nothing."""
    app = str(uuid4())
    for user in (USER, USER, "bob"):
        await service.append_event(await new(service, user=user, app=app), said(user__name=user, app__n=1))
    await service.delete_user(app_name=app, user_id=USER)
    assert [session.user_id for session in (await service.list_sessions(app_name=app)).sessions] == ["bob"]
    assert await service.get_user_state(app_name=app, user_id=USER) == {}
    assert await service.get_user_state(app_name=app, user_id="bob") == {"name": "bob"}


async def test_a_value_without_a_json_form_is_refused(service: AffinitySessionService) -> None:
    """Before anything is written. The error names it."""
    session = await new(service)
    for value in (object(), b"\xff", "\ud800"):
        with pytest.raises(NotSerializable, match="'own'"):
            await new(service, own=value)
        with pytest.raises(NotSerializable):
            await service.append_event(session, said(own=value))
    assert await load(service, session) == session


# -- one writer


async def test_of_two_writers_one_goes_on(service: AffinitySessionService, other: AffinitySessionService) -> None:
    session = await new(service)
    await service.append_event(session, said("one", n=1))
    late = await load(other, session)
    await service.append_event(session, said("two", n=2))
    with pytest.raises(StaleSession, match="modified in storage") as refused:
        await other.append_event(late, said("three", n=3, app__n=3))
    assert isinstance(refused.value, StaleSessionError)
    assert isinstance(refused.value, AffinityError)
    assert (refused.value.app_name, refused.value.user_id, refused.value.session_id) == (APP, USER, session.id)
    assert texts(late) == ["one"]
    found = await load(service, session)
    assert (texts(found), found.state["n"], found.state.get("app:n")) == (["one", "two"], 2, None)
    await other.append_event(await load(other, session), said("three"))
    with pytest.raises(StaleSession):
        await service.append_event(session, said("four"))


async def test_of_two_writers_at_the_same_time_one_goes_on(
    service: AffinitySessionService, other: AffinitySessionService
) -> None:
    session = await new(service)
    for number in range(6):
        outcomes: list[bool] = []

        async def write(one: AffinitySessionService, mine: Session, outcomes: list[bool] = outcomes) -> None:
            try:
                await one.append_event(mine, said())
                outcomes.append(True)
            except StaleSession:
                outcomes.append(False)

        copies = [(one, (await load(one, session)).model_copy(deep=True)) for one in (service, other)]
        async with anyio.create_task_group() as tasks:
            for one, mine in copies:
                tasks.start_soon(write, one, mine)
        assert sorted(outcomes) == [False, True]
        assert len((await load(service, session)).events) == number + 1


async def test_one_session_object_is_written_in_order(service: AffinitySessionService) -> None:
    """As by agents of ADK that run beside each other."""
    session = await new(service)
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(service.append_event, session, said(str(number)))
    assert sorted(texts(session)) == sorted(texts(await load(service, session))) == [str(number) for number in range(8)]


async def test_a_session_that_was_made_again_is_another_one(service: AffinitySessionService) -> None:
    """A writer that has read the earlier one is refused, though the later one has as many events."""
    name: Any = {"app_name": APP, "user_id": USER, "session_id": str(uuid4())}
    earlier = await service.create_session(**name)
    await service.append_event(earlier, said("one"))
    await service.delete_session(**name)
    later = await service.create_session(**name)
    await service.append_event(later, said("another"))
    with pytest.raises(StaleSession):
        await service.append_event(earlier, said("two"))


async def test_a_session_that_a_program_has_made(service: AffinitySessionService) -> None:
    """It says by its newest event what was read."""
    stored = await new(service)
    plain = Session(app_name=APP, user_id=USER, id=stored.id)
    await service.append_event(plain, said("one"))
    await service.append_event(plain, said("two"))
    assert texts(await load(service, stored)) == texts(plain) == ["one", "two"]
    for known in (0, 1):
        earlier = Session(app_name=APP, user_id=USER, id=stored.id, events=plain.events[:known])
        with pytest.raises(StaleSession):
            await service.append_event(earlier, said("three"))


# -- lost answers, and refusals


@contextmanager
def answers_lost(monkeypatch: pytest.MonkeyPatch, times: int = 1) -> Iterator[list[str]]:
    """The connection is lost behind the next commits."""
    lost: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(database, "_PAUSE", 0.0)
        for driver in (database._Sqlite, database._Postgres):
            transaction = driver.transaction

            @contextmanager
            def losing(self: Any, mode: Any = "write", transaction: Any = transaction) -> Iterator[None]:
                with transaction(self, mode):
                    yield
                if mode == "write" and len(lost) < times:
                    lost.append(mode)
                    raise ConnectionLost("the answer was lost")

            patch.setattr(driver, "transaction", losing)
        yield lost


async def test_an_answer_that_is_lost(service: AffinitySessionService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is repeated, and has its effect once."""
    await service.setup()
    with answers_lost(monkeypatch) as lost:
        session = await new(service, n=1)
        assert lost
    with answers_lost(monkeypatch, times=2) as lost:
        await service.append_event(session, said("one", n=2))
        assert len(lost) == 2
    await service.append_event(session, said("two"))
    found = await load(service, session)
    assert found == session
    assert (texts(found), found.state) == (["one", "two"], {"n": 2})


async def test_an_answer_that_is_lost_before_another_writer_appends(
    service: AffinitySessionService, other: AffinitySessionService
) -> None:
    """The event is there, so its writer is not told that nothing was written. Its next one is refused."""
    session = await new(service)
    revision = session._revision  # type: ignore[attr-defined]
    event = said("one")
    await service.append_event(session, event)
    await other.append_event(await load(other, session), said("two"))
    session.events.clear()
    session._revision = revision  # type: ignore[attr-defined]
    assert await service.append_event(session, event) is event
    assert texts(session) == ["one"]
    with pytest.raises(StaleSession):
        await service.append_event(session, said("three"))
    assert texts(await load(service, session)) == ["one", "two"]


async def test_a_session_is_read_again_behind_a_call_that_was_cancelled(
    service: AffinitySessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, begins, ends = await new(service), threading.Event(), threading.Event()
    append = rows.append

    def slow(*args: Any) -> Any:
        begins.set()
        ends.wait(30)
        return append(*args)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "append", slow)
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.append_event, session, said("one"))
                await anyio.to_thread.run_sync(begins.wait)
                scope.cancel()
    assert texts(session) == []
    ends.set()
    with pytest.raises(StaleSession):
        await service.append_event(session, said("two"))
    stored = await load(service, session)
    assert texts(stored) == ["one"]
    await service.append_event(stored, said("two"))
    assert texts(stored) == ["one", "two"]


async def test_the_newest_event_again_is_not_appended_twice(service: AffinitySessionService) -> None:
    """As by a caller that has not seen that it was appended."""
    session, event = await new(service), said("one", n=1)
    await service.append_event(session, event)
    await service.append_event(session, event.model_copy(deep=True))
    assert texts(session) == ["one"]
    assert await load(service, session) == session


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "\ud800"])
async def test_an_id_that_cannot_be_stored(service: AffinitySessionService, name: str) -> None:
    with pytest.raises(InvalidId, match="1 to 256 bytes"):
        await service.create_session(app_name=name, user_id=USER)
    with pytest.raises(InvalidId, match="user id"):
        await service.list_sessions(app_name=APP, user_id=name)


async def test_what_is_no_database_is_refused() -> None:
    with pytest.raises(InvalidUrl, match="ADK's sessions"):
        AffinitySessionService("mysql://x")
    with pytest.raises(InvalidOptions, match="connections=0"):
        AffinitySessionService("sqlite:///x.db", connections=0)


async def test_tables_of_a_later_release_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written to them."""
    async with AffinitySessionService(url) as service:
        await service.setup()
    monkeypatch.setattr(session_service, "TABLES", replace(TABLES, version=0))
    async with AffinitySessionService(url) as service:
        with pytest.raises(SchemaMismatch, match="ADK's sessions have version 1, and this release knows version 0"):
            await new(service)


async def test_a_role_with_four_rights_on_the_tables(servers: Servers) -> None:
    """Another role makes the tables. Without them the error says what to do."""
    server = servers.server("new")
    name = server.create_database()
    owner = server.url(name)
    with psycopg.connect(owner, autocommit=True) as admin, plain_role(admin) as role:
        async with AffinitySessionService(owner.replace("postgres@", f"{role}@")) as service:
            with pytest.raises(AccessDenied, match=r"call `await AffinitySessionService\(url\).setup\(\)` once"):
                await new(service)
            async with AffinitySessionService(owner) as privileged:
                await privileged.setup()
            found = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'affinity_adk_%'"
            for (table,) in admin.execute(found).fetchall():
                grant = sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}")
                admin.execute(grant.format(sql.Identifier(table), sql.Identifier(role)))
            session = await new(service, user__name="Ann", app__open=True)
            await service.append_event(session, said(user__name="Anna", n=1))
            assert (await service.list_sessions(app_name=APP)).sessions[0].state == session.state
            await service.delete_session(app_name=APP, user_id=USER, session_id=session.id)
            await service.delete_user(app_name=APP, user_id=USER)
            assert await service.get_user_state(app_name=APP, user_id=USER) == {}
    server.drop_database(name)


async def test_services_that_start_together_make_the_tables_once(url: str) -> None:
    services = [AffinitySessionService(url) for _ in range(6)]
    async with anyio.create_task_group() as tasks:
        for each in services:
            tasks.start_soon(new, each)
    for each in services:
        each.close()
