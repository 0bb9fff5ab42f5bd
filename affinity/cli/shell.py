"""The common parts of the commands: database option, exit codes of errors, output for scripts, client."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import click
from pydantic_core import to_json

from affinity import errors
from affinity.cli.help import (
    FAILED,
    MISUSED,
    NO_DATABASE,
    REFUSED,
    TIMED_OUT,
    UNKNOWN,
    UNSERVED,
    Command,
    HelpGroup,
)
from affinity.cli.output import printable
from affinity.cli.progress import Progress
from affinity.composed.options import RuntimeOptions
from affinity.errors import AffinityError
from affinity.limits import MAX_PAGE
from affinity.paging import Page, Pages
from affinity.provider import has_password
from affinity_workflows import STUCK

if TYPE_CHECKING:
    from affinity.composed.client import Client

R = TypeVar("R")
T = TypeVar("T")

DEFAULT_URL: Final = "sqlite:///affinity.db"
"""In the working directory: the embedded default."""

DEFAULT_PAGE: Final = 50
"""Items on a page of a list."""

SOURCE: Final = "command"
"""In the audit log."""

URL_IS_VISIBLE: Final = (
    "Warning: the password in --url can be read by every user of this machine (`ps`): put the URL into AFFINITY_URL, or"
    " the password into ~/.pgpass"
)

_CODES: Final[Mapping[type[AffinityError], int]] = {
    errors.InvalidInput: MISUSED,
    errors.ProviderError: NO_DATABASE,
    errors.WaitTimeout: TIMED_OUT,
    errors.UnknownInstance: UNKNOWN,
    errors.UnknownConversation: UNKNOWN,
    errors.UnknownEntry: UNKNOWN,
    errors.UnknownLimit: UNKNOWN,
    errors.UnknownSchedule: UNKNOWN,
    errors.UnknownWorker: UNKNOWN,
    errors.SessionNotFound: UNKNOWN,
    errors.SessionAmbiguous: UNKNOWN,
    errors.NotRegistered: UNSERVED,
    errors.NoReply: FAILED,
    errors.WakeFailed: FAILED,
    errors.ClientError: REFUSED,
    errors.SessionWriteConflict: REFUSED,
    errors.WorkerStalled: STUCK,
}
"""The exit codes of errors: the first class that fits decides."""


def exit_code(error: AffinityError) -> int:
    """The exit code for an error; ``affinity --help`` explains them."""
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), FAILED)


@dataclass(frozen=True, slots=True)
class Shell:
    """The options that all commands have."""

    url: str = field(repr=False)  # may hold a password
    as_json: bool

    def show(self, document: Any, text: Callable[[], None]) -> None:
        """Print ``document`` as JSON for a script, or have ``text`` print for people."""
        if self.as_json:
            click.echo(to_json(document, indent=2))
        else:
            text()

    def show_cursor(self, cursor: str | None) -> None:
        """Print how to get the next page of a list; with ``--json`` the cursor is in the document."""
        if cursor is not None and not self.as_json:
            click.echo(f"more: --after '{printable(cursor)}'", err=True)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Which page of a list a command shows."""

    limit: int
    after: str | None
    everything: bool

    async def read(self, listing: Pages[T]) -> Page[T]:
        """Read the page; with ``--all`` the whole listing as one."""
        if self.everything:
            return Page(items=await listing, next=None)
        return await listing.page(self.after, limit=self.limit)


FIRST_PAGE: Final = PageOptions(DEFAULT_PAGE, None, False)
"""Without any option."""


