"""Options of a worker, validated together: from code, from ``AFFINITY_*`` environment variables, or from flags."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

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

ENVIRONMENT_PREFIX: Final = "AFFINITY_"

LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 -- only where an operator sets the port for a whole pod

ALIKE: Final = 0.66
"""From this similarity on (of `difflib`) one name is taken for another one that is misspelt."""

_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")

_NOT_BELOW: Final = (
    ("session_lock_timeout", "work_item_lock_timeout", "s", "a session must outlive the lock of its work"),
    ("worker_lease_timeout", "poll_interval", "s", "a worker must look at its lease while it is alive"),
    ("stall_timeout", "worker_lease_timeout", "s", "a stall is judged only once a lease could have ended"),
    ("max_outstanding_bytes", "max_batch_bytes", "bytes", "there must be room for one batch"),
    ("unregistered_timeout", "poll_interval", "s", "workers must have a chance to see the work"),
)
"""Options of which the first may not be less than the second, their unit, and why."""

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
RetentionSeconds = Annotated[float, Field(gt=0, le=MAX_RETENTION_SECONDS, allow_inf_nan=False)]


def _default_node_id() -> str:
    """Safe for several workers on one host; give a stable name (a pod's) to keep sessions over restarts."""
    return f"{socket.gethostname()[:200]}-{secrets.token_hex(4)}"


class RuntimeOptions(BaseModel):
    """How a worker runs. Durations are seconds.

    Raises:
        InvalidOptions: names every option that is unknown or out of its bounds; or all values in contradiction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # else type checkers would not know the options any more

        def __init__(self, **values: Any) -> None:
            wrong = ""
            try:
                super().__init__(**values)
            except ValidationError as error:
                wrong = "; ".join(map(_explain, error.errors()))
            if wrong:  # not as a consequence of pydantic's error, which quotes what it was given
                raise InvalidOptions(wrong)

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
    (see docs/run/monitoring.md). By default a digest of the files that hold the app's orchestrations.
    """
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Serve Prometheus metrics, and `/live`, on this port; 0 picks a free one."""
    metrics_host: str = Field(default=LOOPBACK, min_length=1)
    """Address on which that port is served. From the environment, a port without a host is served on all addresses: in
    a pod Prometheus and the kubelet come from outside.
    """

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
        wrong = [
            f"{larger} ({high:.15g} {unit}) is less than {smaller} ({low:.15g} {unit}): {why}"
            for larger, smaller, unit, why in _NOT_BELOW
            if (high := getattr(self, larger)) < (low := getattr(self, smaller))
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @classmethod
    def make(cls, **values: Any) -> Self:
        """`RuntimeOptions`, of values whose names are not known before."""
        return cls(**values)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Options from ``AFFINITY_<NAME>`` variables; ``overrides`` that are not None win.

        Raises:
            InvalidOptions: as for the class; or a variable's name is almost that of an option.
        """
        environ = os.environ if environ is None else environ
        check_environment(environ)
        found = {
            name: environ[key] for name in cls.model_fields if (key := ENVIRONMENT_PREFIX + name.upper()) in environ
        }
        given = {name: value for name, value in overrides.items() if value is not None}
        if "metrics_port" in found and "metrics_port" not in given:
            found.setdefault("metrics_host", ALL_ADDRESSES)
        return cls(**found | given)


def check_environment(environ: Mapping[str, str] | None = None) -> None:
    """Refuse variables whose names are almost those of ``AFFINITY_URL`` or of an option: they would have no effect.

    Raises:
        InvalidOptions: names all of them, and what was probably meant.
    """
    wrong = [
        f"environment variable {name}: did you mean {ENVIRONMENT_PREFIX}{meant.upper()}?"
        for name, value in (os.environ if environ is None else environ).items()
        if name.upper().startswith(ENVIRONMENT_PREFIX) and not _is_service_link(name, value)
        if (meant := _meant(name)) is not None
    ]
    if wrong:
        raise InvalidOptions("; ".join(wrong))


def _meant(variable: str) -> str | None:
    """The option of which the name is almost that of the variable; None where it is one, or is like none."""
    known = ["url", *RuntimeOptions.model_fields]
    name = variable[len(ENVIRONMENT_PREFIX) :].lower()
    if variable in {ENVIRONMENT_PREFIX + each.upper() for each in known}:
        return None
    words = set(name.split("_"))
    partial = [each for each in known if words <= set(each.split("_"))]
    close = difflib.get_close_matches(name, known, 1, ALIKE)
    return next(iter([*close, *partial]), None)


def _is_service_link(variable: str, value: str) -> bool:
    """Whether it is one of those that Kubernetes sets for a Service whose name begins with "affinity"."""
    return _SERVICE_LINK.search(variable) is not None or re.match(r"(tcp|udp|sctp)://", value) is not None


def _explain(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":  # what was given stays out: it may be a URL with a password
        close = difflib.get_close_matches(where, RuntimeOptions.model_fields, 1, ALIKE)
        return f"{where}: there is no such option" + "".join(f"; did you mean {each}?" for each in close)
    text = error["msg"].removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {text}" if where else text
