"""Graphs for tests, which wait where a test wants them to."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from affinity.integrations.langgraph import AffinitySaver

Node = Callable[[Any], Awaitable[Any]]
Graph = CompiledStateGraph[Any, Any, Any, Any]


class Log(TypedDict):
    """What the nodes of a graph have said."""

    said: Annotated[list[str], operator.add]


def says(word: str) -> Node:
    """A node that says a word."""

    async def node(state: Log) -> Log:
        return {"said": [word]}

    return node


def chain(saver: AffinitySaver | None, **nodes: Any) -> Graph:
    """A graph whose nodes follow one another."""
    builder = StateGraph(Log)
    names = [START, *nodes, END]
    for name, node in nodes.items():
        builder.add_node(name, node)
    for before, behind in itertools.pairwise(names):
        builder.add_edge(before, behind)
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    """The config that names a thread."""
    return {"configurable": {"thread_id": name}}


def line(graph: Graph, name: str) -> list[str]:
    """The ids of the checkpoints of a thread, oldest first; each must follow on the one before."""
    history = list(graph.get_state_history(thread(name)))[::-1]
    ids = [each.config["configurable"]["checkpoint_id"] for each in history]
    parents = [each.parent_config and each.parent_config["configurable"]["checkpoint_id"] for each in history]
    assert parents == [None, *ids[:-1]], "the thread has a fork"
    return ids
