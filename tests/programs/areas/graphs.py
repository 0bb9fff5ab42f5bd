"""Graphs of LangGraph as conversations: runs over several wakes, with parallel tasks and subgraphs whose nodes ask.

The messages of a run say its tasks, in rounds. A task asks so often, and then writes the answers; behind the last round
the graph says whose messages it has been given, and what the tasks of the run have written.
"""

from __future__ import annotations

import json
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any, Final, TypedDict

import anyio
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from langgraph import types
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

import affinity
from affinity.conversation import (
    AgentMessage,
    CustomToolUse,
    JournalEntry,
    JournalEvent,
    UserInterrupt,
    UserMessage,
    current_wake,
)
from affinity.errors import ConnectionLost, RequestNotPending
from affinity.integrations.langgraph import AffinitySaver, Thread, run_graph
from affinity.limits import MAX_PAGE
from tests.programs.area import Area
from tests.programs.play import Play
from tests.programs.program import Size

NAME: Final = "graphs"

ATTEMPTS: Final = 5

Graph = CompiledStateGraph[Any, Any, Any, Any]


@dataclass(frozen=True)
class GraphTask:
    """A task of a round, which runs beside the others of it."""

    asks: int = 0
    slow: int = 0  # steps of the event loop
    fails: bool = False  # its first attempt in a process
    deep: bool = False  # in a subgraph
    steps: int = 0  # of the wake


@dataclass(frozen=True)
class GraphTurn:
    """A message to a graph, or an interrupt; and how many requests of the conversation its sender answers after it."""

    to: int = 0
    rounds: tuple[tuple[GraphTask, ...], ...] = ()
    interrupts: bool = False
    answers: int = 0  # requests at most
    after: int = 0  # ticks


@dataclass(frozen=True)
class GraphsPart:
    """The turns of one client."""

    turns: tuple[GraphTurn, ...] = (GraphTurn(),)


@dataclass
class Sent:
    """What the client has sent."""

    labels: defaultdict[str, dict[str, GraphTask]] = field(default_factory=lambda: defaultdict(dict))
    """The tasks of the messages to a conversation."""
    messages: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[str, int] = field(default_factory=dict)
    """By the label of the question."""
    interrupted: set[str] = field(default_factory=set)
    """Conversations."""


class Values(TypedDict, total=False):
    """The state of a thread."""

    given: Annotated[list[str], operator.add]  # messages, as they were sent
    written: Annotated[list[tuple[str, list[Any]]], operator.add]
    planned: int  # messages whose tasks have begun
    run: list[str]  # messages of the run
    round: int
    said: str


class Work(Values, total=False):
    """What a task is given."""

    label: str
    task: dict[str, Any]


class Where(Thread):
    """The state of a conversation: where its threads are."""

    url: str = ""


_FAILED: Final = set[str]()
"""Labels of the tasks that have failed in this process."""


async def _plan(state: Values) -> types.Command[Any]:
    """Begin the next round of the run."""
    given, planned = state["given"], state.get("planned", 0)
    if planned < len(given):
        run, number = given[planned:], 0
    else:
        run, number = state["run"], state["round"] + 1
    tasks = [
        types.Send("deep" if task["deep"] else "work", {"label": f"{message['id']}.{number}.{place}", "task": task})
        for message in map(json.loads, run)
        for place, task in enumerate(message["rounds"][number] if number < len(message["rounds"]) else ())
    ]
    has_more = any(number < len(message["rounds"]) for message in map(json.loads, run))
    goto: Any = tasks or ("plan" if has_more else "say")
    return types.Command(goto=goto, update={"planned": len(given), "run": run, "round": number})


async def _work(state: Work) -> Values:
    label, task = state["label"], state["task"]
    for _ in range(task["slow"]):
        await anyio.sleep(0)
    answers = [types.interrupt({"label": f"{label}.{number}"}) for number in range(task["asks"])]
    for number in range(task["steps"]):
        wake = current_wake()
        assert wake is not None
        await wake.step(f"{label}.{number}", _nothing)
    if task["fails"] and label not in _FAILED:
        _FAILED.add(label)
        raise ConnectionError(label)
    return {"written": [(label, answers)]}


async def _nothing() -> None:
    await anyio.sleep(0)


