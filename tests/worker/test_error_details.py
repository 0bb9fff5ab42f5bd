"""An error where it is awaited has its category, its bases and its fields, through every level."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, OrchestrationContext, RetryPolicy, RuntimeOptions, Sessions, Worker
from affinity.errors import (
    ActivityError,
    ActivityFailed,
    InvalidInput,
    OrchestrationFailed,
    SessionLoadFailed,
    SessionMigrationFailed,
    SessionMigrationMissing,
    SessionSaveFailed,
)
from affinity.provider import open_provider
from affinity.session import SessionMetadata, SessionState

pytestmark = pytest.mark.anyio

PATIENT = RetryPolicy(max_attempts=5, initial_interval=0.0)


class Memo(BaseModel):
    text: str = ""


class Refusal(LookupError):
    """An error of the application that says more of itself."""

    category: ClassVar[str] = "refused"
    recorded_fields: ClassVar[tuple[str, ...]] = ("code", "missing", "secret", "broken", "text")

    def __init__(self) -> None:
        super().__init__("no")
        self.code, self.text, self.secret = 7, "x", object()

    @property
    def broken(self) -> int:
        raise RuntimeError("not now")


app = App("details")
notes = Sessions(Memo, kind="note", schema_version=3)
app.include(notes)
attempts: list[str] = []


@notes.migration(2, 3)
def fails(state: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("text")


@app.activity
async def read(context: ActivityContext) -> str:
    attempts.append(context.session_id or "")
    async with notes.open(context) as note:
        return note.text


@app.activity
async def refuse(context: ActivityContext) -> None:
    attempts.append("refused")
    raise Refusal


@app.orchestration
async def careful(context: OrchestrationContext, session_id: str) -> list[Any]:
    """Catches it, and returns what it knows."""
    try:
        await context.schedule_activity(read, retry=PATIENT).on_session(session_id)
    except ActivityFailed as failed:
        return [
            failed.category,
            [failed.is_a(each) for each in (SessionLoadFailed, "SessionError", failed.error_type, ActivityError)],
            [failed.is_a(each) for each in (SessionSaveFailed, InvalidInput)],
            [failed.from_version, failed.to_version, failed.fields["session_id"]],
        ]
    return []


@app.orchestration
async def careless(context: OrchestrationContext, session_id: str) -> str:
    return await context.schedule_activity(read, retry=PATIENT).on_session(session_id)


@app.orchestration
async def parent(context: OrchestrationContext, session_id: str) -> str:
    return await context.schedule_sub_orchestration(careless, session_id)


@app.orchestration
async def refusing(context: OrchestrationContext) -> None:
    await context.schedule_activity(refuse, retry=RetryPolicy(max_attempts=2, initial_interval=0.0))


@pytest.fixture
async def url(sqlite_url: str) -> str:
    """A database with a record of version 1, from which no migration leads on, and one of version 2, whose fails."""
    provider = await open_provider(sqlite_url)
    for version in (1, 2):
        written = SessionState(
            session_id=f"v{version}", state=b"{}", schema_version=version, metadata=SessionMetadata(kind="note")
        )
        await provider.states.save(written)
    await provider.aclose()
    attempts.clear()
    return sqlite_url


async def test_an_orchestration_receives_the_error_details_of_an_activity(url: str) -> None:
    """And no policy tries again what the same code would raise again."""
    async with Worker(app, url, RuntimeOptions.make(poll_interval=0.2)), Client(url) as client:
        answers = [await (await client.start(careful, f"v{version}")).wait(30) for version in (1, 2)]
    yes, no = [True] * 4, [False] * 2
    assert answers == [
        ["migration_missing", yes, no, [1, 3, "v1"]],
        ["migration_failed", yes, no, [2, 3, "v2"]],
    ]
    assert attempts == ["v1", "v2"]


async def test_a_waiting_client_receives_the_error_details_of_an_orchestration(url: str) -> None:
    """Through a parent, and a client that looks later."""
    async with Worker(app, url, RuntimeOptions.make(poll_interval=0.2)), Client(url) as client:
        for name in (careless, parent):
            run = await client.start(name, "v1")
            with pytest.raises(OrchestrationFailed) as caught:
                await run.wait(30)
            failed = caught.value
            assert (failed.category, failed.from_version, failed.to_version) == ("migration_missing", 1, 3)
            for kind in (SessionMigrationMissing, SessionLoadFailed, ActivityFailed, OrchestrationFailed):
                assert failed.is_a(kind)
            assert not failed.is_a(SessionMigrationFailed)
            details = (await run.status()).error_details
            assert details is not None
            assert details.category == "migration_missing"


async def test_an_error_of_the_application_may_say_more(url: str) -> None:
    """A field without a plain value is left out, and a field that cannot be read is no second failure."""
    async with Worker(app, url, RuntimeOptions.make(poll_interval=0.2)), Client(url) as client:
        run = await client.start(refusing)
        with pytest.raises(OrchestrationFailed) as caught:
            await run.wait(30)
        texts = [json.dumps(dict(event.fields)) for event in await client.history(run.instance_id)]
    failed = caught.value
    assert (failed.category, failed.fields) == ("refused", {"code": 7, "missing": None, "broken": None, "text": "x"})
    assert failed.is_a(LookupError)
    assert failed.is_a("Refusal")
    assert attempts == ["refused"] * 2
    assert not any("secret" in text for text in texts)
