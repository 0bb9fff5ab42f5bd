"""The helpers that the operations of the provider share: the database, parameters and rows."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import accumulate, count, pairwise
from typing import LiteralString, NamedTuple

from affinity.provider.contract import WorkerIdentity, WorkKey, WorkLock
from affinity.provider.postgres.driver.arrays import Ints, Packed, Texts
from affinity.provider.postgres.driver.connections import Connections
from affinity.provider.postgres.driver.wire import Params, Row


class ActionShare(NamedTuple):
    """The share of a guest in one call of an action; see `affinity.provider.postgres.actions`."""

    query: LiteralString  # of ``action_effects (place, outcome)``, the effects of the action; has one row
    params: Params
    note: Callable[[object], Awaitable[None]]  # receives the result, when the statement has ended


class Database:
    """Connections, and tokens for locks. Every operation of the provider is a function of it and of its arguments."""

    def __init__(self, connections: Connections, *, as_client: bool = False) -> None:
        self.connections: Connections = connections
        self.as_client = as_client  # writes go through the functions for clients, which check their arguments
        self.shares: Sequence[ActionShare] = ()  # of guests in the action that is called, for `with_shares`
        self._nonce = secrets.token_hex(6)
        self._tokens = count(1)

    def token(self, identity: WorkerIdentity) -> str:
        """Return a new token; the statement that uses it appends a number for each item that it locks."""
        return f"{identity.incarnation}:{self._nonce}:{next(self._tokens)}"


def caller_params(identity: WorkerIdentity) -> Params:
    """Return the caller as parameters."""
    return {
        "worker": identity.worker_id,
        "incarnation": identity.incarnation,
        "route": f"w:{identity.worker_id}",
        "offer": f"new:{identity.worker_id}",
    }


def key_columns(keys: Sequence[WorkKey], prefix: LiteralString = "") -> dict[LiteralString, Packed]:
    """Return the keys of work items as columns."""
    return {
        prefix + "instance": Texts([key.instance_id for key in keys]),
        prefix + "execution": Ints([key.execution_id for key in keys]),
        prefix + "activity": Ints([key.activity_id for key in keys]),
    }


def lock_columns(locks: Sequence[WorkLock], prefix: LiteralString = "") -> dict[LiteralString, Packed]:
    """Return locks on work items as columns."""
    tokens = Texts([lock.token for lock in locks])
    return {**key_columns([lock.key for lock in locks], prefix), prefix + "token": tokens}


def same_time(value: datetime) -> datetime:
    """Return a time as psycopg returned it."""
    return value


def columns(*records: type[NamedTuple]) -> list[slice]:
    """Return the slice of a row for the columns of each of these records, which are side by side."""
    ends = accumulate((len(record._fields) for record in records), initial=0)
    return [slice(start, end) for start, end in pairwise(ends)]


def present(rows: Sequence[Row], joined: slice) -> list[Row]:
    """Return the columns of a left join, from the rows in which the first of the columns is not NULL."""
    first = joined.start
    return [row[joined] for row in rows if row[first] is not None]


def flags(total: int, positions: Iterable[int]) -> list[bool]:
    """Return one answer for each element: True at these positions, counted from 1 as PostgreSQL does."""
    found = [False] * total
    for position in positions:
        found[position - 1] = True
    return found


@cache
def call_of(
    function: LiteralString, names: tuple[LiteralString, ...], prefix: LiteralString = "", also: LiteralString = ""
) -> LiteralString:
    """Return a call with named arguments and ``also``. The parameters have the arguments' names, with a prefix."""
    arguments: LiteralString = ", ".join([f"_{name} => %({prefix}{name})s" for name in names])
    return f"{function}({arguments}{also})"
