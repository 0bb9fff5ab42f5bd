"""What is encoded of trends: nothing."""

from __future__ import annotations

from typing import Final

from affinity.payloads.table import PayloadPart

PART: Final = PayloadPart(
    metadata={
        "an id, by which rows are found and ordered": "failed_attempts.instance_id",
        "names and versions of code, and classes of errors": "failed_attempts.name trends.name",
        "numbers, as JSON": "trends.durations",
        "words of affinity": "trends.kind",
    },
)
