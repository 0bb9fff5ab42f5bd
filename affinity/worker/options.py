"""Options of a worker: their descriptions, their bounds, and how they are read from code, environment and flags."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from affinity.errors import InvalidOptions
from affinity.field_words import ModelType, words_of
from affinity.limits import (
    ANY_TAG,
    INSTANCE_CACHE_BYTES,
    MAX_BATCH_BYTES,
    MAX_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OUTSTANDING_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_RETENTION_SECONDS,
    MAX_TAGS,
    check_id,
    check_labels,
    check_tag,
)

ENVIRONMENT_PREFIX: Final = "AFFINITY_"

LOOPBACK: Final = "127.0.0.1"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 -- only where an operator sets the port for a whole pod

ALIKE: Final = 0.66
"""From this similarity on (of `difflib`) one name is taken for another one that is misspelt."""

_FLAGS: Final = {
    "worker_node_id": "--node-id",
    "worker_concurrency": "--concurrency",
    "max_sessions_per_runtime": "--max-sessions",
}
"""Flags that are not named like their option."""

_OTHER_VARIABLES: Final = ("url", "direct_url", "user", "migrate", "log_level", "log_format")
"""What else the environment can set, of the command."""

_SERVICE_LINK: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")

SPREAD: Final = "spread"
PACK: Final = "pack"

NONE: Final = "none"
"""The text for None, in variables and flags of options that may be None."""

NOT_BELOW: Final = (
    ("session_lock_timeout", "work_item_lock_timeout", "s", "a session must be locked for as long as its work"),
    ("worker_lease_timeout", "poll_interval", "s", "a worker polls at least once in a lease"),
    ("stall_timeout", "worker_lease_timeout", "s", "a lease could not have ended by then"),
    ("max_outstanding_bytes", "max_batch_bytes", "bytes", "there must be room for one batch"),
    ("unregistered_timeout", "poll_interval", "s", "a worker that registers it must have polled by then"),
)
"""Pairs of options: the first may not be less than the second. With their unit, and the reason."""

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
RetentionSeconds = Annotated[float, Field(gt=0, le=MAX_RETENTION_SECONDS, allow_inf_nan=False)]


def _default_node_id() -> str:
    """Safe for several workers on one host; give a stable name (a pod's) to keep sessions over restarts."""
    return f"{socket.gethostname()[:200]}-{secrets.token_hex(4)}"


class GuestOptions(BaseModel):
    """The options that a guest adds to those of a worker."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    @property
    def retention_of_guests(self) -> Mapping[str, Any]:
        """The retention of old data by guest; data of other guests is kept forever. A guest adds its own."""
        return {}


class KernelOptions(GuestOptions, metaclass=ModelType):
    """The options of the kernel; `affinity.RuntimeOptions` has those of the guests too."""

    # The docstrings below are the descriptions in `--help` and in docs/run/options.md.
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # else type checkers would not know the options

        def __init__(self, **values: Any) -> None:
            wrong = ""
            try:
                super().__init__(**values)
            except ValidationError as error:
                wrong = "; ".join(_explain(detail, type(self).model_fields) for detail in error.errors())
            if wrong:  # not as a consequence of pydantic's error, which quotes the values
                raise InvalidOptions(wrong)

    worker_node_id: str = Field(default_factory=_default_node_id)
    """Stable name, unique among live workers. A start under it has the sessions of a killed worker, with
    ``restart_grace`` also of one that ended. Default: host name and a random part.
    """
    worker_concurrency: int = Field(default=128, ge=1, le=10_000)
    """Activities that run at the same time, and threads for sync ones."""
    max_sessions_per_runtime: int = Field(default=100, ge=0, le=1_000_000)
    """Sessions held at the same time; 0: never take session work. When others wait, one at rest makes room."""
    placement: str = Field(default=SPREAD, pattern=f"^({SPREAD}|{PACK})$")
    """New sessions go to all workers (``spread``), or to the lowest ordinal with room (``pack``): the number at the end
    of ``worker_node_id``. See docs/run/kubernetes.md#autoscaling.
    """
    tags: tuple[str, ...] = ()
    """Take also work with one of these tags: at most 8, separated by commas; ``any``: with any tag. See
    docs/run/placement.md#tags-and-strictness.
    """
    only_tagged: bool = False
    """Take no activities and no sessions without a tag."""
    missing_tag: Literal["wait", "fail"] = "wait"
    """When no worker with an activity's tag was alive for ``unregistered_timeout``: ``wait``, or ``fail`` with
    ``NoWorkerWithTag``. Give all workers the same value.
    """
    session_lock_timeout: Seconds = 300.0
    """A session without work for this long is free for any worker."""
    session_min_idle: Seconds = 30.0
    """Sessions are offered to workers with more room (``rebalance``) when they were idle for this long. Work that waits
    for a place does not wait for this. See docs/understand/leases.md#released-before-its-time.
    """
    worker_lease_timeout: Seconds = 15.0
    """Sessions and work of a worker that does not renew its lease are free after this long."""
    work_item_lock_timeout: Seconds = 30.0
    """A work item whose lock is not renewed for this long is delivered again."""
    startup_timeout: Seconds = 60.0
    """How long a starting worker waits for a database that does not answer."""
    poll_interval: Seconds = 1.0
    """Longest wait for a notification before the queues are polled; jittered, 0.7 to 1 of it."""
    instance_cache_size: int = Field(default=10_000, ge=0, le=10_000_000)
    """Orchestrations whose coroutines stay in memory between turns; others are replayed when needed."""
    instance_cache_bytes: int = Field(default=INSTANCE_CACHE_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_BYTES)
    """Histories of these orchestrations, in bytes; also the limit of the unread events of one instance. See
    docs/run/options.md#memory.
    """
    max_batch_bytes: int = Field(default=MAX_BATCH_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_MESSAGE_BYTES)
    """Payloads in one fetch, page of a history, turn or commit, in bytes. A larger payload goes alone."""
    max_outstanding_bytes: int = Field(default=MAX_OUTSTANDING_BYTES, ge=MAX_PAYLOAD_BYTES, le=MAX_BYTES)
    """Payloads that are fetched and not written yet, in bytes. Without room for another batch, fetches wait."""
    max_attempts: int = Field(default=10, ge=1, le=1_000)
    """Interrupted deliveries (crash, lost lease) of a work item before it fails, and claims of an instance without a
    turn before it is suspended. From half of it on, an activity runs alone. See docs/understand/leases.md#poison.
    """
    unregistered_timeout: Seconds = 300.0
    """How long work waits for a worker that registers it. Then an activity fails, and an orchestration is suspended."""
    drain_timeout: Seconds = 30.0
    """How long running activities have to end at SIGTERM before they are given back."""
    restart_grace: float = Field(default=0.0, ge=0, le=3_600, allow_inf_nan=False)
    """How long a worker that ends leaves its sessions to the next start under its ``worker_node_id``; 0: any worker may
    take them. See docs/run/placement.md#rollouts.
    """
    stall_timeout: Seconds = 60.0
    """A worker whose event loop makes no progress for this long gives up its lease."""
    rebalance: str = Field(default="offer", pattern="^(offer|off)$")
    """``offer`` idle sessions to workers with more room, or ``off``. See docs/run/placement.md#rebalancing."""
    rebalance_interval: Seconds = 10.0
    """Time between two looks at how full the other workers are; jittered."""
    rebalance_after: float = Field(default=60.0, ge=0, le=86_400, allow_inf_nan=False)
    """No worker offers sessions while a worker is younger than this, or drains."""
    session_retention: Seconds = 600.0
    """How long the row of an expired session (last holder, epoch), or of a dead worker, is kept."""
    session_move_retention: RetentionSeconds | None = 7 * 86_400.0
    """How long moves of sessions are kept; none: forever."""
    instance_retention: RetentionSeconds | None = None
    """Completed and cancelled instances are removed this long after their end; none: never. See
    docs/run/retention.md#retention.
    """
    history_retention: RetentionSeconds | None = None
    """Histories that ``continue_as_new``, a reset or a restart ended, and keys of events with their replies, are
    removed after this long; none: with their instance.
    """
    record_retention: RetentionSeconds | None = None
    """Session records are removed this long after their last write, unless the session is held, has queued work or a
    journal, or was named at the start of an instance that has not ended; none: never. See
    docs/run/retention.md#retention.
    """
    code_version: str | None = None
    """Tells this code from other releases, as an image's tag does: new and freed sessions go to the newest one, and
    suspended instances are tried again. None: a digest of the app's files. See docs/run/placement.md#rollouts.
    """
    log_labels: tuple[str, ...] = ()
    """Keys of labels that log records and spans of their instances have, separated by commas. See
    docs/learn/labels.md#in-logs-and-spans.
    """
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """Serve Prometheus metrics, and ``/live``, on this port; 0 picks a free one."""
    metrics_host: str = Field(default=LOOPBACK, min_length=1)
    """Address of that port. If the environment sets the port and nothing the host: 0.0.0.0, for Prometheus and the
    kubelet.
    """

    @property
    def isolate_after(self) -> int:
        """Interruptions from which an activity runs alone: half of ``max_attempts``, and at least one."""
        return (self.max_attempts + 1) // 2

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("a bool is no value of it")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _read_none(cls, value: object, info: ValidationInfo) -> object:
        is_none = isinstance(value, str) and value.strip().lower() == NONE
        return None if is_none and _has_none(cls.model_fields[str(info.field_name)].annotation) else value

    @field_validator("tags", "log_labels", mode="before")
    @classmethod
    def _split_texts(cls, value: object) -> object:
        return [tag for part in value.split(",") if (tag := part.strip())] if isinstance(value, str) else value

    @field_validator("tags")
    @classmethod
    def _are_tags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if ANY_TAG in value:
            if len(value) > 1:
                raise ValueError(f"{ANY_TAG!r} stands alone: it is work with any tag")
            return value
        tags = tuple(dict.fromkeys(map(check_tag, value)))
        if len(tags) > MAX_TAGS:
            raise ValueError(f"a worker has at most {MAX_TAGS} tags, not {len(tags)}")
        return tags

    @field_validator("log_labels")
    @classmethod
    def _are_label_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_labels(dict.fromkeys(value, "shown")))

    @field_validator("worker_node_id", "code_version")
    @classmethod
    def _is_id(cls, value: str | None, info: ValidationInfo) -> str | None:
        return None if value is None else check_id(value, str(info.field_name))

    @model_validator(mode="after")
    def _agree(self) -> Self:
        wrong = [
            f"{larger} ({high:.15g} {unit}) is less than {smaller} ({low:.15g} {unit}): {why}"
            for larger, smaller, unit, why in NOT_BELOW
            if (high := getattr(self, larger)) < (low := getattr(self, smaller))
        ]
        if self.only_tagged and not self.tags:
            wrong.append("only_tagged without tags: the worker would take no activities")
        if self.restart_grace and "worker_node_id" not in self.model_fields_set:
            wrong.append("restart_grace is set, and worker_node_id is not: a random name does not return")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    @classmethod
    def make(cls, **values: Any) -> Self:
        """Make options of values whose names are not known before."""
        return cls(**values)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Options from ``AFFINITY_<NAME>`` variables; ``overrides`` that are not None win.

        Raises:
            InvalidOptions: as for the class; or a variable's name is almost the name of an option.
        """
        environ = os.environ if environ is None else environ
        cls.check_environment(environ)
        found = {
            name: environ[key] for name in cls.model_fields if (key := ENVIRONMENT_PREFIX + name.upper()) in environ
        }
        given = {name: value for name, value in overrides.items() if value is not None}
        if "metrics_port" in found and "metrics_port" not in given:
            found.setdefault("metrics_host", ALL_ADDRESSES)
        return cls(**found | given)

    @classmethod
    def check_environment(cls, environ: Mapping[str, str] | None = None) -> None:
        """Refuse variables whose names are almost ``AFFINITY_URL`` or the name of an option: they would have no effect.

        Raises:
            InvalidOptions: names all of them, and what was probably meant.
        """
        wrong = [
            f"environment variable {name}: did you mean {ENVIRONMENT_PREFIX}{similar.upper()}?"
            for name, value in (os.environ if environ is None else environ).items()
            if name.upper().startswith(ENVIRONMENT_PREFIX) and not _is_service_link(name, value)
            if (similar := _similar_option(name, cls.model_fields)) is not None
        ]
        if wrong:
            raise InvalidOptions("; ".join(wrong))

    @classmethod
    def describe(cls) -> Sequence[OptionDescription]:
        """Return all options, in their order, as people see them."""
        texts = words_of(cls)
        first = KernelOptions.model_fields.keys()  # pydantic has them last, behind those of the guests
        return [
            OptionDescription(
                name=name,
                flag=_FLAGS.get(name) or f"--{name.replace('_', '-')}",
                type=(kind := _type_of(field.annotation)),
                has_none=_has_none(field.annotation),
                default=_default_text(name, field.default, kind),
                description=texts[name],
            )
            for name, field in sorted(cls.model_fields.items(), key=lambda option: option[0] not in first)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDescription:
    """An option as people see it: in ``affinity worker --help`` and in the documentation."""

    name: str
    flag: str
    type: type[int | float | str]
    has_none: bool  # it takes "none" too
    default: str
    description: str  # in the markup of docstrings


def _has_none(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def _type_of(annotation: Any) -> type[int | float | str]:
    """Return the type in ``X``, ``X | None`` and ``Annotated[X, …] | None``."""
    if annotation is bool:
        return bool
    (kind, *_) = [member for member in get_args(annotation) or [annotation] if member is not NoneType]
    if isinstance(kind, str) or kind is Ellipsis:
        return str
    return cast("type[int | float | str]", next(iter(get_args(kind)), kind))


def _default_text(name: str, default: object, kind: type) -> str:
    if default is None:
        return "none"
    if isinstance(default, tuple):
        return ",".join(default) or "none"
    if not isinstance(default, int | float):
        return default if isinstance(default, str) else "random"
    if isinstance(default, bool):
        return str(default).lower()
    if name.endswith("_bytes"):
        return f"{default / 2**20:g} MiB"
    return f"{default:.15g} s" if kind is float else f"{default:,}"


def _similar_option(variable: str, options: Iterable[str]) -> str | None:
    """Return the option whose name the variable almost has; None if it has the name of one, or is like none."""
    known = [*_OTHER_VARIABLES, *options]
    name = variable[len(ENVIRONMENT_PREFIX) :].lower()
    if variable in {ENVIRONMENT_PREFIX + option.upper() for option in known}:
        return None
    words = set(name.split("_"))
    partial = [option for option in known if words <= set(option.split("_"))]
    close = difflib.get_close_matches(name, known, 1, ALIKE)
    return next(iter([*close, *partial]), None)


def _is_service_link(variable: str, value: str) -> bool:
    """Return whether Kubernetes sets the variable for a Service whose name begins with "affinity"."""
    return _SERVICE_LINK.search(variable) is not None or re.match(r"(tcp|udp|sctp)://", value) is not None


def _explain(error: Any, options: Iterable[str]) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":  # the value stays out: it may be a URL with a password
        close = difflib.get_close_matches(where, list(options), 1, ALIKE)
        return f"{where}: there is no such option" + "".join(f"; did you mean {option}?" for option in close)
    text = error["msg"].removeprefix("Value error, ")
    return f"{where} = {error['input']!r}: {text}" if where else text
