"""Agents of other libraries as conversations: runs over several wakes, with one tool that a person approves, under
faults.

The model calls what the messages of a run say: first the tools that nobody approves, then the other ones. Then it says
whose messages it has read, and the results. What it does is the same for each library; how it is asked is not.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import affinity
from affinity.conversation import AgentMessage, JournalEntry, ToolConfirmation, ToolResult, ToolUse, UserMessage
from affinity.errors import RequestNotPending
from affinity.limits import MAX_PAGE
from tests.programs.area import Area
from tests.programs.play import Play
from tests.programs.program import Size

DONE: Final = "done "
"""The answer of a model begins with it; the ids of the messages that it has read, and the results, follow."""

RETRY: Final = affinity.RetryPolicy(max_attempts=5, initial_interval=60)


@dataclass(frozen=True)
class Message:
    """A message to an agent, and what its sender does with the requests of the conversation after it."""

    to: int = 0
    looks: int = 0  # calls of the tool that nobody approves, in one round
    pays: int = 0  # calls of the other one
    slow: int = 0  # steps of the event loop of each call
    answers: bool | None = None  # whether open requests are allowed; None: they wait
    fails: bool = False  # the first request to the model of a run with it
    after: int = 0  # ticks
    interrupts: bool | None = None  # behind it, whether the running wake is cancelled too; None: not at all


@dataclass(frozen=True)
class PlugsPart:
    """The messages of one client."""

    messages: tuple[Message, ...] = (Message(),)


@dataclass
class Sent:
    """What the client has sent."""

    messages: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the messages to a conversation."""
    allowed: dict[str, bool] = field(default_factory=dict)
    """The answers to requests, by the label of the call."""
    interrupted: dict[str, set[str]] = field(default_factory=dict)
    """The messages of a conversation before its last interrupt: they may have no answer, and their calls no result."""


@dataclass(frozen=True)
class Asked:
    """A call of a tool."""

    tool: str
    label: str
    slow: int

    @property
    def arguments(self) -> dict[str, Any]:
        """As the tools take them."""
        return {"label": self.label, "slow": self.slow}


_FAILED: Final = set[str]()
"""Messages whose requests have failed in this process."""


def respond(prompt: str, has_asked: Set[str], results: Mapping[str, str]) -> Sequence[Asked] | str:
    """Return what the model does next.

    Args:
        prompt: the last one: the messages of the run, a line each.
        has_asked: the labels of the calls since then.
        results: what the model has read of them.
    """
    lines = [json.loads(line) for line in prompt.splitlines()]
    if failing := {line["id"] for line in lines if line["fails"]} - _FAILED:
        _FAILED.update(failing)
        raise ConnectionError("429")
    for tool in ("look", "pay"):
        calls = [call for line in lines for call in _calls(line, tool)]
        if calls and not {call.label for call in calls} <= has_asked:
            return calls
    return f"{DONE}{json.dumps([[line['id'] for line in lines], results])}"


def _calls(line: dict[str, Any], tool: str) -> Iterator[Asked]:
    for number in range(line[tool]):
        yield Asked(tool, f"{line['id']}.{tool}.{number}", line["slow"])


async def look(label: str, slow: int) -> str:
    """Look at something."""
    return await pay(label, slow)


async def pay(label: str, slow: int) -> str:
    """Pay for something."""
    for _ in range(slow):
        await anyio.sleep(0)
    return label


