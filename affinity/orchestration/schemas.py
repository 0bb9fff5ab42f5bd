"""JSON Schemas of what an app takes: the inputs of its orchestrations, and the events that these wait for.

Workers register them, so that programs without the code can check what they send, and show a form for it. A schema
must refuse nothing that the worker takes: where pydantic cannot tell what a type takes, it says less.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, core_schema, to_json

from affinity.limits import MAX_SCHEMA_BYTES
from affinity.orchestration.definitions import Definition
from affinity.orchestration.typed import Event
from affinity.user_code import pass_interrupt

JsonSchema: TypeAlias = dict[str, Any]

NO_INPUT: Final[JsonSchema] = {"type": "null"}
"""The schema of the input of a function that takes none."""


class _InputSchema(GenerateJsonSchema):
    """Schemas that admit all that pydantic reads, but for values that it converts: see `affinity.client.misfits`."""

    has_alias = False

    def generate(self, schema: CoreSchema, mode: Any = "validation") -> JsonSchemaValue:
        found = super().generate(schema, mode)
        if self.has_alias:  # a field may be given by its name too
            for part in _parts(found):
                if part.get("additionalProperties") is False:
                    del part["additionalProperties"]
        return found

    def field_is_required(self, field: Any, total: bool) -> bool:
        is_aliased = "validation_alias" in field
        self.has_alias |= is_aliased
        return not is_aliased and super().field_is_required(field, total)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        return _or_anything(schema, super().function_before_schema(schema))

    def function_wrap_schema(self, schema: core_schema.WrapValidatorFunctionSchema) -> JsonSchemaValue:
        return _or_anything(schema, super().function_wrap_schema(schema))

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return super().function_plain_schema(schema) if "json_schema_input_schema" in schema else {}

    def emit_warning(self, *_: Any) -> None:
        """A default without a JSON form is left out."""


def _or_anything(schema: Mapping[str, Any], found: JsonSchemaValue) -> JsonSchemaValue:
    """The schema for people, and any value: a function of the application reads it first."""
    return found if "json_schema_input_schema" in schema else {"anyOf": [found, {}]}


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(part)


def schema_of(declared: Any) -> JsonSchema | None:
    """The schema of a type; None: it has none, or one of more than `limits.MAX_SCHEMA_BYTES`."""
    try:
        found = TypeAdapter(declared).json_schema(schema_generator=_InputSchema)
    except BaseException as error:
        pass_interrupt(error)  # the type may be the application's
        return None
    return found if len(to_json(found)) <= MAX_SCHEMA_BYTES else None


def interface_of(definition: Definition) -> dict[str, Any]:
    """What a function takes: ``input``, the schema of its input (`NO_INPUT`: none), whether one is
    ``required``, and ``events``: schemas by the names of all events that it waits for. What is not known is left out.
    """
    codec = definition.input_codec
    schema = NO_INPUT if codec is None else schema_of(codec.declared)
    events = awaited_events(definition.function)
    about: dict[str, Any] = {} if schema is None else {"input": schema, "required": definition.requires_input}
    return about | ({} if events is None else {"events": schemas_of(events)})


def schemas_of(types: Mapping[str, Any]) -> dict[str, JsonSchema]:
    """The schemas of types by their names; ``{}``, which admits anything, for those that have none."""
    return {name: {} if declared is Any else schema_of(declared) or {} for name, declared in types.items()}


def awaited_events(function: Callable[..., Any]) -> dict[str, Any] | None:
    """The types of all events that a function waits for, by name; `Any` for a type that its source does not show, and
    for one of several. None if the source leaves a name open: it is computed, or the context is passed on.
    """
    plain = inspect.unwrap(function)
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(plain)))
        names = _Names(plain)
        waits = [names.wait(call) for call in _waits(source, names.context)]
    except (OSError, TypeError, ValueError, SyntaxError, LookupError, AttributeError):
        return None
    types: dict[str, list[Any]] = {}
    for name, type in waits:
        types.setdefault(name, []).append(type)
    return {name: found[0] if len(found) == found.count(found[0]) else Any for name, found in types.items()}


def _waits(source: ast.AST, context: str) -> list[ast.Call]:
    """The calls of ``schedule_wait`` of the context.

    Raises:
        LookupError: the context is used otherwise than for calls of its methods.
    """
    nodes = [*ast.walk(source)]
    methods = [one for one in nodes if isinstance(one, ast.Attribute) and _is_name(one.value, context)]
    calls = [one for one in nodes if isinstance(one, ast.Call) and one.func in methods]
    waits = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "schedule_wait"]
    names = sum(_is_name(one, context) for one in nodes)
    if len(methods) < names or len(waits) < sum(one.attr == "schedule_wait" for one in methods):
        raise LookupError(context)
    return waits


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


class _Names:
    """The names that the source of a function uses and does not assign."""

    def __init__(self, function: Any) -> None:
        self.context: str = next(iter(inspect.signature(function).parameters))
        self._known: dict[str, Any] = {**vars(builtins), **function.__globals__}
        self._known |= inspect.getclosurevars(function).nonlocals
        for local in (*function.__code__.co_varnames, *function.__code__.co_cellvars):
            self._known.pop(local, None)

    def wait(self, call: ast.Call) -> tuple[str, Any]:
        """Name and type of the event that a call waits for; `Any`: a type that is not known here."""
        given = dict(zip(("name", "type"), call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        name = self._value(given["name"])
        if isinstance(name, Event):
            return name.name, name.data_codec.declared
        if not isinstance(name, str):
            raise LookupError(name)  # noqa: TRY004 -- to its caller, what cannot be looked up
        try:
            return name, self._value(given["type"])
        except LookupError:
            return name, Any

    def _value(self, node: ast.expr) -> Any:
        """The value of a text, a name, or an attribute of one."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr)
        if isinstance(node, ast.Name):
            return self._known[node.id]
        raise LookupError(ast.dump(node))
