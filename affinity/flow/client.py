"""Limits, as clients use them: `Client.limits`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal, TypeAlias, TypedDict, Unpack

import affinity.flow.reasons  # noqa: F401 -- adds them
from affinity.actions import action, actor_on
from affinity.client.calls import retry
from affinity.client.registered import RegisteredCalls
from affinity.errors import InvalidLimit, ProviderError, UnknownLimit
from affinity.flow.limit import Rate
from affinity.flow.store.contract import (
    UNCHANGED,
    LimitChange,
    LimitKeyRow,
    LimitProvider,
    LimitRow,
    RateBound,
    Unchanged,
    keeps_limits,
    limits_of,
)
from affinity.flow.words import NONE, rate_text
from affinity.limits import MAX_ADMISSIONS, check_condition, check_id, check_integer, is_number
from affinity.paging import Page, Pages

LimitStatus: TypeAlias = Literal["open", "paused", "closed", "undeclared"]
"""Whether a limit admits work as far as its bounds allow; "paused" by an operator; "closed" for some time, because the
service behind it takes nothing; or "undeclared": the newest code no longer declares it, so it holds nothing back.
"""

_SHOWN: Final = 10
"""Names of limits in an error."""

_MOST_RAMP: Final = 1e9


class LimitBounds(TypedDict, total=False):
    """The bounds that `Limits.set` changes. A bound that is left out stays as it is."""

    concurrency: int | None
    """Slots, of each key if the limit has keys. 0: nothing is admitted. None: no bound."""
    rate: Rate | None
    """Units in a time, of each key if the limit has keys. None: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """A limit, as it was read; its numbers are those of all its keys together."""

    name: str
    status: LimitStatus
    keyed: bool  # the bounds count for each key
    concurrency: int | None  # slots that count now; None: no bound
    rate: Rate | None  # that counts now; None: no bound
    declared_concurrency: int | None  # as code declares it
    declared_rate: Rate | None
    in_use: int  # slots
    waiting: int  # pieces of work that wait for one
    oldest: datetime | None  # since when the oldest of them waits
    admitted: int  # admissions since the limit exists
    waited: float  # seconds that these have waited, together
    keys: int  # that have slots in use, waiting work, a use of the rate, or a change
    ramp: float | None  # slots that each second adds since ``resumed_at``; None: all of the bound may be used
    resumed_at: datetime | None
    closed_until: datetime | None
    closed_for: str | None  # why, for people
    app: str  # whose code declares it
    code_version: str  # of that code
    changed_by: str | None  # who made the last change while all runs; None: unknown, or it has none
    changed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKeyState:
    """A key of a limit, as it was read."""

    limit: str
    key: str
    status: LimitStatus  # of the limit, if it is not open; else of the key
    paused: bool  # this key alone
    concurrency: int | None  # slots that count now; None: no bound
    rate: Rate | None  # that counts now; None: no bound
    is_changed: bool  # the key has bounds of its own
    in_use: int
    used: int  # units in the last window of the rate; 0 without a rate
    waiting: int
    oldest: datetime | None
    admitted: int
    closed_until: datetime | None


