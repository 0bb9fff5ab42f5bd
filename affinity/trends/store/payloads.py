"""What is encoded of trends: nothing."""

from __future__ import annotations

from typing import Final

from affinity.payloads.table import PayloadPart

PART: Final = PayloadPart(
    metadata={
        "names and versions of code, and classes of errors": "trends.name",
        "numbers, as JSON": "trends.durations",
        "words of affinity": "trends.kind",
    },
)
