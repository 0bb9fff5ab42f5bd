"""Work that passes its gate with the commit which queues it: no other work waits there, and there is room."""

from __future__ import annotations

from typing import Final

from affinity.flow.store.sqlite.keys import LimitKey, read_keys, write_keys
from affinity.flow.store.sqlite.lines import GateLine, find_gates, use_lines
from affinity.provider.contract import NewWorkItem
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.statements import load_statements

SQL: Final = load_statements(__package__, "passing.sql")


class CommitGates:
    """The gates of the new work of one commit."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._lines: dict[str, GateLine] = {}
        self._keys: dict[int, LimitKey] = {}
        self._passed: list[tuple[NewWorkItem, GateLine]] = []

    def passes(self, item: NewWorkItem) -> bool:
        """Return whether an item has got a slot of each of its limits."""
        assert item.gate is not None
        line = self._line(item.gate.text)
        now = self._tx.now
        places = [(self._keys[key_id], units) for key_id, units in line.keys]
        if any(key.waiting > 0 or key.find_lack(units, now) for key, units in places):
            return False
        for key, units in places:
            key.waiting += 1
            key.admit(units, 0.0, now)
        self._passed.append((item, line))
        return True

    def write(self) -> None:
        """Write the slots of the items that have passed."""
        if not self._passed:
            return
        self._tx.many(SQL["add"], [(item.key, line.line_id) for item, line in self._passed], {"now": self._tx.now})
        used = {key_id for _, line in self._passed for key_id, _ in line.keys}
        write_keys(self._tx, [self._keys[key_id] for key_id in used], self._tx.now)
        use_lines(self._tx, {line.line_id for _, line in self._passed})

    def _line(self, gate: str) -> GateLine:
        line = self._lines.get(gate)
        if line is None:
            line = self._lines[gate] = find_gates(self._tx, [gate])[gate]
            self._keys |= read_keys(self._tx, {key_id for key_id, _ in line.keys} - self._keys.keys())
        return line
