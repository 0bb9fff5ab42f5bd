"""The writes of a commit of a worker, in one line for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final

from affinity.provider.contract import Suspend, Turn, WorkAbandon, WorkAck, WorkKey

MAX_LENGTH: Final = 300

Names = MutableMapping[WorkKey, str]
"""The names of the activities that were queued so far."""


def describe_commit(verb: str, arguments: Sequence[Any], names: Names) -> str:
    """The instances and activities that a commit is about.

    Args:
        verb: of the provider.
        arguments: of the call.
        names: gets the activities that the commit queues.
    """
    if verb == "save":  # the first argument is the state
        return f"the state of session {arguments[0].session_id!r}"
    if verb in _OF_LIMITS:  # they name no worker
        return f"{_OF_LIMITS[verb]} {', '.join(sorted({repr(each.limit) for each in arguments[0]}))}"
    _, written, *_ = arguments  # behind the identity of the worker
    text = "; ".join(_DESCRIBE[verb](each, names) for each in written)
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]} …"


def _describe_turn(turn: Turn, names: Names) -> str:
    return f"instance {turn.instance_id!r}: {', '.join(_parts(turn, names)) or f'{len(turn.history)} events'}"


def _parts(turn: Turn, names: Names) -> Iterator[str]:
    if turn.event_count == 0:
        yield "its begin"
    for lock in turn.acks:
        yield f"the result of {_name(lock.key, names)}"
    for item in turn.work_items:
        names[item.key] = item.name
        yield f"queues {item.name!r}"
    for new in turn.instances:
        yield f"starts {new.instance_id!r}"
    if turn.update is not None and turn.update.continued:
        yield "continue_as_new"
    elif turn.update is not None and turn.finishes:
        yield f"{turn.update.status}"


def _describe_ack(ack: WorkAck, names: Names) -> str:
    what = "the result" if ack.message is not None else "a part of the result"
    return f"instance {ack.lock.key.instance_id!r}: {what} of {_name(ack.lock.key, names)}"


def _describe_abandon(abandon: WorkAbandon, names: Names) -> str:
    why = f" ({abandon.error})" if abandon.error else ""
    return f"instance {abandon.lock.key.instance_id!r}: gives {_name(abandon.lock.key, names)} back{why}"


def _describe_suspend(suspend: Suspend, names: Names) -> str:
    return f"instance {suspend.instance_id!r}: suspends it ({suspend.error_type}: {suspend.message})"


_DESCRIBE: Final[dict[str, Callable[[Any, Names], str]]] = {
    "commit_turn": _describe_turn,
    "ack_work_item": _describe_ack,
    "abandon_work_item": _describe_abandon,
    "suspend_instance": _describe_suspend,
}


_OF_LIMITS: Final = {"charge_limits": "charges the limits", "close_limits": "closes the limits"}


def _name(key: WorkKey, names: Names) -> str:
    return repr(names[key]) if key in names else f"activity {key.activity_id}"
