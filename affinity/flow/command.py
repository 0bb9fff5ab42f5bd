"""The group ``affinity limits``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, Final

import click

from affinity.cli.arguments import Parsed
from affinity.cli.output import clock, pairs, relative, seconds, table
from affinity.cli.shell import PageOptions, Shell, ShellGroup, command, paged, with_client
from affinity.flow.client import LimitCalls, LimitKeyState, Limits, LimitState
from affinity.flow.limit import Rate
from affinity.flow.store.contract import UNCHANGED
from affinity.flow.words import parse_ramp, parse_rate, parse_slots, rate_text

_COLUMNS: Final = ("LIMIT", "STATUS", "IN USE", "SLOTS", "RATE", "WAITING", "OLDEST", "KEYS", "CHANGED", "NOTE")
_KEY_COLUMNS: Final = ("KEY", "STATUS", "IN USE", "SLOTS", "USED", "RATE", "WAITING", "OLDEST")

SLOTS: Final = Parsed("number|none", parse_slots)
"""A number of slots from 0, or ``none``, which is None."""

RATE: Final = Parsed("number/time|none", parse_rate)
"""Units in a time, as ``600/60s``, or ``none``, which is None."""

RAMP: Final = Parsed("number/time", parse_ramp)
"""Slots in a time, as ``10/s``; as slots of one second."""

_KEY: Final = click.option("--key", help="Only this key of the limit, such as one tenant.")


@click.group(cls=ShellGroup, invoke_without_command=True)
def limits(shell: Shell) -> None:
    """Show, change and pause limits, at which work waits before a worker may take it. Without a subcommand, list them.

    Code declares limits (`affinity.Limit`). What is changed here counts for the whole fleet at once, and stays until
    `reset`. Nothing that runs is cancelled: what is above a lower bound runs out.

    Examples:
      affinity limits                                   # how full each is, how much waits, who changed it
      affinity limits keys tenant                       # the same for each key
      affinity limits set model --concurrency 5         # at most 5 at the same time
      affinity limits set tenant --key acme --concurrency 50
      affinity limits set model --rate 600/60s          # at most 600 in any minute
      affinity limits pause model                       # nothing more begins; what runs goes on
      affinity limits resume model --ramp 10/s          # and then 10 more slots each second
      affinity limits reset model                       # as code declares it
      affinity why order-17                             # does it wait at a limit, and for how long?
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        _list(shell)
    else:
        ctx.obj = shell.url


@command("list", short_help="List limits by name.")
def list_limits(shell: Shell) -> None:
    """List limits by name: slots in use, bounds, how much work waits and since when, and who changed the limit last.

    SLOTS and RATE count for each key of a limit with keys. STATUS: open; paused by an operator; closed for some time,
    since the service behind it takes nothing; or undeclared: the newest code no longer declares it, so it holds
    nothing back.

    Examples:
      affinity limits list
      affinity limits list --json | jq -r '.limits[] | select(.waiting > 1000) | .name'
    """
    _list(shell)


def _list(shell: Shell) -> None:
    found = with_client(shell, lambda client: client.limits.list())
    shell.show(
        {"limits": [asdict(limit) for limit in found]},
        lambda: table(_COLUMNS, map(_row, found), empty="no limits: code declares them, as affinity.Limit"),
    )


def _row(limit: LimitState) -> tuple[object, ...]:
    changed = None if limit.changed_at is None else f"{relative(limit.changed_at)} by {limit.changed_by or 'unknown'}"
    return (
        limit.name,
        limit.status,
        limit.in_use,
        limit.concurrency,
        _rate_cell(limit.rate),
        limit.waiting or None,
        limit.oldest,
        limit.keys if limit.keyed else None,
        changed,
        _note(limit),
    )


def _rate_cell(rate: Rate | None) -> str | None:
    return None if rate is None else rate_text(rate)


