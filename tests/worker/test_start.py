"""Errors of an app that a worker finds before it takes any work, and scripts that run before there is a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import affinity
from affinity import ActivityContext, App, Client, OrchestrationContext, Sessions, Worker
from affinity.errors import InvalidOptions, OrchestrationFailed, SchemaMismatch, SessionMigrationAmbiguous

pytestmark = pytest.mark.anyio


class Note(BaseModel):
    text: str = ""


def ambiguous() -> Sessions[Note]:
    notes = Sessions(Note, kind="note", schema_version=4)
    for start, end in ((1, 2), (1, 3), (2, 4), (3, 4)):
        notes.register_migration(start, end, lambda plain: plain)
    return notes


@pytest.mark.parametrize("given", [False, True])
async def test_two_shortest_chains_of_migrations_are_found_at_the_start(sqlite_url: str, given: bool) -> None:
    """Whether the app or the worker was given the sessions; nothing was registered by then."""
    app, listeners = App("notes"), list[Any]()
    if given:
        listeners.append(ambiguous())
    else:
        app.include(ambiguous())
    with pytest.raises(SessionMigrationAmbiguous, match="from 1 to 4"):
        async with Worker(app, sqlite_url, listeners=listeners):
            pass
    async with Client(sqlite_url) as client:
        assert await client.workers() == []


async def test_sessions_that_no_app_includes_are_refused(sqlite_url: str) -> None:
    """They would not be notified which leases end. Unless the worker knows them otherwise, or they are made so."""
    notes = {
        "forgotten": Sessions(Note, kind="forgotten"),
        "of the worker": Sessions(Note, kind="of the worker"),
        "by itself": Sessions(Note, kind="by itself", follow_leases=False),
    }
    app = App("notes")

    @app.activity
    async def write(context: ActivityContext, kind: str) -> str:
        async with notes[kind].open(context) as note:
            note.text = kind
        return kind

    @app.orchestration
    async def writing(context: OrchestrationContext, kind: str) -> str:
        return await context.schedule_activity(write, kind).on_session(kind)

    async with Worker(app, sqlite_url, listeners=[notes["of the worker"]]), Client(sqlite_url) as client:
        for kind in ("of the worker", "by itself"):
            assert await (await client.start(writing, kind)).wait(30) == kind
        with pytest.raises(OrchestrationFailed, match=r"InvalidOptions.*'forgotten'.*app\.include") as failed:
            await (await client.start(writing, "forgotten")).wait(30)
        assert failed.value.is_a(InvalidOptions)


async def test_a_missing_schema_names_the_call_that_migrates(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with pytest.raises(SchemaMismatch, match=r"await affinity\.migrate\(url\)"):
        async with affinity.open_store(url):
            pass
    before, after = await affinity.migrate(url)
    assert 0 == before < after
    async with affinity.open_store(url) as store, Sessions(Note).open("s", store=store) as note:
        note.text = "x"
