"""What work may need of a worker beside the code of its activity: to be able to read the record of its session.

An activity whose session was written by later code is given back with such a need (`WorkAbandon.needs`). Each worker
names those that it meets when it fetches.
"""

from __future__ import annotations

from collections.abc import Iterable

from affinity.session.context import RecordReader


def record_need(kind: str, schema_version: int) -> str:
    """To read records of this kind and schema version."""
    return f"state {kind}@{schema_version}"


def needs_met(listeners: Iterable[object]) -> frozenset[str]:
    """What the session states among these listeners can read."""
    readers = [one for one in listeners if isinstance(one, RecordReader)]
    return frozenset(record_need(one.kind, version) for one in readers for version in one.readable_versions())
