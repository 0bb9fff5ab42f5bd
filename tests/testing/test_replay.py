"""`affinity.testing.replay`: what was recorded, against code that has changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import affinity
from affinity.conversation import UserMessage
from affinity.errors import InvalidInput, Nondeterminism, OrchestrationUnreadable, UnknownInstance, UnknownOrchestration
from affinity.limits import MAX_BATCH_BYTES
from affinity.testing import Env, replay
from tests.support.changed_code_app import CHANGES, drinks, line_of, mixed, support, talks, visits


async def recorded(*, until_event: int = 10) -> dict[str, Any]:
    """The history of a visit, to its end or until it waits for its event."""
    async with Env(visits()) as env:
        run = await env.client.start("visit", "ann", instance_id="v")
        await env.run_until_idle()
        if until_event > 6:
            await run.raise_event("said", "bye")
            await run.wait()
        history = await env.client.export_history("v")
    assert len(history["executions"][0]["events"]) == until_event
    return history


async def test_code_that_has_not_changed_matches(tmp_path: Path) -> None:
    """From what a client gives, from a file, and as JSON values; and where only activities have changed."""
    history = await recorded()
    (path := tmp_path / "v.json").write_text(json.dumps(history))
    for form in (history, path, str(path), json.loads(path.read_text())):
        assert replay(visits(), form) == 10
    assert replay(visits("other words"), history) == 10


async def test_an_unfinished_instance_is_replayed_to_where_it_is() -> None:
    history = await recorded(until_event=6)
    assert history["status"] == "running"
    assert replay(visits(), history) == 6
    assert replay(visits("an early end"), history) == 6  # what comes later may change
    with pytest.raises(Nondeterminism) as caught:
        replay(visits("a new timer"), history)
    assert caught.value.event_id == 6


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_found_with_its_line(change: str) -> None:
    event_id, expected, actual, mark = CHANGES[change]
    with pytest.raises(Nondeterminism) as caught:
        replay(visits(change), await recorded())
    error = caught.value
    assert (error.execution_id, error.event_id, error.actual) == (1, event_id, actual)
    assert error.expected == f"{expected} as event {event_id}"
    assert error.source is not None
    assert error.source.endswith(f"tests/support/changed_code_app.py:{line_of(mark)}, in visit")
    assert error.source in str(error)


async def test_an_event_beyond_the_end_of_the_history() -> None:
    """Of an instance that waits: a worker would add to its last step."""
    history = await recorded(until_event=6)
    history["executions"][0]["events"].pop()
    with pytest.raises(Nondeterminism) as caught:
        replay(visits(), history)
    assert (caught.value.event_id, caught.value.expected) == (6, "no event after 5")


async def drunk(env: Env, cups: int) -> None:
    run = await env.client.start("drink", cups, instance_id="d")
    for _ in range(cups + 1):
        await run.raise_event("tea", 1)
    await run.wait()


async def test_earlier_executions_are_replayed() -> None:
    """Each in the version with which it began."""
    async with Env(drinks()) as env:
        await drunk(env, 2)
        history = await env.client.export_history("d")
        last = await env.client.export_history("d", execution_id=3)
        with pytest.raises(InvalidInput, match="execution 4"):
            await env.client.export_history("d", execution_id=4)
        with pytest.raises(UnknownInstance):
            await env.client.export_history("unknown")
    assert [each["execution_id"] for each in history["executions"]] == [1, 2, 3]
    assert replay(drinks(), history) == count_of(history)
    with pytest.raises(Nondeterminism) as caught:
        replay(drinks("milk"), history)
    assert (caught.value.execution_id, caught.value.actual) == (1, "EventAwaited('milk')")
    assert replay(drinks("milk"), last) == len(last["executions"][0]["events"])


async def test_what_a_reset_has_taken_back_is_not_replayed() -> None:
    """The new execution is, from its beginning, which it has from the former one."""
    async with Env(drinks()) as env:
        await drunk(env, 0)
        length = (await env.client.status("d")).event_count
        await env.client.reset("d", to_event=2)
        history = await env.client.export_history("d")
    first, second = history["executions"]
    assert len(first["events"]) == length
    assert any(event["type"] == "execution_reset" for event in second["events"])
    assert replay(drinks(), history) == len(second["events"])
    with pytest.raises(Nondeterminism) as caught:
        replay(drinks(bye=False), history | {"executions": [first]})
    assert caught.value.event_id == 4


async def test_an_instance_that_was_started_again() -> None:
    """What its predecessor did, under another session, is its own matter."""
    async with Env(drinks()) as env:
        await drunk(env, 1)
        await env.client.start("drink", 5, instance_id="d", if_ended="restart")
        await env.run_until_idle()
        history = await env.client.export_history("d")
    assert [each["execution_id"] for each in history["executions"]] == [1, 2, 3]
    assert replay(drinks(), history) == len(history["executions"][2]["events"])


async def test_the_error_of_a_failed_instance_may_be_corrected() -> None:
    """Its last step is not compared; the steps before it are."""
    async with Env(visits("an error")) as env:
        run = await env.client.start("visit", "ann", instance_id="v")
        await run.raise_event("said", "bye")
        with pytest.raises(affinity.errors.OrchestrationFailed):
            await run.wait()
        history = await env.client.export_history("v")
    assert replay(visits(), history) == 8
    with pytest.raises(Nondeterminism) as caught:
        replay(visits("another session"), history)
    assert caught.value.event_id == 2


async def test_conversations_are_replayed() -> None:
    """Whatever their handler does now."""
    async with Env(talks()) as env:
        talk = env.client.conversation(support, "c")
        for text in ("hello", "again"):
            await talk.ask(UserMessage(text))
        history = await env.client.export_history("c")
    assert history["name"] == "support.conversation"
    count = replay(talks(), history)
    assert count == count_of(history) > 4
    assert replay(talks("good day"), history) == count
    with pytest.raises(UnknownOrchestration, match=r"support\.conversation"):
        replay(affinity.App("none"), history)
    events = history["executions"][0]["events"]
    (wake, *_) = [event for event in events if event["type"] == "activity_scheduled"]
    wake["session_id"] = "another"
    with pytest.raises(Nondeterminism) as caught:
        replay(talks(), history)
    assert "session_id='c'" in caught.value.actual
    assert "program.py:" in str(caught.value.source)


async def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    history = await recorded(until_event=6)
    (path := tmp_path / "v.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"v\.json: .*JSON"):
        replay(visits(), path)
    for wrong, message in (
        ({}, "not a history"),
        (history | {"format_version": 2}, "format version 2"),
        (history | {"executions": []}, "no events"),
        (history | {"executions": [{"execution_id": 1, "events": []}]}, "no events"),
        (history | {"executions": [{"execution_id": 1}]}, "damaged"),
        (history | {"name": None}, "damaged"),
    ):
        with pytest.raises(InvalidInput, match=message):
            replay(visits(), wrong)
    history["executions"][0]["events"][3] = {"type": "from_tomorrow"}
    with pytest.raises(OrchestrationUnreadable, match="event 4"):
        replay(visits(), history)


async def test_a_version_that_is_gone() -> None:
    history = await recorded(until_event=6)
    history["executions"][0]["events"][0]["version"] = "0.9.0"
    with pytest.raises(UnknownOrchestration, match=r"visit@0\.9\.0"):
        replay(visits(), history)


def hoards() -> affinity.App:
    app = affinity.App("hoards")

    @app.orchestration
    async def hoard(ctx: affinity.OrchestrationContext) -> int:
        return sum([len(await ctx.schedule_wait("gold", str)) for _ in range(12)])

    return app


async def test_a_history_that_is_larger_than_a_page(tmp_path: Path) -> None:
    """It is written in pieces; none is larger than an event."""
    async with Env(hoards()) as env:
        run = await env.client.start("hoard", instance_id="h")
        for _ in range(12):
            await run.raise_event("gold", "x" * 1_500_000)
            await env.run_until_idle()
        assert await run.wait() == 18_000_000 > MAX_BATCH_BYTES
        parts = [part async for part in env.client.iter_export("h")]
    assert max(map(len, parts)) < 1_500_100
    (path := tmp_path / "h.json").write_text("".join(parts))
    assert replay(hoards(), path) == 26


async def test_histories_of_postgresql(postgres_database: str) -> None:
    """It stores the same as SQLite: of earlier executions, of one that was reset, and of a conversation."""
    async with Env(mixed, url=postgres_database) as env:
        await drunk(env, 1)
        await env.client.conversation(support, "c").ask(UserMessage("hello"))
        drinking, talking = [await env.client.export_history(each) for each in ("d", "c")]
        await env.client.reset("d", to_event=2)
        again = await env.client.export_history("d")
    assert [each["execution_id"] for each in again["executions"]] == [1, 2, 3]
    assert replay(drinks(), drinking) == count_of(drinking)
    assert replay(drinks(), again) == count_of(again) - len(again["executions"][1]["events"])
    assert replay(talks("good day"), talking) == count_of(talking)
    with pytest.raises(Nondeterminism) as caught:
        replay(drinks(bye=False), drinking)
    assert (caught.value.execution_id, caught.value.actual) == (2, "OrchestrationCompleted")


def count_of(history: dict[str, Any]) -> int:
    """The number of events of all executions."""
    return sum(len(each["events"]) for each in history["executions"])
