"""A batch of turns as the columns of its statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from affinity.provider.contract import (
    FINISHED,
    InstanceUpdate,
    NewWorkItem,
    SessionHold,
    Turn,
    WorkLock,
)
from affinity.provider.postgres.arrays import Bools, Floats, Ints, Texts
from affinity.provider.postgres.conversation import Params

_instance_id = attrgetter("instance_id")
_NOTHING: Final = InstanceUpdate(status="running")


def finishes(turn: Turn) -> bool:
    """Whether the instance ends with this turn."""
    return turn.update is not None and turn.update.status in FINISHED


def ends(turn: Turn) -> bool:
    """Whether the execution ends with this turn."""
    return turn.update is not None and (turn.update.continued or turn.update.status in FINISHED)


def plain_columns(turns: Sequence[Turn], items: Sequence[NewWorkItem]) -> Params:
    """What turns need that take results and queue work, these items, and do nothing else."""
    acks = sorted([ack for turn in turns for ack in turn.acks])
    return {
        **_turn_columns(sorted(turns, key=_instance_id)),
        **_event_columns(turns),
        **_ack_columns(acks),
        **_item_columns(items),
        "here": Texts(sorted({item.session_id for item in items if item.lock_here and item.session_id is not None})),
    }


def lean_columns(turns: Sequence[Turn]) -> Params:
    """What turns of any kind need, each part with the number of its turn."""
    acks = [(n, ack) for n, turn in _numbered(turns) for ack in turn.acks]
    items = _items(turns)
    return {
        **_turn_columns(turns),
        **_event_columns(turns),
        "event_turn": Ints([n for n, turn in _numbered(turns) for _ in turn.history]),
        **_ack_columns([ack for _, ack in acks]),
        "ack_turn": Ints([n for n, _ in acks]),
        **_item_columns([item for _, item in items]),
        **place_columns([item for _, item in items]),
        "item_turn": Ints([n for n, _ in items]),
    }


def rest_columns(turns: Sequence[Turn]) -> Params:
    """What is needed besides by turns that do more than to take results and queue work."""
    return {**_removal_columns(turns), **_message_columns(turns), **_child_columns(turns)}


def _turn_columns(turns: Sequence[Turn]) -> Params:
    return {
        "instance": Texts([turn.instance_id for turn in turns]),
        "execution": Ints([turn.execution_id for turn in turns]),
        "events": Ints([turn.event_count for turn in turns]),
        "added": Ints([len(turn.history) for turn in turns]),
    }


def update_columns(turns: Sequence[Turn]) -> Params:
    """What is needed besides when an instance has more to say than its history."""
    updates = [turn.update or _NOTHING for turn in turns]
    return {
        "status": Texts([turn.update.status if turn.update else None for turn in turns]),
        "version": Texts([update.version for update in updates]),
        "output": Texts([update.output for update in updates]),
        "error": Texts([update.error for update in updates]),
        "continued": Bools([update.continued for update in updates]),
        "custom_status": Texts([turn.custom_status for turn in turns]),
    }


def _event_columns(turns: Sequence[Turn]) -> Params:
    of = [turn for turn in turns for _ in turn.history]
    return {
        "event_instance": Texts([turn.instance_id for turn in of]),
        "event_execution": Ints([turn.execution_id for turn in of]),
        "event_id": Ints([turn.event_count + number for turn in turns for number in range(1, len(turn.history) + 1)]),
        "event": Texts([event for turn in turns for event in turn.history]),
    }


def _ack_columns(acks: Sequence[WorkLock]) -> Params:
    return {
        "ack_instance": Texts([ack.key.instance_id for ack in acks]),
        "ack_execution": Ints([ack.key.execution_id for ack in acks]),
        "ack_activity": Ints([ack.key.activity_id for ack in acks]),
        "ack_token": Texts([ack.token for ack in acks]),
    }


def _removal_columns(turns: Sequence[Turn]) -> Params:
    consumed = [(n, message) for n, turn in _numbered(turns) for message in turn.consumed]
    cancelled = [(n, turn, activity) for n, turn in _numbered(turns) for activity in turn.cancel_activities]
    timers = [(n, turn, timer) for n, turn in _numbered(turns) for timer in turn.cancel_timers]
    return {
        "consume_turn": Ints([n for n, _ in consumed]),
        "consume_id": Ints([message for _, message in consumed]),
        "cancel_turn": Ints([n for n, *_ in cancelled]),
        "cancel_instance": Texts([turn.instance_id for _, turn, _ in cancelled]),
        "cancel_execution": Ints([turn.execution_id for _, turn, _ in cancelled]),
        "cancel_activity": Ints([activity for *_, activity in cancelled]),
        "timer_turn": Ints([n for n, *_ in timers]),
        "timer_instance": Texts([turn.instance_id for _, turn, _ in timers]),
        "timer_execution": Ints([turn.execution_id for _, turn, _ in timers]),
        "timer_id": Ints([timer for *_, timer in timers]),
        **_finish_columns(turns),
    }


def _item_columns(items: Sequence[NewWorkItem]) -> Params:
    return {
        "item_instance": Texts([item.key.instance_id for item in items]),
        "item_execution": Ints([item.key.execution_id for item in items]),
        "item_activity": Ints([item.key.activity_id for item in items]),
        "item_name": Texts([item.name for item in items]),
        "item_session": Texts([item.session_id for item in items]),
        "item_payload": Texts([item.payload for item in items]),
    }


def place_columns(items: Sequence[NewWorkItem]) -> Params:
    """What is needed besides when it is not taken for granted where new work belongs."""
    return {
        "item_delay": Floats([item.delay for item in items]),
        "item_here": Bools([item.lock_here for item in items]),
        "item_claim": Bools([item.claim_here for item in items]),
    }


def _message_columns(turns: Sequence[Turn]) -> Params:
    messages = [(n, message) for n, turn in _numbered(turns) for message in turn.messages]
    return {
        "message_turn": Ints([n for n, _ in messages]),
        "message_instance": Texts([message.instance_id for _, message in messages]),
        "message": Texts([message.payload for _, message in messages]),
        "message_delay": Floats([message.delay for _, message in messages]),
        "message_execution": Ints([message.timer and message.timer[0] for _, message in messages]),
        "message_timer": Ints([message.timer and message.timer[1] for _, message in messages]),
    }


def _child_columns(turns: Sequence[Turn]) -> Params:
    children = [(n, child) for n, turn in _numbered(turns) for child in turn.instances]
    return {
        "child_turn": Ints([n for n, _ in children]),
        "child_instance": Texts([child.instance_id for _, child in children]),
        "child_name": Texts([child.name for _, child in children]),
        "child_version": Texts([child.version for _, child in children]),
        "child_start": Texts([child.start for _, child in children]),
        "child_parent": Texts([child.parent_id for _, child in children]),
        "child_delay": Floats([child.delay for _, child in children]),
        "child_on_exists": Texts([child.on_exists for _, child in children]),
    }


def _items(turns: Sequence[Turn]) -> list[tuple[int, NewWorkItem]]:
    """The items to queue. An instance that ends has no rows in any queue, so its own last ones are not even sent."""
    return [(n, item) for n, turn in _numbered(turns) if not finishes(turn) for item in turn.work_items]


def hold_columns(turns: Sequence[Turn]) -> Params:
    """What is needed besides when holds begin or end, or watches do."""
    unholds = [(n, turn, hold) for n, turn in _numbered(turns) for hold in turn.unholds]
    return {
        "unhold_turn": Ints([n for n, *_ in unholds]),
        "unhold_instance": Texts([turn.instance_id for _, turn, _ in unholds]),
        "unhold_execution": Ints([turn.execution_id for _, turn, _ in unholds]),
        "unhold_id": Ints([hold for *_, hold in unholds]),
        **_begin_columns(turns),
        **_watch_columns(turns),
        **_end_columns(turns),
    }


def _begin_columns(turns: Sequence[Turn]) -> Params:
    """Holds that begin: not those that end with the same turn."""
    holds = [(n, turn, hold) for n, turn in _numbered(turns) if not ends(turn) for hold in _lasting(turn)]
    return {
        "hold_turn": Ints([n for n, *_ in holds]),
        "hold_instance": Texts([turn.instance_id for _, turn, _ in holds]),
        "hold_execution": Ints([turn.execution_id for _, turn, _ in holds]),
        "hold_id": Ints([hold.hold_id for *_, hold in holds]),
        "hold_session": Texts([hold.session_id for *_, hold in holds]),
        "hold_seconds": Floats([float(hold.seconds) for *_, hold in holds]),
    }


def _lasting(turn: Turn) -> Iterable[SessionHold]:
    return {hold.hold_id: hold for hold in turn.holds if hold.hold_id not in turn.unholds}.values()


def _watch_columns(turns: Sequence[Turn]) -> Params:
    watches = [
        (n, turn, session_id, payload)
        for n, turn in _numbered(turns)
        if not finishes(turn)
        for session_id, payload in dict(turn.watches).items()  # the last one of a session replaces those before
    ]
    return {
        "watch_turn": Ints([n for n, *_ in watches]),
        "watch_instance": Texts([turn.instance_id for _, turn, *_ in watches]),
        "watch_session": Texts([session_id for *_, session_id, _ in watches]),
        "watch": Texts([payload for *_, payload in watches]),
    }


def _end_columns(turns: Sequence[Turn]) -> Params:
    ending = [(n, turn) for n, turn in _numbered(turns) if ends(turn)]
    return {
        "end_turn": Ints([n for n, _ in ending]),
        "end_instance": Texts([turn.instance_id for _, turn in ending]),
        **_finish_columns(turns),
    }


def _finish_columns(turns: Sequence[Turn]) -> Params:
    finishing = [(n, turn) for n, turn in _numbered(turns) if finishes(turn)]
    return {
        "finish_turn": Ints([n for n, _ in finishing]),
        "finish_instance": Texts([turn.instance_id for _, turn in finishing]),
    }


def _numbered(turns: Sequence[Turn]) -> Sequence[tuple[int, Turn]]:
    return list(enumerate(turns, 1))
