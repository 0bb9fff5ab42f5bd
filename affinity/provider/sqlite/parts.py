"""The parts that guests add to this provider: verbs, and steps in operations of the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, LiteralString, NamedTuple, Protocol, TypeAlias

from affinity.actions import ActionCall, Actors, Administration
from affinity.errors import InvalidOptions
from affinity.guests import modules
from affinity.provider.contract import NewWorkItem, Retention
from affinity.provider.rounds import RoundKind
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.records import CommitPart, frozen

Seconds: TypeAlias = Callable[[Tx], float | None]

ActionShare: TypeAlias = Callable[[Tx, object], Callable[[], None]]
"""The share of a guest in the transaction of one call of an action. It receives the result, and returns a function to
call after the commit.
"""


class PartWriter(Protocol):
    """Checks the fences of a guest's parts of one batch (`CommitPart`), and writes the parts of results that pass."""

    def find_conflicts(self, parts: Sequence[CommitPart]) -> list[str]:
        """Return the sessions of the parts of one result that do not pass, also beside what was accepted before."""
        ...

    def accept(self, parts: Iterable[CommitPart]) -> None:
        """Note that the result with these parts passes."""
        ...

    def write_accepted(self) -> None:
        """Write the accepted parts, behind the records of state."""
        ...

    def write_to_others(self) -> None:
        """Write the effects of the parts on other sessions, behind the parking of work items."""
        ...


@frozen(kw_only=True)
class SqliteCommit:
    """The functions that commit the parts of a guest (`CommitPart`)."""

    writer: Callable[[Tx, Sequence[CommitPart]], PartWriter]
    """Return the writer for a batch that has parts of the guest. It is called with all of them."""
    find_unparkable: Callable[[Tx, Sequence[str]], set[str]] | None = None
    """Return those of these instances whose item has to be queued. For a guest that parks work items
    (`NewWorkItem.parked`).
    """


class GateKeeper(Protocol):
    """Decides for one commit which of its new work items pass their gates immediately (`NewWorkItem.gate`)."""

    def passes(self, item: NewWorkItem) -> bool:
        """Return whether an item passes; then it has its places."""
        ...

    def write(self) -> None:
        """Write the places of the items that have passed, which are in the queue now."""
        ...


class Access(NamedTuple):
    """The calls of the provider that a round makes: each is a transaction."""

    write: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    read: Callable[[Callable[[Tx], Any]], Awaitable[Any]]


@frozen(kw_only=True)
class SqlitePart:
    """The part of a guest in this provider."""

    verbs: Mapping[str, Callable[..., Any]]
    """Made by the functions of `affinity.provider.sqlite.verbs`."""
    due: Seconds | None = None
    """Seconds until the guest's loop has something to do, for `Sweep.due`."""
    late: Seconds | None = None
    """Seconds for which the loop's work has been due, for `QueueStatistics.late`."""
    next_due: Seconds | None = None
    """Future time, in Unix seconds, at which the loop's work will be due next; for `affinity.testing.Env`."""
    is_endless: bool = False
    """Whether there may always be a next time, as ticks of schedules: `Env.run_until_idle` does not wait for it."""
    remove_old: Callable[[Tx, Retention], tuple[int, bool]] | None = None
    """Do a step of removing old data. Return the number of rows that it has removed, and whether there may be more."""
    rounds: Callable[[Access, Retention], Sequence[RoundKind]] | None = None
    """Rounds of removing old data that have to look at each row: see `affinity.provider.rounds`."""
    needs_record: LiteralString | None = None
    """A condition in the sweep's statement: the guest needs the record ``r``, a row of ``session_states``."""
    records_removed: Callable[[Tx, Sequence[str]], object] | None = None
    """Remove the guest's rows for these sessions, whose records are being removed."""
    awaits: LiteralString | None = None
    """A condition in the statement of `ProviderConnection.get_waits`: the wait ``w``, a row of ``activity_waits`` with
    a ``target_id``, belongs to this guest and is not over.
    """
    share_in_action: Callable[[Actors, ActionCall], ActionShare | None] | None = None
    """Return the share of the guest in a call of an action; None: the actors are not its own."""
    administered: Callable[[Tx, Administration], None] | None = None
    """Write the guest's rows in the transaction in which the owner administers the database."""
    commit: SqliteCommit | None = None
    gates: Callable[[Tx], GateKeeper] | None = None
    """Return the keeper of gates for a commit. For one guest."""


@cache
def parts() -> Mapping[str, SqlitePart]:
    """Return the parts, by guest."""
    return {guest: module.PART for guest, module in modules("store.sqlite").items()}


def ask(tx: Tx, field: str) -> dict[str, float | None]:
    """Return the seconds of each part that has this field, by guest."""
    found = {guest: getattr(part, field) for guest, part in parts().items()}
    return {guest: seconds(tx) for guest, seconds in found.items() if seconds is not None}


def tell_guests(tx: Tx, done: Administration) -> None:
    """Run the shares of guests in the open transaction."""
    for part in parts().values():
        if part.administered is not None:
            part.administered(tx, done)


@cache
def commits() -> Mapping[str, SqliteCommit]:
    """Return the functions that commit parts, by guest."""
    return {guest: part.commit for guest, part in parts().items() if part.commit is not None}


@cache
def gate_keeper() -> Callable[[Tx], GateKeeper] | None:
    """Return what makes a keeper of gates; None: limited work waits until it is admitted."""
    return next((part.gates for part in parts().values() if part.gates is not None), None)


class PartWriters:
    """The writers of one batch, of all guests that have parts in it.

    Raises:
        InvalidOptions: this provider does not know the guest of a part.
    """

    def __init__(self, tx: Tx, all_parts: Iterable[CommitPart]) -> None:
        self._writers = {guest: _writer(tx, guest, own) for guest, own in _by_guest(all_parts).items()}

    def find_conflicts(self, own: Sequence[CommitPart]) -> list[str]:
        """Return the sessions of the parts of one result that do not pass."""
        found = _by_guest(own).items()
        return [session_id for guest, parts in found for session_id in self._writers[guest].find_conflicts(parts)]

    def accept(self, own: Sequence[CommitPart]) -> None:
        """Note that the result with these parts passes."""
        for guest, parts in _by_guest(own).items():
            self._writers[guest].accept(parts)

    def write_accepted(self) -> None:
        """Write the accepted parts."""
        for writer in self._writers.values():
            writer.write_accepted()

    def write_to_others(self) -> None:
        """Write the effects of the parts on other sessions."""
        for writer in self._writers.values():
            writer.write_to_others()


def _by_guest(some: Iterable[CommitPart]) -> dict[str, list[CommitPart]]:
    found: dict[str, list[CommitPart]] = {}
    for part in some:
        found.setdefault(part.guest, []).append(part)
    return found


def _writer(tx: Tx, guest: str, own: Sequence[CommitPart]) -> PartWriter:
    if (commit := commits().get(guest)) is None:
        raise InvalidOptions(f"this provider cannot commit what {guest!r} adds to the result of an activity")
    return commit.writer(tx, own)
