"""What is encoded of the collection of blobs: nothing."""

from __future__ import annotations

from typing import Final

from affinity.payloads.table import PayloadPart

PART: Final = PayloadPart(
    metadata={
        "a digest, which names a blob": "condemned_blobs.digest exported_blobs.digest orphan_blobs.digest",
        "a time of the blob store": "orphan_blobs.used_at",
    },
)
