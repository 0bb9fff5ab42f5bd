"""The forms of stored values: which parts of each are encoded, and which stay in the clear since SQL reads them.

A form is given a value and a function that replaces the bytes of one payload by a frame, or a frame by its bytes. It
never waits: `affinity.payloads.pipeline` calls it twice, first to collect the payloads of a call, and then to replace
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from pydantic_core import from_json, to_json

from affinity.errors import PayloadUnreadable
from affinity.orchestration.events import EVENTS, Event
from affinity.orchestration.wire import type_of_event
from affinity.payloads.frames import is_frame, read_frame
from affinity.records import FRAME, raise_unreadable

Form: TypeAlias = Literal[
    "json", "text", "bytes", "event", "message", "task", "object", "details", "entry", "description"
]
"""How a value is encoded.

- ``json``: a JSON text, as a whole: it becomes a JSON string.
- ``text``: a text for people; an empty one stays.
- ``bytes``: as a whole.
- ``event``: the fields of an event that carry data of users; its type, names, keys and numbers stay.
- ``message``: the event in a message.
- ``task``: the input of a work item.
- ``object``: a JSON object of which nothing is read by SQL: it becomes an object with one field.
- ``details``: such an object that the provider has parsed. It is only decoded.
- ``description``: the title in a mapping.
- ``entry``: a journal's entry: what SQL reads stays, beside the whole.
"""

BODY: Final = "~"
"""Field of an encoded object that holds the frame."""

_IN_JSON: Final = f'"{FRAME}'
_REFUSAL: Final = '"\\u001a"'
"""As the conversations write it into an entry, where the database is to put in a word."""
_REFUSAL_FIELD: Final = "~refusal"

PLAIN_FIELDS: Final[Mapping[str, str]] = {
    "asked": "a flag",
    "attempt": "a number",
    "continued": "a flag",
    "default_tag": "a flag",
    "delay": "a number",
    "error_type": "name of a class: instances are found by it",
    "fail_after": "a number",
    "headers": "small texts that travel, which the database checks: put no secret into them",
    "hold": "a session id and a number",
    "instance_id": "an id",
    "key": "an id, by which a message is unique",
    "kind": "a word of affinity",
    "limits": "names and keys of limits",
    "labels": "names and values by which instances are found",
    "lineage": "numbers",
    "name": "a name of code or of an event",
    "number": "a number",
    "ordered": "a flag",
    "parent": "ids and numbers",
    "parked": "a flag",
    "priority": "a number",
    "retry": "numbers and names of classes",
    "schedule_id": "a number",
    "scheduled_for": "a time",
    "session_id": "an id",
    "tag": "a name",
    "time": "a time",
    "timeout": "a number",
    "trace": "a trace context",
    "version": "a name of code",
    "wait": "a number",
}
"""The fields of events that stay in the clear, and what they hold. ``value`` does too, of a guid and of a time."""

SECRET_FIELDS: Final = frozenset(
    {"carried", "custom_status", "data", "details", "input", "message", "reason", "result", "stack"}
)
"""The fields of events that are encoded. So is ``value`` of a custom status."""

_PLAIN_VALUES: Final = frozenset({"guid_created", "time_read"})


Put: TypeAlias = Callable[[bytes, str], Any]
"""Returns the frame of the bytes of a payload of a field. None: it stays as it is; if all of a value do, what `encode`
returns is not used.
"""
Get: TypeAlias = Callable[[str | bytes, str], bytes]
"""Returns the bytes of the frame of a field."""
Plain: TypeAlias = Callable[[str | None], None]
"""Accepts a payload that is stored in the clear, or raises `PayloadUnreadable`; with the name of the event whose data
it is, if it is one's.
"""


def encode(form: Form, value: Any, field: str, put: Put) -> Any:
    """Return a value with its payloads replaced. ``put`` returns the frame of the bytes of one payload of a field.

    Raises:
        PayloadUnreadable: the value was read, and could not be decoded.
    """
    if value is None or value == "":
        return value
    raise_unreadable(value)
    if form in _OF_OBJECTS:
        document = _read(value)
        return put(value.encode(), field) if document is None else _OBJECT_ENCODERS[form](document, value, field, put)
    return _ENCODERS[form](value, field, put)


def decode(form: Form, value: Any, field: str, get: Get, plain: Plain) -> Any:
    """Return the value from which `encode` has made this one.

    Args:
        form: of the value.
        value: as it is stored.
        field: the name of the payload, for its context.
        get: returns the bytes of a frame.
        plain: is called for a payload in the clear, with the name of its event, if it is one's data.

    Raises:
        PayloadUnreadable: a frame cannot be decoded, or a payload is in the clear and must not be.
    """
    if value is None or value == "":
        return value
    if form in _OF_OBJECTS:
        document = _read(value)
        if document is None:
            return _decode_text(value, field, get, plain)
        return _OBJECT_DECODERS[form](document, value, field, get, plain)
    return _DECODERS[form](value, field, get, plain)


# -- a value as a whole


def _encode_json(value: str, field: str, put: Put) -> str:
    return f'"{put(value.encode(), field)}"'


def _decode_json(value: str, field: str, get: Get, plain: Plain) -> str:
    if not value.startswith(_IN_JSON):
        plain(None)
        return value
    return _to_text(get(value[1:-1], field))


def _encode_text(value: str, field: str, put: Put) -> str:
    return str(put(value.encode(), field))


def _decode_text(value: str, field: str, get: Get, plain: Plain) -> str:
    if not is_frame(value):
        plain(None)
        return value
    return _to_text(get(value, field))


def _encode_bytes(value: bytes, field: str, put: Put) -> Any:
    return put(bytes(value), field)


def _decode_bytes(value: bytes, field: str, get: Get, plain: Plain) -> bytes:
    if not is_frame(value):
        plain(None)
        return value
    found: bytes = get(value, field)
    return found


def _encode_description(value: Mapping[str, Any], field: str, put: Put) -> Mapping[str, Any]:
    title = value.get("title")
    return {**value, "title": put(title.encode(), field)} if title else value


def _to_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PayloadUnreadable("a decoded payload is no text") from error


# -- events


@cache
def _secret_fields(kind: str) -> frozenset[str] | None:
    """The fields of an event of this type that are encoded; None: the type is not known."""
    found = next((cls for cls in EVENTS if type_of_event(cls) == kind), None)
    return None if found is None else secret_fields(found)


def secret_fields(event: type[Event]) -> frozenset[str]:
    """Return the fields of a class of events that are encoded."""
    names = {column.name for column in fields(event)}
    values = {"value"} if type_of_event(event) not in _PLAIN_VALUES else set()
    return frozenset(names & (SECRET_FIELDS | values))


def _is_secret(kind: object, name: str) -> bool:
    known = _secret_fields(kind) if isinstance(kind, str) else None
    return name != "type" and name not in PLAIN_FIELDS if known is None else name in known


def _map_event(event: dict[str, Any], put: Put) -> dict[str, Any]:
    kind = event.get("type")
    found = dict(event)
    for name, value in event.items():
        if _is_secret(kind, name) and (frame := put(to_json(value), f"event.{name}")) is not None:
            found[name] = frame
    return found


def _unmap_event(event: dict[str, Any], get: Get, plain: Plain) -> dict[str, Any]:
    kind, found = event.get("type"), dict[str, Any]()
    for name, value in event.items():
        is_secret = _is_secret(kind, name)  # a name or a key may look like a frame
        if is_secret and is_frame(value):
            found[name] = _parse(get(value, f"event.{name}"))
            continue
        if is_secret and value is not None:
            plain(event.get("name") if kind == "event_raised" and name == "data" else None)
        found[name] = value
    return found


def _encode_event(event: dict[str, Any], value: str, field: str, put: Put) -> str:
    return _write(_map_event(event, put))


def _decode_event(event: dict[str, Any], value: str, field: str, get: Get, plain: Plain) -> str:
    return _write(_unmap_event(event, get, plain))


def _encode_message(message: dict[str, Any], value: str, field: str, put: Put) -> str:
    event = message.get("event")
    if not isinstance(event, dict):
        return str(put(value.encode(), field))
    return _write({**message, "event": _map_event(event, put)})


def _decode_message(message: dict[str, Any], value: str, field: str, get: Get, plain: Plain) -> str:
    event = message.get("event")
    return _write({**message, "event": _unmap_event(event, get, plain)}) if isinstance(event, dict) else value


def _encode_task(task: dict[str, Any], value: str, field: str, put: Put) -> str:
    if "input" not in task:
        return str(put(value.encode(), field))
    return _write({**task, "input": put(to_json(task["input"]), "task.input")})


def _decode_task(task: dict[str, Any], value: str, field: str, get: Get, plain: Plain) -> str:
    given = task.get("input")
    if not is_frame(given):
        plain(None)
        return value
    return _write({**task, "input": _parse(get(given, "task.input"))})


# -- objects


def _encode_object(document: dict[str, Any], value: str, field: str, put: Put) -> str:
    if not document or is_frame(document.get(BODY)):
        return value
    return _write({BODY: put(value.encode(), field)})


def _decode_object(document: dict[str, Any], value: str, field: str, get: Get, plain: Plain) -> str:
    if not document:
        return value
    body = document.get(BODY)
    if not is_frame(body):
        plain(None)
        return value
    return _to_text(get(body, field))


def _decode_details(value: Mapping[str, Any], field: str, get: Get, plain: Plain) -> Mapping[str, Any]:
    body = value.get(BODY)
    if not is_frame(body):
        return value  # of an administrator's action, which has no data of users
    found = _parse(get(body, field))
    return found if isinstance(found, dict) else {"details": found}


def _encode_entry(document: dict[str, Any], value: str, field: str, put: Put) -> str:
    if _is_status(document):  # of a client, which may write no other field
        reason = document.get("reason")
        return _write({**document, "reason": put(to_json(reason), field)}) if reason else value
    kept = {name: found for name, found in document.items() if _is_kept(name, found, document.get("kind"))}
    if _REFUSAL in value:
        kept[_REFUSAL_FIELD] = "\x1a"
    return _write({**kept, BODY: put(value.encode(), field)})


def _decode_entry(document: dict[str, Any], value: str, field: str, get: Get, plain: Plain) -> str:
    body = document.get(BODY)
    if is_frame(body):
        text = _to_text(get(body, field))
        refusal = document.get(_REFUSAL_FIELD)
        return text.replace(_REFUSAL, to_json(refusal).decode()) if isinstance(refusal, str) else text
    if _is_status(document):
        reason = document.get("reason")
        if is_frame(reason):
            return _write({**document, "reason": _parse(get(reason, field))})
        if not reason:
            return value
    plain(None)
    return value


def scope_of_entry(stored: str) -> str | None:
    """Return the object that an encoded entry was written for."""
    document = _read(stored)
    body = stored if document is None else document.get(BODY)
    return read_frame(body).scope if isinstance(body, str) and is_frame(body) else None


_STATUS: Final = frozenset({"kind", "status", "reason", "retry_after"})
"""The fields of a note on the status of a conversation."""


def _is_status(document: dict[str, Any]) -> bool:
    return document.get("kind") == "conversation.status_changed" and document.keys() <= _STATUS


def _is_kept(name: str, value: object, kind: object) -> bool:
    """Whether a field of an entry stays in the clear, beside the whole."""
    match name:
        case "kind" | "request_id":
            return isinstance(value, str)
        case "usage":
            return isinstance(value, dict) and all(type(number) in {int, float} for number in value.values())
        case "inputs":  # of which a client may send one again
            return (
                kind == "conversation.dead_letters"
                and isinstance(value, list)
                and all(type(number) is int for number in value)
            )
        case "_":
            return isinstance(value, dict) and value.keys() <= {"trace"}
    return False


# -- JSON


def _read(text: str) -> dict[str, Any] | None:
    """Return a JSON object; None: the text is something else, which its reader refuses."""
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _parse(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise PayloadUnreadable("a decoded payload is no JSON") from error


def _write(document: dict[str, Any]) -> str:
    return to_json(document).decode()


_OF_OBJECTS: Final[frozenset[Form]] = frozenset({"event", "message", "task", "object", "entry"})
"""Forms of JSON objects. Any other text is encoded as a whole."""
_ENCODERS: Final[Mapping[Form, Callable[[Any, str, Put], Any]]] = {
    "json": _encode_json,
    "text": _encode_text,
    "bytes": _encode_bytes,
    "description": _encode_description,
}
_DECODERS: Final[Mapping[Form, Callable[[Any, str, Get, Plain], Any]]] = {
    "json": _decode_json,
    "text": _decode_text,
    "bytes": _decode_bytes,
    "details": _decode_details,
}
_OBJECT_ENCODERS: Final[Mapping[Form, Callable[[dict[str, Any], str, str, Put], Any]]] = {
    "event": _encode_event,
    "message": _encode_message,
    "task": _encode_task,
    "object": _encode_object,
    "entry": _encode_entry,
}
_OBJECT_DECODERS: Final[Mapping[Form, Callable[[dict[str, Any], str, str, Get, Plain], Any]]] = {
    "event": _decode_event,
    "message": _decode_message,
    "task": _decode_task,
    "object": _decode_object,
    "entry": _decode_entry,
}
