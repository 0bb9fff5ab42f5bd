"""Records of failures: failed attempts of activities, activities that have failed, and orchestrations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from affinity.records import UnreadableText, frozen

FailureKind: TypeAlias = Literal["activity", "orchestration"]
"""What has failed."""


class NewFailure(NamedTuple):
    """A failure that a turn records: its event is in ``Turn.history``."""

    activity_id: int  # event id of the ActivityScheduled event; 0: the orchestration has failed
    name: str  # of the activity or the orchestration
    error_type: str  # name of an exception class, by which failures are found
    error: str  # "ValueError: …"
    attempt: int  # of the activity; 0: the orchestration


@frozen(kw_only=True)
class FailureRecord:
    """One failure: a failed attempt of an activity, or the failure of an orchestration."""

    instance_id: str
    execution_id: int
    activity_id: int  # event id of its scheduling; 0: the orchestration has failed
    attempt: int  # of the activity; 0: the orchestration
    kind: FailureKind
    name: str  # of the activity or the orchestration
    error_type: str  # name of an exception class
    is_retried: bool  # the activity was given back for another attempt
    failed_at: datetime
    error: str  # "ValueError: …", at most `limits.MAX_NOTED_ERROR_BYTES`
    stack: str | None = None  # of an attempt that is retried; None: not kept, not read, or in the history

    @property
    def is_readable(self) -> bool:
        """Whether ``error`` could be decoded; else it says why not."""
        return not isinstance(self.error, UnreadableText)


class FailurePlace(NamedTuple):
    """The place of a failure in a listing."""

    failed_at: datetime
    instance_id: str
    execution_id: int
    activity_id: int
    attempt: int


@frozen(kw_only=True)
class FailureFilter:
    """The failures to list; all conditions hold. A name needs its kind, and a class its name."""

    seconds: float  # those of the last so many seconds
    kind: FailureKind | None = None
    name: str | None = None
    error_type: str | None = None
    after: FailurePlace | None = None  # those that come later in the listing


@frozen(kw_only=True)
class FailureGroup:
    """The failures of one class of errors in one activity or orchestration, within a time."""

    kind: FailureKind
    name: str
    error_type: str
    count: int  # failed attempts of the activity, or instances of the orchestration; up to a limit
    instances: int  # among the newest of these
    is_cut: bool  # there are more than ``count``
    first_at: datetime  # the first of this time
    last_at: datetime


@frozen(kw_only=True)
class FailureGroups:
    """Failures by kind, name and class: those with the most failures first, then the latest."""

    now: datetime  # by the clock of the database
    groups: Sequence[FailureGroup]
    is_cut: bool  # there are more groups
