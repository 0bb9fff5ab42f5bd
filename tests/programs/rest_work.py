"""Rules at rest for instances, their histories, and the queues."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from affinity.orchestration import events as ev
from affinity.provider.contract import FINISHED, phase_of
from tests.payloads.xor import plain
from tests.programs.slots import WAITING, too_many_slots, wrong_gate
from tests.programs.tables import BEGINNINGS, ENDS, Execution, Row, Rules, Tables, counted

RULES: Final = Rules()

OUTCOMES: Final[Mapping[str, type[ev.Event]]] = {
    "completed": ev.OrchestrationCompleted,
    "failed": ev.OrchestrationFailed,
    "cancelled": ev.OrchestrationCancelled,
}
"""The last event of an instance by its status."""

UNCHECKED_SECONDS: Final = 12.0
"""Between a resume and the sweep that looks for messages that came at that moment."""

LISTED: Final = frozenset({"suspended", "failed", "cancelled"})


# -- instances and their histories


@RULES.of("instances")
def _instances(db: Tables) -> Iterator[str]:
    """Counters agree with the history; an unfinished instance has the rows that it waits for; a finished one ends with
    its outcome.
    """
    for me, row in db.instances.items():
        run = db.current(me)
        if row["event_count"] != len(run.rows):
            yield f"{me!r} counts {row['event_count']} events and has {len(run.rows)}"
        if not row["generation"]:
            yield f"{me!r} has no generation"
        if (outcome := OUTCOMES.get(row["status"])) is not None:
            if type(run.last) is not outcome:
                yield f"{me!r} is {row['status']} and ends with {run.last}"
            if (row["error"] is None) != (row["status"] == "completed"):
                yield f"{me!r} is {row['status']} with the error {row['error']}"
            if row["next_start"] is not None and db.workers:
                yield f"{me!r} has ended, and a start waits for that"
            continue
        if type(run.last) in ev.OUTCOMES:
            yield f"{me!r} is {row['status']} and ends with {run.last}"
        if row["claims"] and row["status"] != "suspended" and me not in db.messages:
            yield f"{me!r} counts {row['claims']} claims without a turn, and has no message"
        has_begun = bool(run.rows) or (row["execution_id"] > 1 and me not in db.waiting_starts)
        if (row["status"] == "pending") == has_begun and row["status"] != "suspended":
            yield f"{me!r} is {row['status']} with {len(run.rows)} events"
        yield from _unserved(db, me, run)


def _unserved(db: Tables, me: str, run: Execution) -> Iterator[str]:
    """Activities, timers and children of a running instance that nothing will end."""
    at = me, run.execution_id
    queued = {row["activity_id"] for row in db.rows["worker_queue"] if (row["instance_id"], row["execution_id"]) == at}
    parked = {row["activity_id"] for row in _live_parked(db) if (row["instance_id"], row["execution_id"]) == at}
    timers = {row["timer_id"] for row, *_ in db.messages.get(me, ()) if row["timer_execution"] == run.execution_id}
    answered = {event.schedule_id for *_, event in db.messages.get(me, ()) if type(event) in ENDS}  # type: ignore[union-attr]
    for number, event in run.open(ev.ActivityScheduled).items():
        if number not in queued | parked | answered:
            yield f"{me!r} waits for activity {event.name!r} ({number}), which is in no queue"
    for number in run.open(ev.TimerCreated).keys() - timers:
        yield f"{me!r} waits for timer {number}, which is in no queue"
    for number, event in run.open(ev.SubOrchestrationScheduled).items():
        child = db.instances.get(event.instance_id)
        is_live = child is not None and child["parent_id"] == me and child["status"] not in FINISHED
        if number not in answered and not is_live:
            yield f"{me!r} waits for its child {event.instance_id!r}, which is not there or has ended"


@RULES.of("history")
def _history(db: Tables) -> Iterator[str]:
    """Dense ids; each thing that is begun ends once at most, after its begin; each turn is recorded."""
    for (me, number), run in db.executions.items():
        owner = db.instances.get(me)
        if owner is None or number > owner["execution_id"]:
            yield f"{me!r} has events of execution {number} and no instance for it"
            continue
        ids = [row["event_id"] for row in run.rows]
        if ids != [*range(1, len(ids) + 1)]:
            yield f"{me!r} has the events {ids} in execution {number}"
        yield from (f"{me!r}/{number}: {each}" for each in _badly_formed(run))
        covered: set[int] = set()
        for row in run.rows:
            if row["recorded_at"] is not None:
                covered.update(range(row["event_id"], row["event_id"] + row["recorded_events"]))
        if not covered.issuperset(ids):
            yield f"{me!r}/{number} has events of no recorded turn: {sorted(set(ids) - covered)}"


def _badly_formed(run: Execution) -> Iterator[str]:
    begun: dict[int, type[ev.Event]] = {}
    ended: set[int] = set()
    for number, event in run.events.items():
        kind = type(event)
        if kind in ev.OUTCOMES and number != len(run.rows):
            yield f"event {number} is an outcome, and events follow"
        if kind in BEGINNINGS:
            begun[number] = kind
        elif kind in ENDS:
            of = event.schedule_id  # type: ignore[union-attr]
            if begun.get(of) is not ENDS[kind]:
                yield f"event {number} ends {of}, which is {begun.get(of)}"
            if of in ended:
                yield f"event {number} ends {of} once more"
            ended.add(of)
    if type(run.last) in ev.OUTCOMES and run.open(ev.ActivityScheduled):
        yield f"ended with the activities {[*run.open(ev.ActivityScheduled)]} open"


@RULES.of("ended_executions")
def _ended_executions(db: Tables) -> Iterator[str]:
    """One row for each execution that has ended, as long as its history is there; the last one of a finished instance
    says so.
    """
    rows = db.by("ended_executions", "instance_id", "execution_id")
    for (me, number), row in rows.items():
        owner = db.instances.get(me)
        if owner is None or number > owner["execution_id"]:
            yield f"{me!r}/{number} is of no instance"
        elif bool(row["is_last"]) != (number == owner["execution_id"]) or (row["is_last"] and db.is_live(me)):
            yield f"{me!r}/{number}: is_last is {row['is_last']}, the instance is {owner['status']}"
    for me, number in db.executions:
        owner = db.instances.get(me)
        if owner is not None and (me, number) not in rows and (number < owner["execution_id"] or not db.is_live(me)):
            yield f"{me!r}/{number} has ended and is not here"


_LABEL: Final = ("key", "value", "phase", "created_at", "instance_id")


@RULES.of("instances_by_status")
def _instances_by_status(db: Tables) -> Iterator[str]:
    """The instances of these statuses."""
    here = {(row["status"], row["instance_id"], row["created_at"]) for row in db.rows["instances_by_status"]}
    there = {(row["status"], me, row["created_at"]) for me, row in db.instances.items() if row["status"] in LISTED}
    for status, me, _ in here ^ there:
        yield f"{me!r} is listed as {status}, or should be"


@RULES.of("instance_labels")
def _instance_labels(db: Tables) -> Iterator[str]:
    """The labels of all instances, under the phases of their statuses."""
    here = {tuple(row[name] for name in _LABEL) for row in db.rows["instance_labels"]}
    there = set()
    for me, row in db.instances.items():
        found = row["labels"] or {}
        labels = json.loads(found) if isinstance(found, str) else found
        there |= {(key, text, phase_of(row["status"]), row["created_at"], me) for key, text in labels.items()}
    for key, text, phase, _, me in here ^ there:
        yield f"{me!r} is found by {key}={text} as {phase}, or should be"


@RULES.of("suspensions")
def _suspensions(db: Tables) -> Iterator[str]:
    """Open exactly for the instances that are suspended."""
    rows = db.by("suspensions", "instance_id")
    for me, row in rows.items():
        owner = db.instances.get(me)
        if owner is None or (row["resumed_at"] is None) != (owner["status"] == "suspended"):
            yield f"{me!r} was resumed at {row['resumed_at']} and is {owner and owner['status']}"
        if row.get("unchecked") and row["resumed_at"] < db.now - UNCHECKED_SECONDS and db.workers:
            yield f"{me!r} was resumed, and no sweep has looked"
    for me, row in db.instances.items():
        if row["status"] == "suspended" and me not in rows:
            yield f"{me!r} is suspended without a reason"


@RULES.of("session_orders")
def _session_orders(db: Tables) -> Iterator[str]:
    """A row for each order in which an item stands; a sweep removes others with the session's row."""
    orders = db.by("session_orders", "session_id")
    for row in db.rows["worker_queue"]:
        if row["order_session"] is not None and row["order_session"] not in orders:
            yield f"{row['order_session']!r} has an item in its order, and no row"


