"""The scenarios, by name. Each takes a `Run` and gives a `Report`."""

from __future__ import annotations

from collections.abc import Callable

from bench.measures import Report
from bench.run import Run
from bench.scenarios.ask import ask
from bench.scenarios.backlog import backlog
from bench.scenarios.console import console
from bench.scenarios.conversation import conversation
from bench.scenarios.crowd import crowd
from bench.scenarios.env import env
from bench.scenarios.failover import failover
from bench.scenarios.fanout import fanout
from bench.scenarios.fleet import fleet
from bench.scenarios.flow import flow
from bench.scenarios.idle import idle
from bench.scenarios.langgraph import langgraph
from bench.scenarios.limit import limit
from bench.scenarios.memory import memory
from bench.scenarios.order import order
from bench.scenarios.rebalance import rebalance
from bench.scenarios.replicas import replicas
from bench.scenarios.restart import restart
from bench.scenarios.retention import retention
from bench.scenarios.rollout import rollout
from bench.scenarios.schedules import schedules
from bench.scenarios.size import size
from bench.scenarios.soak import soak
from bench.scenarios.sqlite import sqlite
from bench.scenarios.state import state
from bench.scenarios.steps import steps
from bench.scenarios.tags import tags
from bench.scenarios.turns import history, latency, turns

SCENARIOS: dict[str, Callable[[Run], Report]] = {
    "turns": turns,
    "latency": latency,
    "history": history,
    "backlog": backlog,
    "replicas": replicas,
    "fanout": fanout,
    "rebalance": rebalance,
    "limit": limit,
    "failover": failover,
    "idle": idle,
    "memory": memory,
    "restart": restart,
    "retention": retention,
    "rollout": rollout,
    "sqlite": sqlite,
    "state": state,
    "order": order,
    "tags": tags,
    "conversation": conversation,
    "ask": ask,
    "crowd": crowd,
    "schedules": schedules,
    "steps": steps,
    "flow": flow,
    "langgraph": langgraph,
    "fleet": fleet,
    "size": size,
    "console": console,
    "soak": soak,
    "env": env,
}

LONG = ("console", "fleet", "flow", "size", "soak")
"""Not part of ``all``."""

ON_SQLITE = (
    "turns",
    "latency",
    "history",
    "fanout",
    "failover",
    "retention",
    "rollout",
    "sqlite",
    "state",
    "order",
    "tags",
    "conversation",
    "crowd",
    "steps",
    "env",
)
"""Those that ``--provider sqlite`` knows; the others count what only a PostgreSQL server reports."""
