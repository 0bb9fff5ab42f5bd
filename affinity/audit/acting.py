"""The audit log: who did what, when, with what result.

`affinity.Client.acting_as` states a user; the console and the commands call it. While a user is stated, a call of an
`action` leaves entries:

* A transaction in which something took effect has its entry in itself: there is an entry exactly if there is the
  effect. The verbs of a provider that write ask for it: after the effect (`Acting.entries`), or before it, where the
  database adds the outcome (`Acting.expected`).
* An action that was refused, or that changed nothing, leaves one in a transaction of its own, at its end.
* A call that an action makes is a part of it. An action on one target names it in each entry; an action on many
  targets has an entry for each.
* A call that writes and is no action is named as the verb of the provider.
* A user is stated for one database: calls on another one are not this user's (`acting_on`).
* Calls of several users may share one call of a verb, and its transaction (`stated_together`): each has its own entry.

Without a user nothing is recorded, and nothing more is sent. An entry has ids, names, an outcome and what a person gave
as reason; it has no payloads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import wraps
from inspect import signature
from typing import Any, Final, ParamSpec, Protocol, TypeVar, cast

from affinity.errors import AffinityError, ProviderError
from affinity.limits import MAX_AUDIT_TEXT_BYTES, MAX_BATCH, check_conditions, truncate
from affinity.records import frozen

__all__ = [
    "administering",
    "record_refusal",
]

logger: logging.Logger = logging.getLogger("affinity.audit")

P = ParamSpec("P")
T = TypeVar("T")

_EFFECTS: Final = frozenset(
    {"done", "appended", "created", "deleted", "delivered", "planned", "released", "removed", "resumed"}
)
_BIGINT: Final = 2**63

_ALREADY: Final = frozenset({"at_target", "repeated"})
"""Outcomes of calls that found everything as they wanted it."""


@frozen(kw_only=True)
class AuditEntry:
    """One entry of the audit log."""

    entry_id: int
    at: datetime
    user: str  # whom the caller stated; "": unknown
    source: str  # where the call came from: "console", "command", or as the application named it
    role: str | None  # of the database: the one that logged in, and " as " the one that it has set; None: SQLite
    action: str  # "cancel", "move", …
    kind: str  # of the target: "instance", "session", "conversation", "worker", "schedule"; or ""
    target: str  # its id or name; "": the whole database
    outcome: str  # "done", "resumed", "busy", "UnknownInstance", …
    succeeded: bool  # False: it changed nothing
    details: Mapping[str, Any]  # names, numbers and reasons among the arguments


@frozen(kw_only=True)
class NewAuditEntry:
    """What a provider writes: the other columns are its own."""

    user: str
    source: str
    action: str
    kind: str
    target: str
    outcome: str
    succeeded: bool
    details: str  # JSON


@frozen(kw_only=True)
class AuditFilter:
    """The entries to list, newest first; all conditions hold."""

    user: str | None = None
    source: str | None = None
    action: str | None = None
    target: str | None = None
    succeeded: bool | None = None
    since: datetime | None = None
    until: datetime | None = None  # before this time
    after: tuple[datetime, int] | None = None  # time and id of the last entry of the page before

    def __post_init__(self) -> None:
        check_conditions(self)


class AuditLog(Protocol):
    """The audit log of a database: a provider."""

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        ...

    async def write_audit(self, entries: Sequence[NewAuditEntry]) -> None:
        """Write entries in a transaction of their own."""
        ...


class _Actor(Protocol):
    """The object of a method that is an action."""

    @property
    def _database(self) -> str:
        """See `ProviderConnection.database`."""
        ...


@frozen()
class AuditedCall:
    """A call of a provider's verb."""

    verb: str  # and the kind of its targets: for a call that is no action
    kind: str
    targets: Sequence[str]  # what it is called for


@frozen(kw_only=True)
class ExpectedEntry:
    """An entry that is written if a call takes effect on a target from ``first`` to ``last``; they count from 1."""

    user: str
    source: str
    action: str
    kind: str
    target: str
    details: str  # JSON
    first: int
    last: int


@frozen(kw_only=True)
class _Action:
    name: str
    kind: str
    target: str  # "": each transaction has its own
    details: str = "{}"  # JSON
    each: bool = False  # each transaction has its own targets, which belong to this one


