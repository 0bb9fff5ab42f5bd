"""The group ``affinity schedules``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, TypeVar, get_args

import click

from affinity.cli.arguments import DURATION, FORCE, INSTANT, JSON, LABEL, Parsed, labels_of
from affinity.cli.help import HelpGroup
from affinity.cli.output import clock, counted, pairs, relative, table
from affinity.cli.shell import PageOptions, Shell, command, confirm, paged, with_client
from affinity.limits import MAX_PAGE
from affinity.orchestration import ExternalEvent
from affinity.orchestration.overlap import Overlap
from affinity.schedules.client import Schedule, ScheduleCalls
from affinity.schedules.reasons import TickReason

R = TypeVar("R")

_COLUMNS: Final = ("SCHEDULE", "STATE", "NEXT", "LAST", "TARGET", "WHEN", "SKIPPED", "NOTE")

_PERIOD: Final = Parsed("duration", lambda text: float(text) if text.replace(".", "", 1).isdecimal() else _long(text))
"""Seconds, or a duration with its unit."""


def _long(text: str) -> Any:
    return DURATION.convert(text, None, None)


@click.group(cls=HelpGroup)
def schedules() -> None:
    """Show, create, pause and trigger schedules, which start orchestrations at their times.

    Code declares schedules too: `app.schedule(…)`. These are changed in the code; here they are paused and triggered.

    Examples:
      affinity schedules list
      affinity schedules create nightly summary --cron '0 3 * * *' --zone Europe/Berlin
      affinity schedules show nightly                   # its next ticks, and its last one
      affinity schedules pause nightly --reason migration
      affinity schedules trigger nightly                # once, now
      affinity schedules backfill nightly --from 2026-03-01 --to 2026-03-08
    """


@command("list", short_help="List schedules by name.")
@click.option("--app", help="Only schedules that this app declares.")
@paged("Schedules")
def list_schedules(shell: Shell, *, app: str | None, page: PageOptions) -> None:
    """List schedules by name: state, next and last tick, what they start, when, and ticks that started nothing.

    Examples:
      affinity schedules list
      affinity schedules list --all --json | jq -r '.schedules[] | select(.state != "active") | .name'
    """

    async def read(client: ScheduleCalls) -> list[Schedule]:
        found = list(await client.schedules.list(app=app, limit=limit, after=page.after))
        while page.everything and len(found) % limit == 0 and found:
            more = await client.schedules.list(app=app, limit=limit, after=found[-1].name)
            if not more:
                break
            found += more
        return found

    limit = MAX_PAGE if page.everything else page.limit
    found = with_client(shell, read)
    cursor = found[-1].name if len(found) == limit and not page.everything else None
    shell.show(
        {"schedules": [asdict(schedule) for schedule in found], "next": cursor},
        lambda: table(_COLUMNS, map(_row, found), empty="no schedules"),
    )
    shell.show_cursor(cursor)


def _row(schedule: Schedule) -> tuple[object, ...]:
    return (
        schedule.name,
        schedule.state,
        schedule.next_ticks[0] if schedule.next_ticks else None,
        schedule.last_tick,
        schedule.target,
        schedule.timing,
        schedule.skipped or None,
        schedule.note,
    )


@command(short_help="Show a schedule.")
@click.argument("name")
def show(shell: Shell, name: str) -> None:
    """Show the schedule NAME: its next ticks, what its last one has started, who declares it; in one sentence, when it
    ticks next, or why it does not.

    Example:
      affinity schedules show nightly --json | jq -r '.next_ticks[0]'
    """

    async def read(client: ScheduleCalls) -> tuple[Schedule, TickReason | None]:
        return await client.schedules.show(name), (await client.schedules.explain([name])).get(name)

    _show(shell, *with_client(shell, read))


def _show(shell: Shell, schedule: Schedule, reason: TickReason | None = None) -> None:
    waits_for = {} if reason is None else {"waits_for": reason.sentence, "late_seconds": reason.late_seconds}
    shell.show(
        asdict(schedule) | waits_for, lambda: pairs([*_details(schedule), ("waits for", waits_for.get("waits_for"))])
    )


def _details(schedule: Schedule) -> list[tuple[str, object]]:
    declared = f"app {schedule.app}, code {schedule.code_version}" if schedule.app else None
    return [
        ("schedule", schedule.name),
        ("state", schedule.state),
        ("note", schedule.note),
        ("starts", schedule.target),
        ("when", schedule.timing),
        ("end", schedule.end),
        ("overlap", schedule.overlap),
        ("next", ", ".join(f"{clock(tick)} ({relative(tick)})" for tick in schedule.next_ticks) or None),
        ("last", schedule.last_tick),
        (
            "last instance",
            schedule.last_instance and f"{schedule.last_instance}{', runs' if schedule.is_running else ''}",
        ),
        ("queued", schedule.queued),
        ("queued_until", schedule.queued_until),
        ("skipped", schedule.skipped or None),
        ("declared by", declared),
        ("created", schedule.created_at),
        ("updated", schedule.updated_at),
    ]


def _timing(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options of a schedule; its function gets the given ones as ``options``."""

    @click.option("--cron", help="Cron line: 'minute hour day month weekday', or 6 fields with seconds first.")
    @click.option("--every", type=_PERIOD, help="Period: seconds, or 90s, 15m, 12h, 1d; aligned to the clock in UTC.")
    @click.option("--at", type=INSTANT, multiple=True, help="A time; may be repeated.")
    @click.option("--zone", help="Time zone of the cron line, such as Europe/Berlin  [default: UTC]")
    @click.option("--end", type=INSTANT, help="No tick after this time.")
    @click.option(
        "--overlap",
        type=click.Choice(get_args(Overlap)),
        help="When the instance of the tick before still runs: do nothing; wait, one tick; start beside it; cancel it"
        "  [default: skip]",
    )
    @click.option(
        "--catch-up", type=_PERIOD, help="Fire missed ticks of so long  [default: the latest, within a minute]"
    )
    @click.option("--jitter", type=_PERIOD, help="Delay each start by a part of this.")
    @functools.wraps(function)
    def called(*args: Any, at: tuple[datetime, ...], **arguments: Any) -> R:
        names = ("cron", "every", "zone", "end", "overlap", "catch_up", "jitter")
        options = {name: value for name in names if (value := arguments.pop(name)) is not None}
        return function(*args, options=options | ({"at": at} if at else {}), **arguments)

    return called


