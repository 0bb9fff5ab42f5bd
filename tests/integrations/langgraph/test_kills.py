"""A worker process is killed or paused within a graph: another one goes on from the last super-step."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import anyio
import pytest

import affinity
from affinity.conversation import AgentMessage, UserMessage
from affinity.integrations.langgraph import AffinitySaver
from tests.integrations.langgraph.graph_app import URL, graphs
from tests.integrations.langgraph.graphs import chain, line, says
from tests.support.activity_calls import ActivityCalls, Call, serve_calls
from tests.support.worker_processes import Workers, open_workers

pytestmark = pytest.mark.anyio

APP = "tests.integrations.langgraph.graph_app:app"


@pytest.fixture
async def calls(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ActivityCalls]:
    """The calls of the nodes."""
    monkeypatch.setenv(URL, url)
    async with serve_calls() as calls:
        yield calls


@pytest.fixture
def workers(url: str, calls: ActivityCalls) -> Iterator[Workers]:
    """Workers that serve the graph."""
    with open_workers(url, calls) as workers:
        yield workers


@pytest.fixture
async def client(url: str) -> AsyncIterator[affinity.Client]:
    """A client."""
    async with affinity.Client(url) as client:
        yield client


class Nodes:
    """Answers the nodes as they run, and counts them."""

    def __init__(self, calls: ActivityCalls) -> None:
        self._calls = calls
        self.runs: Counter[str] = Counter()

    async def next(self, name: str) -> Call:
        """The next node that runs, which has this name."""
        call = await self._calls.next(120)
        self.runs[call["node"]] += 1
        assert call["node"] == name
        return call

    async def go(self, name: str) -> None:
        """Let the next node go on."""
        await (await self.next(name)).answer("ok")


async def answered(talk: affinity.ConversationHandle) -> str:
    """The answer to the request that waits."""
    while not (requests := await talk.requests()):
        await anyio.sleep(0.05)
    return str(await talk.answer(requests[0].request_id, result="yes"))


async def replies(talk: affinity.ConversationHandle) -> list[str]:
    """What the graph has replied."""
    history = await talk.history(kinds=[AgentMessage])
    return [entry.event.text for entry in history if isinstance(entry.event, AgentMessage)]


async def end(talk: affinity.ConversationHandle, url: str, said: str) -> None:
    """Wait for the reply; it is there once, and the thread has no fork."""
    with anyio.fail_after(120):
        while not await replies(talk):
            await anyio.sleep(0.05)
    assert await replies(talk) == [said]
    with AffinitySaver(url) as saver:
        nodes = {name: says(name) for name in ("first", "second", "asks", "last")}
        await anyio.to_thread.run_sync(line, chain(saver, **nodes), talk.conversation_id)


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.first
async def test_a_node_that_has_ended_runs_once_when_its_worker_is_killed_in_the_next_one(
    workers: Workers, client: affinity.Client, calls: ActivityCalls, url: str
) -> None:
    """With an interrupt, whose answer resumes, and a second kill behind it."""
    nodes = Nodes(calls)
    first = workers.start("first", APP)
    talk = client.conversation(graphs, str(uuid4()))
    await talk.send(UserMessage("in"))
    await nodes.go("first")
    await nodes.next("second")
    first.send(signal.SIGKILL)
    second = workers.start("second", APP)
    again = await nodes.next("second")
    assert again["said"] == ["in", "first:ok"]
    await again.answer("ok")
    await nodes.go("asks")
    await answered(talk)
    await nodes.go("asks")  # LangGraph runs a node again that has asked
    await nodes.next("last")
    second.send(signal.SIGKILL)
    workers.start("third", APP)
    await nodes.go("last")
    await end(talk, url, "in first:ok second:ok asks:yes last:ok")
    assert nodes.runs == {"first": 1, "second": 2, "asks": 2, "last": 2}


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.first
async def test_a_worker_that_was_paused_adds_nothing_to_a_thread_that_another_one_has_resumed(
    workers: Workers, client: affinity.Client, calls: ActivityCalls, url: str
) -> None:
    nodes = Nodes(calls)
    first = workers.start("first", APP)
    talk = client.conversation(graphs, str(uuid4()))
    await talk.send(UserMessage("in"))
    await nodes.go("first")
    stale = await nodes.next("second")
    first.pause()
    workers.start("second", APP)
    await (await nodes.next("second")).answer("new")
    await nodes.go("asks")
    first.send(signal.SIGCONT)
    await stale.answer("stale")
    await answered(talk)
    await nodes.go("asks")
    await nodes.go("last")
    await end(talk, url, "in first:ok second:new asks:yes last:ok")
    assert nodes.runs == {"first": 1, "second": 2, "asks": 2, "last": 1}