@dataclass(slots=True)
class Acting:
    """A user, and the action of this user that is under way."""

    user: str
    source: str
    log: AuditLog
    action: _Action | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)  # of `log`
    written: set[str] = field(default_factory=set)  # targets on which the action has taken effect
    refused: dict[str, NewAuditEntry] = field(default_factory=dict)  # by target
    recorded: set[str] = field(default_factory=set)  # actions of this user that have entries, in the whole block

    def entries(self, call: AuditedCall, result: object) -> Sequence[NewAuditEntry]:
        """The entries of a transaction of a provider's verb; ``result``: for each target, or for all."""
        outcomes = [_outcome_of(each) for each in result] if isinstance(result, list | tuple) else [_outcome_of(result)]
        action, targets = self._action_of(call)
        if len(targets) == 1:
            outcomes = [_united(outcomes)]
        made = [self._entry(action, target, *outcome) for target, outcome in zip(targets, outcomes, strict=False)]
        if self.action is None:
            return made
        self.refused.update({each.target: each for each in made if not each.succeeded})
        return [each for each in made if each.succeeded]

    def expected(self, call: AuditedCall) -> Sequence[ExpectedEntry]:
        """The entries of a transaction whose result is not known yet: `entries` gives those with an effect."""
        action, targets = self._action_of(call)
        last = len(call.targets) or 1
        spans = [(1, last)] if len(targets) == 1 else [(place, place) for place in range(1, last + 1)]
        return [
            ExpectedEntry(
                user=self.user,
                source=self.source,
                action=action.name,
                kind=action.kind,
                target=target,
                details=action.details,
                first=first,
                last=last,
            )
            for target, (first, last) in zip(targets, spans, strict=True)
        ]

    def _action_of(self, call: AuditedCall) -> tuple[_Action, Sequence[str]]:
        """The action of which a call is a part, and the targets that have an entry each."""
        if self.action is None:
            return _Action(name=call.verb, kind=call.kind, target=""), call.targets or [""]
        if self.action.target and not self.action.each:
            return self.action, [self.action.target]
        return self.action, call.targets or [""]

    def committed(self, entries: Sequence[NewAuditEntry]) -> None:
        """The transaction of these entries was committed."""
        self.written.update(each.target for each in entries)
        self.recorded.update(each.action for each in entries)

    async def run(self, action: _Action, work: Callable[[], Awaitable[T]], *, is_trial: bool) -> T:
        """Do an action; at its end, record what it has not done. ``is_trial``: it is to change nothing."""
        under_way = Acting(self.user, self.source, self.log, action, self.loop, recorded=self.recorded)
        try:
            with stated(under_way):
                result = await work()
        except AffinityError as error:
            if not isinstance(error, ProviderError):
                await under_way._end(action, False, type(error).__name__)
            raise
        if not is_trial:
            await under_way._end(action, result)
        return result

    async def refuse(self, name: str, kind: str, target: str, outcome: str) -> None:
        """Record that an action was refused, in a transaction of its own."""
        target = truncate(target, MAX_AUDIT_TEXT_BYTES)
        await self.record([self._entry(_Action(name=name, kind=kind, target=target), target, outcome, False)])

    async def _end(self, action: _Action, result: object, error: str = "") -> None:
        """Record the targets on which nothing took effect. An error says more than what the database has said."""
        left = [each for target, each in self.refused.items() if target not in self.written]
        ended = [replace(each, succeeded=each.outcome in _ALREADY) for each in left if not (error and action.target)]
        if not ended and not self.written:
            is_done = result is None or bool(result)
            outcome = error or ("done" if is_done else "unchanged")
            ended = [self._entry(action, action.target, outcome, is_done)]
        await self.record(ended)

    def _entry(self, action: _Action, target: str, outcome: str, succeeded: bool) -> NewAuditEntry:
        return NewAuditEntry(
            user=self.user,
            source=self.source,
            action=action.name,
            kind=action.kind,
            target=target,
            outcome=outcome,
            succeeded=succeeded,
            details=action.details,
        )

    async def record(self, entries: Sequence[NewAuditEntry]) -> None:
        """Write entries of what was not done, in a transaction of their own; a failure is logged."""
        self.recorded.update(each.action for each in entries)
        if not entries:
            return
        if self.loop is asyncio.get_running_loop():
            await self._write(entries)
            return
        try:  # a sync client in a thread of an async user, whose loop may wait for this one
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._write(entries)))
        except RuntimeError as ended:
            self._warn(entries, ended)

    async def _write(self, entries: Sequence[NewAuditEntry]) -> None:
        try:
            for first in range(0, len(entries), MAX_BATCH):
                await self.log.write_audit(entries[first : first + MAX_BATCH])
        except ProviderError as error:  # nothing was changed, and the caller has its result
            self._warn(entries, error)

    def _warn(self, entries: Sequence[NewAuditEntry], error: Exception) -> None:
        logger.warning("audit: %s of %r was not recorded: %s", entries[0].action, self.user, error)


