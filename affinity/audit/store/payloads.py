"""What is encoded of the audit log."""

from __future__ import annotations

from typing import Final

from affinity.audit.entries import AuditEntry, NewAuditEntry
from affinity.payloads.table import Encoded, PayloadPart, Record

PART: Final = PayloadPart(
    records={
        NewAuditEntry: Record(fields={"details": Encoded("object", "audit.details", name="audit")}),
        AuditEntry: Record(fields={"details": Encoded("details", name="audit")}),
    },
    metadata={
        "words of affinity": "audit.action audit.kind audit.outcome",
        "what rows are found by: put no secret into it": "audit.role audit.source audit.stated_user",
        "an id, by which rows are found and ordered": "audit.target",
    },
)
