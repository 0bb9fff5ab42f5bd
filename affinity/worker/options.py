"""Options of a worker, validated together: from code, from ``AFFINITY_*`` environment variables, or from flags."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from affinity.errors import InvalidOptions
from affinity.limits import (
    INSTANCE_CACHE_BYTES,
    MAX_BATCH_BYTES,
    MAX_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OUTSTANDING_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RETENTION_SECONDS,
    check_id,
)

ENVIRONMENT_PREFIX = "AFFINITY_"

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
RetentionSeconds = Annotated[float, Field(gt=0, le=MAX_RETENTION_SECONDS, allow_inf_nan=False)]


def _default_node_id() -> str:
    """Safe for several workers on one host; give a stable name (a pod's) to keep sessions over restarts."""
    return f"{socket.gethostname()[:200]}-{secrets.token_hex(4)}"


class RuntimeOptions(BaseModel):
    """How a worker runs. Durations are seconds.

    Raises:
        InvalidOptions: from `make` and `from_environment`, with every contradicting value in the message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker_node_id: str = Field(default_factory=_default_node_id)
    """Stable name of this worker, unique among live ones: a restart under it keeps the sessions (v1 document, question
    4).
    """
    worker_concurrency: int = Field(default=128, ge=1, le=10_000)
    """Activities that run at once."""
    max_sessions_per_runtime: int = Field(default=100, ge=0, le=1_000_000)
    """Distinct sessions held at once; 0: never take session work."""
    session_lock_timeout: Seconds = 300.0
    """A session without work for this long is free for any worker."""
    session_min_idle: Seconds = 30.0
    """A session without work for this long is released when new sessions wait and no worker has room."""
    worker_lease_timeout: Seconds = 15.0
    """A dead worker's sessions and work are free after this long."""
    work_item_lock_timeout: Seconds = 30.0
    """An item that is not renewed for this long is delivered again."""
    startup_timeout: Seconds = 60.0
    """How long a starting worker waits for a database that does not answer."""
    poll_interval: Seconds = 1.0
    """Longest wait for a hint before looking into the queues anyway (jittered)."""
    instance_cache_size: int = Field(default=10_000, ge=0, le=10_000_000)
    """Live coroutines of orchestrations kept in memory; the least recently used are dropped and replayed when
    needed.
    """
    instance_cache_bytes: int = Field(default=INSTANCE_CACHE_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_BYTES)
    """Histories of these instances, in bytes: about what their coroutines hold. Also the most that events which the
    code of one instance has not read may take; past it the instance is suspended.
    """
    max_batch_bytes: int = Field(default=MAX_BATCH_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_MESSAGE_BYTES)
    """Payloads in one fetch, one page of a history or one commit, in bytes. What is larger by itself goes alone."""
    max_outstanding_bytes: int = Field(default=MAX_OUTSTANDING_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_BYTES)
    """Payloads of what was fetched and is not written yet, in bytes: messages, running activities, results, turns. When
    there is no room for another batch, fetches wait.
    """
    max_attempts: int = Field(default=10, ge=1, le=1_000)
    """Interrupted deliveries (crash, lost lease) of one work item before it fails as poison. From half of it on, a
    delivery runs alone, so that no activity is condemned for what its neighbour did.
    """
    unregistered_timeout: Seconds = 300.0
    """How long work that no worker registers waits for one that does, before an activity of it fails by name, and an
    orchestration is suspended.
    """
    drain_timeout: Seconds = 30.0
    """At SIGTERM, running activities have this long to end before they are given back."""
    stall_timeout: Seconds = 60.0
    """A worker whose event loop makes no progress for this long gives up its lease."""
    session_retention: Seconds = 600.0
    """How long an expired session's row (its last holder and epoch) is kept."""
    instance_retention: RetentionSeconds | None = None
    """How long a completed or cancelled instance is kept, with its sub-orchestrations; None: until somebody removes it.
    Failed ones always are: they may be reset.
    """
    history_retention: RetentionSeconds | None = None
    """How long the history of an execution that ``continue_as_new`` (or a reset) ended is kept; None: as long as its
    instance.
    """
    code_version: str | None = None
    """What tells the code of this worker from other releases: an instance that another version suspended is tried again
    (see docs/operations.md). By default a digest of the files that hold the app's orchestrations.
    """
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Serve Prometheus metrics on this port; 0 picks a free one."""

    @property
    def isolate_after(self) -> int:
        """Interruptions from which an activity runs alone: half of ``max_attempts``, and at least one."""
        return (self.max_attempts + 1) // 2

    @field_validator("worker_node_id", "code_version")
    @classmethod
    def _is_id(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else check_id(value, str(info.field_name))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        self._not_below("session_lock_timeout", "work_item_lock_timeout", "a session must outlive the lock of its work")
        self._not_below("worker_lease_timeout", "poll_interval", "a worker must look at its lease while it is alive")
        self._not_below("stall_timeout", "worker_lease_timeout", "a stall is judged only once a lease could have ended")
        if self.max_outstanding_bytes < self.max_batch_bytes:
            raise ValueError(
                f"max_outstanding_bytes ({self.max_outstanding_bytes}) is less than max_batch_bytes"
                f" ({self.max_batch_bytes}): there must be room for one batch"
            )
        self._not_below("unregistered_timeout", "poll_interval", "workers must have a chance to see the work")
        return self

    def _not_below(self, larger: str, smaller: str, why: str) -> None:
        high, low = getattr(self, larger), getattr(self, smaller)
        if high < low:
            raise ValueError(f"{larger} ({high:g} s) is shorter than {smaller} ({low:g} s): {why}")

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Validated options; every failure as one `InvalidOptions`."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise InvalidOptions("; ".join(map(_explain, error.errors()))) from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Options from ``AFFINITY_<NAME>`` variables; ``overrides`` that are not None win."""
        environ = os.environ if environ is None else environ
        found = {
            name: environ[key] for name in cls.model_fields if (key := ENVIRONMENT_PREFIX + name.upper()) in environ
        }
        return cls.make(**found | {name: value for name, value in overrides.items() if value is not None})


def _explain(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    text = error["msg"].removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {text}" if where else text
