"""``affinity trends``: what went on over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, cast, get_args

import click

from affinity.cli.output import relative, seconds, table
from affinity.cli.shell import Shell, command, with_client
from affinity.limits import MAX_TREND_NAMES
from affinity.trends.client import TrendCalls, TrendPoint, Trends, TrendTotal
from affinity.trends.store.contract import TrendKind

_FIGURES: Final = ("STARTED", "COMPLETED", "FAILED", "CANCELLED", "RETRIES", "OLDEST WAITED", "P50", "P95")
_DAY: Final = 86_400.0


@command()
@click.argument("name", required=False)
@click.option(
    "--kind",
    type=click.Choice(get_args(TrendKind)),
    default="orchestration",
    show_default=True,
    help="What NAME belongs to.",
)
@click.option("--day", is_flag=True, help="The last day, a point for each half hour; by default the last hour.")
@click.option("--by-name", is_flag=True, help="One line for each orchestration and activity of that time.")
def trends(shell: Shell, *, name: str | None, kind: str, day: bool, by_name: bool) -> None:
    """Show how many instances started and ended, retries of activities, how long the oldest work waited, and how long
    instances took: of an orchestration, an activity, or all, over the last hour or day.

    P50 and P95: seconds from start to end that half, and 95 of 100, of the instances that ended did not exceed; within
    a fifth. Workers count every ten seconds, so the last seconds are missing.

    Examples:
      affinity trends
      affinity trends conversation --day
      affinity trends charge --kind activity
      affinity trends --by-name --json | jq '.names[] | select(.failed > 0)'
    """
    if by_name and name is not None:
        raise click.UsageError("--by-name shows all names: leave out NAME")
    span = _DAY if day else 3600.0
    if by_name:
        _by_name(shell, span)
        return
    of = cast(TrendKind, kind)
    points = 48 if day else 12

    async def read(client: TrendCalls) -> Trends:
        return await client.trends(name, kind=of, seconds=span, points=points)

    found = with_client(shell, read)
    rows = [(_begin(point.at), *_figures(point)) for point in found.points]
    shell.show(
        asdict(found), lambda: table(("FROM", *_FIGURES), [*rows, ("all", *_figures(found.total))], empty="no counts")
    )
    counted = "no worker has counted yet" if found.counted_to is None else f"counted up to {relative(found.counted_to)}"
    click.echo(counted, err=True)


def _by_name(shell: Shell, span: float) -> None:
    async def read(client: TrendCalls) -> Sequence[TrendTotal]:
        return await client.trends_by_name(seconds=span, limit=MAX_TREND_NAMES)

    found = with_client(shell, read)
    shell.show(
        {"names": [asdict(total) for total in found]},
        lambda: table(
            ("KIND", "NAME", *_FIGURES),
            [(total.kind, total.name, *_figures(total)) for total in found],
            empty="nothing was counted in this time",
        ),
    )


def _begin(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M")


def _figures(figures: TrendPoint | TrendTotal) -> tuple[Any, ...]:
    of = figures
    times = [None if value is None else seconds(value) for value in (of.queue_age, of.p50, of.p95)]
    return (of.started, of.completed, of.failed, of.cancelled, of.retries, *times)
