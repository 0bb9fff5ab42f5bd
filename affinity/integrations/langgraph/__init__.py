"""LangGraph on affinity: a checkpointer and a store, threads with one writer, and graphs as handlers of conversations.

Needs ``pip install "affinity-workflows[langgraph]"``.

==============  ========================================================================================
running         `run_graph` and `graph_conversations`: a thread is a conversation; `call_graph`: in an activity
checkpointer    `AffinitySaver`: the checkpoints of threads
items           `AffinityStore`: values by namespace and key, for all threads
fence           who may write to a thread, and `ThreadConflict`
threads         the reads and writes of threads
writing         group commit of what runs write
==============  ========================================================================================
"""

from importlib.util import find_spec

if find_spec("langgraph") is None or find_spec("langgraph.checkpoint") is None:
    raise ImportError(
        "affinity.integrations.langgraph needs LangGraph: pip install 'affinity-workflows[langgraph]'", name="langgraph"
    )

from affinity.integrations.langgraph.checkpointer import AffinitySaver
from affinity.integrations.langgraph.fence import ThreadConflict
from affinity.integrations.langgraph.items import AffinityStore
from affinity.integrations.langgraph.running import RunOptions, Thread, call_graph, graph_conversations, run_graph

__all__ = [
    "AffinitySaver",
    "AffinityStore",
    "RunOptions",
    "Thread",
    "ThreadConflict",
    "call_graph",
    "graph_conversations",
    "run_graph",
]
