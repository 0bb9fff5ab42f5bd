"""Options that choose instances, shared by the commands that list, count, cancel and resume them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, get_args

import click

from affinity.cli.arguments import INSTANT, LABEL, labels_of
from affinity.provider.contract import InstanceStatus

F = TypeVar("F", bound=Callable[..., Any])

SUFFIX: Final = ".conversation"
"""Ending of the names of the orchestrations of conversations: see `InstanceConditions.name_suffix`."""

_OPTIONS: Final = (
    click.option("--label", "labels", multiple=True, type=LABEL, help="Only with this label; may be repeated."),
    click.option("--name", help="Only of this orchestration."),
    click.option("--version", help="Only of this version of it."),
    click.option(
        "--conversations/--no-conversations",
        "conversations",
        default=None,
        help="Only the instances of conversations; or only others.",
    ),
    click.option("--prefix", help="Only ids that start with this."),
    click.option("--parent", "parent_id", help="Only sub-orchestrations of this instance."),
    click.option("--session", "session_id", help="Only instances started for this session, and their children."),
    click.option("--since", "created_since", type=INSTANT, help="Only started since then: 2026-07-31T12:00:00+02:00."),
    click.option("--before", "created_before", type=INSTANT, help="Only started before then."),
)

of_status: Final = click.option(
    "--status", multiple=True, type=click.Choice(get_args(InstanceStatus)), help="Only these; may be repeated."
)
"""Adds the option ``--status``."""


def name_conditions(*, is_conversation: bool) -> dict[str, Any]:
    """Return the conditions of `Client.list_instances` for the instances of conversations, or for all others."""
    return {"name_suffix": SUFFIX} if is_conversation else {"without_suffix": [SUFFIX]}


def selected(function: F) -> F:
    """Add the options that choose instances; the command gets them as conditions of `Client.list_instances`."""

    @wraps(function)
    def command(
        *args: Any, labels: tuple[tuple[str, str], ...], conversations: bool | None = None, **given: Any
    ) -> Any:
        where: dict[str, Any] = {}
        if conversations is not None:
            where = name_conditions(is_conversation=conversations)
        return function(*args, **given, labels=labels_of(labels) or None, **where)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]  # it has the options


def labels_line(labels: Mapping[str, str]) -> str:
    """Return labels as people write them."""
    return " ".join(f"{key}={value}" for key, value in labels.items())
