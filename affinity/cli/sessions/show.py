"""``affinity sessions list``, ``count``, ``show`` and ``family``."""

from __future__ import annotations

from typing import Any, Final

import click

from affinity.cli.output import compact, pairs, table
from affinity.cli.sessions.filters import filter_of, filters
from affinity.cli.shell import PageOptions, Shell, command, paged, with_client
from affinity.records import SessionSummary
from affinity.session import readable

_COLUMNS: Final = ("SESSION", "KIND", "NAME", "SIZE", "SCHEMA", "VERSION", "HOLDER", "PARENT", "UPDATED", "LABELS")


@command("list", short_help="List records, newest first.")
@filters
@paged("Records")
def list_records(shell: Shell, *, page: PageOptions, **chosen: Any) -> None:
    """List the records of sessions, the last written first, without their states. It changes nothing.

    Examples:
      affinity sessions list --kind chat --label team=support
      affinity sessions list --holder worker-0 --updated-after 2026-07-31
      affinity sessions list --idle-for 30d --all --json | jq -r '.sessions[].session_id'
    """
    where = filter_of(chosen)
    found = with_client(shell, lambda client: page.read(client.session_manager.list(where)))
    shell.show(
        {"sessions": [*map(_document, found.items)], "next": found.next},
        lambda: table(_COLUMNS, map(_row, found.items), empty="no records"),
    )
    shell.show_cursor(found.next)


def _document(record: SessionSummary) -> dict[str, Any]:
    return readable(record) | {"size": record.size, "holder": record.holder}


def _row(record: SessionSummary) -> tuple[object, ...]:
    metadata = record.metadata
    return (
        record.session_id,
        metadata.kind,
        metadata.name,
        record.size,
        record.schema_version,
        record.version,
        record.holder,
        metadata.parent,
        record.updated_at,
        _labels(metadata.labels),
    )


def _labels(labels: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in labels.items())


@command(short_help="Count records.")
@filters
def count(shell: Shell, **chosen: Any) -> None:
    """Print the number of records that `affinity sessions list` would list.

    Examples:
      affinity sessions count --kind chat --idle-for 30d
      affinity sessions count --orphaned
    """
    where = filter_of(chosen)
    number = with_client(shell, lambda client: client.session_manager.count(where))
    shell.show({"count": number}, lambda: click.echo(number))


@command(short_help="Show a record with its children, and theirs.")
@click.argument("session_id", metavar="ID")
def family(shell: Shell, session_id: str) -> None:
    """Show the family of the session ID: the record at its head, whose parent has none, and all its descendants; how
    many messages they have together, and who takes part.

    Examples:
      affinity sessions family ticket-7
      affinity sessions family ticket-7 --json | jq .participants
    """
    found = with_client(shell, lambda client: client.session_manager.family(session_id))
    document = {
        "head": found.head.session_id,
        "message_count": found.message_count,
        "participants": found.participants,
        "size": found.size,
        "updated_at": found.updated_at,
        "members": [*map(_document, found.members)],
    }

    def show_family() -> None:
        table(_COLUMNS, map(_row, found.members), empty="no records")
        pairs([("messages", found.message_count), ("participants", ", ".join(found.participants) or None)])

    shell.show(document, show_family)


@command(short_help="Show a record with its state.")
@click.argument("session_id", metavar="ID")
def show(shell: Shell, session_id: str) -> None:
    """Show the record of the session ID, unpacked: JSON as JSON, any other state as its size and base64.

    Examples:
      affinity sessions show chat-17
      affinity sessions show chat-17 --json | jq .state
    """
    record = with_client(shell, lambda client: client.session_manager.show(session_id))
    document = readable(record)
    shell.show(document, lambda: pairs(_details(document, len(record.state))))


def _details(document: dict[str, Any], size: int) -> list[tuple[str, object]]:
    packed = document.get("state_base64")
    state = compact(document["state"]) if packed is None else f"{packed} (base64)"
    return [
        ("session", document["session_id"]),
        ("kind", document["kind"] or None),
        ("name", document["name"]),
        ("parent", document["parent"]),
        ("labels", _labels(document["labels"]) or None),
        ("messages", document["message_count"]),
        ("participants", ", ".join(document["participants"]) or None),
        ("schema version", document["schema_version"]),
        ("version", document["version"]),
        ("epoch", document["epoch"]),
        ("size", f"{size} bytes as stored"),
        ("created", document["created_at"]),
        ("updated", document["updated_at"]),
        ("state", state),
    ]
