"""What guests measure of the database, for the metrics of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias


class Measure(NamedTuple):
    """A metric of a guest, with a value for each of some names that code gives, such as limits."""

    name: str  # without ``affinity_``, and without ``_total``
    text: str
    label: str  # of the names; no ids, and no names that clients give: each is a series
    grows: bool = False  # a counter; else a gauge


Measured: TypeAlias = Mapping[str, Mapping[str, float]]
"""The values of measures, by measure and name."""