@command(short_help="Create a schedule.")
@click.argument("name")
@click.argument("orchestration")
@click.option(
    "--input", "value", type=JSON, default=None, help="Its input: JSON text, @FILE, or -  [default: the due time]"
)
@click.option("--due-as", help="Key of the input, an object, that gets the due time.")
@click.option("--event", metavar="EVENT", help="Send this event to an instance, whose id is in place of ORCHESTRATION.")
@click.option("--version", help="Version of the orchestration  [default: the latest]")
@click.option("--for-session", help="Session that the instances work for, as logs and lists show it.")
@click.option("--label", "labels", multiple=True, type=LABEL, help="Label of the instances; may be repeated.")
@FORCE
@_timing
def create(
    shell: Shell,
    *,
    name: str,
    orchestration: str,
    value: Any,
    due_as: str | None,
    event: str | None,
    labels: tuple[tuple[str, str], ...],
    force: bool,
    options: dict[str, Any],
    **given: str | None,
) -> None:
    """Create the schedule NAME, which starts ORCHESTRATION at each of its ticks, with one of --cron, --every and --at.

    Without --input, the input is the due time of the tick, in ISO 8601. Exit code 6 when there is a schedule NAME. Exit
    code 7 when workers are alive and none has code for ORCHESTRATION, 2 when none takes such an input; --force creates
    it all the same.

    Examples:
      affinity schedules create nightly summary --cron '0 3 * * *' --zone Europe/Berlin
      affinity schedules create poll poll_prices --every 5m --input '{"market": "eu"}' --overlap queue
      affinity schedules create closing report --at 2026-12-31T18:00:00+01:00
      affinity schedules create tick chat-17 --event reminder --every 1h
    """
    more: dict[str, Any] = {key: text for key, text in {**given, "due_as": due_as}.items() if text is not None}
    if labels:
        more["labels"] = labels_of(labels)
    if event is not None:
        target: str | ExternalEvent = ExternalEvent(orchestration, event, value)
    else:
        target = orchestration
        if value is not None:
            more["input"] = value

    async def run(client: ScheduleCalls) -> Schedule:
        if event is None and not force:
            await client.check_registered(orchestration, version=given["version"])
        return await client.schedules.create(name, target, force=force, **options, **more)

    _show(shell, with_client(shell, run))