async def _say(state: Values) -> Values:
    """Name the messages of the run, and what its tasks have written."""
    ids = [json.loads(line)["id"] for line in state["run"]]
    mine = [each for each in state.get("written", []) if each[0].split(".")[0] in ids]
    return {"said": json.dumps([ids, mine]), "run": []}


def _graph(saver: AffinitySaver) -> Graph:
    inner = StateGraph(Work)
    inner.add_node("work", _work)
    inner.add_edge(START, "work")
    inner.add_edge("work", END)
    graph = StateGraph(Values)
    graph.add_node("plan", _plan, destinations=("plan", "work", "deep", "say"))
    graph.add_node("work", _work)
    graph.add_node("deep", _inner(inner.compile()))
    graph.add_node("join", _join)
    graph.add_node("say", _say)
    graph.add_edge(START, "plan")
    graph.add_edge("work", "join")
    graph.add_edge("deep", "join")
    graph.add_edge("join", "plan")
    graph.add_edge("say", END)
    return graph.compile(checkpointer=saver)


def _inner(graph: Graph) -> Any:
    async def deep(state: Work) -> Values:
        """Run the subgraph, and take what its task has written."""
        ended = await graph.ainvoke({"label": state["label"], "task": state["task"]})
        return {"written": ended["written"]}

    return deep


async def _join(state: Values) -> Values:
    return {}


class _Place:
    """A database with threads, and the graph on it."""

    def __init__(self, url: str) -> None:
        self.saver = AffinitySaver(url, connections=2)
        self.graph = _graph(self.saver)


_PLACES: Final[dict[str, _Place]] = {}


def _place(url: str) -> _Place:
    if url not in _PLACES:
        _PLACES[url] = _Place(url)
    return _PLACES[url]


async def _forget(url: str, thread_id: str) -> None:
    """Delete the thread of an earlier program; the database may fail over meanwhile."""
    while True:
        with suppress(ConnectionLost):
            return await _place(url).saver.adelete_thread(thread_id)
        await anyio.sleep(0.1)


def _given(events: Sequence[JournalEvent]) -> Any:
    found = [event.text for event in events if isinstance(event, UserMessage)]
    return {"given": found} if found else None


def _reply(values: Any) -> JournalEvent:
    return AgentMessage(values["said"])


@cache
def make() -> affinity.Conversations[Where]:
    """The conversations with the graph."""
    conversations = affinity.Conversations(Where, kind=NAME)

    @conversations.on_wake(retry=affinity.RetryPolicy(max_attempts=ATTEMPTS, initial_interval=60))
    async def respond(wake: affinity.Wake, where: Where) -> None:
        for event in wake.events:
            if isinstance(event, UserMessage):
                where.url = json.loads(event.text)["url"]
        if where.url:
            await run_graph(wake, _place(where.url).graph, to_input=_given, to_reply=_reply)

    return conversations


_TASKS: Final = st.builds(
    GraphTask,
    asks=st.sampled_from((0, 0, 1, 1, 2)),
    slow=st.sampled_from((0, 0, 5)),
    fails=st.sampled_from((False, False, False, True)),
    deep=st.booleans(),
    steps=st.sampled_from((0, 0, 1)),
)


