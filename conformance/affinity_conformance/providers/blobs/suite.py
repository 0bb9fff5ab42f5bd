"""The rules of the collection of blobs in one class."""

from __future__ import annotations

from typing import ClassVar

from affinity_conformance.providers.blobs.fault_verbs import BLOBS
from affinity_conformance.providers.blobs.rules import BlobRules
from affinity_conformance.providers.fault_fixtures import FaultPart


class BlobConformance(BlobRules):
    """The rules of the collection of blobs. They belong to a class that has the kernel's, too."""

    fault_part: ClassVar[FaultPart] = BLOBS
