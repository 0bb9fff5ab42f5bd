"""A batch of turns as the columns of `commit_turns` and `check_fences`. The turns come in the order of their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, LiteralString, NamedTuple

from pydantic_core import to_json

from affinity.provider.contract import Generation, InstanceUpdate, NewWorkItem, Turn, ValueWrite, WorkKey, last_values
from affinity.provider.postgres.commit_parts import Columns, Parking
from affinity.provider.postgres.driver.arrays import Bools, Floats, Int, Ints, Text, Texts
from affinity.provider.postgres.messages import gate_columns as instance_gates
from affinity.provider.postgres.messages import instance_columns, message_columns
from affinity.provider.postgres.operations import key_columns, lock_columns
from affinity.provider.postgres.session_store import state_columns
from affinity.provider.rows import failure_row
from affinity.records import labels_text

RESTRICT: Final[LiteralString] = (
    "restrict_items(%(restricted_instance)s, %(restricted_execution)s, %(restricted_activity)s, %(restricted_tag)s,"
    " %(takeover_after)s, %(fail_after)s)"
)
"""The call after a statement that has queued work items; for `restriction_params`."""

CONSUME: Final[LiteralString] = "consume_messages(%(consumed_of)s, %(consumed)s)"
"""The call after the commit; for `consume_params`."""

REPLY: Final[LiteralString] = "reply_messages(%(reply_instance)s, %(reply_generation)s, %(reply_key)s, %(reply)s)"
"""The call after the commit; for `reply_params`."""

LABEL: Final[LiteralString] = "label_instances(%(labelled)s, %(labels)s)"
"""The call after the commit; for `label_params`."""

KEEP_FAILURES: Final[LiteralString] = (
    "keep_failures(%(failed)s, %(failed_execution)s, %(failed_activity)s, %(failed_attempt)s, %(failed_kind)s,"
    " %(failed_name)s, %(failed_type)s, %(failed_error)s)"
)
"""The call after the commit; for `failure_params`."""

_NOTHING: Final = InstanceUpdate(status="running")


def sent_items(turn: Turn) -> Sequence[NewWorkItem]:
    """Return the work items that the turn queues: no parked or cancelled items, and none if it ends its instance."""
    if turn.update is None and not turn.cancel_activities:  # nearly always
        return [item for item in turn.work_items if not item.parked]
    if turn.finishes:
        return []
    return [item for item in turn.work_items if not (item.parked or item.key.activity_id in turn.cancel_activities)]


def find_parking(turns: Sequence[Turn]) -> Parking:
    """Return the parked items of turns that do not end their executions: a parked item ends with its execution."""
    found: dict[str, tuple[NewWorkItem, Generation]] = {}
    cancelled: list[WorkKey] = []
    for turn in turns:
        if (turn.work_items or turn.cancel_activities) and not turn.ends:
            for item in turn.work_items:
                if item.parked and item.key.activity_id not in turn.cancel_activities:
                    found[turn.instance_id] = (item, turn.generation)
            cancelled += [WorkKey(turn.instance_id, turn.execution_id, number) for number in turn.cancel_activities]
    items, generations = [item for item, _ in found.values()], [generation for _, generation in found.values()]
    return Parking(items, generations, cancelled, {*found, *(key.instance_id for key in cancelled)})


def commit_columns(turns: Sequence[Turn], sent: Sequence[Sequence[NewWorkItem]]) -> Columns:
    """Return the arguments of ``commit_turns``, without the groups that this batch does not need.

    Args:
        turns: in the order of their keys.
        sent: `sent_items` of each; element k of the columns ``item_…`` is the k-th of all of these.
    """
    items = [item for of_turn in sent for item in of_turn]
    columns = {**_turn_columns(turns), **_ack_columns(turns), **_item_columns(sent, items)}
    if not all(
        item.lock_here and not (item.claim_here or item.ordered or item.gate) and item.delay <= 0 for item in items
    ):
        columns |= _place_columns(items)
        if any(item.gate for item in items):
            columns |= gate_columns(items)
        if any(item.ordered for item in items):
            columns |= {"item_order": Texts([item.order for item in items])}
    needs = _needs(turns)
    if needs.updates:
        columns |= _update_columns(turns)
    if needs.removals:
        children = [child for turn in turns for child in turn.instances]
        if any(child.gate or child.not_before for child in children):
            columns |= {"child_" + name: column for name, column in instance_gates(children).items()}
        if any(child.labels for child in children):
            columns |= {"child_labels": Texts([labels_text(child.labels) for child in children])}
        columns |= {
            **_removal_columns(turns),
            **instance_columns(children, "child_"),
            **message_columns([message for turn in turns for message in turn.messages]),
        }
    if needs.holds:
        columns |= {**_hold_columns(turns), **_watch_columns(turns)}
    if needs.states:
        writes = [write for turn in turns for write in turn.states]
        writes.sort(key=lambda write: write.new.session_id)
        columns |= state_columns(writes)
    if needs.runs:
        columns |= _run_columns(turns)
    return columns


def gate_columns(items: Sequence[NewWorkItem]) -> Columns:
    """Return the gates of new work items."""
    gates = [item.gate for item in items]
    return {
        "item_gate": Texts([gate and gate.text for gate in gates]),
        "item_limited": Bools([gate and gate.limited for gate in gates]),
        "item_head_start": Floats([gate and gate.head_start for gate in gates]),
    }


def restriction_params(items: Sequence[NewWorkItem]) -> Columns:
    """Return the parameters of ``restrict_items``: the items that not every worker may take."""
    return {
        **key_columns([item.key for item in items], "restricted_"),
        "restricted_tag": Texts([item.tag for item in items]),
        "takeover_after": Floats([item.takeover_after for item in items]),
        "fail_after": Floats([item.fail_after for item in items]),
    }


WRITE_VALUES: Final[LiteralString] = "write_values(%(cleared)s, %(value_of)s, %(value_key)s, %(value)s)"
"""The call after a commit; for `write_values_params`."""


def reply_params(turns: Sequence[Turn]) -> Columns:
    """Return the parameters of ``reply_messages``."""
    replies = [(turn, reply) for turn in turns for reply in turn.replies]
    return {
        "reply_instance": Texts([turn.instance_id for turn, _ in replies]),
        "reply_generation": Texts([turn.generation for turn, _ in replies]),
        "reply_key": Texts([reply.key for _, reply in replies]),
        "reply": Texts([reply.reply for _, reply in replies]),
    }


def write_values_params(writes: Iterable[tuple[str, Sequence[ValueWrite]]]) -> Columns:
    """Return the parameters of `WRITE_VALUES`, for the changes of each instance."""
    cleared: list[str] = []
    rows: list[tuple[str, str, str | None]] = []
    for instance_id, changes in writes:
        was_cleared, values = last_values(changes)
        cleared += [instance_id] if was_cleared else []
        rows += [(instance_id, key, value) for key, value in values.items()]
    return {
        "cleared": Texts(cleared),
        "value_of": Texts([instance_id for instance_id, *_ in rows]),
        "value_key": Texts([key for _, key, _ in rows]),
        "value": Texts([value for *_, value in rows]),
    }


def label_params(turns: Sequence[Turn]) -> Columns:
    """Return the parameters of `LABEL`."""
    labelled = [(turn.instance_id, turn.labels) for turn in turns if turn.labels is not None]
    return {
        "labelled": Texts([instance_id for instance_id, _ in labelled]),
        "labels": Texts([to_json(labels).decode() for _, labels in labelled]),
    }


def failure_params(turns: Sequence[Turn]) -> Columns:
    """Return the parameters of `KEEP_FAILURES`."""
    rows = [failure_row(turn, failure) for turn in turns for failure in turn.failures]
    instances, executions, activities, attempts, kinds, names, types, texts = zip(*rows, strict=True)
    return {
        "failed": Texts(instances),
        "failed_execution": Ints(executions),
        "failed_activity": Ints(activities),
        "failed_attempt": Ints(attempts),
        "failed_kind": Texts(kinds),
        "failed_name": Texts(names),
        "failed_type": Texts(types),
        "failed_error": Texts(texts),
    }


def consume_params(turns: Sequence[Turn]) -> Columns:
    """Return the parameters of `CONSUME`."""
    consumed = [(turn.instance_id, message) for turn in turns for message in turn.consumed]
    return {
        "consumed_of": Texts([instance_id for instance_id, _ in consumed]),
        "consumed": Ints([message for _, message in consumed]),
    }


def fence_check_columns(turns: Sequence[Turn]) -> Columns:
    """Return the parameters of ``check_fences``. Acks and states are numbered through all turns, in their order."""
    writes = [write for turn in turns for write in turn.states]
    return {
        **_fence_columns(turns),
        **lock_columns([ack for turn in turns for ack in turn.acks], "ack_"),
        "state_session": Texts([write.new.session_id for write in writes]),
        "state_base": Ints([write.base_version for write in writes]),
        "state_epoch": Ints([write.epoch for write in writes]),
    }


class _Needs(NamedTuple):
    """The groups of columns that a batch needs."""

    updates: bool
    removals: bool
    holds: bool
    states: bool
    runs: bool


def _needs(turns: Sequence[Turn]) -> _Needs:
    """Return the groups that these turns need. It is one loop with plain conditions, because most turns need none."""
    updates = removals = holds = states = runs = False
    for turn in turns:
        if turn.update is not None or turn.custom_status is not None or turn.unread is not None:
            updates = True
            removals = removals or turn.finishes
            holds = holds or turn.ends
        if turn.messages or turn.instances or turn.cancel_activities or turn.cancel_timers:
            removals = True
        if turn.holds or turn.ended_holds or turn.watches:
            holds = True
        if turn.states:
            states = True
        if turn.runs:
            runs = True
    return _Needs(updates, removals, holds, states, runs)


def _numbered(turns: Sequence[Turn]) -> Iterable[tuple[int, Turn]]:
    return enumerate(turns, 1)


def _fence_columns(turns: Sequence[Turn]) -> Columns:
    return {
        "instance": Texts([turn.instance_id for turn in turns]),
        "generation": Texts([turn.generation for turn in turns]),
        "execution": Ints([turn.execution_id for turn in turns]),
        "events": Ints([turn.event_count for turn in turns]),
    }


def _turn_columns(turns: Sequence[Turn]) -> Columns:
    return {
        **_fence_columns(turns),
        "added": Ints([len(turn.history) for turn in turns]),
        "event_turn": Ints([n for n, turn in _numbered(turns) for _ in turn.history]),
        "event_id": Ints([turn.event_count + number for turn in turns for number in range(1, len(turn.history) + 1)]),
        "event": Texts([event for turn in turns for event in turn.history]),
    }


def _ack_columns(turns: Sequence[Turn]) -> Columns:
    return lock_columns(sorted([ack for turn in turns for ack in turn.acks]), "ack_")


def _item_columns(sent: Sequence[Sequence[NewWorkItem]], items: Sequence[NewWorkItem]) -> Columns:
    return {
        "item_turn": Ints([n for n, of_turn in enumerate(sent, 1) for _ in of_turn]),
        "item_activity": Ints([item.key.activity_id for item in items]),
        "item_name": Texts([item.name for item in items]),
        "item_session": Texts([item.session_id for item in items]),
        "item_payload": Texts([item.payload for item in items]),
        "here": Texts(sorted({item.session_id for item in items if item.lock_here and item.session_id is not None})),
    }


def fused_params(turn: Turn) -> Columns | None:
    """Return the arguments of ``commit_turn`` for a turn that queues work to run here; None for another turn."""
    if len(turn.work_items) != 1 or turn.parts or turn.states or not takes_one_result(turn):
        return None
    (item,) = turn.work_items
    if not item.lock_here or item.claim_here or item.ordered or item.parked or item.is_restricted or item.delay > 0:
        return None
    if item.gate is not None:
        return None
    return {
        **result_values(turn),
        "item_activity": Int(item.key.activity_id),
        "item_name": Text(item.name),
        "item_session": Text(item.session_id),
        "item_payload": Text(item.payload),
    }


def takes_one_result(turn: Turn) -> bool:
    """Return whether the turn takes one result and writes nothing but work items, states and parts of guests."""
    if turn.values or turn.failures or turn.labels is not None:
        return False
    if len(turn.acks) != 1 or turn.consumed or turn.replies or turn.release_sessions:
        return False
    return not any(_needs((turn,))._replace(states=False))


def result_values(turn: Turn) -> Columns:
    """Return the arguments of ``commit_turn`` for a turn that takes one result, without those for its writes."""
    (ack,) = turn.acks
    return {
        "instance": Text(turn.instance_id),
        "generation": Text(turn.generation),
        "execution": Int(turn.execution_id),
        "events": Int(turn.event_count),
        "event": Texts(turn.history),
        "ack_activity": Int(ack.key.activity_id),
        "ack_token": Text(ack.token),
    }


def _place_columns(items: Sequence[NewWorkItem]) -> Columns:
    return {
        "item_here": Bools([item.lock_here for item in items]),
        "item_claim": Bools([item.claim_here for item in items]),
        "item_delay": Floats([item.delay for item in items]),
    }


def _update_columns(turns: Sequence[Turn]) -> Columns:
    updates = [turn.update or _NOTHING for turn in turns]
    return {
        "status": Texts([turn.update.status if turn.update else None for turn in turns]),
        "version": Texts([update.version for update in updates]),
        "custom_status": Texts([turn.custom_status for turn in turns]),
        "output": Texts([update.output for update in updates]),
        "error": Texts([update.error for update in updates]),
        "continued": Bools([update.continued for update in updates]),
        "unread": Ints([turn.unread for turn in turns]),
    }


def _removal_columns(turns: Sequence[Turn]) -> Columns:
    cancelled = [(n, activity) for n, turn in _numbered(turns) for activity in turn.cancel_activities]
    timers = [(n, timer) for n, turn in _numbered(turns) for timer in turn.cancel_timers]
    return {
        "cancel_turn": Ints([n for n, _ in cancelled]),
        "cancel_activity": Ints([activity for _, activity in cancelled]),
        "timer_turn": Ints([n for n, _ in timers]),
        "timer_id": Ints([timer for _, timer in timers]),
        "finish": Texts([turn.instance_id for turn in turns if turn.finishes]),
    }


def _run_columns(turns: Sequence[Turn]) -> Columns:
    runs = [turn.runs.get(turn.event_count + n) for turn in turns for n in range(1, len(turn.history) + 1)]
    return {
        "run_worker": Texts([run and run.worker_id for run in runs]),
        "run_attempt": Ints([run and run.attempt for run in runs]),
        "run_queued": Floats([run and run.queued_for for run in runs]),
    }


def _hold_columns(turns: Sequence[Turn]) -> Columns:
    """Return holds that begin and do not end with the same turn, and holds that end."""
    holds = [(n, hold) for n, turn in _numbered(turns) for hold in turn.lasting_holds]
    ended_holds = [(n, hold) for n, turn in _numbered(turns) for hold in turn.ended_holds]
    return {
        "hold_turn": Ints([n for n, _ in holds]),
        "hold_id": Ints([hold.hold_id for _, hold in holds]),
        "hold_session": Texts([hold.session_id for _, hold in holds]),
        "hold_seconds": Floats([float(hold.seconds) for _, hold in holds]),
        "unhold_turn": Ints([n for n, _ in ended_holds]),
        "unhold_id": Ints([hold for _, hold in ended_holds]),
        "end": Texts([turn.instance_id for turn in turns if turn.ends]),
    }


def _watch_columns(turns: Sequence[Turn]) -> Columns:
    watches = [
        (n, session_id, payload)
        for n, turn in _numbered(turns)
        if not turn.finishes
        for session_id, payload in dict(turn.watches).items()  # the last one of a session replaces earlier ones
    ]
    return {
        "watch_turn": Ints([n for n, *_ in watches]),
        "watch_session": Texts([session_id for _, session_id, _ in watches]),
        "watch": Texts([payload for *_, payload in watches]),
    }
