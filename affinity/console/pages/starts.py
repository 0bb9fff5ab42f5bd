"""The form that starts an instance, with fields by the JSON Schema of its input, and the one that runs it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from affinity.client.registered import RegisteredFunction
from affinity.composed.client import Client
from affinity.console.pages.base import SUFFIX, Query, json_of, required
from affinity.console.payloads import Payloads, pretty
from affinity.errors import InvalidInput

TYPES: Final = ("string", "integer", "number", "boolean")
"""Types of values that have a field of their own."""

PREFIX: Final = "field."
"""Of the names of these fields in the form; the rest is the type, a dot and the name in the input."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a flat input."""

    name: str
    type: str  # of `TYPES`
    title: str  # its description, or its name
    default: str  # as text; empty: none
    choices: tuple[str, ...] = ()
    is_required: bool = False

    @property
    def key(self) -> str:
        """Its name in the form."""
        return f"{PREFIX}{self.type}.{self.name}"


def fields_of(schema: Mapping[str, Any] | None) -> list[Field] | None:
    """Return the fields of an input whose values are all texts, numbers and truths; None: it is no such input."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return None
    needed = (schema or {}).get("required", ())
    found = [_field_of(name, about, name in needed) for name, about in properties.items()]
    fields = [field for field in found if field is not None]
    return fields if len(fields) == len(found) else None


def _field_of(name: str, about: Any, is_required: bool) -> Field | None:
    kind = about.get("type") if isinstance(about, Mapping) else None
    choices = about.get("enum", ()) if isinstance(about, Mapping) else ()
    if kind not in TYPES or not all(isinstance(choice, str) for choice in choices):
        return None
    default = about.get("default")
    text = "" if default is None else default if isinstance(default, str) else json.dumps(default)
    title = str(about.get("description") or name)
    return Field(name, kind, title, text, tuple(choices), is_required)


def start_input(form: Query) -> Any:
    """Return the input of a form: its JSON, or its fields as an object. An empty field is left out.

    Raises:
        InvalidInput: a field has no value of its type, or the text is no JSON.
    """
    given = {key.removeprefix(PREFIX): text for key, text in form.items() if key.startswith(PREFIX)}
    if not given:
        return json_of(form, "input") if form.get("input", "").strip() else None
    found = {}
    for key, text in given.items():
        kind, _, name = key.partition(".")
        if text:
            found[name] = text if kind == "string" else _value(name, kind, text)
    return found


def _value(name: str, kind: str, text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    fits = (
        isinstance(value, bool) if kind == "boolean" else type(value) in ((int,) if kind == "integer" else (int, float))
    )
    if not fits:
        raise InvalidInput(f"{name} is no {kind}: {text!r:.80}")
    return value


async def start(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """The orchestrations for which workers have code, and the form for one of them."""
    known = [one for one in await client.registered() if not one.name.endswith(SUFFIX)]
    name = query.get("name") or ""
    chosen = _newest(known, name)
    schema = None if chosen is None else chosen.input
    return {
        "names": sorted({one.name for one in known}),
        "name": name,
        "chosen": chosen,
        "fields": fields_of(schema),
        "takes_none": schema is not None and schema.get("type") == "null",
        "schema": None if schema is None else pretty(dict(schema)),
    }


def _newest(known: list[RegisteredFunction], name: str) -> RegisteredFunction | None:
    return next((one for one in reversed(known) if one.name == name), None)


async def rerun(client: Client, query: Query, payloads: Payloads) -> dict[str, Any]:
    """An instance and its input, to be edited unless it is redacted or too long for the page."""
    instance_id = required(query, "id")
    found = await client.status(instance_id)
    value: Any = None
    problem = ""
    try:
        value = await client.input_of(instance_id)
    except InvalidInput as error:
        problem = str(error)
    shown = payloads.show("input", "input", found.name, value)
    is_whole = payloads.shows_all("input", value) and not shown.cut and not problem
    return {
        "instance": found,
        "shown": shown,
        "text": _editable(value) if is_whole else None,
        "problem": problem,
    }


def _editable(value: Any) -> str:
    """Return JSON to be edited, with escapes for characters that do not show, or change the direction of text."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join([c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text])