class Plugged(Area[PlugsPart, Sent]):
    """Each message is answered once; each call has one result, which the model reads, and which its request allows. An
    interrupt ends what is before it.
    """

    refusal: str | None = None
    """What the model reads of a call that was refused; None: the reason that the journal has."""

    @abstractmethod
    def conversations(self) -> affinity.Conversations[Any]:
        """Those with the agent, whose retries are `RETRY`."""

    def strategy(self, size: Size) -> SearchStrategy[PlugsPart]:
        most = 3 if size == "small" else 8
        messages = st.builds(
            Message,
            to=st.integers(0, 1),
            looks=st.integers(0, 2),
            pays=st.sampled_from((0, 0, 1, 2)),
            slow=st.sampled_from((0, 0, 5)),
            answers=st.sampled_from((None, True, True, False)),
            fails=st.sampled_from((False, False, False, True)),
            after=st.sampled_from((0, 0, 1, 3, 8)),
            interrupts=st.sampled_from((None,) * 6 + (False, True)),
        )
        return st.builds(PlugsPart, messages=st.lists(messages, min_size=1, max_size=most).map(tuple))

    def include(self, app: affinity.App) -> None:
        app.include(self.conversations())

    async def run(self, play: Play, part: PlugsPart) -> Sent:
        conversations, sent = self.conversations(), Sent()
        _FAILED.clear()
        for number, message in enumerate(part.messages):
            talk, name = play.env.client.conversation(conversations, f"{self.name}-{message.to}"), f"m{number}"
            line = {
                "id": name,
                "look": message.looks,
                "pay": message.pays,
                "slow": message.slow,
                "fails": message.fails,
            }
            await talk.send(UserMessage(json.dumps(line)), event_id=name)
            sent.messages.setdefault(talk.conversation_id, set()).add(name)
            await play.pause(message.after)
            if message.answers is not None:
                await self._answer(talk, sent, allowed=message.answers)
            if message.interrupts is not None:
                sent.interrupted[talk.conversation_id] = {*sent.messages[talk.conversation_id]}
                await talk.interrupt(cancel_running=message.interrupts, event_id=f"{name}-stop")
        return sent

    async def _answer(self, talk: Any, sent: Sent, *, allowed: bool) -> None:
        for request in await talk.requests():
            with suppress(RequestNotPending):
                await talk.answer(request.request_id, allowed=allowed)
                assert isinstance(request.event, ToolConfirmation)
                sent.allowed[str(request.event.arguments["label"])] = allowed

    async def check(self, play: Play, part: PlugsPart, seen: Sent) -> None:
        conversations = self.conversations()
        async for info in play.env.client.list_conversations(prefix=f"{self.name}-"):
            found = list[JournalEntry]()
            talk = play.env.client.conversation(conversations, info.conversation_id)
            while page := await talk.history(after=found[-1].seq if found else None, limit=MAX_PAGE):
                found += page
            if info.first_seq > 1:
                continue  # a client has cut all conversations, some of them to nothing
            waits = bool(await talk.requests())
            check(info.conversation_id, found, seen, waits=waits, refusal=self.refusal)


def check(name: str, entries: Sequence[JournalEntry], sent: Sent, *, waits: bool, refusal: str | None = None) -> None:
    """Judge the journal of a conversation.

    Raises:
        AssertionError: a message has two answers or, where no request waits, none; or a call has not the one result
            that its request allows, and that the model has read.
    """
    answers, calls, results = Counter[str](), Counter[str](), dict[str, ToolResult]()
    for entry in entries:
        event = entry.event
        if isinstance(event, ToolUse):
            calls[event.tool_use_id] += 1
        elif isinstance(event, ToolResult):
            assert event.tool_use_id not in results, f"{name}: {event} is the second result of the call"
            results[event.tool_use_id] = event
        elif isinstance(event, AgentMessage):
            ids, read = json.loads(event.text.removeprefix(DONE))
            answers.update(ids)
            for label, text in read.items():
                has_result = label in results and _text_of(results[label], refusal) == text
                assert has_result, f"{name}: the model has read {text} of {label}"
    twice = [each for counted in (answers, calls) for each, number in counted.items() if number > 1]
    assert not twice, f"{name}: {twice} were answered, or called, twice"
    ended = sent.interrupted.get(name, set())
    for label, result in results.items():
        may = sent.allowed.get(label, False) if ".pay." in label else True
        assert (result.result == label) == may or (may and _message_of(label) in ended), (
            f"{name}: {result}, and its call is allowed: {may}"
        )
    missing = sent.messages.get(name, set()) - answers.keys() - ended
    assert waits or not missing, f"{name}: {missing} have no answer, and no request waits"
    unanswered = {each for each in calls.keys() - results.keys() if _message_of(each) not in ended}
    assert waits or not unanswered, f"{name}: {unanswered} have no result"


def _message_of(label: str) -> str:
    """The id of the message that has asked for a call."""
    return label.partition(".")[0]


def _text_of(result: ToolResult, refusal: str | None) -> str:
    """What the model reads."""
    match result.result:
        case {"error": {"kind": "refused", "message": str(message)}}:
            return refusal or message
        case value:
            return str(value)
