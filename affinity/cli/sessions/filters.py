"""The options that select records of sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from affinity.cli.arguments import DURATION, INSTANT, LABEL, SESSION_ID, labels_of
from affinity.records import SessionFilter

R = TypeVar("R")

_FILTERS: Final = (
    click.option("--kind", help="Only states of this kind."),
    click.option("--name", help="Only sessions of this name."),
    click.option("--label", "labels", multiple=True, type=LABEL, help="Only with this label; may be repeated."),
    click.option("--participant", help="Only sessions in which this one takes part."),
    click.option("--parent", type=SESSION_ID, help="Only children of this session."),
    click.option("--orphaned", is_flag=True, help="Only sessions whose parent has no record."),
    click.option("--holder", type=SESSION_ID, help="Only sessions that this worker holds now."),
    click.option("--updated-after", type=INSTANT, help="Only written after this."),
    click.option("--created-after", type=INSTANT, help="Only begun after this."),
    click.option(
        "--schema-version",
        type=click.IntRange(0, 2**31 - 1),
        help="Only states written under this version of their schema.",
    ),
    click.option("--idle-for", type=DURATION, help="Only sessions not written for so long: 90s, 15m, 12h, 30d."),
)


def filters(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that select records; `filter_of` takes them."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def filter_of(chosen: dict[str, Any]) -> SessionFilter:
    """The filter that the options of `filters` make."""
    return SessionFilter(**{**chosen, "labels": labels_of(chosen["labels"])})
