"""``affinity audit``: who did what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from affinity.audit.entries import AuditEntry
from affinity.cli.arguments import INSTANT
from affinity.cli.output import clock, table
from affinity.cli.shell import PageOptions, Shell, command, paged, with_client

_COLUMNS: Final = ("WHEN", "USER", "FROM", "ROLE", "ACTION", "KIND", "TARGET", "OUTCOME", "DETAILS")


@command()
@click.option("--user", help="Only what this user did.")
@click.option("--action", help="Only this action: cancel, move, drain, ….")
@click.option("--target", metavar="ID", help="Only what was done to this: an instance, a session, a worker, ….")
@click.option("--source", help="Only what came from here: console, command, ….")
@click.option("--since", type=INSTANT, help="Only later entries: 2026-07-31, or 2026-07-31T12:00:00+02:00.")
@click.option("--until", type=INSTANT, help="Only entries before this time.")
@click.option("--refused", is_flag=True, help="Only actions that changed nothing.")
@paged("Entries")
def audit(shell: Shell, *, refused: bool, page: PageOptions, **where: Any) -> None:
    """List what users did at the console or with commands, newest first: when, who, as which role of the database,
    what, to what, and with what outcome.

    The user of a command is the one of the operating system, or the one that AFFINITY_USER names. Entries are kept for
    the workers' audit_retention, a year by default.

    Examples:
      affinity audit
      affinity audit --target chat-17
      affinity audit --user ann --action delete --since 2026-07-01 --json
    """
    conditions = {**where, "succeeded": False if refused else None}

    found = with_client(shell, lambda client: page.read(client.audit(**conditions)))
    document = {"entries": [asdict(entry) for entry in found.items], "next": found.next}
    shell.show(document, lambda: table(_COLUMNS, map(_row, found.items), empty="nothing was recorded"))
    shell.show_cursor(found.next)


def _row(entry: AuditEntry) -> tuple[object, ...]:
    details = ", ".join(f"{name}={value}" for name, value in entry.details.items())
    return (
        clock(entry.at),
        entry.user,
        entry.source,
        entry.role,
        entry.action,
        entry.kind,
        entry.target,
        entry.outcome if entry.succeeded else f"refused: {entry.outcome}",
        details,
    )
