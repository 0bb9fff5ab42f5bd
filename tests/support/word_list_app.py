"""An app whose sessions are lists of words: for tests of databases that lose what they had."""

from __future__ import annotations

from typing import Any

from affinity import ActivityContext, App, OrchestrationContext, Sessions


def make_app(notes: Sessions[list[str]]) -> App:
    """An app with a cache of its own."""
    app = App("notes")
    app.include(notes)

    @app.activity
    async def add(context: ActivityContext, word: str) -> dict[str, Any]:
        """Append a word; the list then."""
        async with notes.open(context) as words:
            words.append(word)
            return {"words": list(words), "epoch": context.session_epoch}

    @app.activity
    async def peek(context: ActivityContext, _: str) -> dict[str, Any]:
        """The list, as this process has it."""
        async with notes.open(context) as words:
            return {"words": list(words), "epoch": context.session_epoch}

    @app.orchestration
    async def write(context: OrchestrationContext, note: tuple[str, str]) -> Any:
        return await context.schedule_activity(add, note[1]).on_session(note[0])

    @app.orchestration
    async def read(context: OrchestrationContext, session_id: str) -> Any:
        return await context.schedule_activity(peek, "").on_session(session_id)

    @app.orchestration
    async def listen(context: OrchestrationContext) -> str:
        """The data of the event."""
        context.set_custom_status("listening")
        return await context.schedule_wait("said", str)

    @app.orchestration
    async def sleep(context: OrchestrationContext, seconds: float) -> None:
        await context.schedule_timer(seconds)

    return app


app = make_app(Sessions(list[str], kind="notes", initial=lambda _: []))


def make_later_app() -> App:
    """The app of a later release, whose records the other cannot read."""
    notes = Sessions(list[str], kind="notes", schema_version=2, initial=lambda _: [])
    notes.register_migration(1, 2, lambda words: words)
    return make_app(notes)


later = make_later_app()
