"""The examples with a crash at each commit. Left out: `local_llm`, which needs a model, and steps of the tutorial that
show lost state.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import anyio
import pytest

import affinity
from affinity import ConversationHandle
from affinity.conversation import AgentMessage, UserMessage
from affinity.session.transfer import readable
from affinity.testing import Env, crash_matrix
from affinity.testing.crashes import MODES

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def app_of(module: ModuleType) -> affinity.App:
    app: affinity.App = module.app
    return app


class Case(NamedTuple):
    """An example, what a client does, and what comes of it."""

    module: str
    scenario: Callable[[Env, ModuleType], Awaitable[object]]
    expected: object
    kills: int = 1
    make: Callable[[ModuleType], affinity.App] = app_of  # for state outside


async def hello(env: Env, of: ModuleType) -> object:
    greetings = await (await env.client.start(of.welcome, ["Ada", "Grace"])).wait()
    return [each.partition(",")[0] for each in greetings]


async def fan_out(env: Env, of: ModuleType) -> object:
    return await (await env.client.start(of.count_all, 3)).wait()


ZEROS = sum(sha256(str(n).encode()).hexdigest().startswith("0") for n in range(3000))


async def talk_by_events(env: Env, name: str, orchestration: Any, texts: list[str]) -> Any:
    run = await env.client.start(orchestration)
    for text in texts:
        await run.raise_event(name, text)
    return await run.wait()


def new_folder(module: ModuleType) -> affinity.App:
    """For the checkpoints of `chat.py`."""
    vars(module)["checkpoints"] = anyio.Path(tempfile.mkdtemp())
    return app_of(module)


async def chat(env: Env, of: ModuleType) -> object:
    turns = await talk_by_events(env, "user_message", of.conversation, ["hello", "how are you?", "bye"])
    (file,) = [each async for each in of.checkpoints.iterdir()]
    return turns, of.Chat.model_validate_json(await file.read_text()).lines


def nothing_saved(module: ModuleType) -> affinity.App:
    """In the dictionary that stands for a store."""
    module.saved.clear()
    return app_of(module)


async def unknown_session(env: Env, of: ModuleType) -> object:
    run = await env.client.start(of.shopping, "ada")
    for item in ("tea", "milk", "checkout"):
        await run.raise_event("item", item)
    return await run.wait()


async def first(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.support, "chat-7")
    replies = [await talk.ask(UserMessage(text), event_id=text) for text in ("hello", "hello", "bye")]
    return [reply.text for reply in replies], await texts(talk)


async def texts(talk: ConversationHandle) -> list[str]:
    return [entry.event.text for entry in await talk.history() if isinstance(entry.event, AgentMessage)]


FIRST = ["answer 1: you said 'hello'", "answer 2: you said 'bye'"]


async def approval(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.support, "chat-7")
    stopped = (await talk.ask(UserMessage("I want my money back"))).stop_reason
    return stopped, await allowed(talk, "Done: 5000 cents are on their way.")


async def allowed(talk: ConversationHandle, expected: str) -> str:
    """The reply to the answer that allows a call. Such a call begins once: if its process ends, its outcome is not
    known.
    """
    (request,) = await talk.requests()
    text = (await talk.reply(await talk.answer(request.request_id, allowed=True))).text
    return expected if "outcome_unknown" in text else text


async def refund(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.refunds, "order-1")
    await talk.ask(UserMessage("The tea was cold"))
    (request,) = await talk.requests()
    return (await talk.reply(await talk.answer(request.request_id, allowed=True))).text


async def delegate(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.support, "chat-7")
    await talk.send(UserMessage("the length of the cable"))
    await env.run_until_idle()
    return await texts(talk)


async def revisit(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.support, "chat-7")
    await talk.ask(UserMessage("I have a question"))
    await env.run_until_idle()
    seq = await talk.interrupt(reason="the customer hung up")
    return (await talk.reply(seq)).text, await texts(talk)


async def steps(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.orders, "order-1")
    await talk.ask(UserMessage("tea, please"), event_id="order")
    return await texts(talk)


async def report(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.reports, "desk-1")
    return [(await talk.ask(UserMessage(text), event_id=text, until="settled")).text for text in ("one", "all")]


NUDGES = [f"Are you still there? (no reply yet, {n})" for n in (1, 2)]


async def stream(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.support, "chat-7")
    return (await talk.ask(UserMessage("where is my order?"))).text, await texts(talk)


ON_ITS_WAY = "Your order is on its way."


async def chat_api(env: Env, of: ModuleType) -> object:
    talk = env.client.conversation(of.chats, "ann")
    said = [(await talk.ask(UserMessage("hello"))).text]
    await talk.ask(UserMessage("refund 5"))
    return [*said, await allowed(talk, "5 cents are on their way")]


async def web(env: Env, of: ModuleType) -> object:
    run = await env.client.start(of.conversation)
    return [await run.ask(of.Say(text)) for text in ("hello", "bye")]


async def step(env: Env, of: ModuleType) -> object:
    return await talk_by_events(env, "message", of.conversation, ["hello", "bye"])


async def next_release(env: Env, of: ModuleType) -> object:
    """It has the conversation of step 5."""
    return await talk_by_events(env, "message", of.step05.conversation, ["hello", "bye"])


async def long_step(env: Env, of: ModuleType) -> object:
    """It ends when no message comes for a second."""
    return await talk_by_events(env, "message", of.long_conversation, ["hello", "and", "bye"])


async def reminder(env: Env, of: ModuleType) -> object:
    return await (await env.client.start(of.reminder, "ann")).wait()


async def states_of(env: Env) -> object:
    """The states of the conversations. The outcome of a call that was allowed, and was cut off, is not known."""
    manager = env.client.session_manager
    ids = [each.conversation_id async for each in env.client.list_conversations()]
    records = [each.session_id async for each in manager.list() if each.session_id in ids]
    return {name: readable(await manager.show(name))["state"] for name in records}


CASES = [
    Case("hello", hello, ["hello Ada", "hello Grace"]),
    Case("fan_out", fan_out, ZEROS),
    Case("chat", chat, (3, ["hello", "how are you?", "bye"]), kills=0, make=new_folder),
    Case("unknown_session", unknown_session, ["tea", "milk"], kills=0, make=nothing_saved),
    Case("conversations.first", first, ([FIRST[0], *FIRST], FIRST)),
    Case("conversations.approval", approval, ("requires_action", "Done: 5000 cents are on their way.")),
    Case("conversations.delegate", delegate, ["I have found: the length of the cable: 42 cm"]),
    Case("conversations.refund", refund, "Done: payment of 4200 cents"),
    Case("conversations.report", report, ["Here it is: 500", "Here it is: 1000 orders in 2 regions"]),
    Case("conversations.revisit", revisit, ("I leave you alone.", [*NUDGES, "I leave you alone."])),
    Case("conversations.steps", steps, ["Thank you: payment of 4200 cents", "The parcel is on its way"]),
    Case("conversations.stream", stream, (ON_ITS_WAY, [ON_ITS_WAY])),
    Case("chat_api.chat", chat_api, ["you said 'hello'", "5 cents are on their way"]),
    Case("web.service", web, ["you said 'hello'", "you said 'bye'"]),
    Case("tutorial.step02", step, 2),
    Case("tutorial.step05", step, 2),
    Case("tutorial.step07", step, 2),
    Case("tutorial.step08", long_step, 3, kills=0),  # its app is the app of step 5, with an orchestration more
    Case("tutorial.step09", next_release, 2),
    Case("testing.test_reminders", reminder, "sent to ann"),
]


@pytest.mark.nightly_cases(r"chat_api|\.(report|revisit|approval|stream|step02|step05)")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.module)
async def test_an_example_passes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER / "tutorial"))  # its steps import each other
    module = importlib.import_module(f"examples.{case.module}")

    states: list[object] = []

    async def check(env: Env, outcome: object) -> None:
        assert outcome == case.expected
        states.append(await states_of(env))
        assert states[-1] == states[0], "the states are not those of the undisturbed run"
        assert [each.instance_id async for each in env.client.list_instances(status=["suspended"])] == []

    app = (lambda: case.make(module)) if case.kills == 0 else app_of(module)
    matrix = await crash_matrix(app, lambda env: case.scenario(env, module), check, kills=case.kills)
    assert matrix.hit >= 2 * len(MODES), "a run may have fewer commits than the undisturbed one: messages share a turn"
