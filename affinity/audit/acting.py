"""Users who act, and the entries that their actions leave.

`affinity.Client.acting_as` states a user; the console and the commands call it. While a user is stated, a call of an
`affinity.actions.action` leaves entries:

* A transaction in which something took effect has its entry in itself: there is an entry exactly if there is the
  effect. The parts of the providers ask for it: after the effect (`Acting.entries`), or before it, where the database
  adds the outcome (`Acting.expected`).
* An action that was refused, or that changed nothing, leaves one in a transaction of its own, at its end.
* A call that an action makes is a part of it. An action on one target names it in each entry; an action on many
  targets has an entry for each.
* A call that writes outside an action is recorded under the name of the provider's verb.
* Calls of several users may share one call of a verb, and its transaction (`ActingTogether`): each has its own entry.

Without a user nothing is recorded, and nothing more is sent. An entry has ids, names, an outcome and the reason that a
person gave; it has no payloads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from affinity.actions import ACTORS, Action, ActionCall, Actors, Administration, stated
from affinity.audit.entries import AuditLog, NewAuditEntry
from affinity.errors import AffinityError, ProviderError
from affinity.limits import MAX_AUDIT_TEXT_BYTES, MAX_BATCH, truncate
from affinity.records import frozen
from affinity.redaction import redacted

logger: logging.Logger = logging.getLogger("affinity.audit")

T = TypeVar("T")

_EFFECTS: Final = frozenset(
    {"done", "appended", "created", "deleted", "delivered", "planned", "released", "removed", "resumed"}
)
_BIGINT: Final = 2**63

_ALREADY: Final = frozenset({"at_target", "repeated"})
"""Outcomes of calls that found everything as they wanted it."""


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
class _RecordedAction:
    """An `Action` as its entries have it."""

    name: str
    kind: str
    target: str
    details: str = "{}"  # JSON
    each: bool = False


@dataclass(slots=True)
class Acting:
    """A user, and the action of this user that is under way. An `Actor`."""

    user: str
    source: str
    log: AuditLog
    action: _RecordedAction | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)  # of `log`
    written: set[str] = field(default_factory=set)  # targets on which the action has taken effect
    refused: dict[str, NewAuditEntry] = field(default_factory=dict)  # by target
    recorded: set[str] = field(default_factory=set)  # actions of this user that have entries, in the whole block

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        return self.log.database

    @property
    def is_in_action(self) -> bool:
        """True if an action is under way; further calls are then a part of it."""
        return self.action is not None

    def entries(self, call: ActionCall, result: object) -> Sequence[NewAuditEntry]:
        """Return the entries of a transaction of a provider's verb; ``result``: for each target, or for all."""
        outcomes = [_outcome_of(part) for part in result] if isinstance(result, list | tuple) else [_outcome_of(result)]
        action, targets = self._action_of(call)
        if len(targets) == 1:
            outcomes = [_united(outcomes)]
        made = [self._entry(action, target, *outcome) for target, outcome in zip(targets, outcomes, strict=False)]
        if self.action is None:
            return made
        self.refused.update({entry.target: entry for entry in made if not entry.succeeded})
        return [entry for entry in made if entry.succeeded]

    def expected(self, call: ActionCall) -> Sequence[ExpectedEntry]:
        """Return the entries of a transaction whose result is not known yet: `entries` gives those with an effect."""
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

    def _action_of(self, call: ActionCall) -> tuple[_RecordedAction, Sequence[str]]:
        """Return the action of which a call is a part, and the targets that have an entry each."""
        if self.action is None:
            return _RecordedAction(name=call.verb, kind=call.kind, target=""), call.targets or [""]
        if self.action.target and not self.action.each:
            return self.action, [self.action.target]
        return self.action, call.targets or [""]

    def committed(self, entries: Sequence[NewAuditEntry]) -> None:
        """Note that the transaction of these entries was committed."""
        self.written.update(entry.target for entry in entries)
        self.recorded.update(entry.action for entry in entries)

    async def run(self, action: Action, work: Callable[[], Awaitable[T]], *, is_trial: bool) -> T:
        """Do an action; at its end, record the targets that it left as they were. ``is_trial``: it changes nothing."""
        recorded = await self._as_stored(_recorded(action))
        under_way = Acting(self.user, self.source, self.log, recorded, self.loop, recorded=self.recorded)
        try:
            with stated(under_way):
                result = await work()
        except AffinityError as error:
            if not isinstance(error, ProviderError):
                await under_way._end(recorded, False, type(error).__name__)
            raise
        if not is_trial:
            await under_way._end(recorded, result)
        return result

    async def _as_stored(self, action: _RecordedAction) -> _RecordedAction:
        """Return an action with its details encoded, if the payloads of the database are: the entries are written in
        the transactions of verbs, which cannot wait for a codec.
        """
        encode = getattr(self.log, "encode_text", None)
        if encode is None or action.details == "{}":
            return action
        return replace(action, details=await encode(action.details, form="object", name="audit", scope="audit"))

    async def refuse(self, name: str, kind: str, target: str, outcome: str) -> None:
        """Record that an action was refused, in a transaction of its own."""
        target = truncate(target, MAX_AUDIT_TEXT_BYTES)
        await self.record([self._entry(_RecordedAction(name=name, kind=kind, target=target), target, outcome, False)])

    async def _end(self, action: _RecordedAction, result: object, error: str = "") -> None:
        """Record the targets on which nothing took effect. An error replaces the outcomes that the database gave."""
        left = [entry for target, entry in self.refused.items() if target not in self.written]
        ended = [replace(entry, succeeded=entry.outcome in _ALREADY) for entry in left if not (error and action.target)]
        if not ended and not self.written:
            is_done = result is None or bool(result)
            outcome = error or ("done" if is_done else "unchanged")
            ended = [self._entry(action, action.target, outcome, is_done)]
        await self.record(ended)

    def _entry(self, action: _RecordedAction, target: str, outcome: str, succeeded: bool) -> NewAuditEntry:
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
        """Write entries of refused or unchanged targets, in a transaction of their own; log a failure."""
        self.recorded.update(entry.action for entry in entries)
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
        logger.warning("audit: %s of %r was not recorded: %s", entries[0].action, self.user, redacted(error))


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