def paged(items: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command that lists ``items`` the options of paging, and call it with ``page``, the `PageOptions`."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @click.option("--limit", type=click.IntRange(1, MAX_PAGE), help=f"{items} on a page  [default: {DEFAULT_PAGE}]")
        @click.option("--after", metavar="CURSOR", help="The page after this cursor, which the page before ended with.")
        @click.option("--all", "everything", is_flag=True, help="All pages.")
        @functools.wraps(function)
        def called(*args: Any, limit: int | None, after: str | None, everything: bool, **arguments: Any) -> R:
            if everything and (limit is not None or after is not None):
                raise click.UsageError("--all contradicts --limit and --after")
            return function(*args, page=PageOptions(limit or DEFAULT_PAGE, after, everything), **arguments)

        return called

    return decorate


def check_call(url: str | None) -> None:
    """Refuse environment variables that are misspelt, and warn of a password in the ``--url`` of the command line.

    Raises:
        InvalidOptions: as `RuntimeOptions.check_environment`.
    """
    RuntimeOptions.check_environment()
    if url and has_password(url):
        click.echo(URL_IS_VISIBLE, err=True)


class _WithShell(click.Command):
    """A command with ``--url`` and ``--json``, whose function gets a `Shell` before its own arguments."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.params += [
            click.Option(["--url"], help=f"The database  [default: $AFFINITY_URL, else {DEFAULT_URL}]"),
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document, for scripts."),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        arguments = dict(ctx.params)
        url, as_json = arguments.pop("url") or ctx.obj, arguments.pop("as_json")
        check_call(url)
        assert self.callback is not None
        shell = Shell(url or os.environ.get("AFFINITY_URL") or DEFAULT_URL, as_json)
        return ctx.invoke(self.callback, shell, **arguments)


class ShellCommand(Command, _WithShell):
    """A command on a database."""


class ShellGroup(HelpGroup, _WithShell):
    """A group that is a command on a database without a subcommand."""


def command(name: str | None = None, **about: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """As `click.command`, of a function that takes a `Shell` before its own arguments."""
    return click.command(name, cls=ShellCommand, **about)


def with_client(shell: Shell, work: Callable[[Client], Awaitable[T]]) -> T:
    """Open a client, do ``work`` with it, and close it."""
    from affinity.audit import acting_where_kept
    from affinity.composed.client import Client

    async def run() -> T:
        async with Client(shell.url) as client:
            with acting_where_kept(client, current_user(), source=SOURCE):
                return await work(client)

    return anyio.run(run)


def current_user() -> str:
    """The user of this command, for the audit log: of the operating system, unless the environment names another."""
    if named := os.environ.get("AFFINITY_USER"):
        return named
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # a container may run as a user without a name
        return f"uid {os.getuid()}"


def with_workers(
    shell: Shell, worker_ids: Sequence[str], verb: Callable[[Client, str], Awaitable[None]], done: str
) -> None:
    """Do something with some workers, which are ``done`` then."""

    async def run(client: Client) -> None:
        for worker_id in worker_ids:
            await verb(client, worker_id)

    with_client(shell, run)
    shell.show({"workers": dict.fromkeys(worker_ids, done)}, lambda: None)


def confirm(question: str) -> None:
    """Ask the user; unless the answer is yes, end the command with exit code 0.

    Raises:
        click.UsageError: stdin is no terminal.
    """
    if not is_interactive():
        has_dry_run = any(each.name == "dry_run" for each in click.get_current_context().command.params)
        hint = ", or --dry-run to see what would be done" if has_dry_run else ""
        raise click.UsageError(f"{question} There is no terminal to ask on: give --yes{hint}")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C at the question is Ctrl-C
        raise KeyboardInterrupt from None
    if not agreed:
        click.echo("nothing was changed", err=True)
        click.get_current_context().exit(0)


def remove(
    shell: Shell,
    work: Callable[..., Awaitable[T]],
    words: Callable[[T], str],
    *,
    number: Callable[[T], int],
    dry_run: bool,
    yes: bool,
    hint: str = "",
) -> T:
    """Count with ``work`` what would be removed, ask, and remove it; with ``yes`` without the question.

    Args:
        shell: of the command.
        work: gets a client, ``dry_run`` and ``progress``.
        words: what was found, for the question; empty: nothing.
        number: of what was found, as progress counts it.
        dry_run: only count.
        yes: do not ask.
        hint: follows the last line about a removal that did not come to its end.
    """

    def run(*, dry: bool, total: int | None = None) -> T:
        async def with_progress(client: Client) -> T:
            done = "would remove" if dry else "removed"
            with Progress(done, total=total, hint="" if dry else hint) as progress:
                ticks = asyncio.create_task(progress.tick())
                try:
                    return await work(client, dry_run=dry, progress=progress)
                finally:
                    ticks.cancel()

        return with_client(shell, with_progress)

    found = run(dry=not yes or dry_run)
    if not (yes or dry_run) and (what := words(found)):
        confirm(f"Remove {what}?")
        found = run(dry=False, total=number(found))
    return found


def is_interactive() -> bool:
    """Whether stdin is a terminal; a process may have been started without any stdin."""
    return sys.stdin is not None and sys.stdin.isatty()
