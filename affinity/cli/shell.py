"""The common parts of the commands: database option, exit codes of errors, output for scripts, client, progress."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import anyio
import click
from pydantic_core import to_json

from affinity.cli.help import FAILED, MISUSED, NO_DATABASE, REFUSED, TIMED_OUT, UNKNOWN
from affinity.cli.output import printable
from affinity.errors import (
    AffinityError,
    ClientError,
    InvalidInput,
    NoReply,
    ProviderError,
    SessionAmbiguous,
    SessionNotFound,
    SessionWriteConflict,
    UnknownConversation,
    UnknownEntry,
    UnknownInstance,
    UnknownWorker,
    WaitTimeout,
    WakeFailed,
)
from affinity.limits import MAX_PAGE
from affinity.provider import has_password
from affinity.worker.options import check_environment

if TYPE_CHECKING:
    from affinity.client import Client

R = TypeVar("R")
T = TypeVar("T")

_FIRST_SHOWN: Final = 1.0  # seconds until the first line of progress; each pause is longer than the one before …
_SHOWN_EVERY: Final = 10.0  # … up to this

DEFAULT_URL: Final = "sqlite:///affinity.db"
"""In the working directory: the embedded default."""

DEFAULT_PAGE: Final = 50
"""Items on a page of a list."""

URL_IS_VISIBLE: Final = (
    "Warning: the password in --url can be read by every user of this machine (`ps`): put the URL into AFFINITY_URL, or"
    " the password into ~/.pgpass"
)

_CODES: Final[Sequence[tuple[tuple[type[AffinityError], ...], int]]] = (
    ((InvalidInput,), MISUSED),
    ((ProviderError,), NO_DATABASE),
    ((WaitTimeout,), TIMED_OUT),
    ((UnknownInstance, UnknownConversation, UnknownEntry, UnknownWorker, SessionNotFound, SessionAmbiguous), UNKNOWN),
    ((NoReply, WakeFailed), FAILED),
    ((ClientError, SessionWriteConflict), REFUSED),
)
"""The exit codes of errors: the first class that fits decides."""


def exit_code(error: AffinityError) -> int:
    """The exit code for an error; ``affinity --help`` explains them."""
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), FAILED)


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
        InvalidOptions: as `check_environment`.
    """
    check_environment()
    if url and has_password(url):
        click.echo(URL_IS_VISIBLE, err=True)


def command(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command ``--url`` and ``--json``, and call it with a `Shell` before its own arguments."""

    @click.option("--url", help=f"The database  [default: $AFFINITY_URL, else {DEFAULT_URL}]")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for scripts.")
    @click.pass_context
    @functools.wraps(function)
    def called(ctx: click.Context, /, *, url: str | None, as_json: bool, **arguments: Any) -> R:
        check_call(url or ctx.obj)
        chosen = url or ctx.obj or os.environ.get("AFFINITY_URL") or DEFAULT_URL
        return function(Shell(chosen, as_json), **arguments)

    return called


def with_client(shell: Shell, work: Callable[[Client], Awaitable[T]]) -> T:
    """Open a client, do ``work`` with it, and close it."""
    from affinity.client import Client

    async def run() -> T:
        async with Client(shell.url) as client:
            return await work(client)

    return anyio.run(run)


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


def is_interactive() -> bool:
    """Whether stdin is a terminal; a process may have been started without any stdin."""
    return sys.stdin is not None and sys.stdin.isatty()


class Progress:
    """Reports on stderr how far long work has come, and how far it came when it fails.

    Work that takes less than a second reports nothing.
    """

    def __init__(self, done: str, *, hint: str = "") -> None:
        """Lines read "``done`` 5000"; ``hint`` follows the last one of work that did not come to its end."""
        self._count = 0
        self._done, self._hint = done, hint
        self._pause = _FIRST_SHOWN
        self._next = time.monotonic() + self._pause

    def __call__(self, count: int) -> None:
        self._count = count
        if (now := time.monotonic()) >= self._next:
            self._pause = min(self._pause * 1.5, _SHOWN_EVERY)
            self._next = now + self._pause
            click.echo(f"{self._done} {count} …", err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._count:
            click.echo(f"{self._done} {self._count} before it ended{self._hint}", err=True)
