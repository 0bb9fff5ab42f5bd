"""Times, numbers and lists as the sentences of reasons say them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Final

from affinity.explain.outstanding import Outstanding
from affinity.orchestration.waits import RESERVED_PREFIX, watched_session

SHOWN: Final = 3
"""Further waits that a sentence names."""

_SIMILAR: Final = 0.7
"""Likeness of two names, from 0 to 1, from which one may be a slip of the other."""

_SECOND, _MINUTE, _HOUR = 90.0, 5_400.0, 172_800.0  # up to which a duration is shown in seconds, minutes, hours


def time_text(at: datetime) -> str:
    """An instant in a sentence."""
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """A duration in one unit: "12 s", "3 min"."""
    if seconds <= _SECOND:
        return f"{max(1, round(seconds))} s"
    if seconds <= _MINUTE:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h" if seconds <= _HOUR else f"{round(seconds / 86_400)} days"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 slot", "2 slots"."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def event_words(name: str) -> str:
    """What a wait for this event is for: an application's event, or the next move of a session."""
    session_id = watched_session(name)
    return f"the event {name!r}" if session_id is None else f"the next move of session {session_id!r}"


def list_of(parts: Sequence[str]) -> str:
    """The first `SHOWN` of them, and how many more there are: "a", "a and b", "a, b, c and 9 more"."""
    shown = [*parts[:SHOWN], *([f"{len(parts) - SHOWN} more"] if len(parts) > SHOWN else [])]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def other_waits(
    found: Outstanding,
    *,
    activities: Collection[str] = (),
    activity: str | None = None,
    child: str | None = None,
    event: int | None = None,
    timers: str | None = None,
) -> Sequence[str]:
    """What an instance waits for beside the wait that its sentence is about.

    Args:
        found: all that it waits for.
        activities: names of the other activities, with their repetitions.
        activity: name of the activity that the sentence is about.
        child: id of the child that it is about.
        event: id of the wait for an event that it is about.
        timers: words for the timers, unless it is about them.
    """
    parts = [_activities(name, number, name == activity) for name, number in Counter(activities).items()]
    children = [each for each in found.children.values() if each != child]
    if children:
        more = "" if len(children) == 1 else f" and {counted(len(children) - 1, 'more', 'more')}"
        parts.append(f"its sub-orchestration {children[0]!r}{more}")
    names = Counter(name for number, name in found.events.items() if number != event)
    parts += [event_words(name) + ("" if number == 1 else f" ({number} times)") for name, number in names.items()]
    return [*parts, timers] if timers is not None and found.timers else parts


def _activities(name: str, number: int, is_again: bool) -> str:
    """Further activities of one name, which the sentence has named already if ``is_again``."""
    if number == 1:
        return f"another activity {name!r}" if is_again else f"the activity {name!r}"
    return f"{number} {'more ' if is_again else ''}activities {name!r}"


def unread_words(found: Outstanding, name: str) -> str:
    """Events that the sender of this one may have meant: one that did not fit it, or that has a similar name."""
    refused = next((text for number, text in found.refused.items() if found.events.get(number) == name), None)
    if refused is not None:
        return f"; an event {name!r} came that does not fit: {refused}"
    names = {each.casefold(): each for each in found.unread if found.unread[each] and not is_reserved(each)}
    similar = get_close_matches(name.casefold(), names, n=1, cutoff=_SIMILAR)
    if not similar or names[similar[0]] == name:
        return ""
    unread = names[similar[0]]
    number = found.unread[unread]
    return f"; {'an event' if number == 1 else f'{number} events'} {unread!r} {'lies' if number == 1 else 'lie'} unread"


def is_reserved(name: str) -> bool:
    """Whether only affinity raises this event."""
    return name.startswith(RESERVED_PREFIX)
