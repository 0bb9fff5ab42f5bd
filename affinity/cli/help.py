"""Commands and groups whose help keeps the line breaks of its examples, and the exit codes that the help explains."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Sequence
from typing import Any, Final

import click

from affinity_workflows import SIGNALLED, STUCK

FAILED, MISUSED, NO_DATABASE, TIMED_OUT, UNKNOWN, REFUSED, UNSERVED, INTERNAL = 1, 2, 3, 4, 5, 6, 7, 70

INTERRUPTED, PIPE_CLOSED = SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGPIPE

EXIT_CODES: Final[Sequence[tuple[int, str]]] = (
    (0, "done; also an empty list"),
    (
        FAILED,
        "it has failed: the instance or the wake (or was cancelled); `replay`: code that does not match a history;"
        " `demo`: a wrong result",
    ),
    (
        MISUSED,
        "the command line, an input, a file or the environment is wrong, or a port is taken; nothing was changed",
    ),
    (
        NO_DATABASE,
        "the database cannot be reached or refuses; `check`: workers cannot use it; or another process took the"
        " worker's name",
    ),
    (TIMED_OUT, "the time given to `wait`, `ask` or `stop` ran out"),
    (
        UNKNOWN,
        "nothing has this id: no instance, conversation, schedule, limit, session, worker, process or journal entry;"
        " `replay`: no history was selected",
    ),
    (
        REFUSED,
        "what has the id does not allow this now: it has ended, still runs, is in use or busy; or a limit is reached",
    ),
    (
        UNSERVED,
        "live workers have no code for the name, which may be misspelt: of an orchestration, its version or event, or a"
        " kind of conversations; `--force` does it all the same",
    ),
    (STUCK, "`worker`: an activity did not end, or the event loop stood still"),
    (INTERNAL, "an unexpected error, with a traceback: a defect of affinity, or of the machine"),
    (INTERRUPTED, "ended by SIGINT (Ctrl-C)"),
    (PIPE_CLOSED, "the program that reads the output has ended, as `| head` does"),
    (SIGNALLED + signal.SIGTERM, "ended by SIGTERM"),
)
"""What each exit code of the command means. `affinity --help` and docs/run/terminal.md have this table."""


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