class Limits:
    """Shows and changes limits while all runs; `Client.limits`.

    ::

        await client.limits.set("model", concurrency=5)
        await client.limits.set("tenant", key="acme", concurrency=50)
        await client.limits.pause("model")
        await client.limits.resume("model", ramp=10)  # slots for each second

    Code declares limits, as `affinity.Limit`. Changes stay until `reset`, also when code declares other bounds. A lower
    bound cancels nothing: the excess runs out.
    """

    def __init__(self, client: RegisteredCalls) -> None:
        self._client = client

    @property
    def _store(self) -> LimitProvider:
        return limits_of(self._client._provider)

    @property
    def _database(self) -> str:
        return self._client._database

    async def list(self) -> Sequence[LimitState]:
        """Return all limits, by name."""
        return [_to_state(row) for row in await retry(self._store.list_limits)]

    async def get(self, name: str) -> LimitState:
        """Return one limit.

        Raises:
            UnknownLimit: no code has declared a limit of this name.
            InvalidId: the name is refused.
        """
        return _to_state(await self._read(name))

    def keys(self, name: str) -> Pages[LimitKeyState]:
        """List the keys of a limit, by key: those with slots in use, waiting work, a use of the rate, or a change.

        Raises:
            UnknownLimit: no code has declared a limit of this name.
            InvalidLimit: the limit has no keys.
            InvalidInput: the name or a cursor is refused.
        """
        found: list[LimitRow] = []  # read once for all pages: a read adds up all keys

        async def read(after: str | None, limit: int) -> Page[LimitKeyState]:
            check_condition(after, "after")
            if not found:
                found.append(_keyed(await self._read(name)))
            row = found[0]
            page = partial(self._store.list_limit_keys, name, after=after, most=limit)
            rows = await retry(page)
            items = [_to_key_state(row, key) for key in rows]
            return Page(items=items, next=rows[-1].key if len(rows) == limit else None)

        return Pages(read)

    async def get_key(self, name: str, key: str) -> LimitKeyState:
        """Return one key of a limit. A key that nobody has used yet has the bounds of the limit, and no use.

        Raises:
            UnknownLimit: no code has declared a limit of this name.
            InvalidLimit: the limit has no keys.
            InvalidId: the name or the key is refused.
        """
        row = _keyed(await self._read(name))
        found = await retry(partial(self._store.list_limit_keys, name, keys=[_check_key(key)]))
        return _to_key_state(row, next(iter(found), None) or _unused(name, key))

    async def set(self, name: str, *, key: str | None = None, **bounds: Unpack[LimitBounds]) -> LimitState:
        """Change bounds of a limit, or of one of its keys. Work that they now admit begins; what is above them runs
        out.

        Args:
            name: of the limit.
            key: change the bounds of this key alone; they come before those of the limit.
            bounds: see `affinity.flow.client.LimitBounds`.

        Raises:
            UnknownLimit: no code has declared a limit of this name.
            InvalidLimit: a bound is refused, none is given, or the limit has no keys. Nothing was changed.
            InvalidId: the name or the key is refused.
        """
        texts = {bound: _bound_text(value) for bound, value in bounds.items()}
        return await self._set(name, key, bounds, texts.get("concurrency"), texts.get("rate"))

    @action("set", "limit", "name", "key", "concurrency", "rate")
    async def _set(
        self, name: str, key: str | None, bounds: LimitBounds, concurrency: str | None, rate: str | None
    ) -> LimitState:
        """Change the bounds; the texts are for the audit log."""
        if unknown := bounds.keys() - LimitBounds.__annotations__.keys():
            raise InvalidLimit(f"a limit has no bound {min(unknown)!r}: give concurrency= or rate=")
        if not bounds:
            raise InvalidLimit("give a bound to change: concurrency= or rate=")
        change = LimitChange(
            limit=name,
            key=key,
            concurrency=_check_concurrency(bounds["concurrency"]) if "concurrency" in bounds else UNCHANGED,
            rate=_check_rate(bounds["rate"]) if "rate" in bounds else UNCHANGED,
            by=self._user,
        )
        return await self._change(change)

    @action("reset", "limit", "name", "key")
    async def reset(self, name: str, *, key: str | None = None) -> LimitState:
        """Take back all changes of a limit, or of one of its keys, its pause too: the declared bounds count. Keys keep
        their own changes if the limit is reset.

        Raises:
            UnknownLimit, InvalidLimit, InvalidId: see `set`.
        """
        return await self._change(LimitChange(limit=name, key=key, reset=True, by=self._user))

    @action("pause", "limit", "name", "key")
    async def pause(self, name: str, *, key: str | None = None) -> LimitState:
        """Admit nothing more at a limit, or at one of its keys, until `resume`. What has been admitted goes on, and is
        repeated only after `resume` if it is given back.

        Raises:
            UnknownLimit, InvalidLimit, InvalidId: see `set`.
        """
        return await self._change(LimitChange(limit=name, key=key, paused=True, by=self._user))

    @action("resume", "limit", "name", "key", "ramp")
    async def resume(self, name: str, *, key: str | None = None, ramp: float | None = None) -> LimitState:
        """End a pause, or a closing by `affinity.RetryAfter`. A key that was paused alone stays paused until it is
        resumed alone.

        Args:
            name: of the limit.
            key: resume this key alone.
            ramp: slots that each second adds from now on, so that a service that was down is not met by all that
                waits; None: all at once. It begins anew if the limit is not paused.

        Raises:
            UnknownLimit, InvalidLimit, InvalidId: see `set`.
        """
        if ramp is not None and not (is_number(ramp) and 0 < ramp <= _MOST_RAMP):
            raise InvalidLimit(f"ramp = {ramp!r:.80}: must be a number of slots for each second, above 0")
        return await self._change(LimitChange(limit=name, key=key, paused=False, ramp=ramp, by=self._user))

    # -- how

    @property
    def _user(self) -> str | None:
        actor = actor_on(self._database)
        return None if actor is None else actor.user or None

    async def _read(self, name: str) -> LimitRow:
        rows = await retry(partial(self._store.list_limits, [check_id(name, "name of the limit")]))
        if not rows:
            raise await self._unknown(name)
        return rows[0]

    async def _unknown(self, name: str) -> UnknownLimit:
        names = [row.spec.name for row in await retry(self._store.list_limits)]
        more = ", …" if len(names) > _SHOWN else ""
        known = f"there are {', '.join(map(repr, names[:_SHOWN]))}{more}" if names else "there are none"
        return UnknownLimit(f"no code has declared a limit {name!r}: {known}; workers declare the limits of their apps")

    async def _change(self, change: LimitChange) -> LimitState:
        """Make a change; begin the work that it admits."""
        row = await self._read(change.limit)
        if change.key is not None:
            _check_key(change.key)
            _keyed(row)
        (changed,) = await retry(partial(self._store.change_limits, [change]))
        if not changed:
            raise await self._unknown(change.limit)
        await self._admit()
        return await self.get(change.limit)

    async def _admit(self) -> None:
        """Admit work, and notify the workers that may take it; workers admit what one call leaves."""
        admitted = await retry(partial(self._store.admit, most=MAX_ADMISSIONS))
        for route in admitted.routes:
            if route.startswith("w:"):
                self._client._hints.notify_holder(route.removeprefix("w:"))
            else:
                self._client._hints.notify_all()