@command(short_help="Change when a schedule is due.")
@click.argument("name")
@_timing
def update(shell: Shell, *, name: str, options: dict[str, Any]) -> None:
    """Change the options of the schedule NAME that are given; one of --cron, --every and --at replaces the others.

    Example:
      affinity schedules update nightly --cron '30 2 * * *' --catch-up 6h
    """
    if not options:
        raise click.UsageError("give an option to change")
    _show(shell, with_client(shell, lambda client: client.schedules.update(name, **options)))


@command(short_help="Have a schedule fire no more.")
@click.argument("name")
@click.option("--reason", default="", help="Shown until it is resumed.")
def pause(shell: Shell, name: str, reason: str) -> None:
    """Have the schedule NAME fire no more until `affinity schedules resume`."""
    _show(shell, with_client(shell, lambda client: client.schedules.pause(name, reason)))


@command(short_help="Have a paused schedule fire again.")
@click.argument("name")
def resume(shell: Shell, name: str) -> None:
    """Have the paused schedule NAME fire again, from its next tick on; `backfill` fires the ones between."""
    _show(shell, with_client(shell, lambda client: client.schedules.resume(name)))


@command(short_help="Fire a schedule now.")
@click.argument("name")
def trigger(shell: Shell, name: str) -> None:
    """Fire the schedule NAME once, now, and print the id of the instance; also when it is paused.

    Example:
      affinity wait "$(affinity schedules trigger nightly)"
    """
    instance_id = with_client(shell, lambda client: client.schedules.trigger(name))
    shell.show({"schedule": name, "instance_id": instance_id}, lambda: click.echo(instance_id))


@command(short_help="Fire ticks of the past.")
@click.argument("name")
@click.option("--from", "start", type=INSTANT, required=True, help="The first moment of a tick.")
@click.option("--to", "end", type=INSTANT, required=True, help="The last one; not later than now.")
def backfill(shell: Shell, *, name: str, start: datetime, end: datetime) -> None:
    """Fire the ticks of the schedule NAME between two times, beside each other; a tick that was fired is left out.

    Example:
      affinity schedules backfill nightly --from 2026-03-01 --to 2026-03-08
    """
    fired = with_client(shell, lambda client: client.schedules.backfill(name, start=start, end=end))
    shell.show({"schedule": name, "fired": fired}, lambda: click.echo(f"fired {counted(fired, 'tick')}", err=True))


@command(short_help="Remove a schedule.")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(shell: Shell, *, name: str, yes: bool) -> None:
    """Remove the schedule NAME; what it has started stays."""
    if not yes:
        confirm(f"Remove the schedule {name!r}?")
    with_client(shell, lambda client: client.schedules.delete(name))
    shell.show({"schedule": name, "deleted": True}, lambda: None)


for _command in (list_schedules, show, create, update, pause, resume, trigger, backfill, delete):
    schedules.add_command(_command)