ACTING: Final[ContextVar[tuple[Acting, ...]]] = ContextVar("affinity_acting", default=())
"""The users who were stated, for this task and what it starts; the last one last."""


_ADMINISTRATOR: Final[ContextVar[tuple[str, str] | None]] = ContextVar("affinity_administrator", default=None)
"""The user and the source of a migration, or of a change of rights."""


@contextmanager
def administering(user: str, source: str) -> Iterator[None]:
    """Run the block as this user: its migrations and changes of rights have entries, in their own transactions."""
    token = _ADMINISTRATOR.set((user, source))
    try:
        yield
    finally:
        _ADMINISTRATOR.reset(token)


def administrative_entries(
    action: str, targets: Iterable[str] = ("",), *, kind: str = "", **details: object
) -> Sequence[NewAuditEntry]:
    """Return the entries of what an administrator has done; none unless one is stated (`administering`)."""
    stated_as = _ADMINISTRATOR.get()
    if stated_as is None:
        return []
    user, source = stated_as
    return [
        NewAuditEntry(
            user=user,
            source=source,
            action=action,
            kind=kind,
            target=target,
            outcome="done",
            succeeded=True,
            details=json.dumps(details),
        )
        for target in targets
    ]


def acting_on(database: str) -> Acting | None:
    """The user who was stated for a database, with the action that is under way there."""
    return _last_on(database, ACTING.get())


def _last_on(database: str, users: Sequence[Acting]) -> Acting | None:
    return next((acting for acting in reversed(users) if acting.log.database == database), None)


class ActingTogether:
    """The users of a call of a verb that was made for several callers: each caller has one target of it.

    Args:
        users: in the order of the targets; None: no user is stated.
    """

    def __init__(self, users: Sequence[Acting | None]) -> None:
        self._users = users
        self._made: list[tuple[Acting, Sequence[NewAuditEntry]]] = []

    def entries(self, call: AuditedCall, result: object) -> Sequence[NewAuditEntry]:
        """See `Acting.entries`; ``result``: for each target."""
        assert isinstance(result, list | tuple)
        parts = zip(self._users, self._parts(call), result, strict=True)
        self._made = [(user, user.entries(part, [outcome])) for user, part, outcome in parts if user]
        return [entry for _, entries in self._made for entry in entries]

    def expected(self, call: AuditedCall) -> Sequence[ExpectedEntry]:
        """See `Acting.expected`."""
        return [
            replace(entry, first=place, last=place)
            for place, (user, part) in enumerate(zip(self._users, self._parts(call), strict=True), 1)
            if user is not None
            for entry in user.expected(part)
        ]

    def _parts(self, call: AuditedCall) -> Sequence[AuditedCall]:
        return [AuditedCall(call.verb, call.kind, [target]) for target in call.targets]

    def committed(self, entries: Sequence[NewAuditEntry]) -> None:
        """See `Acting.committed`."""
        for user, made in self._made:
            user.committed(made)

    async def record(self, entries: Sequence[NewAuditEntry]) -> None:
        """See `Acting.record`."""
        for user, made in self._made:
            await user.record([entry for entry in made if entry in entries])


_TOGETHER: Final[ContextVar[Sequence[Sequence[Acting]] | None]] = ContextVar("affinity_acting_together", default=None)
"""The users who were stated for each of the callers of one call."""


@contextmanager
def stated_together(users: Sequence[Sequence[Acting]]) -> Iterator[None]:
    """Run the block, a call of a verb, for several callers; ``users``: the value of `ACTING` of each, in the order of
    the targets.
    """
    token = _TOGETHER.set(users)
    try:
        yield
    finally:
        _TOGETHER.reset(token)