def administrative_entries(done: Administration) -> Sequence[NewAuditEntry]:
    """Return the entries of an administrator's changes; empty unless a user is stated (`administering`)."""
    stated_as = _ADMINISTRATOR.get()
    if stated_as is None:
        return []
    user, source = stated_as
    return [
        NewAuditEntry(
            user=user,
            source=source,
            action=done.name,
            kind=done.kind,
            target=target,
            outcome="done",
            succeeded=True,
            details=json.dumps(done.details),
        )
        for target in done.targets
    ]


class ActingTogether:
    """The users of a call of a verb that was made for several callers: each caller has one target of it.

    Args:
        users: in the order of the targets; None: no user is stated.
    """

    def __init__(self, users: Sequence[Acting | None]) -> None:
        self._users = users
        self._made: list[tuple[Acting, Sequence[NewAuditEntry]]] = []

    def entries(self, call: ActionCall, result: object) -> Sequence[NewAuditEntry]:
        """See `Acting.entries`; ``result``: for each target."""
        assert isinstance(result, list | tuple)
        parts = zip(self._users, self._parts(call), result, strict=True)
        self._made = [(user, user.entries(part, [outcome])) for user, part, outcome in parts if user]
        return [entry for _, entries in self._made for entry in entries]

    def expected(self, call: ActionCall) -> Sequence[ExpectedEntry]:
        """See `Acting.expected`."""
        return [
            replace(entry, first=place, last=place)
            for place, (user, part) in enumerate(zip(self._users, self._parts(call), strict=True), 1)
            if user is not None
            for entry in user.expected(part)
        ]

    def _parts(self, call: ActionCall) -> Sequence[ActionCall]:
        return [ActionCall(call.verb, call.kind, [target]) for target in call.targets]

    def committed(self, entries: Sequence[NewAuditEntry]) -> None:
        """See `Acting.committed`."""
        for user, made in self._made:
            user.committed(made)

    async def record(self, entries: Sequence[NewAuditEntry]) -> None:
        """See `Acting.record`."""
        for user, made in self._made:
            await user.record([entry for entry in made if entry in entries])


def users_of(actors: Actors) -> Acting | ActingTogether | None:
    """Return the users among the actors of a call, or None without any."""
    if isinstance(actors, Acting):
        return actors
    if not isinstance(actors, Sequence):
        return None
    users = [actor if isinstance(actor, Acting) else None for actor in actors]
    return ActingTogether(users) if any(users) else None


async def record_refusal(name: str, kind: str, target: str, why: str | AffinityError) -> None:
    """Record that the user who was stated may not do this; or, of an error, that nothing was done, unless there is an
    entry already, or the database has failed.
    """
    acting = next((actor for actor in reversed(ACTORS.get()) if isinstance(actor, Acting)), None)
    if acting is None or isinstance(why, ProviderError) or (isinstance(why, AffinityError) and acting.recorded):
        return
    await acting.refuse(name, kind, target, why if isinstance(why, str) else type(why).__name__)


def _recorded(action: Action) -> _RecordedAction:
    return _RecordedAction(
        name=action.name,
        kind=action.kind,
        target=truncate(action.target, MAX_AUDIT_TEXT_BYTES),
        details=_details(action.details),
        each=action.each,
    )


def _details(given: Mapping[str, Any]) -> str:
    found = {name: _plain(value) for name, value in given.items()}
    return json.dumps({name: value for name, value in found.items() if value not in {None, ""}}, ensure_ascii=False)


def _plain(value: Any) -> str | float | None:
    """Return a number or a text as it is; of anything else its name, since it may hold a payload."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < _BIGINT else None
    if isinstance(value, str | datetime):
        return truncate(str(value), MAX_AUDIT_TEXT_BYTES)
    value = getattr(value, "event", value)
    names = [getattr(value, attribute, None) for attribute in ("name", "kind", "__name__")]
    return next((truncate(name, MAX_AUDIT_TEXT_BYTES) for name in names if isinstance(name, str)), None)


def _outcome_of(result: Any) -> tuple[str, bool]:
    """Return the outcome in a word, and whether something took effect."""
    if result is None or isinstance(result, int):
        return ("unchanged", False) if result is False else ("done", True)
    word = result if isinstance(result, str) else getattr(result, "outcome", None)
    if word is not None:
        return str(word), word in _EFFECTS
    counts = [getattr(result, name, None) for name in ("instances", "executions", "entries")]
    removed = next((count for count in counts if count is not None), 1)
    return f"removed {removed}", removed > 0


def _united(outcomes: Sequence[tuple[str, bool]]) -> tuple[str, bool]:
    """Return the outcome of a transaction on one target."""
    done = sum(is_effect for _, is_effect in outcomes)
    if len(outcomes) == 1:
        return outcomes[0]
    return (f"{done} of {len(outcomes)}" if done else outcomes[0][0] if outcomes else "unchanged"), done > 0
