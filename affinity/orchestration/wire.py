"""The JSON text of events, messages and activity tasks.

An event is one object with a ``type``; fields that have their default are left out. Payloads are inserted unchanged,
so that writing parses nothing. Reading parses once, and returns payloads as compact JSON. Unknown keys are ignored, so
that an older worker reads what a newer one wrote, as long as it knows the type of the event.

How a field is written follows from its declared type: see ``_FORMS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from typing import Any, Final, NamedTuple, cast

from pydantic_core import to_json

from affinity.errors import ErrorDetails, NotSerializable, PayloadUnreadable, details_document
from affinity.headers import Headers, check_headers
from affinity.limits import MAX_INTEGER, check_id
from affinity.orchestration.codec import read_json
from affinity.orchestration.events import (
    EVENTS,
    ActivityScheduled,
    Ancestor,
    CarriedEvent,
    Event,
    Hold,
    Lineage,
    ParentRef,
    RawJson,
)
from affinity.orchestration.gates import LimitUse, LimitUses
from affinity.orchestration.retry import RetryPolicy
from affinity.records import FRAME, ActivityRun, Labels, constructor, frozen

ANY_EXECUTION: Final = 0
"""Execution id of a message to the current execution: an external event, or a request to cancel."""


@frozen()
class ActivityTask:
    """The payload of a work item: the task, as far as it is not in the columns of the row."""

    input: RawJson
    orchestration: str
    """Name of the orchestration that has scheduled it."""
    version: str
    """Version of that orchestration."""
    retry: RetryPolicy | None = None
    timeout: float | None = None
    """Seconds that one attempt may take."""
    shown_session: str | None = None
    """The orchestration's session, which logs and spans show for an activity that runs on no session."""
    tag: str | None = None
    """The tag that the activity was scheduled with; a worker compares it with the session's tag."""
    generation: str | None = None
    """Generation of the instance."""
    trace: str | None = None
    """Trace context in which it was scheduled (`affinity.tracing`)."""
    limits: LimitUses = ()
    """The limits at which it has waited."""
    labels: Labels | None = None
    """Labels of the instance when the activity was scheduled; None: it had none."""
    headers: Headers | None = None
    """The headers with which it is scheduled (`affinity.headers`)."""

    def waits_at(self, limit: str, key: str) -> bool:
        """Whether it waits at this limit and key; "": at any key."""
        return any(use.limit == limit and key in {"", use.key} for use in self.limits)


_new_task: Final = constructor(ActivityTask)


def encode_event(event: Event) -> str:
    """Return the event as JSON text."""
    return _WRITERS[type(event)](event)


def event_type(text: str) -> str:
    """Return the type of an event that `encode_event` has written, without parsing the rest."""
    return text[9 : text.index('"', 9)]


def decode_event(text: str) -> Event:
    """Return the event that JSON ``text`` holds.

    Raises:
        NotSerializable: not JSON, a type that this version does not know, or a field missing or of the wrong type.
    """
    return read_event(read_json(text))


_TRACE: Final = re.compile(r',"trace":"(?:[^"\\]|\\.)*"(?:,"asked":true)?}$')
"""The trace context of an event, which `encode_event` writes last."""


def without_trace(text: str) -> str:
    """The text of an event as it is written where nothing is traced."""
    return _TRACE.sub("}", text)


class ReceivedMessage(NamedTuple):
    """The content of a message to an instance."""

    execution_id: int
    event: Event
    run: ActivityRun | None  # of a result of an activity, if the sender recorded it


def encode_message(execution_id: int, event: Event, run: ActivityRun | None = None) -> str:
    """Return an input event as a message to one execution of an instance, or to ``ANY_EXECUTION``; with the run of the
    activity that gave the result, for display.
    """
    run_fields = "" if run is None else f',"worker":{_quote(run.worker_id)},"attempt":{run.attempt}'
    if run is not None and run.queued_for is not None:
        run_fields += f',"queued_for":{run.queued_for:.3f}'
    return f'{{"execution":{execution_id},"event":{encode_event(event)}{run_fields}}}'


def read_message(text: str) -> ReceivedMessage:
    """Return the content of a message.

    Raises:
        NotSerializable: as for ``decode_event``.
    """
    message = read_json(text)
    if not isinstance(message, dict):
        raise NotSerializable("a message must be a JSON object")
    if "move" in message:
        _add_move(message)
    return ReceivedMessage(_integer(message.get("execution")), read_event(message.get("event")), _run(message))


def _add_move(message: dict[str, Any]) -> None:
    """Give the event of a session's move what the provider has added to the message; see `SessionWatch` there."""
    event, move = message.get("event"), message["move"]
    if isinstance(event, dict) and isinstance(move, dict) and isinstance(data := event.get("data"), dict):
        event["data"] = {**data, **move}


