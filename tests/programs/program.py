"""Random programs, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias

from affinity import RuntimeOptions

FaultKind: TypeAlias = Literal["before", "behind", "lost", "refuse", "takeover", "stall", "outage"]
"""Faults at a commit of a worker:

``before``, ``behind``: the worker crashes before it, or behind it, and starts again under its name.
``lost``: it happens, and its answer is lost.
``refuse``: the database refuses it.
``takeover``: the worker crashes before it; one with another name starts, and takes over when the lease has ended.
``stall``: the worker stands still for longer than its lease.
``outage``: the database refuses it, and the commits after it for a while.
"""


RolloutKind: TypeAlias = Literal["changed", "missing"]
"""``changed``: the code of its orchestrations does not fit histories. ``missing``: it has none."""

Size: TypeAlias = Literal["small", "any", "large"]
"""Of programs: ``small`` ones have a few turns, so that many of them run; ``large`` ones have thousands."""

CODE_VERSION: Final = "1"
"""Of the workers at the start."""


USER: Final = "ann"


@dataclass(frozen=True)
class Rollout:
    """Of a release with which instances cannot go on, in place of the code of all workers; another one follows it."""

    at: int  # commit of the workers, which are counted through
    kind: RolloutKind = "changed"
    resumed_by: Literal["operator", "release", "rollback"] = "operator"
    """What lets suspended instances go on, once workers have code that can. ``operator``: nothing else, since all have
    one code version.
    """
    ticks: int | None = 4  # until the one that follows; None: until nothing runs, and nothing is due


@dataclass(frozen=True)
class Fault:
    """A fault at a commit of the workers, which are counted through."""

    at: int
    kind: FaultKind = "refuse"


@dataclass(frozen=True)
class Options:
    """Options of the workers, as far as they are drawn."""

    max_sessions: int = 100
    cached_instances: int = 10_000  # 0: each turn begins with a replay
    concurrency: int = 128
    tags: tuple[str, ...] = ("gpu",)

    def runtime(self) -> RuntimeOptions:
        """For `affinity.testing.Env`."""
        return RuntimeOptions(
            max_sessions_per_runtime=self.max_sessions,
            instance_cache_size=self.cached_instances,
            worker_concurrency=self.concurrency,
            tags=self.tags,
            code_version=CODE_VERSION,
        )


@dataclass(frozen=True)
class _Patient(Options):
    def runtime(self) -> RuntimeOptions:
        return super().runtime().model_copy(update={"max_attempts": 1_000})


@dataclass(frozen=True, repr=False)
class Program:
    """Parts of several areas, which run at the same time on the same workers. Its repr makes it again."""

    parts: Mapping[str, Any] = field(default_factory=dict)  # by the name of their area
    workers: int = 1
    options: Options = Options()
    faults: tuple[Fault, ...] = ()
    rollout: Rollout | None = None
    user: str = ""  # who makes the calls of clients, for the audit log; "": they are made without one
    traced: bool = False  # OpenTelemetry is in use, so that trace contexts are stored

    def __repr__(self) -> str:
        return plain(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For hypothesis, whose printer takes minutes for such deeply nested values."""
        printer.text(repr(self))


def over_outages(program: Program) -> Program:
    """A program whose database fails: that ends attempts of what runs, as crashes do, and its judges expect it."""
    options = _Patient(**vars(program.options))
    return replace(program, options=options, faults=program.faults or (Fault(1),))


def plain(value: Any) -> str:
    """The repr of a dataclass without the fields that have their default, which makes it again."""
    if isinstance(value, tuple):
        return "(" + "".join(f"{plain(each)}, " for each in value) + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {plain(each)}" for key, each in value.items()) + "}"
    if not hasattr(value, "__dataclass_fields__"):
        return repr(value)
    shown = [f"{one.name}={plain(now)}" for one in fields(value) if (now := getattr(value, one.name)) != one.default]
    return f"{type(value).__name__}({', '.join(shown)})"