def users_on(database: str) -> Acting | ActingTogether | None:
    """The user, or the users, for whom a verb of a database is called."""
    if (together := _TOGETHER.get()) is None:
        return acting_on(database)
    users = [_last_on(database, each) for each in together]
    return ActingTogether(users) if any(user is not None for user in users) else None


@contextmanager
def stated(acting: Acting) -> Iterator[None]:
    """Run the block as this user, or as a part of this action."""
    token = ACTING.set((*ACTING.get(), acting))
    try:
        yield
    finally:
        ACTING.reset(token)


async def record_refusal(name: str, kind: str, target: str, why: str | AffinityError) -> None:
    """Record that the user who was stated may not do this; or, of an error, that nothing was done, unless there is an
    entry already, or the database has failed.
    """
    acting = next(reversed(ACTING.get()), None)
    if acting is None or isinstance(why, ProviderError) or (isinstance(why, AffinityError) and acting.recorded):
        return
    await acting.refuse(name, kind, target, why if isinstance(why, str) else type(why).__name__)


def action(
    name: str, kind: str, target: str = "", *details: str, each: bool = False
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Decorates a method that is an action for the audit log. Its object has ``_database``, the name of its database.

    Args:
        name: of the action.
        kind: of its target.
        target: name of the argument, or of the attribute of its object, that is the target; "": each transaction has
            its own targets.
        details: names of the arguments that are recorded; of no payloads.
        each: all that goes with the target has an entry.
    """

    def decorate(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        @wraps(method)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            acting = acting_on(cast(_Actor, args[0])._database) if ACTING.get() else None
            if acting is None or acting.action is not None:
                return await method(*args, **kwargs)
            given = signature(method).bind(*args, **kwargs).arguments
            made = _Action(
                name=name, kind=kind, target=_target(given, target), details=_details(given, details), each=each
            )
            return await acting.run(made, lambda: method(*args, **kwargs), is_trial=bool(given.get("dry_run")))

        return call

    return decorate


def _target(given: Mapping[str, Any], name: str) -> str:
    found = given.get(name) or getattr(next(iter(given.values())), name, "") if name else ""
    return truncate(str(found), MAX_AUDIT_TEXT_BYTES)


def _details(given: Mapping[str, Any], names: Sequence[str]) -> str:
    found = {name: _plain(given[name]) for name in names if name in given}
    return json.dumps({name: value for name, value in found.items() if value not in {None, ""}}, ensure_ascii=False)


def _plain(value: Any) -> str | float | None:
    """A number or a text as it is; of anything else its name, since it may hold a payload."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < _BIGINT else None
    if isinstance(value, str | datetime):
        return truncate(str(value), MAX_AUDIT_TEXT_BYTES)
    value = getattr(value, "event", value)
    names = [getattr(value, each, None) for each in ("name", "kind", "__name__")]
    return next((truncate(each, MAX_AUDIT_TEXT_BYTES) for each in names if isinstance(each, str)), None)


def targets_of(args: Sequence[object]) -> Sequence[str]:
    """The targets of a provider's verb: ids, or records with one, as its first argument."""
    first = args[0] if args else ()
    return [_id_of(each) for each in (first if isinstance(first, list | tuple) else [first])]


def _id_of(request: Any) -> str:
    request = getattr(request, "new", None) or getattr(request, "row", None) or request
    found = [getattr(request, name, None) for name in ("instance_id", "session_id", "name")]
    return request if isinstance(request, str) else next((str(each) for each in found if each), "")


def _outcome_of(result: Any) -> tuple[str, bool]:
    """The outcome in a word, and whether something took effect."""
    if result is None or isinstance(result, int):
        return ("unchanged", False) if result is False else ("done", True)
    word = result if isinstance(result, str) else getattr(result, "outcome", None)
    if word is not None:
        return str(word), word in _EFFECTS
    counts = [getattr(result, name, None) for name in ("instances", "executions", "entries")]
    removed = next((count for count in counts if count is not None), 1)
    return f"removed {removed}", removed > 0


def _united(outcomes: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
    """The outcome of a transaction on one target."""
    done = sum(is_effect for _, is_effect in outcomes)
    if len(outcomes) == 1:
        return outcomes[0]
    return (f"{done} of {len(outcomes)}" if done else outcomes[0][0] if outcomes else "unchanged"), done > 0
