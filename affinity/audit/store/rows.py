"""Rows of ``audit`` of either engine as records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from affinity.audit.entries import AuditEntry
from affinity.provider.rows import Columns, Time, to_record


def to_audit_entry(row: Columns, time: Time) -> AuditEntry:
    """Return a row as an entry."""
    *own, details = row
    return to_record(AuditEntry, [*own, _details(details)], time)


def _details(text: str) -> Mapping[str, Any]:
    """Read the details, which any client may have written."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"details": text}