@RULES.of("instance_sizes")
def _instance_sizes(db: Tables) -> Iterator[str]:
    """Measured correctly, and only while there is a quota of bytes."""
    bounded = any(row["instance_bytes"] is not None for row in db.rows["quotas"])
    for me, row in db.by("instance_sizes", "instance_id").items():
        owner = db.instances.get(me)
        if owner is None or not bounded:
            yield f"{me!r} is measured: there is no instance, or no quota"
        elif (owner["generation"], owner["execution_id"]) == (row["generation"], row["execution_id"]):
            events = db.current(me).rows[: row["event_count"]]
            size = sum(len(each["event"].encode()) for each in events)
            if size != row["bytes"]:
                yield f"{me!r} has {row['bytes']} bytes, and its events {size}"


@RULES.of("instance_counts")
def _instance_counts(db: Tables) -> Iterator[str]:
    """Their sum is the number of instances while there is a quota of them."""
    yield from counted(db, sum(row["instances"] for row in db.rows["instance_counts"]))


@RULES.of("message_keys")
def _message_keys(db: Tables) -> Iterator[str]:
    """Of an instance. A key without a reply belongs to a message that waits, or that the history has."""
    for row in db.rows["message_keys"]:
        me = row["instance_id"]
        if me not in db.instances:
            yield f"{row['key']!r} is of no instance {me!r}"
        elif row["generation"] == db.instances[me]["generation"] and db.instances[me]["execution_id"] == 1:
            events = [*db.current(me).events.values(), *(event for *_, event in db.messages.get(me, ()))]
            known = {event.key for event in events if isinstance(event, ev.EventRaised | ev.EventReplied)}
            if db.is_live(me) and row["key"] not in known:
                yield f"{row['key']!r} of {me!r} belongs to no message"


