"""Ends of a command that are no result: the line on stderr, and the exit code."""

from __future__ import annotations

import traceback
from contextlib import suppress

import click

from affinity.cli.help import INTERNAL, INTERRUPTED, PIPE_CLOSED
from affinity.cli.output import printable
from affinity.cli.shell import exit_code
from affinity.cli.terminal import drop_output
from affinity.errors import AffinityError, errors_in


def report(error: BaseException) -> int:
    """Say on stderr why a command has ended; returns its exit code.

    The errors of this package, and of the operating system, are a line. Any other is a defect, and has its traceback.
    """
    found = errors_in(error)
    if any(isinstance(each, KeyboardInterrupt | click.Abort) for each in found):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    if any(isinstance(each, BrokenPipeError) for each in found):
        with suppress(OSError, ValueError):
            drop_output()
        return PIPE_CLOSED
    first = found[0]
    if isinstance(first, AffinityError):
        click.echo(f"Error: {printable(first) or type(first).__name__}", err=True)
        return exit_code(first)
    if isinstance(first, OSError):
        click.echo(f"Error: {printable(first)}", err=True)
    else:
        click.echo("".join(traceback.format_exception(error)), err=True)
        click.echo(f"Error: unexpected: {type(first).__name__}: {printable(first)}", err=True)
    return INTERNAL