def _run(message: dict[str, Any]) -> ActivityRun | None:
    """For display only: a run that cannot be read is left out."""
    worker_id, attempt, waited = message.get("worker"), message.get("attempt"), message.get("queued_for")
    if not isinstance(worker_id, str) or type(attempt) is not int or not 0 < attempt <= MAX_INTEGER:
        return None
    return ActivityRun(worker_id, attempt, float(waited) if isinstance(waited, int | float) else None)


def activity_task(
    event: ActivityScheduled,
    session_id: str | None,
    orchestration: str,
    version: str,
    generation: str,
    *,
    trace: str | None = None,
    headers: Headers | None = None,
    labels: Labels | None = None,
) -> ActivityTask:
    """The task of an activity of an orchestration of that name and version, which was started with this session; the
    generation and the labels of its instance, and the trace context and the headers with which it is scheduled.
    """
    shown = session_id if event.session_id is None else None
    return _new_task(
        input=event.input,
        orchestration=orchestration,
        version=version,
        retry=event.retry,
        timeout=event.timeout,
        shown_session=shown,
        tag=event.tag,
        generation=generation,
        trace=trace,
        limits=event.limits,
        labels=labels,
        headers=headers,
    )


def encode_task(task: ActivityTask) -> str:
    """Return the task as JSON text."""
    return _WRITERS[ActivityTask](task)


def decode_task(text: str) -> ActivityTask:
    """Return the task that JSON ``text`` holds.

    Raises:
        NotSerializable: as for ``decode_event``.
    """
    return cast(ActivityTask, _record(ActivityTask, "activity task", read_json(text)))


# --- records --------------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    name: str
    default: Any  # MISSING for a field that must be there
    write: Callable[[Any], str]
    read: Callable[[Any], Any]


def _compile_writer(cls: type[Any], head: str, columns: tuple[_Column, ...]) -> Callable[[Any], str]:
    """A function that writes a record of this class as JSON text, compiled from source as `dataclasses` does.

    Each turn writes three records, and a loop over their columns takes five times as long.
    """
    assert head or columns[0].default is MISSING  # so that a comma goes before all columns but the first
    first, rest, scope = "{{" + head, list[str](), dict[str, Any]()
    for n, column in enumerate(columns):
        key = ("," if head or n else "") + f'"{column.name}":'
        scope |= {f"write_{n}": column.write, f"default_{n}": column.default}
        value = f"record.{column.name}"
        written = value if column.write is str else f"write_{n}({value})"
        if column.default is MISSING and not rest:
            first += key + "{" + written + "}"
        else:
            rest.append(f" if {value} is not default_{n}: text += f'{key}{{{written}}}'")
    source = ["def write(record):", f" text = f'{first}'", *rest, " return text + '}'"]
    exec("\n".join(source), scope)  # noqa: S102 -- names and types of our own classes
    return cast(Callable[[Any], str], scope["write"])


def read_event(obj: object) -> Event:
    """Return the event that a JSON value stands for.

    Raises:
        NotSerializable: as for ``decode_event``.
    """
    kind = obj.get("type") if isinstance(obj, dict) else None
    event_type = _TYPES.get(kind) if isinstance(kind, str) else None
    if event_type is None:
        raise NotSerializable(f"unknown event type {kind!r:.80}: was it written by a newer version of affinity?")
    return cast(Event, _record(event_type, str(kind), obj))


def _record(cls: type[Any], what: str, obj: object) -> object:
    if not isinstance(obj, dict):
        raise NotSerializable(f"{what} must be a JSON object")
    try:
        return cls(*[_field(column, obj) for column in _COLUMNS[cls]])
    except PayloadUnreadable:
        raise
    except Exception as error:  # a stored value can be anything
        raise NotSerializable(f"{what}: {type(error).__name__}: {error}") from error


def _field(column: _Column, obj: dict[str, Any]) -> Any:
    if column.name in obj:
        return column.read(obj[column.name])
    if column.default is MISSING:
        raise KeyError(column.name)
    return column.default


