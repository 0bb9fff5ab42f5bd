"""What a system must offer to be measured."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from bench.work import Walk

ROOT = Path(__file__).parent.parent.parent
"""Where worker processes start: the checkout, so that they find ``bench``."""

Dialect = Literal["postgresql", "sqlite"]

SESSIONS = 200
"""Sessions that a worker may hold: the sessions of the largest scenario, and of the warm-up, which it still holds."""

PATIENCE = 600.0
"""Seconds after which a workflow that has not ended counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a worker process, and the line of its log that says it is ready."""

    arguments: Sequence[str]
    ready: re.Pattern[str] = re.compile(r"^ready$")
    environment: Mapping[str, str] = field(default_factory=dict)


class Client(Protocol):
    """Starts workflows and reads their outputs, through the system's own client."""

    def start(self, ids: Sequence[str], walk: Walk) -> None:
        """Start one walk for each id."""
        ...

    def outputs(self, ids: Sequence[str]) -> list[Any]:
        """Wait for workflows to end; their outputs in the order of the ids."""
        ...


class System(Protocol):
    """A system under measurement."""

    @property
    def name(self) -> str:
        """On tables and the command line."""
        ...

    @property
    def packages(self) -> Sequence[str]:
        """Distributions whose versions make up its version."""
        ...

    @property
    def dialects(self) -> frozenset[Dialect]:
        """Databases that it knows."""
        ...

    @property
    def sessions(self) -> bool:
        """Whether an activity can be kept on the worker that holds its session."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """What differs from its defaults, for people to judge."""
        ...

    def prepare(self, url: str) -> None:
        """Install its schema in an empty database."""
        ...

    def launch(self, url: str, worker: str, **options: Any) -> Launch:
        """A worker process of that name; options override `settings`."""
        ...

    def client(self, url: str) -> AbstractContextManager[Client]:
        """A client, connected."""
        ...


@runtime_checkable
class WaitingClient(Client, Protocol):
    """A client of a system whose workflows can wait for an event."""

    def start_waiting(self, ids: Sequence[str]) -> None:
        """Start workflows that wait for their event, and then end with True."""
        ...

    def release(self, ids: Sequence[str]) -> None:
        """Send them their events."""
        ...


@runtime_checkable
class FloodingClient(Client, Protocol):
    """A client that can fill the queue of a session."""

    def flood(self, session: str, items: int) -> None:
        """Queue activities on a session, each of which blocks forever, and return once they are queued."""
        ...


def versions(system: System) -> dict[str, str]:
    """The installed version of each of its packages.

    Raises:
        PackageNotFoundError: one is missing.
    """
    return {package: version(package) for package in system.packages}


def is_installed(system: System) -> bool:
    """Whether all packages of a system are there."""
    try:
        return bool(versions(system))
    except PackageNotFoundError:
        return False


def module_launch(module: str, *arguments: str, **environment: str) -> Launch:
    """A worker process that runs a module and prints ``ready``."""
    return Launch(arguments=[sys.executable, "-m", module, *arguments], environment=environment)


def announce_ready() -> None:
    """Said by a worker process of a peer once it takes work."""
    print("ready", flush=True)


def child_environment(launch: Launch) -> dict[str, str]:
    """The environment of a worker process."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **launch.environment}
