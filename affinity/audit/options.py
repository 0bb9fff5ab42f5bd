"""The option of the audit log for workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from affinity.limits import AUDIT_RETENTION_SECONDS, MAX_RETENTION_SECONDS, MIN_AUDIT_RETENTION_SECONDS
from affinity.worker.options import GuestOptions


class AuditOptions(GuestOptions):
    """Options for the retention of audit entries by workers."""

    audit_retention: float | None = Field(
        default=AUDIT_RETENTION_SECONDS, ge=MIN_AUDIT_RETENTION_SECONDS, le=MAX_RETENTION_SECONDS, allow_inf_nan=False
    )
    """How long entries of the audit log are kept, at least a day; none: forever."""

    @property
    def retention_of_guests(self) -> Mapping[str, Any]:
        """Add the retention of entries."""
        others = super().retention_of_guests
        return others if self.audit_retention is None else {**others, "audit": self.audit_retention}
