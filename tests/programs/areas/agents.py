"""Agents: models that call tools, with ids that are equal, empty or used again, under faults.

The model does what the messages say that no answer has followed: it calls the tools of their rounds, and then says what
it has read of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import anyio
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel, Field, TypeAdapter

import affinity
from affinity.agent import ModelReply, ModelRequest, ToolCall, run_loop, tool
from affinity.agent.tools import Tool
from affinity.conversation import AgentMessage, JournalEntry, ToolResult, ToolUse, UserInterrupt, UserMessage
from affinity.errors import UnknownConversation
from affinity.limits import MAX_PAGE
from tests.programs.area import Area
from tests.programs.play import Play
from tests.programs.program import Size

NAME: Final = "agents"

STEERED: Final = f"{NAME}-2"
"""The agent whose model reads between two rounds what has come since."""

ATTEMPTS: Final = 3

DONE: Final = "done "
"""The answer of a model begins with it; the results that it has read follow."""

UNSURE: Final = ("refused", "outcome_unknown")
"""Results of calls that a crash or an interrupt has ended."""


@dataclass(frozen=True)
class Call:
    """A call of a tool, as a model makes it."""

    id: str = ""
    slow: int = 0  # steps of the event loop
    once: bool = False  # it is not begun again
    fails: bool = False


@dataclass(frozen=True)
class Turn:
    """A message to an agent, or an interrupt."""

    to: int = 0
    rounds: tuple[tuple[Call, ...], ...] = ()
    fails: int = 0  # attempts of the model; `ATTEMPTS`: the model never takes this message
    interrupts: bool = False
    after: int = 0  # ticks


@dataclass(frozen=True)
class AgentsPart:
    """The turns of one client."""

    turns: tuple[Turn, ...] = (Turn(),)


class Agent(BaseModel):
    """The state: the labels of the calls that have had an effect."""

    paid: list[str] = Field(default_factory=list)


@dataclass
class Sent:
    """What was sent, by the event id."""

    labels: dict[str, Call] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    has_faults: bool = False
    interrupted: set[str] = field(default_factory=set)
    """Agents."""


_TURN: Final = TypeAdapter(Turn)


class Down(Exception):
    """The model cannot be reached."""


async def _ask(request: ModelRequest, attempt: int) -> ModelReply:
    """The answer of a model: the next round of calls, or what it has read."""
    turns: list[tuple[str, Turn]] = []
    for event in request.events:
        if isinstance(event, UserMessage) and event.text.startswith("{"):  # else the notice of one that was set aside
            about = json.loads(event.text)
            turns.append((about["id"], _TURN.validate_python(about["turn"])))
        elif _is_answer(event):
            turns.clear()
    rounds = [(f"{name}.{number}", calls) for name, turn in turns for number, calls in enumerate(turn.rounds)]
    is_down = any(attempt <= turn.fails or turn.fails >= ATTEMPTS for _, turn in turns)
    if is_down and request.round > min(1, len(rounds)):  # behind results that are committed
        raise Down("the model is down")
    if request.round > len(rounds):
        return ModelReply(content=f"{DONE}{json.dumps(_read(request))}")
    name, calls = rounds[request.round - 1]
    made = [_call(f"{name}.{place}", call) for place, call in enumerate(calls)]
    return ModelReply(calls=made, finish_reason="tool_calls")


def _call(label: str, call: Call) -> ToolCall:
    arguments = {"label": label, "slow": call.slow, "fails": call.fails}
    return ToolCall(call.id, "pay_once" if call.once else "pay", arguments)


def _read(request: ModelRequest) -> list[str]:
    """The results since the last answer, in the order in which a model reads them."""
    found: list[str] = []
    for message in request.openai_messages():
        if message["role"] == "tool":
            found.append(message["content"])
        elif message["role"] == "assistant" and str(message.get("content") or "").startswith(DONE):
            found.clear()
    return found


def _is_answer(event: object) -> bool:
    return isinstance(event, AgentMessage) and event.text.startswith(DONE)


def _tools(agent: Agent) -> Sequence[Tool]:
    async def pay(label: str, slow: int, fails: bool) -> str:
        """Pay for a label."""
        for _ in range(slow):
            await anyio.sleep(0)
        if fails:
            raise ValueError(label)
        agent.paid.append(label)
        return label

    return [tool(pay), tool(name="pay_once", repeat="never")(pay)]


def make() -> affinity.Conversations[Agent]:
    """The agents."""
    agents = affinity.Conversations(Agent, kind=NAME)

    @agents.on_wake(retry=affinity.RetryPolicy(max_attempts=ATTEMPTS, initial_interval=60))
    async def handle(wake: affinity.Wake, agent: Agent) -> None:
        steer = wake.conversation_id == STEERED
        await run_loop(wake, model=partial(_ask, attempt=wake.attempt), tools=_tools(agent), steer=steer)

    return agents


class Agents(Area[AgentsPart, Sent]):
    """Each call has one result, which the model reads as that of this call, and one effect on the state."""

    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[AgentsPart]:
        most_calls, most_turns = (3, 3) if size == "small" else (5, 12)
        ids = st.sampled_from(("", "", "a", "a", "b"))
        calls = st.builds(
            Call,
            id=ids,
            slow=st.sampled_from((0, 0, 5, 20)),
            once=st.sampled_from((False, False, True)),
            fails=st.sampled_from((False, False, False, True)),
        )
        rounds = st.lists(st.lists(calls, min_size=1, max_size=most_calls).map(tuple), max_size=3).map(tuple)
        turns = st.builds(
            Turn,
            to=st.integers(0, 2),
            rounds=rounds,
            fails=st.sampled_from((0, 0, 0, 0, 1, ATTEMPTS)),
            interrupts=st.sampled_from((False, False, False, True)),
            after=st.sampled_from((0, 0, 1, 3, 8)),
        )
        return st.builds(AgentsPart, turns=st.lists(turns, min_size=1, max_size=most_turns).map(tuple))

    def include(self, app: affinity.App) -> None:
        app.include(make())

    async def run(self, play: Play, part: AgentsPart) -> Sent:
        agents, sent = make(), Sent(has_faults=play.has_faults)
        for number, turn in enumerate(part.turns):
            talk, name = play.env.client.conversation(agents, f"{NAME}-{turn.to}"), f"t{number}"
            if turn.interrupts:
                sent.interrupted.add(talk.conversation_id)
                with suppress(UnknownConversation):
                    await talk.send(UserInterrupt(cancel=True))
            else:
                sent.labels |= _labels(name, turn)
                sent.bad |= {name} if turn.fails >= ATTEMPTS else set()
                await talk.send(UserMessage(json.dumps({"id": name, "turn": asdict(turn)})), event_id=name)
            await play.pause(turn.after)
        return sent

    async def check(self, play: Play, part: AgentsPart, seen: Sent) -> None:
        agents = make()
        async for info in play.env.client.list_conversations(prefix=f"{NAME}-"):
            name, found = info.conversation_id, list[JournalEntry]()
            talk = play.env.client.conversation(agents, name)
            while page := await talk.history(after=found[-1].seq if found else None, limit=MAX_PAGE):
                found += page
            if info.first_seq > 1:
                continue  # a client has cut all conversations, some of them to nothing
            async with agents.open(name, store=play.env.client.session_store) as agent:
                paid = [*agent.paid]
            _check(name, found, paid, seen, has_failed=info.status == "failed")
            set_aside = {each.event_id for each in found if each.seq in await _dead(talk)}
            # An interrupt is set aside with what it follows.
            wrong = set() if name in seen.interrupted else set_aside - seen.bad
            assert not wrong, f"{name}: {wrong} were set aside, and the model takes them"


async def _dead(talk: Any) -> set[int]:
    return {each.seq for each in await talk.dead_letters()}


def _labels(name: str, turn: Turn) -> Mapping[str, Call]:
    rounds = enumerate(turn.rounds)
    return {f"{name}.{number}.{place}": call for number, calls in rounds for place, call in enumerate(calls)}


def _check(
    name: str, entries: Sequence[JournalEntry], paid: Sequence[str], sent: Sent, *, has_failed: bool = False
) -> None:
    events = [each.event for each in entries]
    results: dict[str, ToolResult] = {}
    for event in events:
        if isinstance(event, ToolResult):
            first = results.setdefault(event.call_key, event)
            assert first is event, f"{name}: {event} is the second result of the call, after {first}"
    expected: list[str | None] = []
    for event in events:
        if isinstance(event, ToolUse):
            assert event.call_key in results, f"{name}: {event} has no result"
            expected.append(_judge(name, event, results[event.call_key], sent))
        elif isinstance(event, AgentMessage) and _is_answer(event):
            read = [text if text in sent.labels else None for text in json.loads(event.text.removeprefix(DONE))]
            assert read == expected, f"{name}: the model has read {read}, and not {expected}: {event}"
            expected = []
    done = Counter(str(each.result) for each in results.values() if not each.is_error)
    effects = Counter(paid)
    # If the last wake has failed, the state gets what it has committed when its inputs are set aside.
    assert has_failed or done <= effects, f"{name} has the effects {paid}, and the results {done}"
    assert not effects - done, f"{name} has the effects {paid}, and the results {done}"


def _judge(name: str, use: ToolUse, result: ToolResult, sent: Sent) -> str | None:
    """The label that a call has as its result; None: it has failed."""
    label = str(use.arguments["label"])
    call = sent.labels[label]
    if not result.is_error:
        assert result.result == label, f"{name}: {use} has the result {result}"
        assert not call.fails, f"{name}: {use} has not failed"
        return label
    error: Any = result.result
    unsure = error["error"]["kind"] in UNSURE and (name in sent.interrupted or (call.once and sent.has_faults))
    assert call.fails or unsure, f"{name}: {use} has the result {result}"
    return None


AGENTS: Final = Agents()
