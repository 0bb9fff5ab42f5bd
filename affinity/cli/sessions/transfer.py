"""``affinity sessions export`` and ``import``."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final, get_args

import anyio
import click

from affinity.cli.files import written
from affinity.cli.loading import load_app
from affinity.cli.output import counted
from affinity.cli.progress import Progress
from affinity.cli.sessions.filters import filter_of, filters
from affinity.cli.shell import Shell, command, with_client
from affinity.composed.client import Client
from affinity.records import SessionFilter
from affinity.session import Imported, ImportTimes, OnExists, SessionManager, Sessions, check_lines

IN_MEMORY: Final = 16 * 1024 * 1024
"""Bytes of a pipe that is read twice before they go to a temporary file."""


@command(short_help="Write records as lines of JSON.")
@click.argument("session_ids", metavar="[ID]...", nargs=-1)
@filters
@click.option("-o", "--output", metavar="FILE", default="-", help="The file to write; it appears when it is complete.")
def export(shell: Shell, *, session_ids: tuple[str, ...], output: str, **chosen: Any) -> None:
    """Write records, one JSON document a line: of the IDs, of the sessions that match, or all.

    A state that is JSON is written as JSON, any other as base64. `affinity sessions import` reads it. States are in the
    clear, also where the database has them encrypted, and only the owner of FILE may read it.

    Examples:
      affinity sessions export -o sessions.jsonl
      affinity sessions export chat-17 chat-18 > two.jsonl
      affinity sessions export --kind chat --updated-after 2026-07-31 | jq -r .name
    """
    where = filter_of(chosen)
    if session_ids and where != SessionFilter():
        raise click.UsageError("give IDs or filters, not both")
    if shell.as_json and output == "-":
        raise click.UsageError("an export is lines of JSON; --json needs --output FILE, and reports the number")

    async def run(client: Client) -> int:
        total = len(session_ids) or None
        with Progress("exported", total=total) as progress, written(output, private=True) as file:
            return await _write(client.session_manager.export(session_ids or where), file, progress)

    number = with_client(shell, run)
    if output != "-":
        done = f"exported {counted(number, 'record')} to {output}"
        shell.show({"exported": number, "file": output}, lambda: click.echo(done, err=True))


async def _write(lines: AsyncIterator[str], file: IO[str], progress: Progress) -> int:
    number = 0
    async for line in lines:
        file.write(f"{line}\n")
        progress(number := number + 1)
    return number


@contextmanager
def _read_twice(file: IO[bytes]) -> Iterator[tuple[IO[bytes], int]]:
    """The file, or a copy of the data from a pipe, and the position of its first byte."""
    if file.seekable():
        yield file, file.tell()
        return
    with SpooledTemporaryFile(max_size=IN_MEMORY) as copy:
        shutil.copyfileobj(file, copy)
        copy.seek(0)
        yield copy, 0


@command("import", short_help="Read records from lines of JSON.")
@click.argument("file", metavar="FILE", type=click.File("rb"))
@click.option(
    "--on-exists",
    type=click.Choice(get_args(OnExists)),
    default="refuse",
    show_default=True,
    help="When there is a record of a session already: end there, skip the line, or replace the record.",
)
@click.option(
    "--times",
    type=click.Choice(get_args(ImportTimes)),
    default="kept",
    show_default=True,
    help="The times of the records: their own (a time in the future becomes now), or the time of the import.",
)
@click.option("--app", "target", metavar="MODULE:APP", help="Load each record by the code of this app first.")
def import_records(
    shell: Shell, *, file: IO[bytes], on_exists: OnExists, times: ImportTimes, target: str | None
) -> None:
    """Read the records of an export from FILE, or from stdin when that is -, and write them.

    All lines are checked first: when one is wrong nothing is written, and the exit code is 2. Without --app that is
    their form: JSON, a schema version, the limits. With --app each record is loaded as well, as its sessions would be
    opened: one that does not fit its type, or that no migration leads to, is wrong.

    The store sets its own versions. Records keep their times, which retention goes by; --times now gives them the time
    of the import, and leaves their order. Continue an interrupted import with --on-exists skip.

    Examples:
      affinity sessions import sessions.jsonl --app support:app
      affinity sessions export | affinity sessions import - --on-exists skip --url postgresql://db/app
    """
    listeners = load_app(target).session_listeners if target else ()
    sessions = [each for each in listeners if isinstance(each, Sessions)]

    async def run(client: Client) -> Imported:
        hint = "; written records stay: continue with --on-exists skip"
        with Progress("lines done:", total=total, hint=hint) as progress:
            manager = SessionManager(client.session_store, sessions)
            return await manager.import_(lines, on_exists=on_exists, times=times, progress=progress)

    with _read_twice(file) as (lines, start):
        total = anyio.run(check_lines, lines, sessions)
        lines.seek(start)
        done = with_client(shell, run)
    document = {"added": done.added, "replaced": done.replaced, "skipped": done.skipped}
    text = ", ".join(f"{what} {number}" for what, number in document.items() if number) or "no records in it"
    document["old"] = done.old
    if target:
        document["unloaded"] = done.unloaded
    if target and done.unloaded:
        text += f"; {done.unloaded} of kinds that {target} does not have: only their form was checked"
    if done.old:
        text += f"; {done.old} of them older than a year: retention by age may remove them, --times now makes them new"
    shell.show(document, lambda: click.echo(text, err=True))
