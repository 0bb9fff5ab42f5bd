"""``--watch``: a command that shows something again and again, until it is over or Ctrl-C."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import click
from pydantic_core import to_json

from affinity.cli.shell import Shell, with_client
from affinity.cli.terminal import is_terminal

if TYPE_CHECKING:
    from affinity.composed.client import Client

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

WATCH_SECONDS: Final = 1.0
"""Between two looks."""


def watched(end: str = "") -> Callable[[F], F]:
    """Give a command the option ``--watch``; ``end`` says when it ends by itself, as ", until it has ended"."""
    text = f"Show it every second{end or ', until Ctrl-C'}; with --json one line each time that it has changed."
    return click.option("--watch", is_flag=True, help=text)


def look(
    shell: Shell,
    read: Callable[[Client], Awaitable[T]],
    document: Callable[[T], Any],
    text: Callable[[T], None],
    *,
    watch: bool,
    is_over: Callable[[T], bool] = lambda _: False,
) -> T:
    """Read something, and show it; with ``watch`` again every second, until it is over.

    Args:
        shell: of the command.
        read: what is shown.
        document: it as a JSON value.
        text: prints it for people.
        watch: the option.
        is_over: whether it changes no more.
    """
    if not watch:
        found = with_client(shell, read)
        shell.show(document(found), lambda: text(found))
        return found

    async def repeat(client: Client) -> T:
        last: bytes | None = None
        while True:
            found = await read(client)
            new = to_json(document(found))
            if is_terminal() and not shell.as_json:
                click.clear()
                text(found)
            elif new != last:  # a log has each change once
                _print(shell, new, partial(text, found))
            if is_over(found):
                return found
            last = new
            await anyio.sleep(WATCH_SECONDS)

    return with_client(shell, repeat)


def _print(shell: Shell, line: bytes, text: Callable[[], None]) -> None:
    if shell.as_json:
        click.echo(line)
    else:
        text()
