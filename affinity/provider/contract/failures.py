"""Records of failures: failed attempts of activities, activities and orchestrations that have failed, suspensions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from affinity.records import UnreadableText, frozen

FailureKind: TypeAlias = Literal["activity", "orchestration", "suspension"]
"""What has failed; ``suspension``: an instance that is suspended now."""


class NewFailure(NamedTuple):
    """A failure that a turn records: its event is in ``Turn.history``."""

    activity_id: int  # event id of the ActivityScheduled event; 0: the orchestration has failed
    name: str  # of the activity or the orchestration
    error_type: str  # name of an exception class, by which failures are found
    error: str  # "ValueError: …"
    attempt: int  # of the activity; 0: the orchestration


@frozen(kw_only=True)
class FailureRecord:
    """A failed attempt of an activity, the failure of an orchestration, or an instance that is suspended."""

    instance_id: str
    execution_id: int
    activity_id: int  # event id of its scheduling; 0: the orchestration has failed, or is suspended
    attempt: int  # of the activity; 0: the orchestration
    kind: FailureKind
    name: str  # of the activity or the orchestration
    error_type: str  # name of an exception class
    is_retried: bool  # the activity was given back for another attempt
    failed_at: datetime
    error: str  # "ValueError: …", at most `limits.MAX_NOTED_ERROR_BYTES`; of a suspension its message
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

    seconds: float  # those of the last so many seconds, and all instances that are suspended
    kind: FailureKind | None = None
    name: str | None = None
    error_type: str | None = None
    after: FailurePlace | None = None  # those that come later in the listing


@frozen(kw_only=True)
class FailureGroup:
    """The failures of one class of errors in one activity or orchestration, within a time; or the instances of one
    orchestration that are suspended for errors of one class, since whenever.
    """

    kind: FailureKind
    name: str
    error_type: str
    count: int  # failed attempts of the activity, or instances of the orchestration; up to a limit
    instances: int  # among the newest of these
    is_cut: bool  # there are more than ``count``
    first_at: datetime  # the first of this time
    last_at: datetime
    instance_id: str  # of the last one
    error: str  # of the last one, as `FailureRecord.error`


@frozen(kw_only=True)
class FailureGroups:
    """Failures by kind, name and class: suspensions first, then those with the most failures, then the latest."""

    now: datetime  # by the clock of the database
    groups: Sequence[FailureGroup]
    is_cut: bool  # there are more groups
