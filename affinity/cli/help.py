"""Commands and groups whose help keeps the line breaks of its examples, and the exit codes that the help explains."""

from __future__ import annotations

import inspect
from typing import Any, Final

import click

FAILED, MISUSED, NO_DATABASE, TIMED_OUT, UNKNOWN, REFUSED, UNSERVED, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 130

SIGNALLED: Final = 128
"""Plus the number of the signal: the exit code of a process that a signal ended, as shells report it."""


class Command(click.Command):
    """A command whose help keeps the line breaks of its examples."""

    def __init__(self, name: str | None, *, help: str | None = None, **rest: Any) -> None:
        super().__init__(name, help=_keep_examples(help), **rest)


class HelpGroup(click.Group):
    """A group whose help keeps the line breaks of its examples."""

    def __init__(self, name: str | None = None, *, help: str | None = None, **rest: Any) -> None:
        super().__init__(name, help=_keep_examples(help), **rest)


def _keep_examples(text: str | None) -> str | None:
    """Tell click not to fill the paragraphs of a help text that have indented lines."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{paragraph}" if "\n  " in paragraph else paragraph for paragraph in paragraphs)