def _note(limit: LimitState) -> str | None:
    """Return why it is closed, or how it is resumed."""
    if limit.closed_until is not None:
        why = f": {limit.closed_for}" if limit.closed_for else ""
        return f"opens {relative(limit.closed_until)}{why}"
    if limit.ramp is not None and limit.resumed_at is not None and limit.status == "open":
        return f"resumed {relative(limit.resumed_at)}, {limit.ramp:g} slots more each second"
    return None


@command(short_help="Show a limit, or a key of it.")
@click.argument("name", metavar="LIMIT")
@_KEY
def show(shell: Shell, name: str, *, key: str | None) -> None:
    """Show LIMIT, or one of its keys: its bounds, which of them code declares, its use, what waits, who changed it.

    Examples:
      affinity limits show model
      affinity limits show tenant --key acme --json | jq .waiting
    """
    _show(shell, with_client(shell, _reader(name, key)))


def _reader(name: str, key: str | None) -> Callable[[LimitCalls], Awaitable[LimitState | LimitKeyState]]:
    async def read(client: LimitCalls) -> LimitState | LimitKeyState:
        return await (client.limits.get(name) if key is None else client.limits.get_key(name, key))

    return read


def _show(shell: Shell, found: LimitState | LimitKeyState) -> None:
    details = _details(found) if isinstance(found, LimitState) else _key_details(found)
    shell.show(asdict(found), lambda: pairs(details))


def _details(limit: LimitState) -> list[tuple[str, object]]:
    each = " for each key" if limit.keyed else ""
    waited = None if not limit.admitted else f"{seconds(limit.waited / limit.admitted)} on average"
    changed = limit.changed_at and f"{clock(limit.changed_at)} by {limit.changed_by or 'unknown'}"
    return [
        ("limit", limit.name),
        ("status", limit.status),
        ("note", _note(limit)),
        ("in use", limit.in_use),
        ("slots", _bound(limit.concurrency, limit.declared_concurrency, each)),
        ("rate", _bound(_rate_cell(limit.rate), _rate_cell(limit.declared_rate), each)),
        ("waiting", limit.waiting),
        ("oldest", limit.oldest),
        ("admitted", limit.admitted),
        ("waited", waited),
        ("keys", limit.keys if limit.keyed else None),
        ("declared by", f"app {limit.app}, code {limit.code_version}"),
        ("changed", changed),
    ]


def _bound(value: object, declared: object, each: str) -> str:
    """Return a bound; if it was changed, with the one that code declares."""
    text = "no bound" if value is None else f"{value}{each}"
    return text if value == declared else f"{text} (code: {'no bound' if declared is None else declared})"


def _key_details(key: LimitKeyState) -> list[tuple[str, object]]:
    own = " (of this key alone)" if key.is_changed else ""
    return [
        ("limit", key.limit),
        ("key", key.key),
        ("status", key.status),
        ("paused", "this key alone" if key.paused else None),
        ("in use", key.in_use),
        ("slots", f"{'no bound' if key.concurrency is None else key.concurrency}{own}"),
        ("rate", f"{_rate_cell(key.rate) or 'no bound'}{own}"),
        ("used", key.used if key.rate is not None else None),
        ("waiting", key.waiting),
        ("oldest", key.oldest),
        ("admitted", key.admitted),
        ("closed until", key.closed_until),
    ]


@command(short_help="List the keys of a limit.")
@click.argument("name", metavar="LIMIT")
@paged("Keys")
def keys(shell: Shell, name: str, *, page: PageOptions) -> None:
    """List the keys of LIMIT that have slots in use, waiting work, a use of the rate, or a change.

    Examples:
      affinity limits keys tenant
      affinity limits keys tenant --all --json | jq -r '.keys | max_by(.waiting).key'
    """
    found = with_client(shell, lambda client: page.read(client.limits.keys(name)))
    document = {"limit": name, "keys": [asdict(key) for key in found.items], "next": found.next}
    shell.show(document, lambda: table(_KEY_COLUMNS, map(_key_row, found.items), empty="no keys in use"))
    shell.show_cursor(found.next)


