"""What is encoded of limits."""

from __future__ import annotations

from typing import Final

from affinity.flow.store.contract import LimitClosing, LimitRow
from affinity.payloads.table import Encoded, PayloadPart, Record

PART: Final = PayloadPart(
    records={
        LimitClosing: Record(scope="limit", fields={"reason": Encoded("text", "limits.closed_for", name="closed_for")}),
        LimitRow: Record(scope="spec.name", fields={"closed_for": Encoded("text", name="closed_for")}),
    },
    metadata={
        "names, keys and numbers of limits": (
            "limit_charges.key limit_charges.limit_name limit_keys.changes limit_keys.key limit_keys.limit_name "
            "limit_keys.used limit_keys.used_at limit_keys.virtual_times limit_lines.gate limit_lines.gate_hash "
            "limit_lines.keys limits.app limits.changed_by limits.changes limits.code limits.name limits.rate"
        ),
        "an id, by which rows are found and ordered": "limited_work.instance_id",
    },
)
