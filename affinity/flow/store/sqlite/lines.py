"""Lines: work with one gate, in order of age. Reading the lines that are to be served, and work of them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from affinity.flow.store.sqlite.keys import add_keys
from affinity.orchestration.gates import read_gate
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "lines.sql")


class Work(NamedTuple):
    """A piece of work that waits."""

    work_id: int
    item_id: int | None  # None: the start of the instance
    instance_id: str
    since: float


@dataclass(slots=True, eq=False)
class Line:
    """A line that is to be served."""

    line_id: int
    priority: int
    keys: Sequence[tuple[int, int]]  # and units
    domain: int
    share: int
    weight: float
    waiting: int
    virtual_next: float
    first_since: float
    blocked_on: int | None = None
    work: deque[Work] = field(default_factory=deque)  # that has been read, and not been admitted
    last_read: int = 0  # the last of its work that has been read

    @property
    def oldest(self) -> float:
        """Since when its first work waits."""
        return self.work[0].since if self.work else self.first_since

    @property
    def sharing(self) -> tuple[int, int, int]:
        """What all lines have in common that share one virtual time."""
        return (self.share, self.domain, self.priority)

    @property
    def place(self) -> tuple[int, float, int]:
        """Its place in the order in which lines are read."""
        return (-self.priority, self.virtual_next, self.line_id)


class GateLine(NamedTuple):
    """The line of a gate."""

    line_id: int
    domain: int
    keys: Sequence[tuple[int, int]]  # and units
    is_blocked: bool


def find_gates(tx: Tx, gates: Collection[str]) -> dict[str, GateLine]:
    """Return the lines of gates; new ones are added."""
    if not gates:
        return {}
    found = _read_gates(tx, gates)
    if missing := [gate for gate in gates if gate not in found]:
        _add(tx, missing)
        found |= _read_gates(tx, missing)
    return found


def read_lines(
    tx: Tx, domain: int, *, after: tuple[int, float, int] | None, most: int, aged_since: float
) -> tuple[list[Line], list[Line]]:
    """Return the next lines of a domain, in order; and on the first page those whose work waits since a time."""
    at = {"domain": domain, "most": most}
    if after is None:
        page, aged = tx.gather(SQL["first_page"], {**at, "aged_since": aged_since})
    else:
        place = {"priority": -after[0], "virtual_next": after[1], "line_id": after[2]}
        page, aged = tx.gather(SQL["next_page"], {**at, **place}), []
    return [_to_line(*row) for row in page], [_to_line(*row) for row in aged]


def read_work(tx: Tx, lines: Iterable[Line], most: int) -> None:
    """Read the first work of lines that has not been read."""
    wanted = {line.line_id: line for line in lines if len(line.work) < line.waiting}
    if not wanted:
        return
    # Behind work, and not behind a time: times in JSON have fewer digits than in a table.
    rows = [(line.line_id, line.last_read) for line in wanted.values()]
    for line_id, found in tx.gather(SQL["work"], {"rows": to_json(rows), "most": most}):
        line = wanted[line_id]
        line.work.extend(Work(*row) for row in found)
        line.last_read = line.work[-1].work_id if line.work else 0


def find_blocked(tx: Tx, key_ids: Collection[int], most: int) -> Mapping[int, Sequence[tuple[int, int]]]:
    """Return lines that are blocked on keys, in order, up to ``most`` of each: the line and its domain."""
    found = tx.gather(SQL["blocked"], {"key_ids": to_json(list(key_ids)), "most": most}) if key_ids else []
    return {key_id: lines for key_id, lines in found if lines}


def unblock(tx: Tx, line_ids: Sequence[int]) -> None:
    """Let lines be served."""
    tx.many(SQL["unblock"], line_ids)


def write_lines(tx: Tx, lines: Collection[Line], shares: Mapping[tuple[int, int, int], float], now: float) -> None:
    """Write what a transaction has changed of lines, and the virtual times of all that share them."""
    rows = [(line.line_id, line.waiting, line.virtual_next, line.blocked_on) for line in lines]
    tx.many(SQL["write"], rows, {"now": now})
    tx.many(SQL["write_shares"], [(*sharing, virtual_next) for sharing, virtual_next in shares.items()])


def use_lines(tx: Tx, line_ids: Collection[int]) -> None:
    """Note that lines are in use, if that was not noted lately."""
    tx.many(SQL["use"], list(line_ids), {"now": tx.now, "before": tx.now - 60.0})


def _read_gates(tx: Tx, gates: Collection[str]) -> dict[str, GateLine]:
    rows = tx.gather(SQL["gates"], {"gates": to_json(list(gates))})
    return {
        gate: GateLine(line_id, domain, [(key_id, units) for key_id, units in json.loads(keys)], bool(is_blocked))
        for gate, line_id, domain, keys, is_blocked in rows
    }


def _add(tx: Tx, gates: Sequence[str]) -> None:
    parsed = [(gate, *read_gate(gate)) for gate in gates]
    ids = add_keys(tx, {(use.limit, use.key) for _, _, uses in parsed for use in uses})
    rows: list[Any] = []
    links: list[Any] = []
    for gate, priority, uses in parsed:
        keys = [ids[use.limit, use.key] for use in uses]
        domain = next((ids[use.limit, use.key] for use in uses if not use.key), keys[0])
        share, weight = next(((ids[use.limit, use.key], use.weight) for use in uses if use.key), (domain, 1.0))
        units = [(ids[use.limit, use.key], use.units) for use in uses]
        rows.append((gate, priority, to_json(units), domain, share, weight))
        links += [(gate, key_id) for key_id in keys]
    tx.many(SQL["add"], rows, {"now": tx.now})
    tx.many(SQL["link"], links)


def _to_line(line_id: int, priority: int, keys: str, virtual_next: str, *rest: Any) -> Line:
    domain, share, weight, waiting, oldest = rest
    units = [(key_id, units) for key_id, units in json.loads(keys)]
    return Line(line_id, priority, units, domain, share, weight, waiting, float(virtual_next), oldest)