def _key_row(key: LimitKeyState) -> tuple[object, ...]:
    return (
        key.key,
        f"{key.status}{' (key)' if key.paused else ''}",
        key.in_use,
        key.concurrency,
        key.used if key.rate is not None else None,
        _rate_cell(key.rate),
        key.waiting or None,
        key.oldest,
    )


@command("set", short_help="Change the bounds of a limit, or of a key.")
@click.argument("name", metavar="LIMIT")
@_KEY
@click.option("--concurrency", type=SLOTS, default=UNCHANGED, help="Slots; of each key, if the limit has keys.")
@click.option("--rate", type=RATE, default=UNCHANGED, help="Units in a time, as 600/60s, in any window of that time.")
@click.option(
    "--burst", type=click.IntRange(1), help="With --rate: of these at most so many at once; 1: evenly spaced."
)
def set_bounds(shell: Shell, *, name: str, key: str | None, burst: int | None, **given: Any) -> None:
    """Change the given bounds of LIMIT, or of one of its keys, until `affinity limits reset`.

    What is above a lower bound runs out; nothing is cancelled. 0 slots are a pause.

    Examples:
      affinity limits set model --concurrency 5
      affinity limits set model --rate 600/60s --burst 50
      affinity limits set model --rate none
      affinity limits set tenant --key acme --concurrency 50
    """
    bounds = {bound: value for bound, value in given.items() if value is not UNCHANGED}
    if not bounds:
        raise click.UsageError("give a bound to change: --concurrency, --rate")
    if burst is not None:
        if not isinstance(rate := bounds.get("rate"), Rate):
            raise click.UsageError("--burst goes with --rate")
        bounds["rate"] = replace(rate, burst=burst)
    _change(shell, name, key, lambda of: of.set(name, key=key, **bounds))


def _change(shell: Shell, name: str, key: str | None, change: Callable[[Limits], Awaitable[LimitState]]) -> None:
    """Make a change, and show what was changed."""

    async def run(client: LimitCalls) -> LimitState | LimitKeyState:
        changed = await change(client.limits)
        return changed if key is None else await client.limits.get_key(name, key)

    _show(shell, with_client(shell, run))


@command(short_help="Admit nothing more.")
@click.argument("name", metavar="LIMIT")
@_KEY
def pause(shell: Shell, *, name: str, key: str | None) -> None:
    """Admit nothing more at LIMIT, or at one of its keys, until `affinity limits resume`. What runs goes on.

    Examples:
      affinity limits pause model
      affinity limits pause tenant --key acme
    """
    _change(shell, name, key, lambda of: of.pause(name, key=key))


@command(short_help="Admit work again.")
@click.argument("name", metavar="LIMIT")
@_KEY
@click.option("--ramp", type=RAMP, help="Slots that are added in a time, as 10/s, from 0 up to the bound.")
def resume(shell: Shell, *, name: str, key: str | None, ramp: float | None) -> None:
    """Admit work at LIMIT again, all at once or, with --ramp, more and more.

    A key that was paused alone stays paused until it is resumed alone.

    Examples:
      affinity limits resume model
      affinity limits resume model --ramp 10/s          # 10 at once after a second, 100 after ten
      affinity limits resume tenant --key acme
    """
    _change(shell, name, key, lambda of: of.resume(name, key=key, ramp=ramp))


@command(short_help="Take back all changes of a limit.")
@click.argument("name", metavar="LIMIT")
@_KEY
def reset(shell: Shell, *, name: str, key: str | None) -> None:
    """Take back what was changed of LIMIT, or of one of its keys, a pause too: the bounds that code declares count.

    Examples:
      affinity limits reset model
      affinity limits reset tenant --key acme
    """
    _change(shell, name, key, lambda of: of.reset(name, key=key))


for _command in (list_limits, keys, show, set_bounds, pause, resume, reset):
    limits.add_command(_command)
