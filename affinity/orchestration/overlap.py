"""What becomes of a start while the one before it runs: of starts of clients, and of ticks of schedules."""

from __future__ import annotations

from typing import Literal, TypeAlias

IfRunning: TypeAlias = Literal["join", "queue_one", "cancel", "fail"]
"""What a start does when the instance of its id has not ended: return that one; begin when it has ended; cancel it and
begin then; raise `InstanceRunning`.
"""

Overlap: TypeAlias = Literal["skip", "queue", "allow", "cancel"]
"""The action of a tick while the instance of the tick before has not ended: skip this tick; wait for the end of that
instance, one tick at most; start beside it; or ask it to end, and wait for that.
"""

OverlapStep: TypeAlias = Literal["start", "skip", "queue", "refuse"]
"""The answer: begin now; do nothing; begin when the one before has ended, instead of what waits for that; an error."""


def on_overlap(policy: IfRunning | Overlap, *, is_running: bool, has_queued: bool = False) -> OverlapStep:
    """Return what becomes of a start. ``has_queued``: another one waits already for the end of the one that runs."""
    if not is_running:
        return "start"
    match policy:
        case "allow":
            return "start"
        case "join" | "skip":
            return "skip"
        case "fail":
            return "refuse"
        case "queue":  # ticks that are skipped are counted, and the first that waits has its own time
            return "skip" if has_queued else "queue"
        case "queue_one" | "cancel":
            return "queue"
