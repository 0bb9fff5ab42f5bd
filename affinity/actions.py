"""Actions: calls that people make, and who makes them.

A method of a client that changes something is an `action`, and so is a verb of a provider that it calls. A guest may
state an `Actor` for the calls of a block: it runs their actions, and the guest's parts of a provider join the
transactions of their verbs.

* An actor is stated for one database: calls on another one are not this actor's (`actor_on`).
* A call that an action makes is a part of it.
* Calls of several actors may share one call of a verb, and its transaction (`stated_together`).

Without an actor nothing more is done than to look for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from affinity.records import frozen

P = ParamSpec("P")
T = TypeVar("T")


@frozen(kw_only=True)
class Action:
    """One call of a method that is an action."""

    name: str
    kind: str  # of the target
    target: str  # "": each transaction has its own
    details: Mapping[str, Any]  # arguments
    each: bool  # each transaction has its own targets, which belong to this one


@frozen()
class ActionCall:
    """One call of a provider's verb that is an action."""

    verb: str
    kind: str  # of its targets
    targets: Sequence[str]  # ids of the targets


@frozen()
class Administration:
    """An action of the owner on the database, in a transaction of its own: a migration, a change of rights."""

    name: str
    details: Mapping[str, Any]
    kind: str = ""  # of the targets
    targets: Collection[str] = ("",)


class Actor(Protocol):
    """The user who makes the calls of a block."""

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        ...

    @property
    def user(self) -> str:
        """The name of the user; empty: unknown."""
        ...

    @property
    def is_in_action(self) -> bool:
        """True if an action is under way, of which further calls are a part."""
        ...

    async def run(self, action: Action, work: Callable[[], Awaitable[T]], *, is_trial: bool) -> T:
        """Do an action. ``is_trial``: it is to change nothing."""
        ...


Actors: TypeAlias = Actor | Sequence[Actor | None]
"""The callers of a verb. A sequence has the actor of each of its targets; None: no actor is stated."""


class _OnDatabase(Protocol):
    """The object of a method that is an action."""

    @property
    def _database(self) -> str:
        """See `ProviderConnection.database`."""
        ...


ACTORS: Final[ContextVar[tuple[Actor, ...]]] = ContextVar("affinity_actors", default=())
"""The actors that were stated, for this task and the tasks that it starts; the last one last."""

_TOGETHER: Final[ContextVar[Sequence[Sequence[Actor]] | None]] = ContextVar("affinity_actors_together", default=None)
"""The actors that were stated for each of the callers of one call."""


@contextmanager
def stated(actor: Actor) -> Iterator[None]:
    """Run the block as this actor."""
    token = ACTORS.set((*ACTORS.get(), actor))
    try:
        yield
    finally:
        ACTORS.reset(token)


@contextmanager
def stated_together(actors: Sequence[Sequence[Actor]]) -> Iterator[None]:
    """Run the block, a call of a verb, for several callers; ``actors``: the value of `ACTORS` of each, in the order of
    the targets.
    """
    token = _TOGETHER.set(actors)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def actor_on(database: str) -> Actor | None:
    """Return the actor that was stated last for a database."""
    return _last_on(database, ACTORS.get())


def actors_on(database: str) -> Actors | None:
    """Return the actor, or the actors, for whom a verb of a database is called; None: none is stated."""
    if (together := _TOGETHER.get()) is None:
        return actor_on(database)
    actors = [_last_on(database, stated_for) for stated_for in together]
    return actors if any(actor is not None for actor in actors) else None


def _last_on(database: str, actors: Sequence[Actor]) -> Actor | None:
    return next((actor for actor in reversed(actors) if actor.database == database), None)


def action(
    name: str, kind: str, target: str = "", *details: str, each: bool = False
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Decorates a method that is an action. Its object has ``_database``, the name of its database.

    Args:
        name: of the action.
        kind: of its target.
        target: name of the argument, or of the attribute of its object, that is the target; "": each transaction has
            its own targets.
        details: names of the arguments that an actor may record; of no payloads.
        each: all that goes with the target counts as a target.
    """

    def decorate(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            actor = actor_on(cast(_OnDatabase, args[0])._database) if ACTORS.get() else None
            if actor is None or actor.is_in_action:
                return await method(*args, **kwargs)
            given = signature(method).bind(*args, **kwargs).arguments
            recorded = {name: given[name] for name in details if name in given}
            made = Action(name=name, kind=kind, target=_target(given, target), details=recorded, each=each)
            return await actor.run(made, lambda: method(*args, **kwargs), is_trial=bool(given.get("dry_run")))

        return call

    return decorate


def _target(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name) or getattr(next(iter(given.values())), name, "") if name else ""
    return str(found)


def targets_of(args: Sequence[object]) -> Sequence[str]:
    """Return the targets of a provider's verb: ids, or records with one, as its first argument."""
    first = args[0] if args else ()
    return [_id_of(target) for target in (first if isinstance(first, list | tuple) else [first])]


def _id_of(request: Any) -> str:
    request = getattr(request, "new", None) or getattr(request, "row", None) or request
    found = [getattr(request, name, None) for name in ("instance_id", "session_id", "name", "limit")]
    return request if isinstance(request, str) else next((str(name) for name in found if name), "")