class Graphs(Area[GraphsPart, Sent]):
    """Each message is in one run; each task writes once, with the answers to its questions, each asked once."""

    name = NAME

    def strategy(self, size: Size) -> SearchStrategy[GraphsPart]:
        most = 3 if size == "small" else 8
        rounds = st.lists(_TASKS, max_size=3).map(tuple)
        turns = st.builds(
            GraphTurn,
            to=st.integers(0, 1),
            rounds=st.lists(rounds, max_size=2).map(tuple),
            interrupts=st.sampled_from((False,) * 7 + (True,)),
            answers=st.sampled_from((0, 1, 2, 9, 9)),
            after=st.sampled_from((0, 0, 1, 3, 8)),
        )
        return st.builds(GraphsPart, turns=st.lists(turns, min_size=1, max_size=most).map(tuple))

    def include(self, app: affinity.App) -> None:
        app.include(make())

    async def run(self, play: Play, part: GraphsPart) -> Sent:
        url, sent = _url_of(play), Sent()
        _FAILED.clear()
        for number in range(2):
            await _forget(url, f"{NAME}-{number}")
        for number, turn in enumerate(part.turns):
            talk, name = play.env.client.conversation(make(), f"{NAME}-{turn.to}"), f"m{number}"
            if turn.interrupts and sent.messages[talk.conversation_id]:
                sent.interrupted.add(talk.conversation_id)
                await talk.send(UserInterrupt(name), event_id=name)
            else:
                sent.messages[talk.conversation_id].append(name)
                sent.labels[talk.conversation_id] |= dict(_labels(name, turn))
                rounds = [[asdict(task) for task in tasks] for tasks in turn.rounds]
                line = {"id": name, "rounds": rounds, "url": url}
                await talk.send(UserMessage(json.dumps(line)), event_id=name)
            await play.pause(turn.after)
            await self._answer(talk, sent, turn.answers)
        return sent

    async def _answer(self, talk: Any, sent: Sent, most: int) -> None:
        for request in (await talk.requests())[:most]:
            with suppress(RequestNotPending):
                label, answer = request.event.arguments["label"], len(sent.answers)
                await talk.answer(request.request_id, result=answer)
                sent.answers[label] = answer

    async def check(self, play: Play, part: GraphsPart, seen: Sent) -> None:
        place = _PLACES.pop(_url_of(play))
        async with place.saver:
            async for info in play.env.client.list_conversations(prefix=f"{NAME}-"):
                found = list[JournalEntry]()
                talk = play.env.client.conversation(make(), info.conversation_id)
                while page := await talk.history(after=found[-1].seq if found else None, limit=MAX_PAGE):
                    found += page
                waits = bool(await talk.requests())
                if info.first_seq == 1:  # else a client has cut all conversations, some of them to nothing
                    check(info.conversation_id, found, seen, waits=waits)
                await _check_thread(place, info.conversation_id)


def _url_of(play: Play) -> str:
    """Where the threads of a program are: beside an SQLite database, or in a PostgreSQL one."""
    url = play.env._database.url
    return f"{url}.{NAME}" if url.startswith("sqlite") else url


def _labels(name: str, turn: GraphTurn) -> Iterator[tuple[str, GraphTask]]:
    for number, tasks in enumerate(turn.rounds):
        for place, task in enumerate(tasks):
            yield f"{name}.{number}.{place}", task


async def _check_thread(place: _Place, name: str) -> None:
    """A thread has no fork: it has one writer."""
    history = [each async for each in place.graph.aget_state_history({"configurable": {"thread_id": name}})][::-1]
    ids = [each.config["configurable"]["checkpoint_id"] for each in history]
    parents = [each.parent_config and each.parent_config["configurable"]["checkpoint_id"] for each in history]
    assert parents == [None, *ids[:-1]][: len(ids)], f"{name}: the thread has a fork: {ids}, {parents}"


def check(name: str, entries: Sequence[JournalEntry], sent: Sent, *, waits: bool) -> None:
    """Judge the journal of a conversation.

    Raises:
        AssertionError: a question is asked twice; a message is in two runs; a task writes twice, or something else than
            the answers; or something is missing, and no person has interrupted it, or is waited for.
    """
    asked, ids, written = Counter[str](), Counter[str](), list[tuple[str, list[Any]]]()
    for entry in entries:
        if isinstance(entry.event, CustomToolUse):
            asked[str(entry.event.arguments["label"])] += 1
        elif isinstance(entry.event, AgentMessage):
            of_run, said = json.loads(entry.event.text)
            ids.update(of_run)
            written += said
    labels: Mapping[str, GraphTask] = sent.labels[name]
    done = Counter(label for label, _ in written)
    twice = [each for counted in (asked, ids, done) for each, number in counted.items() if number > 1]
    assert not twice, f"{name}: {twice} twice"
    for label, answers in written:
        right = [sent.answers.get(f"{label}.{number}") for number in range(labels[label].asks)]
        assert answers == right, f"{name}: {label} has had {answers}, and was given {right}"
    if waits or name in sent.interrupted:
        return
    missing = set(sent.messages[name]) - ids.keys() | labels.keys() - done.keys()
    assert not missing, f"{name}: {missing} are missing, and no request waits"


GRAPHS: Final = Graphs()
