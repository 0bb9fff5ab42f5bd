"""What a conversation has, and what each way to make another one from it takes along: a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest

from affinity import Wake
from affinity.conversation import AgentMessage, ToolConfirmation, UserMessage
from affinity.conversation.handle import ConversationHandle
from affinity.errors import InvalidOptions
from tests.conversation.application import Chat, Stage, make, stage
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ABOUT = {"title": "Tea", "owner": "ann", "labels": {"plan": "pro"}}


async def begin(wake: Wake, chat: Chat) -> None:
    """A reply, a change of the state, a request that expires, and a revisit."""
    chat.received += [event.text for event in wake.events if isinstance(event, UserMessage)]
    wake.require(ToolConfirmation("refund"), expires_in=3600)
    wake.revisit(3600, key="nudge", reason="later", priority=3, note={"n": 1})
    wake.append(AgentMessage("re"))


async def _export(source: ConversationHandle, new_id: str, idle: Stage) -> ConversationHandle:
    copy = idle.talk(new_id)
    await copy.import_([line async for line in source.export()])
    return copy


async def _merge(source: ConversationHandle, new_id: str, idle: Stage) -> ConversationHandle:
    await idle.talk("other").send(UserMessage("other"))
    return await source.merge("other", into=new_id)


async def _summary(_: Any) -> str:
    return "short"


WAYS: dict[str, Callable[[ConversationHandle, str, Stage], Awaitable[ConversationHandle]]] = {
    "fork": lambda source, new_id, _: source.fork(new_id),
    "detach": lambda source, new_id, _: source.detach(new_id),
    "merge": _merge,
    "compress": lambda source, new_id, _: source.compress(into=new_id, summarise=_summary),
    "import": _export,
}

TAKEN: dict[str, set[str]] = {
    "about": {"fork", "detach", "merge", "compress", "import"},
    "entries": {"fork", "detach", "merge", "import"},
    "state": {"fork", "detach", "merge", "import"},
    "unread": {"fork", "detach", "merge", "import"},
    "reply": {"fork", "detach", "merge", "import"},  # of a wake that has ended, by the event id
    "requests": {"fork", "detach", "import"},
    "revisits": {"import"},
}
"""A fork goes on beside its source, which keeps the revisits; an import takes its place, elsewhere."""


@pytest.fixture
async def source(url: str) -> AsyncIterator[tuple[Stage, ConversationHandle]]:
    """A conversation that has everything, and no worker."""
    async with stage(url, begin) as on:
        await on.talk("source").ask(UserMessage("go"), event_id="e-1", timeout=30, **ABOUT)  # type: ignore[arg-type]
    async with stage(url, workers=0) as idle:
        await idle.talk("source").send(UserMessage("unread"), event_id="e-2")
        yield idle, idle.talk("source")


async def _found(idle: Stage, name: str) -> dict[str, Any]:
    """What a conversation has."""
    talk = idle.talk(name)
    info = await idle.client.get_conversation(name)
    history = await talk.history(kinds=[UserMessage, AgentMessage])
    pending = (await idle.client.journals.pending(name)) if idle else None
    assert pending is not None
    return {
        "about": {"title": info.title, "owner": info.owner, "labels": dict(info.labels)},
        "entries": [getattr(each.event, "text", "") for each in history if each.event != UserMessage("other")],
        "state": (await idle.state(name)).received,
        "unread": [each.event_id for each in await talk.history(pending=True) if each.event != UserMessage("other")],
        "reply": [wake.processed for wake in await talk.wakes()],
        "requests": [each._replace(expired=False) for each in pending.requests],
        "revisits": list(pending.revisits),
    }


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_taken_is_taken_whole(source: tuple[Stage, ConversationHandle], way: str) -> None:
    """With ids, times and numbers; what is not taken is not there at all."""
    idle, talk = source
    await WAYS[way](talk, "copy", idle)
    had, found = await _found(idle, "source"), await _found(idle, "copy")
    assert all(had.values())
    for thing, ways in TAKEN.items():
        if way in ways:
            assert found[thing] == had[thing], thing
        else:
            assert found[thing] in ([], ["short"]), thing


async def test_what_an_import_has_goes_on(url: str) -> None:
    """A revisit that is due, a request that expires, and inputs."""
    woken: list[Any] = []

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.events == [UserMessage("go")]:
            wake.require(ToolConfirmation("refund"), expires_in=1.5)
            wake.revisit(1.0, key="nudge", note={"n": 1})
        woken.append((wake.conversation_id, [each.key for each in wake.due], len(wake.requests)))
        wake.append(AgentMessage("re"))

    async with stage(url, handler) as on:
        talk = on.talk("source")
        await talk.ask(UserMessage("go"), timeout=30)
        copy = await _export(talk, "copy", on)
        await until(lambda: _holds(("copy", ["nudge"], 1) in woken))
        await until(lambda: _is_empty(copy))


async def _holds(value: bool) -> bool:
    return value


async def _is_empty(talk: ConversationHandle) -> bool:
    return not await talk.requests() and not await talk.revisits()


@pytest.mark.parametrize("kind", ["delegations", "steps"])
async def test_what_cannot_go_on_elsewhere_is_refused_by_name(url: str, kind: Any) -> None:
    """A child that works, or a step of a wake that has not ended; it may be left out."""
    gate, done = anyio.Event(), anyio.Event()

    async def handler(wake: Wake, chat: Chat) -> None:
        if wake.conversation_id == "child":
            await gate.wait()
        elif kind == "delegations" and wake.events == [UserMessage("go")]:
            await wake.delegate(conversations[0], "child", UserMessage("work"))
        elif kind == "steps":
            await wake.step("pay", _pay)
            done.set()
            await gate.wait()
        wake.append(AgentMessage("re"))

    async def _pay() -> str:
        return "paid"

    conversations = [make(handler)]
    async with stage(url, conversations[0]) as on:
        talk = on.talk("source")
        seq = await talk.send(UserMessage("go"))
        await (done.wait() if kind == "steps" else talk.reply(seq, timeout=30))
        lines = [line async for line in talk.export()]
        with pytest.raises(InvalidOptions, match=rf"{kind}.*{'pay' if kind == 'steps' else 'child'}.*without="):
            await on.talk("copy").import_(lines)
        await on.talk("copy").import_(lines, without={kind})
        gate.set()


async def test_an_answer_during_an_export_resolves_the_request_of_the_copy(
    source: tuple[Stage, ConversationHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export has both, or neither; after an interrupt it has no request and no revisit."""
    idle, talk = source
    (request,) = await talk.requests()
    pending = idle.client.journals.pending
    acts: list[Callable[[], Awaitable[Any]]] = [
        lambda: talk.answer(request.request_id, allowed=True),
        talk.interrupt,
    ]

    async def pending_then_act(session_id: str) -> Any:
        found = await pending(session_id)
        if acts:
            await acts.pop(0)()
        return found

    for number in range(2):
        monkeypatch.setattr(idle.client.journals, "pending", pending_then_act)
        lines = [line async for line in talk.export()]
        monkeypatch.undo()
        copy = idle.talk(f"copy-{number}")
        await copy.import_(lines)
        assert await copy.requests() == []
        assert len(await copy.revisits()) == (1 if number == 0 else 0)
