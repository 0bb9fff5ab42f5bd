"""Pending activities as lines of `affinity show`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.cli.shell import printable
from affinity.client import PendingActivity

_SHOWN: Final = 20
"""Lines at most; ``--json`` shows more."""


def activity_lines(activities: Sequence[PendingActivity]) -> list[tuple[str, object]]:
    """Pending activities as lines of `affinity show`; first those that wait for their next attempt."""
    ordered = sorted(activities, key=lambda one: one.state != "retrying")
    lines: list[tuple[str, object]] = [(f"activity {one.activity_id}", _activity(one)) for one in ordered[:_SHOWN]]
    if len(ordered) > _SHOWN:
        lines.append(("activities", f"{len(ordered) - _SHOWN} more: see --json"))
    return lines


def _activity(one: PendingActivity) -> str:
    why = "" if one.last_error is None else f", after {one.last_error}"
    if one.state == "running":
        return f"{one.name}: attempt {one.attempt} runs on {one.worker_id}{why}"
    if one.state == "retrying":
        return f"{one.name}: attempt {one.attempt} at {printable(one.next_attempt_at)}{why}"
    return f"{one.name}: attempt {one.attempt} waits for a worker{why}"
