"""The writes of wakes to their journals, as calls of functions of the schema in the commit of a turn, or of acks."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, LiteralString, NamedTuple

from affinity.conversation.journal import InstanceStart, JournalAppend, JournalWrite, NewEntry, journal_writes
from affinity.conversation.store.postgres.journals import append_params
from affinity.conversation.store.postgres.lineage import creation_document
from affinity.conversation.store.rows import failure_rows
from affinity.provider.contract import Turn
from affinity.provider.postgres.commit_parts import AckCalls, Columns, CommitCalls, LoneCall, Parking, PostgresCommit
from affinity.provider.postgres.driver.arrays import Bool, Bools, Int, Ints, Packed, Text, Texts
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import call_of, key_columns
from affinity.provider.postgres.session_store import state_values
from affinity.provider.postgres.turn_columns import result_values
from affinity.provider.statements import load_statements
from affinity.records import CommitPart

_SQL: Final = load_statements(__package__, "commits.sql")

_BY_KEY: Final = attrgetter("session_id")

_WRITE: Final = "write_"
_CREATE: Final = "create_"
_APPEND: Final = "append_"
_START: Final = "start_"
_FAIL: Final = "fail_"


# The counts make PostgreSQL write the states before the calls: a creation of a journal copies them.
_PASSED: Final = (
    "(SELECT f.place FROM fenced f WHERE f.n IN (SELECT n FROM ours)"
    " AND (SELECT count(*) FROM states_added) + (SELECT count(*) FROM states_written) >= 0)"
)
_ONLY_WRITES: Final[LiteralString] = f", _only => ARRAY {_PASSED}"
_ONLY_OF: Final[LiteralString] = (
    f", _only => ARRAY (SELECT a.k FROM unnest({{}}) WITH ORDINALITY AS a (place, k) WHERE a.place IN {_PASSED})"  # noqa: S608 -- literals
)
_ONLY_APPENDS: Final[LiteralString] = _ONLY_OF.format("%(append_of)s")
_ONLY_STARTS: Final[LiteralString] = _ONLY_OF.format("%(start_of)s")

_ONLY_FAILURES: Final[LiteralString] = _ONLY_OF.format("%(failure_of)s")

_NO_SESSIONS: Final = Texts([])


def lone_call(turn: Turn) -> LoneCall | None:
    """Return the call of ``commit_wake`` for the turn of a wake; None for a turn of another kind."""
    (write,) = journal_writes(turn.parts)
    if len(turn.states) > 1 or any(state.base_version == 0 for state in turn.states):
        return None
    if (journal := _plain_values(write)) is None:
        return None
    values = {**result_values(turn), **journal}
    for state in turn.states:
        values |= state_values(state)
    for item in turn.work_items:
        if not item.parked or write.session_id != turn.instance_id:
            return None
        if any(state.new.session_id != item.session_id for state in turn.states):  # its wakes run on another's lease
            return None
        values |= {
            "parked_activity": Int(item.key.activity_id),
            "parked_name": Text(item.name),
            "parked_session": Text(item.session_id),
            "parked_payload": Text(item.payload),
        }
        if item.gate is not None:
            values |= {"parked_gate": Text(item.gate.text), "parked_limited": Bool(item.gate.limited)}
    return LoneCall("commit_wake", values)


def commit_calls(parts: Sequence[CommitPart], parking: Parking) -> CommitCalls:
    """Calls that write to journals of different sessions, then park items, then do what follows from the writes."""
    writes = sorted(journal_writes(parts), key=_BY_KEY)
    calls: list[LiteralString] = []
    behind: Sequence[LiteralString] = ()
    params: Params = {}
    placing = None
    if writes:
        write, behind, params = _calls(writes, also=parking.instances)
        calls.append(write)
    if parking.instances:
        columns = _parking_params(parking, locks=not writes)
        placing = len(calls) if parking.items else None
        calls.append(call_of("park_items", tuple(columns), "park_"))
        params = {**params, **{"park_" + name: column for name, column in columns.items()}}
    return CommitCalls([*calls, *behind], params, placing)


def ack_calls(parts: Sequence[tuple[int, CommitPart]]) -> AckCalls:
    """Return the calls for the statement of the acks; some of them may not pass."""
    numbers = {part.session_id: number for number, part in parts}
    writes = sorted(journal_writes(part for _, part in parts), key=_BY_KEY)
    write, behind, params = _calls(writes, _ONLY_WRITES, _ONLY_APPENDS, _ONLY_STARTS, only_failures=_ONLY_FAILURES)
    append_of = Ints([n for n, one in enumerate(writes, 1) for _ in one.appends])
    params = {"write_also": _NO_SESSIONS, **params, **fence_params(writes), "append_of": append_of}
    params["write_ack"] = Ints([numbers[write.session_id] for write in writes])
    if start_of := [n for n, one in enumerate(writes, 1) for _ in one.starts]:
        params["start_of"] = Ints(start_of)
    if failure_of := [n for n, one in enumerate(writes, 1) if one.failure]:
        params["failure_of"] = Ints(failure_of)
    return AckCalls([write, *behind], params)


class _WriteCalls(NamedTuple):
    """Calls for a select list, in their order: what wakes add to their journals, then what follows from that."""

    write: LiteralString
    behind: Sequence[LiteralString]  # creations, starts, appends
    params: Params


def _calls(
    writes: Sequence[JournalWrite],
    only_writes: LiteralString = "",
    only_appends: LiteralString = "",
    only_starts: LiteralString = "",
    *,
    only_failures: LiteralString = "",
    also: Collection[str] = (),
) -> _WriteCalls:
    """Calls that apply writes to journals of different sessions, in the order of their keys, and the parameters.

    Args:
        writes: to apply.
        only_writes: argument that leaves some of them out.
        only_appends: the same for their appends.
        only_starts: the same for the instances that they start.
        only_failures: the same for their failures.
        also: sessions of other journals that the statement locks, with these and in the same order.
    """
    columns = _write_params(writes, also)
    write: LiteralString = f"(SELECT {call_of('write_journals', tuple(columns), _WRITE, only_writes)})"
    params = {_WRITE + name: value for name, value in columns.items()}
    behind: list[LiteralString] = []
    if any(write.creations or write.home for write in writes):
        columns = _creation_params(writes)
        behind.append(f"(SELECT {call_of('create_journals', tuple(columns), _CREATE, only_writes)})")
        params |= {_CREATE + name: value for name, value in columns.items()}
    if starts := [start for write in writes for start in write.starts]:
        columns = _start_params(starts)
        call = call_of("add_instances", tuple(columns), _START, only_starts)
        behind.append(f"(SELECT count(*) FROM {call})")  # noqa: S608 -- literals only
        params |= {_START + name: value for name, value in columns.items()}
    if rows := failure_rows(writes):
        columns = _failure_params(rows)
        behind.append(f"(SELECT {call_of('keep_failures', tuple(columns), _FAIL, only_failures)})")
        params |= {_FAIL + name: value for name, value in columns.items()}
    if appends := [append for write in writes for append in write.appends]:
        columns = append_params(appends)
        call = call_of("append_journals", tuple(columns), _APPEND, only_appends)
        params |= {_APPEND + name: value for name, value in columns.items()}
        done: LiteralString = "cardinality(places)"
        if bounces := _bounces(appends):
            done = "bounce_journals(places, outcomes, %(bounces)s)"
            params["bounces"] = json.dumps(bounces, ensure_ascii=False)
        behind.append(f"(SELECT {done} FROM {call})")  # noqa: S608 -- literals only
    return _WriteCalls(write, behind, params)


def _bounces(appends: Sequence[JournalAppend]) -> list[Mapping[str, Any]]:
    """Fallback entries, each with the place of the append that it replaces if that is refused."""
    found = [(place, one.if_refused) for place, one in enumerate(appends, 1)]
    return [_bounce(place, other, other.entry) for place, other in found if other and other.entry]


def _bounce(place: int, append: JournalAppend, entry: NewEntry) -> Mapping[str, Any]:
    return {
        "place": place,
        "session": append.session_id,
        "kind": append.kind,
        "entry_kind": entry.kind,
        "entry": entry.payload,
        "event": entry.event_id,
        "wake": entry.wake_id,
        "input": entry.is_input,
        "message": append.message,
        "journal": append.journal_id,
    }


def _plain_values(write: JournalWrite) -> dict[LiteralString, Packed] | None:
    """Return the values of a write among the arguments of ``commit_wake``; None for a write that does more."""
    if write.end is None or write.failure or write.creations or write.home or write.appends or write.starts:
        return None
    if _is_rare(write):
        return None
    for entry in write.entries:
        if entry.event_id is not None or entry.is_input or entry.wake_id != write.wake_id:
            return None
    return {
        "session": Text(write.session_id),
        "journal": Int(write.journal_id),
        "base": Int(write.base),
        "processed": Int(write.processed),
        "wake": Text(write.wake_id),
        "attempt": Int(write.attempt),
        "entry_kind": Texts([entry.kind for entry in write.entries]),
        "entry": Texts([entry.payload for entry in write.entries]),
        "size": Int(sum([_bytes(entry.payload) for entry in write.entries])),
        "clear": Bool(write.clear_stream),
        "outcome": Text(write.end.outcome),
        "reason": Text(write.end.reason),
        "read": Int(write.end.read),
        "number": Int(write.end.attempt),
        "error": Text(write.end.error),
    }


def _write_params(writes: Sequence[JournalWrite], also: Collection[str] = ()) -> Params:
    """Return the parameters of ``write_journals`` that this batch needs."""
    entries = [entry for write in writes for entry in write.entries]
    params: dict[str, Any] = {
        **_fence_columns(writes),
        "processed": Ints([write.processed for write in writes]),
        "wake": Texts([write.wake_id for write in writes]),
        "attempt": Ints([write.attempt for write in writes]),
        "added": Ints([len(write.entries) for write in writes]),
        "size": Ints([sum([_bytes(entry.payload) for entry in write.entries]) for write in writes]),
        "entry_write": Ints([n for n, write in enumerate(writes, 1) for _ in write.entries]),
        "entry_place": Ints([place for write in writes for place in range(1, len(write.entries) + 1)]),
        "entry_kind": Texts([entry.kind for entry in entries]),
        "entry_wake": Texts([entry.wake_id for entry in entries]),
        "entry": Texts([entry.payload for entry in entries]),
    }
    if any(entry.event_id is not None for entry in entries):
        params["entry_event"] = Texts([entry.event_id for entry in entries])
    if any(entry.is_input for entry in entries):
        params["entry_input"] = Bools([entry.is_input for entry in entries])
    if cleared := [n for n, write in enumerate(writes, 1) if write.clear_stream]:
        params["clear"] = Ints(cleared)
    if parts := [n for n, write in enumerate(writes, 1) if write.is_part]:
        params["part"] = Ints(parts)
    ends = [write.end for write in writes]
    if any(ends):
        params |= {
            "outcome": Texts([end.outcome if end else None for end in ends]),
            "reason": Texts([end.reason if end else None for end in ends]),
            "read": Ints([end.read if end else None for end in ends]),
            "number": Ints([end.attempt if end else None for end in ends]),
            "error": Texts([end.error if end else None for end in ends]),
        }
    if any(_is_rare(write) for write in writes):
        params["rare"] = json.dumps(_rare(writes), ensure_ascii=False)
    sent = {
        sent_to.session_id
        for write in writes
        for append in write.appends
        for sent_to in (append, append.if_refused)
        if sent_to
    }
    if sent or not {write.session_id for write in writes}.issuperset(also):
        params["also"] = Texts(sent.union(also))
    return params


def fence_params(parts: Sequence[CommitPart]) -> Params:
    """Return the columns by which writes are judged, as the statements of fences have them."""
    writes = journal_writes(parts)
    creations = _creation_params(writes)
    return {
        **{_WRITE + name: column for name, column in _fence_columns(writes).items()},
        "write_creations": creations["creations"],
        "write_home": creations["home"],
        "write_epoch": creations["home_epoch"],
    }


def _parking_params(parking: Parking, *, locks: bool) -> Columns:
    """Return the parameters of ``park_items`` that this batch needs.

    Args:
        parking: of the batch.
        locks: whether the function is to lock the journals, which nothing before it has locked.
    """
    columns: Columns = {}
    if parking.items:
        columns |= {
            **key_columns([item.key for item in parking.items]),
            "generation": Texts(parking.generations),
            "name": Texts([item.name for item in parking.items]),
            "session": Texts([item.session_id for item in parking.items]),
            "payload": Texts([item.payload for item in parking.items]),
        }
        if any(item.gate for item in parking.items):
            gates = [item.gate for item in parking.items]
            columns["gate"] = Texts([gate and gate.text for gate in gates])
            columns["limited"] = Bools([gate and gate.limited for gate in gates])
    if parking.cancelled:
        columns |= key_columns(parking.cancelled, "cancel_")
    if locks:
        columns["lock"] = Texts(parking.instances)
    return columns


def _creation_params(writes: Sequence[JournalWrite]) -> Params:
    """Return the columns of ``create_journals``."""
    creations = [[creation_document(creation) for creation in write.creations] for write in writes]
    return {
        "creations": Texts(json.dumps(creation, ensure_ascii=False) if creation else None for creation in creations),
        "home": Texts(None if write.home is None else write.home.session_id for write in writes),
        "home_epoch": Ints(None if write.home is None else write.home.epoch for write in writes),
    }


def _start_params(starts: Sequence[InstanceStart]) -> Params:
    """Return the columns of ``add_instances``."""
    return {
        "instance": Texts([start.instance_id for start in starts]),
        "generation": Texts([start.generation for start in starts]),
        "name": Texts([start.name for start in starts]),
        "version": Texts([None for _ in starts]),
        "start": Texts([start.start for start in starts]),
    }


def _failure_params(rows: Sequence[Sequence[Any]]) -> Params:
    """Return the columns of ``keep_failures``."""
    instances, executions, activities, attempts, kinds, names, error_types, errors, retried = zip(*rows, strict=True)
    return {
        "instance": Texts(instances),
        "execution": Ints(executions),
        "activity": Ints(activities),
        "attempt": Ints(attempts),
        "kind": Texts(kinds),
        "name": Texts(names),
        "error_type": Texts(error_types),
        "error": Texts(errors),
        "retried": Bools(retried),
    }


def _fence_columns(writes: Sequence[JournalWrite]) -> Params:
    """Return the columns by which writes are judged."""
    return {
        "session": Texts([write.session_id for write in writes]),
        "journal": Ints([write.journal_id for write in writes]),
        "base": Ints([write.base for write in writes]),
    }


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _is_rare(write: JournalWrite) -> bool:
    is_rare = write.requests or write.revisits or write.ended_requests or write.ended_revisits or write.steps
    return bool(is_rare or write.clear_steps or write.delegations or write.ended_delegations)


def _rare(writes: Sequence[JournalWrite]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """New and ended requests, revisits and delegations, and steps, each with the number of its write."""
    numbered = list(enumerate(writes, 1))
    return {
        "requests": [
            {
                "n": n,
                "id": request.request_id,
                "kind": request.kind,
                "payload": request.payload,
                "expires_in": request.expires_in,
            }
            for n, write in numbered
            for request in write.requests
        ],
        "revisits": [
            {
                "n": n,
                "key": revisit.key,
                "delay": revisit.delay,
                "priority": revisit.priority,
                "reason": revisit.reason,
                "note": revisit.note,
            }
            for n, write in numbered
            for revisit in write.revisits
        ],
        "ended_requests": [{"n": n, "id": request_id} for n, write in numbered for request_id in write.ended_requests],
        "ended_revisits": [{"n": n, "key": key} for n, write in numbered for key in write.ended_revisits],
        "delegations": [
            {"n": n, "id": delegation.delegation_id, "child": delegation.child}
            for n, write in numbered
            for delegation in write.delegations
        ],
        "ended_delegations": [
            {"n": n, "id": delegation_id} for n, write in numbered for delegation_id in write.ended_delegations
        ],
        "cleared_steps": [{"n": n} for n, write in numbered if write.clear_steps],
        "steps": [
            {"n": n, "wake": step.wake_id, "key": step.key, "arguments": step.arguments, "result": step.result}
            for n, write in numbered
            for step in write.steps
        ],
    }


COMMIT: Final = PostgresCommit(
    lone=lone_call,
    calls=commit_calls,
    fences=_SQL["fences"],
    fence_params=fence_params,
    ack_tables=_SQL["ack_tables"],
    ack_fence="(n NOT IN (SELECT unnest(%(write_ack)s)) OR n IN (SELECT n FROM fenced))",
    acks=ack_calls,
    parks=True,
)
