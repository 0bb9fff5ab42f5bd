"""Rules at rest for workers, sessions, their states and journals, and for the tables of the database itself."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from affinity.conversation.run_rows import OF_RUN
from affinity.limits import FAILURE_RETENTION_SECONDS
from affinity.orchestration import events as ev
from affinity.provider.contract import FINISHED
from affinity.provider.rounds import LONGEST_PAUSE
from tests.programs.names import SCRIPTED
from tests.programs.program import USER
from tests.programs.tables import Execution, Key, Row, Rule, Rules, Tables, counted, parsed

RULES: Final = Rules()

SLACK: Final = 1.1
"""Seconds between two sweeps, which remove what has ended."""


# -- workers and sessions


@RULES.of("workers")
def _workers(db: Tables) -> Iterator[str]:
    """A worker holds at most as many sessions as it has room for."""
    for (worker, incarnation), row in db.workers.items():
        held = [s for s in db.rows["sessions"] if db.holder(s) is row]
        if row["capacity"] is not None and len(held) > row["capacity"]:
            yield f"{worker!r} ({incarnation}) holds {len(held)} sessions, and has room for {row['capacity']}"


@RULES.of("sessions")
def _sessions(db: Tables) -> Iterator[str]:
    """A lock that has not ended has a worker; a plan is one that will be carried out."""
    names = db.by("workers", "worker_id")
    alive = {worker for worker, _ in db.workers}
    for me, row in db.by("sessions", "session_id").items():
        holder = db.holder(row)
        if row["worker_id"] and row["locked_until"] > db.now and row["worker_id"] not in names:
            yield f"{me!r} is locked by {row['worker_id']!r}, which is not there"
        if row["epoch"] > db.last_epoch:
            yield f"{me!r} has the epoch {row['epoch']}, and the last one is {db.last_epoch}"
        if holder is not None and row["freed_by"] is not None:
            yield f"{me!r} is held, and was freed by {row['freed_by']}"
        if (row["next_worker"] is None) != (row["next_reason"] is None):
            yield f"{me!r} moves to {row['next_worker']!r} because of {row['next_reason']}"
        is_swept = row["locked_until"] < db.now - SLACK  # until then the plan of one that was freed may be left
        if row["next_worker"] is None or not db.workers or (holder is None and not is_swept):
            continue
        if holder is None or row["next_worker"] not in alive:
            yield f"{me!r} is to move from {row['worker_id']!r} to {row['next_worker']!r}: one of them does not run"


@RULES.of("session_moves")
def _session_moves(db: Tables) -> Iterator[str]:
    """Each move begins where the one before has ended, and the last one at the session's holder; none is later than the
    session's epoch.
    """
    sessions = db.by("sessions", "session_id")
    for me, rows in db.groups("session_moves", "session_id").items():
        moves = sorted(rows, key=lambda row: row["epoch"])
        for before, after in pairwise(moves):
            if after["from_worker"] not in {None, before["to_worker"]}:
                yield f"{me!r} moved to {before['to_worker']!r}, then from {after['from_worker']!r}"
        if me in sessions and sessions[me]["worker_id"] not in {"", moves[-1]["to_worker"]}:
            yield f"{me!r} moved to {moves[-1]['to_worker']!r} last, and is of {sessions[me]['worker_id']!r}"
        if moves[-1]["epoch"] > (sessions[me]["epoch"] if me in sessions else db.last_epoch):
            yield f"{me!r} moved under epoch {moves[-1]['epoch']}, which it does not have"


@RULES.of("session_holds")
def _session_holds(db: Tables) -> Iterator[str]:
    """Of a wait with a hold, which has not ended."""
    for row in db.rows["session_holds"]:
        me = row["instance_id"]
        where = f"{me!r}/{row['execution_id']}/{row['hold_id']}"
        wait = _open_waits(db, me, row["execution_id"]).get(row["hold_id"])
        if wait is None or wait.hold is None or wait.hold.session_id != row["session_id"]:
            yield f"{where} of session {row['session_id']!r} is of no wait: {wait}"
        if row["until"] < db.now - SLACK and db.workers:
            yield f"{where} is over"


def _open_waits(db: Tables, me: str, execution_id: int) -> Mapping[int, Any]:
    if not db.is_live(me) or db.current(me).execution_id != execution_id:
        return {}
    return db.current(me).open(ev.EventAwaited)


@RULES.of("session_watches")
def _session_watches(db: Tables) -> Iterator[str]:
    """Of an unfinished instance, one of whose executions watches the session."""
    for row in db.rows["session_watches"]:
        me = row["instance_id"]
        runs = [run for (owner, _), run in db.executions.items() if owner == me]
        watched = {e.session_id for run in runs for e in run.events.values() if isinstance(e, ev.SessionWatched)}
        if not db.is_live(me) or row["session_id"] not in watched:
            yield f"{me!r} watches {row['session_id']!r}: it has ended, or never said so"


@RULES.of("resources")
def _resources(db: Tables) -> Iterator[str]:
    """Used by a record, or by an activity in the queue; none is being destroyed."""
    used = {(name, value) for row in db.rows["session_states"] for name, value in parsed(row["labels"]).items()}
    queued = {(r["instance_id"], r["execution_id"], r["activity_id"]) for r in db.rows["worker_queue"]}
    for row in db.rows["resources"]:
        me = row["resource_id"]
        by_record = (f"affinity.resource/{row['name']}", me) in used
        by_activity = (row["instance_id"], row["execution_id"], row["activity_id"]) in queued
        if db.workers and not (by_record or by_activity):
            yield f"{row['name']!r} {me!r} is used by nothing"
        if row["taken_until"] is not None or (row["handle"] is None and not by_activity):
            yield f"{row['name']!r} {me!r} is half made, or half destroyed"


# -- schedules


@RULES.of("schedules")
def _schedules(db: Tables) -> Iterator[str]:
    """None is due; one that is paused never will be. A tick waits only for an instance that has not ended."""
    for row in db.rows["schedules"]:
        me, due = row["name"], row["next_due"]
        if due is not None and (row["paused"] or (db.workers and due <= db.now)):
            yield f"{me!r} is due at {due}, and now it is {db.now}; paused: {row['paused']}"
        if row["queued"] is not None and (row["paused"] or not db.is_live(row["running"])):
            yield f"{me!r} has a queued tick, and {row['running']!r} has ended; paused: {row['paused']}"
        if row["last_due"] is not None and row["next_due"] is not None and row["last_due"] >= row["next_due"]:
            yield f"{me!r} is due again at {row['next_due']}, and its last tick was at {row['last_due']}"


# -- states of sessions


@RULES.of("session_states")
def _session_states(db: Tables) -> Iterator[str]:
    """Of an epoch that was issued, maybe of another session, beside which it is, and that had not ended; it knows its
    generation. What a script writes, without a lease, keeps its epoch.
    """
    moves = db.groups("session_moves", "session_id")
    for me, row in db.by("session_states", "session_id").items():
        own = {move["epoch"]: move["moved_at"] for move in moves.get(me, ())}
        later = [epoch for epoch, at in own.items() if epoch > (row["epoch"] or 0) and at < row["updated_at"]]
        if row["epoch"] in own and later and not me.startswith(SCRIPTED):
            yield f"{me!r} was written under epoch {row['epoch']}, which had ended with {min(later)}"
        if row["epoch"] is not None and row["epoch"] > db.last_epoch:
            yield f"{me!r} was written under epoch {row['epoch']}; the last one is {db.last_epoch}"
        if not row["generation"] or row["version"] < 1 or row["updated_at"] < row["created_at"]:
            yield f"{me!r}: {row}"


@RULES.of("session_labels")
def _session_labels(db: Tables) -> Iterator[str]:
    """The labels of the records, to be found by."""
    there = {
        (key, value, me)
        for me, row in db.by("session_states", "session_id").items()
        for key, value in parsed(row["labels"]).items()
    }
    yield from _differences(there, {*db.by("session_labels", "key", "value", "session_id")})


@RULES.of("journal_labels")
def _journal_labels(db: Tables) -> Iterator[str]:
    """The labels of the journals, to be found by."""
    there = {
        (key, value, me)
        for me, row in db.by("journals", "journal_id").items()
        for key, value in parsed(row["labels"]).items()
    }
    yield from _differences(there, {*db.by("journal_labels", "key", "value", "journal_id")})


@RULES.of("session_participants")
def _session_participants(db: Tables) -> Iterator[str]:
    """The participants of the records, to be found by."""
    there = {
        (participant, me)
        for me, row in db.by("session_states", "session_id").items()
        for participant in parsed(row["participants"])
    }
    yield from _differences(there, {*db.by("session_participants", "participant", "session_id")})


def _differences(there: set[Key], here: set[Key]) -> Iterator[str]:
    if there != here:
        yield f"missing {sorted(there - here)}, left over {sorted(here - there)}"


# -- journals


@RULES.of("journals")
def _journals(db: Tables) -> Iterator[str]:
    """Counters agree with the entries; a deleted journal is there for another; an input waits only while something is
    in its way.
    """
    bases = {row["base_id"] for row in db.rows["journals"] if row["base_id"] is not None}
    parents = {row["parent_id"] for row in db.rows["journal_parents"]}
    for number, row in db.journals.items():
        me = row["session_id"] or number
        yield from (f"{me!r}: {each}" for each in _wrong_numbers(db, row))
        if row["session_id"] is None:
            if number not in bases | parents:
                yield f"{me!r} is deleted, and nothing was made from it"
        elif row["closed"]:
            if db.is_live(row["session_id"]) and not db.is_suspended(row["session_id"]):
                yield f"{me!r} is closed, and its instance is {db.instances[row['session_id']]['status']}"
        elif waiting := [*db.waiting_inputs(row)]:
            yield from (f"{me!r}: {waiting} wait: {each}" for each in _unheard(db, row))


def _wrong_numbers(db: Tables, row: Row) -> Iterator[str]:
    own, base, first, last = db.entries[row["journal_id"]], row["base_seq"] or 0, row["first_seq"], row["last_seq"]
    if row["session_id"] is not None:
        wanted = {*range(max(first, base + 1), last + 1)}
        if own.keys() != wanted:
            yield f"has the entries {sorted(own)}, and should have {sorted(wanted)}"
        if gone := [seq for seq in range(first, last + 1) if db.entry(row, seq) is None]:
            yield f"continues another one, whose entries {gone} are gone"
        if row["size"] != (size := sum(len(e["payload"].encode()) for e in own.values())):
            yield f"has {row['size']} bytes, and its entries {size}"  # the size of a deleted one stays as it was
    if not row["processed"] <= last or not 1 <= first <= last + 1:
        yield f"has processed {row['processed']} of {first} to {last}"


def _unheard(db: Tables, journal: Row) -> Iterator[str]:
    """Why no wake will process the inputs of a conversation."""
    me = journal["session_id"]
    instance = db.instances.get(me)
    if instance is None or instance["status"] == "cancelled":
        return  # by an operator; once it is deleted, the next input begins another one
    if instance["status"] in FINISHED:
        yield f"the instance is {instance['status']}"
    elif instance["status"] != "suspended" and db.workers and instance["unknown_since"] is None:
        queued = [row for row in db.rows["worker_queue"] if row["instance_id"] == me]
        if not queued and (outcome := _last_outcome(db, journal["journal_id"])) not in {"failed", "retried"}:
            yield f"nothing will wake it, whose last wake is {outcome}"


def _last_outcome(db: Tables, journal_id: int) -> str | None:
    """How its last wake has ended."""
    wakes = {row["seq"]: row["outcome"] for row in db.rows["journal_wakes"] if row["journal_id"] == journal_id}
    return wakes[max(wakes)] if wakes else None


@RULES.of("journal_entries")
def _journal_entries(db: Tables) -> Iterator[str]:
    """Of a journal; one that was copied by a merge says from which entry."""
    for row in db.rows["journal_entries"]:
        if row["journal_id"] not in db.journals:
            yield f"{row['journal_id']}/{row['seq']} is of no journal"
        if (row["origin_id"] is None) != (row["origin_seq"] is None):
            yield f"{row['journal_id']}/{row['seq']} comes from {row['origin_id']}/{row['origin_seq']}"


@RULES.of("journal_wakes")
def _journal_wakes(db: Tables) -> Iterator[str]:
    """Its last entry is there; it begins at a watermark that the wakes before it have reached, and has read on."""
    marks: dict[int, int] = {}
    for row in sorted(db.rows["journal_wakes"], key=lambda row: (row["journal_id"], row["seq"])):
        journal_id, base, read, processed = (row[name] for name in ("journal_id", "base", "read", "processed"))
        entry = db.entries[journal_id].get(row["seq"])
        if journal_id not in db.journals or entry is None or entry["wake_id"] != row["wake_id"]:
            yield f"{journal_id}/{row['seq']}: its last entry is {entry}"
        elif not marks.get(journal_id, base) <= base <= read < row["seq"] or processed not in {base, read}:
            yield f"{journal_id}/{row['seq']} has read {base} to {read}, and processed up to {processed}"
        elif processed > db.journals[journal_id]["processed"]:
            yield f"{journal_id}/{row['seq']} has processed {processed}, which is behind the watermark"
        marks[journal_id] = processed


def _of_open_journal(db: Tables, row: Row) -> Iterator[str]:
    journal = db.journals.get(row["journal_id"])
    if journal is None or journal["session_id"] is None or journal["closed"]:
        yield f"{row['journal_id']} is not there, or closed: {dict(row)}"


def _is_stuck(db: Tables, journal_id: int) -> bool:
    """Whether an operator has to do something before the conversation goes on."""
    me = db.journals[journal_id]["session_id"]
    instance = db.instances.get(me)
    if not db.workers or instance is None or instance["status"] in {"suspended", *FINISHED}:
        return True
    return _last_outcome(db, journal_id) == "failed"


def _asked_at(db: Tables, request: Row) -> int:
    """The last entry of its kind by the wake that made it, of which an earlier attempt may have begun long before."""
    same = ("journal_id", "wake_id", "kind")
    entries = [each for each in db.rows["journal_entries"] if all(each[name] == request[name] for name in same)]
    found: int = max(each["seq"] for each in (request, *entries))
    return found


@RULES.of("journal_requests")
def _journal_requests(db: Tables) -> Iterator[str]:
    """Of an open conversation, whose wake made it with an entry that is kept; it has not expired."""
    for row in db.rows["journal_requests"]:
        if wrong := [*_of_open_journal(db, row)]:
            yield wrong[0]
            continue
        journal = db.journals[row["journal_id"]]
        if not journal["first_seq"] <= row["seq"] <= journal["last_seq"] + 1:
            yield f"{journal['session_id']!r}/{row['request_id']} came with entry {row['seq']}, which is gone"
        if row["expires_at"] is not None and row["expires_at"] <= db.now and not _is_stuck(db, row["journal_id"]):
            yield f"{journal['session_id']!r}/{row['request_id']} has expired"
        if _asked_at(db, row) <= journal.get("dropped", journal.get("dropped_seq", 0)):
            yield f"{journal['session_id']!r}/{row['request_id']} was dropped"


@RULES.of("journal_delegations")
def _journal_delegations(db: Tables) -> Iterator[str]:
    """The journal is there; the child, or the instance, too, unless the end of the delegation waits to be read."""
    sessions = {each["session_id"] for each in db.journals.values()} | db.instances.keys()
    for row in db.rows["journal_delegations"]:
        journal = db.journals.get(row["journal_id"])
        if journal is None or journal["session_id"] is None:
            yield f"{row['delegation_id']!r} is of journal {row['journal_id']}, which is gone"
        elif not (row["child"] in sessions or journal["closed"] or _is_stuck(db, row["journal_id"])):
            yield f"{row['delegation_id']!r} of {journal['session_id']!r} waits for {row['child']!r}, which is gone"


@RULES.of("journal_revisits")
def _journal_revisits(db: Tables) -> Iterator[str]:
    """Of an open conversation; it is not due."""
    for row in db.rows["journal_revisits"]:
        yield from (wrong := [*_of_open_journal(db, row)])
        if not wrong and row["due_at"] <= db.now and not _is_stuck(db, row["journal_id"]):
            yield f"{db.journals[row['journal_id']]['session_id']!r}/{row['key']} is due"


def _left_by_wake(db: Tables, row: Row) -> Iterator[str]:
    if row["journal_id"] not in db.journals or not _is_stuck(db, row["journal_id"]):
        yield f"{row['journal_id']}: a row of wake {row['wake_id']} is left"


@RULES.of("journal_streams")
def _journal_streams(db: Tables) -> Iterator[str]:
    """Nothing is streamed: no wake runs."""
    for row in db.rows["journal_streams"]:
        yield from _left_by_wake(db, row)


@RULES.of("journal_steps")
def _journal_steps(db: Tables) -> Iterator[str]:
    """Of a run over several wakes, in an open conversation; no step of a wake goes on."""
    for row in db.rows["journal_steps"]:
        if row["wake_id"] != OF_RUN or [*_of_open_journal(db, row)]:
            yield from _left_by_wake(db, row)


@RULES.of("activity_waits")
def _activity_waits(db: Tables) -> Iterator[str]:
    """None is left: nothing runs. (Of a crashed worker a sweep removes them.)"""
    for row in db.rows["activity_waits"]:
        queued = {(q["instance_id"], q["execution_id"], q["activity_id"]) for q in db.rows["worker_queue"]}
        if (row["instance_id"], row["execution_id"], row["activity_id"]) not in queued:
            yield f"{row['instance_id']!r} waits for {row['awaited']!r}, and its activity has ended"


@RULES.of("journal_parents")
def _journal_parents(db: Tables) -> Iterator[str]:
    """Both journals are there."""
    for row in db.rows["journal_parents"]:
        if row["journal_id"] not in db.journals or row["parent_id"] not in db.journals:
            yield f"{row['journal_id']} was made from {row['parent_id']}: one of them is not there"


# -- of the database itself


def _one(table: str) -> Rule:
    def check(db: Tables) -> Iterator[str]:
        if len(db.rows[table]) != 1:
            yield f"{len(db.rows[table])} rows"

    return check


def _at_most_one(table: str) -> Rule:
    def check(db: Tables) -> Iterator[str]:
        if len(db.rows[table]) > 1:
            yield f"{len(db.rows[table])} rows"

    return check


def _none(table: str) -> Rule:
    """Of blobs, which programs do not have."""

    def check(db: Tables) -> Iterator[str]:
        if db.rows[table]:
            yield f"{len(db.rows[table])} rows"

    return check


RULES.of("condemned_blobs")(_none("condemned_blobs"))
RULES.of("orphan_blobs")(_none("orphan_blobs"))
RULES.of("exported_blobs")(_none("exported_blobs"))
RULES.of("blob_rounds")(_at_most_one("blob_rounds"))
RULES.of("timeline")(_one("timeline"))
RULES.of("database_identity")(_one("database_identity"))
RULES.of("sweeps")(_one("sweeps"))
RULES.of("quotas")(_at_most_one("quotas"))


@RULES.of("rounds")
def _rounds(db: Tables) -> Iterator[str]:
    """Their pauses have a bound."""
    yield from (
        f"{dict(row)}" for row in db.rows["rounds"] if row["removed"] < 0 or not 0 <= row["pause"] <= LONGEST_PAUSE
    )


@RULES.of("migrations")
def _migrations(db: Tables) -> Iterator[str]:
    """None is left out, and none demands code that is later than the last."""
    found = sorted(row["version"] for row in db.rows["migrations"])
    if found != [*range(1, len(found) + 1)] or max(row["oldest_code"] for row in db.rows["migrations"]) > found[-1]:
        yield f"versions {found}"


@RULES.of("counters")
def _counters(db: Tables) -> Iterator[str]:
    """The epoch is the greatest; the number of instances is right while there is a quota."""
    values = {row["name"]: row["value"] for row in db.rows["counters"]}
    epochs = [row["epoch"] for table in ("sessions", "session_moves") for row in db.rows[table]]
    if values["epoch"] < max(epochs, default=0):
        yield f"the epoch is {values['epoch']}, and {max(epochs)} is used"
    yield from counted(db, values.get("instances", 0))


@RULES.of("granted_roles")
def _granted_roles(db: Tables) -> Iterator[str]:
    """None in the schema of an env."""
    yield from (f"{dict(row)}" for row in db.rows["granted_roles"])


@RULES.of("audit")
def _audit(db: Tables) -> Iterator[str]:
    """Of the user of the program."""
    yield from (f"{dict(row)}" for row in db.rows["audit"] if row["stated_user"] != USER)


RULES.of("trend_rounds")(_at_most_one("trend_rounds"))


@RULES.of("trends")
def _trends(db: Tables) -> Iterator[str]:
    """The row of all names has the sum of the others, and durations of what has ended; activities only retry."""
    counts = ("started", "completed", "failed", "cancelled", "retries")
    sums: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for row in db.rows["trends"]:
        sign = 1 if row["name"] else -1
        sums[row["kind"], row["minute"]].update({name: sign * row[name] for name in counts})
        durations = row["durations"]
        found = json.loads(durations) if isinstance(durations, str) else durations
        if sum(found.values()) != row["completed"] + row["failed"] + row["cancelled"]:
            yield f"{dict(row)}"
    yield from (f"{place}: {dict(found)}" for place, found in sums.items() if any(found.values()))


@RULES.of("failures")
def _failures(db: Tables) -> Iterator[str]:
    """Of instances that there are; one of each that has failed, until it is old."""
    known = {row["instance_id"] for row in db.rows["instances"]}
    yield from (f"{dict(row)}" for row in db.rows["failures"] if row["instance_id"] not in known)
    ended = {(row["instance_id"], row["execution_id"]) for row in db.rows["failures"] if row["kind"] == "orchestration"}
    for row in db.rows["instances"]:
        is_old = row["updated_at"] < db.now - FAILURE_RETENTION_SECONDS
        if row["status"] == "failed" and not is_old and (row["instance_id"], row["execution_id"]) not in ended:
            yield f"no failure of {row['instance_id']}"
    kept = {(row["instance_id"], row["execution_id"], row["activity_id"]) for row in db.rows["failures"]}
    ends = {(row["instance_id"], row["execution_id"]): row["ended_at"] for row in db.rows["ended_executions"]}
    for (me, number), execution in db.executions.items():
        former = 0.0 if number == 1 else ends.get((me, number - 1), db.now)  # a reset takes events over from that
        since = max(former, db.now - FAILURE_RETENTION_SECONDS)
        yield from (
            f"no failure of wake {key} of {me}"
            for key in failed_wakes(execution, since)
            if (me, number, key) not in kept
        )


def failed_wakes(execution: Execution, since: float) -> Iterator[int]:
    """The activities of wakes whose handlers have failed since a time, as their results say."""
    at = 0.0
    for row in execution.rows:
        at = row["recorded_at"] or at
        event = execution.events.get(row["event_id"])
        if at <= since or not isinstance(event, ev.ActivityCompleted):
            continue
        begun = execution.events.get(event.schedule_id)
        if isinstance(begun, ev.ActivityScheduled) and begun.name.endswith(".wake"):
            outcome = json.loads(event.result)
            if outcome["outcome"] == "failed" and "put_off" not in outcome and "failed" not in json.loads(begun.input):
                yield event.schedule_id


@RULES.of("sqlite_sequence")
def _sqlite_sequence(db: Tables) -> Iterator[str]:
    """No id of a message comes back."""
    for row in db.rows["sqlite_sequence"]:
        if row["seq"] < max((each["id"] for each in db.rows[row["name"]]), default=0):
            yield f"{row['name']} is at {row['seq']}"
