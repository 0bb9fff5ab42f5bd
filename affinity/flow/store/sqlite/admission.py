"""Admission: work takes the slots of all its limits, or waits in its line.

One transaction reads what it needs in a few statements, decides in memory, and writes what has changed in a few more.
What it reads does not grow with the work that waits, nor with the keys: it looks at domains that are pending and at
keys that have been opened, and there at as many lines as there are slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final

from affinity.flow.store.contract import Admitted
from affinity.flow.store.sqlite.keys import Lack, LimitKey, read_keys, write_keys
from affinity.flow.store.sqlite.lines import (
    Line,
    Work,
    find_blocked,
    find_gates,
    read_lines,
    read_work,
    unblock,
    write_lines,
)
from affinity.limits import MAX_ADMISSIONS, PRIORITY_SECONDS
from affinity.orchestration.gates import read_gate
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.sqlite.sessions import FREE, NEW, Lease, read_leases
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "admission.sql")

MESSAGES: Final = "messages"
"""In `Admitted.routes`: of instances that may start."""

INGEST: Final = 4
"""Pieces of work that one call puts into their lines, for each that it may admit."""

PAGE: Final = 16
"""Lines that are read at once, at least."""

UNBLOCKED: Final = 64
"""Lines of one key that one call looks at again, at most."""

_STEP: Final = 1e-6
"""Seconds between items that are admitted together, so that their order is the order of their admission."""


def admit(database: Database, *, most: int, if_waiting: bool = False) -> Admitted:
    """Take the write lock only when there is something to do: the triggers have counted the slots that are free."""
    idle = database.read(_look)
    return database.write(_admit, min(most, MAX_ADMISSIONS)) if idle is None else idle


def _look(tx: Tx) -> Admitted | None:
    """Return the answer while nothing can be admitted; None: some work may be."""
    due = next_admission(tx)
    if due is not None and due <= 0:
        return None
    return Admitted(admitted=0, routes=[], more=False, next_due=due, waits=bool(tx.value(SQL["waits"])))


def _admit(tx: Tx, most: int) -> Admitted:
    return _Admission(tx, most).run()


def next_admission(tx: Tx, *, without_untaken: bool = False) -> float | None:
    """Return the seconds until work may be admitted: 0 or less if some may be now. None: nothing waits for time.
    ``without_untaken``: but for work that no worker takes, unless it fails at last.
    """
    at: float | None = tx.value(SQL["next_due"], {"now": tx.now, "all": not without_untaken})
    return None if at is None else at - tx.now


class _Admission:
    """One call of `admit`."""

    def __init__(self, tx: Tx, most: int) -> None:
        self._tx = tx
        self._most = most
        self._more = False
        self._routes: set[str] = set()
        self._keys: dict[int, LimitKey] = {}
        self._dirty: set[int] = set()  # keys
        self._lines: dict[int, Line] = {}  # that have changed
        self._shares: dict[tuple[int, int, int], float] = {}  # virtual times
        self._admitted: list[tuple[Work, int]] = []  # and the priority
        self._passed = 0
        self._partly_open: list[int] = []  # keys with more blocked lines
        self._lacking: set[int] = set()  # keys at which lines were blocked now: others do not overtake these

    def run(self) -> Admitted:
        """Put work that has come into its lines, then serve these."""
        items, starts = self._line_up()
        self._open()
        for domain in self._read_pending():
            if self._left <= 0:
                break
            _Domain(self, domain).serve()
        self._write()
        tx = self._tx
        tx.many(SQL["wait_items"], items)
        tx.many(SQL["wait_starts"], starts)
        due = next_admission(tx)
        return Admitted(
            admitted=len(self._admitted) + self._passed,
            routes=sorted(self._routes),
            more=self._more or (due is not None and due <= 0),
            next_due=due,
            waits=bool(tx.value(SQL["waits"])),
        )

    @property
    def _left(self) -> int:
        return self._most - len(self._admitted) - self._passed

    # -- work that has come

    def _line_up(self) -> tuple[list[int], list[str]]:
        """Put work that has come to its gate into its line; return the items and the instances."""
        at = {"now": self._tx.now, "most": self._most * INGEST}
        came = self._tx.gather(SQL["came_items"], at)
        starts = self._tx.gather(SQL["came_starts"], at)
        self._more = max(len(came), len(starts)) >= at["most"]
        self._pass([row for row in came if not row[2]])
        waiting = [
            (gate, item_id, instance_id, since) for item_id, gate, limited, since, instance_id, _ in came if limited
        ]
        waiting += [(gate, None, instance_id, since) for instance_id, gate, limited, since in starts if limited]
        passed = [(instance_id, read_gate(gate)[0]) for instance_id, gate, limited, _ in starts if not limited]
        self._start(passed)  # they have waited for time alone
        self._passed += len(passed)
        gates = find_gates(self._tx, {gate for gate, *_ in waiting})
        self._tx.many(SQL["add_work"], [(gates[gate].line_id, *work) for gate, *work in waiting])
        self._count([(gates[gate].line_id, since) for gate, *_, since in waiting])
        by_key: dict[int, list[int]] = {}
        for gate, *_ in waiting:
            for key_id, _ in gates[gate].keys:
                counted = by_key.setdefault(key_id, [0, 0])
                counted[0] += 1
                counted[1] |= key_id == gates[gate].domain and not gates[gate].is_blocked
        self._tx.many(SQL["count_in_keys"], [(key_id, *counts) for key_id, counts in by_key.items()])
        return [row[0] for row in came if row[2]], [instance_id for instance_id, *_ in starts]

    def _count(self, came: list[tuple[int, float]]) -> None:
        """Count work in its lines."""
        by_line: dict[int, tuple[int, float]] = {}
        for line_id, since in came:
            number, oldest = by_line.get(line_id, (0, since))
            by_line[line_id] = (number + 1, min(oldest, since))
        self._tx.many(SQL["count_in_lines"], [(line_id, *of) for line_id, of in by_line.items()], {"now": self._tx.now})

    def _pass(self, came: list[Any]) -> None:
        """Let items go on that have a gate without limits: they have waited for time alone."""
        passing = came[: self._most]
        self._more = self._more or len(passing) < len(came)
        leases = read_leases(self._tx, {row[5] for row in passing if row[5] is not None})
        rows = []
        for item_id, gate, _, _, _, session_id in passing:
            ahead = read_gate(gate)[0] * PRIORITY_SECONDS
            rows.append((item_id, self._route(session_id, leases), session_id, self._tx.now - ahead))
        self._tx.many(SQL["send_items"], rows, {"now": self._tx.now})
        self._passed = len(rows)

    def _route(self, session_id: str | None, leases: dict[str, Lease]) -> str:
        lease = None if session_id is None else leases.get(session_id)
        route = FREE if session_id is None else NEW if lease is None else lease.route
        self._routes.add(route)
        return route

    # -- what is looked at

    def _open(self) -> None:
        """Let lines be looked at again whose keys may have room now."""
        now = self._tx.now
        opened: list[int] = self._tx.gather(SQL["opened"], {"now": now, "most": self._most})
        self.load(opened)
        rooms: dict[int, float] = {}
        for key_id in opened:
            key = self.key(key_id, changes=True)
            lack = key.find_lack(1, now)
            key.opens_at = None if lack is None else lack.opens
            rooms[key_id] = key.free_slots(now) if lack is None else 0
            key.is_pending = key.is_pending or (lack is None and key.waiting > 0)
        with_room = [key_id for key_id in opened if rooms[key_id] > 0]
        unblocked: list[int] = []
        domains: set[int] = set()
        for key_id, lines in find_blocked(self._tx, with_room, UNBLOCKED).items():
            number = int(min(rooms[key_id], len(lines)))
            if number < len(lines) or len(lines) == UNBLOCKED:
                self._partly_open.append(key_id)
            unblocked += [line_id for line_id, _ in lines[:number]]
            domains.update(domain for _, domain in lines[:number])
        unblock(self._tx, unblocked)
        self.load(domains)
        for domain in domains:
            self.key(domain, changes=True).is_pending = True

    def _read_pending(self) -> Iterator[LimitKey]:
        """Yield the domains to serve, the one first that has waited for longest."""
        found: list[int] = self._tx.gather(SQL["pending"], {"most": self._most})
        self.load(found)
        known = {key_id for key_id in self._dirty if self._keys[key_id].is_pending}
        keys = [self.key(key_id, changes=True) for key_id in {*found, *known}]
        yield from sorted(keys, key=lambda key: (key.last_admitted or 0.0, key.key_id))

    def load(self, key_ids: Any) -> None:
        """Read keys that have not been read."""
        self._keys |= read_keys(self._tx, {key_id for key_id in key_ids if key_id not in self._keys})

    def key(self, key_id: int, *, changes: bool = False) -> LimitKey:
        """Return a key that has been read. ``changes``: the caller may change it."""
        if changes:
            self._dirty.add(key_id)
        return self._keys[key_id]

    # -- what a domain does

    @property
    def tx(self) -> Tx:
        """The transaction."""
        return self._tx

    @property
    def left(self) -> int:
        """How much more this call may admit."""
        return self._left

    def virtual_next(self, line: Line) -> float:
        """Return the virtual time of a line, with what others of its share have been given."""
        return max(line.virtual_next, self._shares.get(line.sharing, 0.0))

    def block(self, line: Line, key: LimitKey, opens: float | None) -> None:
        """Let a line wait until a key has room."""
        line.blocked_on = key.key_id
        self._lacking.add(key.key_id)
        self._lines[line.line_id] = line
        key.open_at(opens)
        self._dirty.add(key.key_id)

    def give(self, line: Line, work: Work) -> None:
        """Give the first work of a line its slots."""
        now = self._tx.now
        for key_id, units in line.keys:
            self.key(key_id, changes=True).admit(units, max(0.0, now - work.since), now)
        domain = self.key(line.domain, changes=True)
        start = self.virtual_next(line)
        served = domain.virtual_times.get(str(line.priority), 0.0)
        domain.virtual_times[str(line.priority)] = max(served, start)
        line.virtual_next = self._shares[line.sharing] = start + 1.0 / line.weight
        line.waiting -= 1
        self._lines[line.line_id] = line
        self._admitted.append((work, line.priority))

    def drop(self, line: Line) -> None:
        """Note that a line has no work, whatever it has counted."""
        line.waiting = 0
        self._lines[line.line_id] = line

    # -- what is written

    def _write(self) -> None:
        now = self._tx.now
        self._send_items([(work, priority) for work, priority in self._admitted if work.item_id is not None])
        if starts := [(work.instance_id, priority) for work, priority in self._admitted if work.item_id is None]:
            self._start(starts)
        self._tx.many(SQL["admit_work"], [work.work_id for work, _ in self._admitted], {"now": now})
        for key_id in self._partly_open:
            key = self.key(key_id, changes=True)
            if key_id not in self._lacking and key.find_lack(1, now) is None:
                key.opens_at = 0.0
        write_lines(self._tx, self._lines.values(), self._shares, now)
        write_keys(self._tx, [self._keys[key_id] for key_id in self._dirty], now)

    def _start(self, starts: list[tuple[str, int]]) -> None:
        """Let instances start, which have these priorities."""
        if starts:
            self._tx.many(SQL["open_instances"], [instance_id for instance_id, _ in starts])
            ahead = [(instance_id, priority * PRIORITY_SECONDS) for instance_id, priority in starts]
            self._tx.many(SQL["send_messages"], ahead, {"now": self._tx.now})
            self._routes.add(MESSAGES)

    def _send_items(self, items: list[tuple[Work, int]]) -> None:
        wanted = to_json([work.item_id for work, _ in items])
        sessions: dict[int, str] = dict(self._tx.gather(SQL["sessions"], {"items": wanted}) if items else [])
        leases = read_leases(self._tx, set(sessions.values()))
        first = self._tx.now - len(items) * _STEP
        rows = []
        for number, (work, priority) in enumerate(items):
            session_id = None if work.item_id is None else sessions.get(work.item_id)
            visible_at = first + number * _STEP - priority * PRIORITY_SECONDS
            rows.append((work.item_id, self._route(session_id, leases), session_id, visible_at))
        self._tx.many(SQL["send_items"], rows, {"now": self._tx.now})


class _Domain:
    """The lines of one domain, which are served in their order."""

    def __init__(self, admission: _Admission, key: LimitKey) -> None:
        self._admission = admission
        self._tx = admission.tx
        self._now = admission.tx.now
        self._key = key
        self._classes: dict[int, list[tuple[float, float, int, Line]]] = {}  # heaps, by priority
        self._seen: set[int] = set()
        self._bound: tuple[int, float, int] | None = None  # place of the last line that was read
        self._has_more = True  # behind it

    def serve(self) -> None:
        """Admit work until the domain has no room, no line, or the call has done its part."""
        while self._admission.left > 0:
            lack = self._key.find_lack(1, self._now)  # before any line is read
            line = None if lack or not self._key.waiting else self._next()
            if line is not None:
                units = next(units for key_id, units in line.keys if key_id == self._key.key_id)
                lack = self._key.find_lack(units, self._now)
            if line is None or lack is not None:
                self._key.is_pending = False
                if lack is not None and self._key.waiting:
                    self._key.open_at(lack.opens)
                return
            if not self._is_blocked(line):
                self._give(line)

    def _is_blocked(self, line: Line) -> bool:
        """Return whether a line lacks something at another key; then it waits there."""
        for key_id, units in line.keys:
            key = self._admission.key(key_id)
            if key_id != self._key.key_id and (lack := _find_lack(key, units, self._now)):
                heappop(self._classes[line.priority])
                self._admission.block(line, key, lack.opens)
                return True
        return False

    def _give(self, line: Line) -> None:
        if not line.work:
            read_work(self._tx, [line], self._admission.left)
        heappop(self._classes[line.priority])
        if not line.work:
            self._admission.drop(line)
            return
        self._admission.give(line, line.work.popleft())
        if line.waiting > 0:
            self._push(line)

    def _next(self) -> Line | None:
        """Return the line to serve next: the top of its heap."""
        while True:
            line = self._top()
            if self._has_more and (line is None or self._bound is None or self._is_behind(line, self._bound)):
                self._read_page()
            else:
                return line

    def _top(self) -> Line | None:
        """Return the first of the lines that have been read."""
        filled = [priority for priority, heap in self._classes.items() if heap]
        if not filled:
            return None
        best = filled[0] if len(filled) == 1 else max(filled, key=self._rank)
        heap = self._classes[best]
        while self._admission.virtual_next(heap[0][3]) > heap[0][0]:  # others of its share were served since
            self._push(heappop(heap)[3])
        return heap[0][3]

    def _rank(self, priority: int) -> tuple[int, int]:
        """Return what a priority counts now, with what waiting has added, and without it."""
        oldest = min(entry[3].oldest for entry in self._classes[priority])
        return priority + int(max(0.0, self._now - oldest) // self._key.aging), priority

    def _is_behind(self, line: Line, bound: tuple[int, float, int]) -> bool:
        """Return whether lines that have not been read may be before a line."""
        if -line.priority > bound[0] and self._rank(line.priority)[0] > line.priority:
            return False  # it is served for the time that it has waited
        return (-line.priority, self._admission.virtual_next(line), line.line_id) > bound

    def _push(self, line: Line) -> None:
        heap = self._classes.setdefault(line.priority, [])
        heappush(heap, (self._admission.virtual_next(line), line.oldest, line.line_id, line))

    def _read_page(self) -> None:
        free = min(self._key.free_slots(self._now), self._admission.left)
        most = int(max(PAGE, free))
        aged_since = self._now - self._key.aging
        page, aged = read_lines(self._tx, self._key.key_id, after=self._bound, most=most, aged_since=aged_since)
        self._has_more = len(page) == most
        if page:
            self._bound = page[-1].place
        new = {line.line_id: line for line in [*page, *aged] if line.line_id not in self._seen}
        self._seen.update(new)
        self._admission.load({key_id for line in new.values() for key_id, _ in line.keys})
        if free > 0:
            read_work(self._tx, new.values(), int(2 * free // max(1, len(new))) + 1)
        for line in new.values():
            self._push(line)


def _find_lack(key: LimitKey, units: int, now: float) -> Lack | None:
    """Return what work lacks at a key that is not its domain. While other work waits there for time, it goes first."""
    lack = key.find_lack(units, now)
    if lack is None and key.opens_at is not None and key.opens_at > now:
        return Lack("rate", key.opens_at)
    return lack
