"""A conversation says what it waits for: `affinity.Client.explain`, and the error of `ask`."""

from __future__ import annotations

import logging

import anyio
import pytest

import affinity
from affinity import RetryPolicy
from affinity.conversation import ToolConfirmation, UserInterrupt, UserMessage
from affinity.errors import InvalidApp, WaitTimeout
from tests.conversation.application import Chat, echo, make, stage, until

pytestmark = pytest.mark.anyio


async def code(talk: affinity.ConversationHandle, expected: str) -> bool:
    found = await talk.explain()
    return found is not None and found.code == expected


async def test_a_person_a_revisit_and_the_next_input(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        match wake.events:
            case [UserMessage(text="ask")]:
                wake.require(ToolConfirmation("refund", {}))
            case [UserMessage(text="later")]:
                wake.revisit(3_600.0)

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("tea"), timeout=30)
        assert await code(talk, "input")
        await talk.ask(UserMessage("later"), timeout=30)
        found = await talk.explain()
        assert found is not None
        assert (found.code, found.due_at) == ("revisit", (await talk.revisits())[0].due_at)
        await talk.ask(UserMessage("ask"), timeout=30)
        (request,) = await talk.requests()
        found = await talk.explain()
        assert found is not None
        assert (found.code, found.request_id) == ("request", request.request_id)
        await talk.send(UserInterrupt())


async def test_a_wake_that_runs_is_retried_or_has_failed(url: str) -> None:
    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        match wake.events:
            case [UserMessage(text="slow")]:
                await anyio.sleep(60)
            case [UserMessage(text="bad")]:
                raise ValueError("no")

    options = affinity.RuntimeOptions(worker_node_id="w0", drain_timeout=0.1)
    retry = RetryPolicy(max_attempts=2, initial_interval=600.0, max_interval=600.0)
    async with stage(url, make(handler, retry=retry), options=options) as on:
        talk = on.talk()
        with pytest.raises(WaitTimeout, match="its wake, which runs on worker 'w0'") as raised:
            await talk.ask(UserMessage("slow"), timeout=1.0)
        assert raised.value.waits_for is not None
        assert (raised.value.waits_for.code, raised.value.waits_for.worker_id) == ("activity_running", "w0")
        talk = on.talk("bad")
        await talk.send(UserMessage("bad"))
        await until(lambda: code(talk, "wake_retrying"))
        found = await talk.explain()
        assert found is not None
        assert found.due_at is not None
        await talk.resume()
        await until(lambda: code(talk, "wake_failed"))


async def test_a_child_of_a_kind_that_no_live_worker_has(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The delegation is accepted, and waits; one warning says so, and the explanation of the parent names the kind."""
    caplog.set_level(logging.INFO, "affinity.worker")
    absent = make(echo, kind="absent")

    async def handler(wake: affinity.Wake, chat: Chat) -> None:
        if isinstance(wake.events[0], UserMessage):
            await wake.delegate(absent, f"child-{wake.events[0].text}", UserMessage("look"))

    async with stage(url, handler) as on:
        talk = on.talk()
        await talk.ask(UserMessage("1"), timeout=30)
        await until(lambda: code(talk, "name_not_registered"))
        found = await talk.explain()
        assert found is not None
        assert (found.path, found.name) == (("c", "child-1"), "absent")
        await talk.ask(UserMessage("2"), timeout=30)

        async def warned() -> bool:
            return "no live worker registers the orchestration 'absent.conversation'" in caplog.text

        await until(warned)
        await anyio.sleep(0.3)
        assert caplog.text.count("no live worker registers") == 1


async def silent(wake: affinity.Wake, chat: Chat) -> None: ...


def test_one_app_has_one_handler_of_a_kind() -> None:
    """The error names the kind and both handlers; nothing is registered."""
    app, first, second = affinity.App("m"), make(echo, kind="m"), make(silent, kind="m")
    app.include(first)
    app.include(first)
    with pytest.raises(InvalidApp, match=r"two handlers for conversations of kind 'm' \(echo and silent\)"):
        app.include(second)
    nested = affinity.App("nested")
    nested.include(second)
    with pytest.raises(InvalidApp, match="kind 'm'"):
        app.include(nested)
    assert app.session_listeners == (first,)