# --- field forms ----------------------------------------------------------------------------------------------------


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _integer(value: object) -> int:
    if type(value) is not int:
        raise NotSerializable(f"expected an integer, not {type(value).__name__}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"expected a number, not {type(value).__name__}")
    return float(value)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, not {type(value).__name__}")
    return value


def _write_boolean(value: bool) -> str:
    return "true" if value else "false"


def _raw(value: object) -> str:
    if value.__class__ is str and value.startswith(FRAME):
        raise PayloadUnreadable("it is encoded, and this process has no codec")
    return to_json(value).decode()


@lru_cache(maxsize=256)  # an application has few policies, and each turn writes one
def _write_retry(policy: RetryPolicy) -> str:
    return to_json(policy).decode()


def _read_retry(value: dict[str, Any]) -> RetryPolicy:
    known = {field.name: value[field.name] for field in fields(RetryPolicy) if field.name in value}
    return RetryPolicy(**known | {"non_retryable": tuple(known.get("non_retryable", ()))})


def _write_tuple(value: ParentRef | Hold) -> str:
    return to_json(value._asdict()).decode()


def _read_parent(value: dict[str, Any]) -> ParentRef:
    return ParentRef(
        check_id(_string(value["instance_id"]), "id of the parent"),
        _integer(value["execution_id"]),
        _integer(value["schedule_id"]),
        _string(value["generation"]),
    )


def _read_hold(value: dict[str, Any]) -> Hold:
    return Hold(_string(value["session_id"]), _number(value["seconds"]))


def _write_carried(carried: tuple[CarriedEvent, ...]) -> str:
    return "[" + ",".join(map(_write_carried_event, carried)) + "]"


def _write_carried_event(event: CarriedEvent) -> str:
    key = "" if event.key is None else f',"key":{_quote(event.key)}'
    headers = "" if event.headers is None else f',"headers":{_write_headers(event.headers)}'
    return f'{{"name":{_quote(event.name)},"data":{event.data}{key}{headers}}}'


def _read_carried(value: list[dict[str, Any]]) -> tuple[CarriedEvent, ...]:
    return tuple(
        CarriedEvent(
            _string(event["name"]),
            _raw(event["data"]),
            None if (key := event.get("key")) is None else _string(key),
            None if (headers := event.get("headers")) is None else _read_headers(headers),
        )
        for event in value
    )


def _write_headers(headers: Headers) -> str:
    return to_json(dict(headers)).decode()


def _read_headers(value: dict[str, Any]) -> Headers:
    return check_headers(value)


def _write_lineage(lineage: Lineage) -> str:
    return to_json([ancestor._asdict() for ancestor in lineage]).decode()


def _read_lineage(value: list[dict[str, Any]]) -> Lineage:
    return tuple(Ancestor(_integer(one["execution_id"]), _integer(one["event_id"])) for one in value)


def _write_limits(uses: LimitUses) -> str:
    return to_json(uses).decode()


def _read_limits(value: list[list[Any]]) -> LimitUses:
    return tuple(
        LimitUse(_string(limit), _string(key), _integer(units), _number(weight)) for limit, key, units, weight in value
    )


def _write_labels(labels: Labels) -> str:
    return to_json(labels).decode()


def _read_labels(value: dict[str, Any]) -> Labels:
    return {_string(key): _string(text) for key, text in value.items()}


def read_details(document: dict[str, Any]) -> ErrorDetails:
    """Read what `details_document` returned.

    Raises:
        Exception: it is something else.
    """
    category = document.get("category")
    return ErrorDetails(
        None if category is None else _string(category),
        tuple(map(_string, document.get("bases", ()))),
        tuple((_string(name), value) for name, value in document.get("fields", {}).items()),
    )


def _write_details(details: ErrorDetails) -> str:
    return to_json(details_document(details)).decode()


_FORMS: Final[dict[str, tuple[Callable[[Any], str], Callable[[Any], Any]]]] = {
    "RawJson": (str, _raw),
    "str": (_quote, _string),
    "int": (str, _integer),
    "float": (repr, _number),
    "bool": (_write_boolean, _boolean),
    "ActivityFailureKind": (_quote, _string),
    "ChildFailureKind": (_quote, _string),
    "RetryPolicy": (_write_retry, _read_retry),
    "ParentRef": (_write_tuple, _read_parent),
    "Hold": (_write_tuple, _read_hold),
    "Carried": (_write_carried, _read_carried),
    "Headers": (_write_headers, _read_headers),
    "LimitUses": (_write_limits, _read_limits),
    "Lineage": (_write_lineage, _read_lineage),
    "Labels": (_write_labels, _read_labels),
    "ErrorDetails": (_write_details, read_details),
}
"""Declared type of a field, without ``| None``: its writer and its reader."""


def _column(name: str, declared: str, default: Any) -> _Column:
    optional = declared.removesuffix(" | None")
    write, read = _FORMS[optional]
    if optional != declared:
        default = None
    return _Column(name, default, write, _or_none(read) if default is None else read)


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _columns(cls: type[Any]) -> tuple[_Column, ...]:
    return tuple(_column(field.name, str(field.type), field.default) for field in fields(cls))


def type_of_event(cls: type[Any]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


_TYPES: Final[dict[str, type[Event]]] = {type_of_event(cls): cls for cls in EVENTS}
_COLUMNS: Final[dict[type[Any], tuple[_Column, ...]]] = {cls: _columns(cls) for cls in (*EVENTS, ActivityTask)}
_WRITERS: Final[dict[type[Any], Callable[[Any], str]]] = {
    cls: _compile_writer(cls, f'"type":"{type_of_event(cls)}"' if cls in EVENTS else "", columns)
    for cls, columns in _COLUMNS.items()
}