class LimitCalls(RegisteredCalls):
    """The part of `affinity.Client` for limits."""

    @property
    def limits(self) -> Limits:
        """Shows and changes limits."""
        return Limits(self)

    async def _open_gates(self) -> None:
        if keeps_limits(self._provider):
            with suppress(ProviderError):  # the next sweep of a worker admits them
                await limits_of(self._provider).admit(most=MAX_ADMISSIONS)


def _keyed(row: LimitRow) -> LimitRow:
    if not row.spec.keyed:
        raise InvalidLimit(f"limit {row.spec.name!r} has no keys: leave out the key, or declare it with keyed=True")
    return row


def _check_key(key: object) -> str:
    return check_id(key, "key of the limit")


def _check_concurrency(value: object) -> int | None:
    return None if value is None else check_integer(value, "concurrency")


def _check_rate(rate: object) -> RateBound | None:
    if rate is not None and not isinstance(rate, Rate):
        raise InvalidLimit(f"rate = {rate!r:.80}: must be an affinity.Rate, as Rate(600, per=60), or None")
    return None if rate is None else rate._bound


def _bound_text(value: object) -> str:
    if value is None:
        return NONE
    return rate_text(value) if isinstance(value, Rate) else f"{value!r:.80}"


def _effective(row: LimitRow, key: LimitKeyRow | None = None) -> tuple[int | None, RateBound | None]:
    """Return the bounds that count: those of the key, else those of the limit, else the declared ones."""
    concurrency, rate = row.spec.concurrency, row.spec.rate
    for changed in (row, key):
        if changed is not None and not isinstance(changed.concurrency, Unchanged):
            concurrency = changed.concurrency
        if changed is not None and not isinstance(changed.rate, Unchanged):
            rate = changed.rate
    return concurrency, rate


def _to_rate(bound: RateBound | None) -> Rate | None:
    return None if bound is None else Rate(bound.count, per=bound.per, burst=bound.burst)


def _to_state(row: LimitRow) -> LimitState:
    concurrency, rate = _effective(row)
    return LimitState(
        name=row.spec.name,
        status=_status(row),
        keyed=row.spec.keyed,
        concurrency=concurrency,
        rate=_to_rate(rate),
        declared_concurrency=row.spec.concurrency,
        declared_rate=_to_rate(row.spec.rate),
        in_use=row.in_use,
        waiting=row.waiting,
        oldest=row.oldest,
        admitted=row.admitted,
        waited=row.waited,
        keys=row.keys,
        ramp=_ramp(row, concurrency),
        resumed_at=row.resumed_at,
        closed_until=row.closed_until,
        closed_for=row.closed_for,
        app=row.app,
        code_version=row.code,
        changed_by=row.changed_by,
        changed_at=row.changed_at,
    )


def _ramp(row: LimitRow, concurrency: int | None) -> float | None:
    """Return the ramp while it is below the bound; by this machine's clock, since it is for people only."""
    if row.ramp is None or row.resumed_at is None or concurrency is None:
        return row.ramp
    return row.ramp if (datetime.now(UTC) - row.resumed_at).total_seconds() * row.ramp < concurrency else None


def _to_key_state(row: LimitRow, key: LimitKeyRow) -> LimitKeyState:
    concurrency, rate = _effective(row, key)
    own: LimitStatus = "paused" if key.paused else "open" if key.closed_until is None else "closed"
    status = _status(row)
    return LimitKeyState(
        limit=key.limit,
        key=key.key,
        status=own if status == "open" else status,
        paused=key.paused,
        concurrency=concurrency,
        rate=_to_rate(rate),
        is_changed=not (isinstance(key.concurrency, Unchanged) and isinstance(key.rate, Unchanged)),
        in_use=key.in_use,
        used=key.used,
        waiting=key.waiting,
        oldest=key.oldest,
        admitted=key.admitted,
        closed_until=key.closed_until,
    )


def _status(row: LimitRow) -> LimitStatus:
    if not row.declared:
        return "undeclared"
    return "paused" if row.paused else "open" if row.closed_until is None else "closed"


def _unused(limit: str, key: str) -> LimitKeyRow:
    return LimitKeyRow(
        limit=limit,
        key=key,
        concurrency=UNCHANGED,
        rate=UNCHANGED,
        paused=False,
        closed_until=None,
        in_use=0,
        used=0,
        waiting=0,
        oldest=None,
        admitted=0,
    )
