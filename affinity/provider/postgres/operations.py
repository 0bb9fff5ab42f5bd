"""What the operations of the provider share: the database, parameters and rows."""

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
    """What a guest adds to one call of an action; see `affinity.provider.postgres.actions`."""

    query: LiteralString  # of ``action_effects (place, outcome)``, the effects of the action; has one row
    params: Params
    note: Callable[[object], Awaitable[None]]  # receives the result, when the statement has ended


class Database:
    """Connections, and tokens for locks. Every operation of the provider is a function of it and of its arguments."""

    def __init__(self, connections: Connections, *, as_client: bool = False) -> None:
        self.connections: Connections = connections
        self.as_client = as_client  # writes go through the functions for clients, which check what they are given
        self.shares: Sequence[ActionShare] = ()  # of guests in the action that is called, for `with_shares`
        self._nonce = secrets.token_hex(6)
        self._tokens = count(1)

    def token(self, identity: WorkerIdentity) -> str:
        """A new token; the statement that uses it appends a number for each item that it locks."""
        return f"{identity.incarnation}:{self._nonce}:{next(self._tokens)}"


def caller_params(identity: WorkerIdentity) -> Params:
    """The caller as parameters."""
    return {
        "worker": identity.worker_id,
        "incarnation": identity.incarnation,
        "route": f"w:{identity.worker_id}",
        "offer": f"new:{identity.worker_id}",
    }


def key_columns(keys: Sequence[WorkKey], prefix: LiteralString = "") -> dict[LiteralString, Packed]:
    """Names of work items as columns."""
    return {
        prefix + "instance": Texts([key.instance_id for key in keys]),
        prefix + "execution": Ints([key.execution_id for key in keys]),
        prefix + "activity": Ints([key.activity_id for key in keys]),
    }


def lock_columns(locks: Sequence[WorkLock], prefix: LiteralString = "") -> dict[LiteralString, Packed]:
    """Locks on work items as columns."""
    tokens = Texts([lock.token for lock in locks])
    return {**key_columns([lock.key for lock in locks], prefix), prefix + "token": tokens}


def same_time(value: datetime) -> datetime:
    """A time as psycopg returns it."""
    return value


def columns(*records: type[NamedTuple]) -> list[slice]:
    """Where a row has the columns of each of these records, which are side by side."""
    ends = accumulate((len(record._fields) for record in records), initial=0)
    return [slice(start, end) for start, end in pairwise(ends)]


def present(rows: Sequence[Row], joined: slice) -> list[Row]:
    """The columns of a left join, from the rows that have them: the first of them is not NULL."""
    first = joined.start
    return [row[joined] for row in rows if row[first] is not None]


def flags(total: int, positions: Iterable[int]) -> list[bool]:
    """Positions, counted from 1 as PostgreSQL does, as one answer for each element."""
    found = [False] * total
    for position in positions:
        found[position - 1] = True
    return found


@cache
def call_of(
    function: LiteralString, names: tuple[LiteralString, ...], prefix: LiteralString = "", also: LiteralString = ""
) -> LiteralString:
    """A call with named arguments, whose parameters have the same names behind the prefix, and other arguments."""
    arguments: LiteralString = ", ".join([f"_{name} => %({prefix}{name})s" for name in names])
    return f"{function}({arguments}{also})"
