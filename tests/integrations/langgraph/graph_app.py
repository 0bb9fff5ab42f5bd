"""A graph for workers in processes of their own: each node asks the test, and says what it answers."""

from __future__ import annotations

import os
from typing import Any, Final

from langgraph.types import interrupt

import affinity
from affinity.conversation import AgentMessage, JournalEvent, UserMessage, current_wake
from affinity.integrations.langgraph import AffinitySaver, graph_conversations
from tests.integrations.langgraph.graphs import Log, chain
from tests.support.activity_calls import call_test

URL: Final = "TESTED_URL"
"""Variable with the URL of the database."""


def node(name: str, *, asks: bool = False) -> Any:
    """A node that tells the test that it runs, and waits for its answer."""

    async def run(state: Log) -> Log:
        wake = current_wake()
        assert wake is not None
        said = await call_test(wake.context, node=name, said=state["said"])
        return {"said": [f"{name}:{interrupt(name)}" if asks else f"{name}:{said}"]}

    return run


def words(events: Any) -> Any:
    """The input of the graph."""
    said = [event.text for event in events if isinstance(event, UserMessage)]
    return {"said": said} if said else None


def whole(values: Any) -> JournalEvent:
    """The reply of the graph."""
    return AgentMessage(" ".join(values["said"]))


graph = chain(
    AffinitySaver(os.environ.get(URL, "sqlite:///unused.db")),
    first=node("first"),
    second=node("second"),
    asks=node("asks", asks=True),
    last=node("last"),
)
graphs = graph_conversations(
    graph,
    kind="graph",
    to_input=words,
    to_reply=whole,
    retry=affinity.RetryPolicy(max_attempts=5, initial_interval=0.05),
)
app = affinity.App("graphs")
app.include(graphs)