@RULES.of("instance_values")
def _instance_values(db: Tables) -> Iterator[str]:
    """Of an instance; what its current execution has set last. The instance knows their bytes."""
    rows = db.groups("instance_values", "instance_id")
    for me in rows.keys() - db.instances.keys():
        yield f"of no instance {me!r}"
    for me, instance in db.instances.items():
        found = {row["key"]: row["value"] for row in rows.get(me, ())}
        size = sum(len(key.encode()) + len(value.encode()) for key, value in found.items())
        if size != instance["value_bytes"]:
            yield f"{me!r} has {size} bytes of values, and its row says {instance['value_bytes']}"
        last: dict[str, str | None] = {}
        for event in db.current(me).events.values():
            if isinstance(event, ev.ValueSet):
                last[event.key] = event.value
            elif isinstance(event, ev.ValuesCleared):
                last = dict.fromkeys(found.keys() | last.keys())
        for key, value in last.items():
            kept = plain(found[key]) if key in found else None
            if kept != value:
                yield f"{me!r} has set {key!r} to {value}, and the value is {kept}"


# -- queues


@RULES.of("orchestrator_queue")
def _orchestrator_queue(db: Tables) -> Iterator[str]:
    """Of an unfinished instance. A visible message waits for a worker, or for an operator; a timer is one that the
    history waits for.
    """
    for me, messages in db.messages.items():
        if not db.is_live(me):
            yield f"{me!r} gets {len(messages)} messages: it is not there, or has ended"
            continue
        status, run = db.instances[me]["status"], db.current(me)
        may_take = status != "suspended" and me not in db.waiting_starts and db.workers
        for row, _, event in messages:
            if row["timer_id"] is not None and not _is_open_timer(run, row):
                yield f"{me!r}: timer {row['timer_execution']}/{row['timer_id']} is none that it waits for"
            if (row["route"] == "suspended") != (status == "suspended"):
                yield f"{me!r} is {status}, and a message has the route {row['route']!r}"
            is_missing = db.instances[me]["unknown_since"] is not None
            if row["visible_at"] <= db.now and may_take and not is_missing:
                yield f"{me!r} has not taken {event}"


def misplaced(db: Tables) -> Iterator[str]:
    """Work items and timers of unfinished instances that do not wait for them, and items that an order should hold
    back. Rows of a deleted instance may be left to the sweep.
    """
    yield from _wrong_order(db)
    yield from too_many_slots(db)
    for row in db.rows["worker_queue"]:
        where = f"{row['instance_id']!r}/{row['execution_id']}/{row['activity_id']}"
        if db.is_live(row["instance_id"]):
            yield from (f"{where}: {each}" for each in _wrong_scheduled(db, row))
    for me, messages in db.messages.items():
        for row, *_ in messages:
            if row["timer_id"] is not None and db.is_live(me) and not _is_open_timer(db.current(me), row):
                yield f"{me!r}: timer {row['timer_execution']}/{row['timer_id']} is none that it waits for"


