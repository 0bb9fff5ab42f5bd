"""The option of trends for workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from affinity.limits import MAX_TREND_RETENTION_SECONDS, MIN_TREND_RETENTION_SECONDS, TREND_RETENTION_SECONDS
from affinity.worker.options import GuestOptions


class TrendOptions(GuestOptions):
    """Options for the retention of trends by workers."""

    trend_retention: float = Field(
        default=TREND_RETENTION_SECONDS,
        ge=MIN_TREND_RETENTION_SECONDS,
        le=MAX_TREND_RETENTION_SECONDS,
        allow_inf_nan=False,
    )
    """How long the counts of each minute are kept: an hour to 31 days."""

    @property
    def retention_of_guests(self) -> Mapping[str, Any]:
        """Add the retention of trends."""
        return {**super().retention_of_guests, "trends": self.trend_retention}