def _is_open_timer(run: Execution, row: Row) -> bool:
    return row["timer_execution"] == run.execution_id and row["timer_id"] in run.open(ev.TimerCreated)


@RULES.of("worker_queue")
def _worker_queue(db: Tables) -> Iterator[str]:
    """An activity that an unfinished instance waits for, with the route of its session, and locked by no worker."""
    for row in db.rows["worker_queue"]:
        where = f"{row['instance_id']!r}/{row['execution_id']}/{row['activity_id']}"
        yield from (f"{where}: {each}" for each in _wrong_scheduled(db, row))
        lock = row["lock_worker"], row["lock_incarnation"]
        if row["lock_token"] is not None and row["locked_until"] > db.now and lock in db.workers:
            yield f"{where} is locked by {lock}"
        if row["attempts"] < row["failures"]:
            yield f"{where} has failed {row['failures']} times in {row['attempts']} attempts"
        if row["attend_at"] is not None and row["attend_at"] <= db.now and db.workers:
            yield f"{where} has waited for as long as it may"
        if db.workers and row["visible_at"] <= db.now:
            yield from (f"{where}: {each}" for each in _wrong_route(db, row))
    yield from _wrong_order(db)


def _wrong_scheduled(db: Tables, row: Row) -> Iterator[str]:
    """Of an item: whether its instance waits for it."""
    me = row["instance_id"]
    if not db.is_live(me):
        yield "its instance is not there, or has ended"
        return
    run = db.current(me)
    event = run.open(ev.ActivityScheduled).get(row["activity_id"])
    if run.execution_id != row["execution_id"] or event is None:
        yield "its instance does not wait for it"
        return
    session = row["session_id"] or row.get("order_session") or row.get("gate_session")
    if (event.name, event.session_id, event.tag) != (row["name"], session, row.get("tag")):
        yield f"{row['name']!r} of session {session!r}; it was scheduled as {event}"
    yield from wrong_gate(row, event)


def _wrong_route(db: Tables, row: Row) -> Iterator[str]:
    route = row["route"]
    if route in WAITING:
        right = row["gate"] is not None and row["session_id"] is None
    elif row["session_id"] is None:
        right = route == "blocked" if row["order_session"] is not None else route.split("#")[0] == "free"
    else:
        session = db.by("sessions", "session_id").get(row["session_id"])
        holder = db.holder(session)
        if holder is None or session is None:
            right = route.split("#")[0].split(":")[0] == "new"
        elif session["next_worker"] is not None:
            right = route == f"new:{session['next_worker']}"
        else:
            right = route == f"w:{holder['worker_id']}"
    if not right:
        yield f"has the route {route!r}"


def _wrong_order(db: Tables) -> Iterator[str]:
    """The first item of an order has its session, and all behind it are blocked."""
    for session, rows in db.groups("worker_queue", "order_session").items():
        if session is None:
            continue
        first, *behind = sorted(rows, key=lambda row: row["order_number"])
        at_gate = first["route"] in WAITING and first["gate_session"] == session
        if first["route"] == "blocked" or (first["session_id"] != session and not at_gate):
            yield f"the first item in the order of {session!r} is blocked"
        if any(row["route"] != "blocked" or row["session_id"] is not None for row in behind):
            yield f"items behind the first in the order of {session!r} are not blocked"


def _live_parked(db: Tables) -> Iterator[Row]:
    """Rows that count: on PostgreSQL a row stays when its item was queued or cancelled, or its execution has ended."""
    for row in db.rows["parked_items"]:
        owner = db.instances.get(row["instance_id"])
        is_current = owner is not None and "generation" in row and owner["generation"] == row["generation"]
        if "parked" not in row or (row["parked"] and is_current and db.is_live(row["instance_id"])):
            yield row


@RULES.of("parked_items")
def _parked_items(db: Tables) -> Iterator[str]:
    """The next wake of a conversation without inputs that wait."""
    journals = db.by("journals", "session_id")
    for row in db.rows["parked_items"]:
        if row["instance_id"] not in db.instances:
            yield f"{row['instance_id']!r} is no instance"
    for row in _live_parked(db):
        me = row["instance_id"]
        yield from (f"{me!r}: {each}" for each in _wrong_scheduled(db, row))
        if (journal := journals.get(me)) is None:
            continue  # it was deleted with the record of the session: the next input begins another one
        if journal["closed"] and not db.is_suspended(me):
            yield f"{me!r} has a journal that is closed"
        if waiting := [*db.waiting_inputs(journal)]:
            yield f"{me!r} is parked, and the inputs {waiting} wait"
