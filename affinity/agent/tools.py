"""Tools that a model may use in a loop: their schemas, their arguments, and how they run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, overload

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.fields import FieldInfo

from affinity.conversation.events import CustomToolUse, ToolUse
from affinity.conversation.wake import Wake
from affinity.errors import InvalidOptions, NotSerializable, problem_of
from affinity.limits import check_choice, check_id, seconds_of
from affinity.orchestration import ActivityContext
from affinity.readback import json_of
from affinity.session import Resource
from affinity.tasks import call_any
from affinity.user_code import as_error, call_sync, check_function

T = TypeVar("T")

ToolErrorKind: TypeAlias = Literal[
    "invalid_tool_arguments", "unknown_tool", "tool_execution_exception", "refused", "outcome_unknown"
]
"""Why a call of a tool has an error in place of a result. ``refused``: a person did not allow it (in time), or
an interrupt came before it ran. ``outcome_unknown``: it had begun when its process ended, or an interrupt came, and it
is not run again: it may have had its effect or not.
"""

ToolRepeat: TypeAlias = Literal["always", "approved", "never"]

Confirm: TypeAlias = bool | Callable[[Mapping[str, Any]], bool]
Describe: TypeAlias = Callable[[Any], str]
ResourceKey: TypeAlias = str | Callable[[Mapping[str, Any]], str | None] | None

BUILT_IN_NAMES: Final = frozenset(
    {
        "session_list",
        "session_get_snapshot",
        "session_get_events",
        "session_get_trace",
        "session_list_children",
        "session_delegate",
        "session_run_child",
        "session_revisit",
        "outcome_read",
        "outcome_define",
    }
)
"""Names of the tools that `builtin_tools` gives: none of the application's has one of them."""


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """The call under which a tool runs: for a parameter with this annotation, which the model does not see."""

    wake: Wake
    tool_use_id: str
    """By which the model knows the call; other calls may have the same one, or it may be empty."""
    idempotency_key: str
    """An idempotency key of this call, for the service that it calls: the same in each attempt, and used by no other
    call.
    """
    logger: logging.LoggerAdapter[logging.Logger]
    """With conversation, wake, attempt, worker and call in ``extra``."""

    @property
    def attempt(self) -> int:
        """Attempt of the wake, from 1."""
        return self.wake.attempt

    def stream(self, value: Any, /) -> None:
        """Show provisional output to readers: see `Wake.stream`."""
        self.wake.stream(value)

    async def resource(self, resource: Resource[T], /) -> T:
        """A resource of the conversation's session: see `Wake.resource`."""
        return await self.wake.resource(resource)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool: a function that a model may have called, or one that the client runs.

    Attributes:
        name: by which the model calls it.
        description: for the model; by default the first paragraph of the function's docstring.
        function: runs it: sync, in a thread, or async. Its parameters are the arguments, typed by their annotations;
            its result needs a JSON form. None: the client runs it, and the loop ends until its result is there.
        arguments: the parameters as a pydantic model, for a tool without a function, or in place of its annotations.
        resource: calls with the same key run one after the other, in the order of the model; calls without a key, or
            with different keys, at the same time. A function gets the arguments as JSON values, with their defaults.
        confirm: whether a person has to allow a call first; a function gets the arguments likewise. A call for which it
            raises is not run: the exception is its result.
        confirm_within: seconds after which a call that no person has allowed is refused; None: it waits forever. Of a
            tool that the client runs: for its result.
        repeat: of a call that had begun when its process ended. "always": it runs again, unless a person has allowed
            it. "approved": it runs again. "never": it does not. The model reads of one that does not run again
            (``outcome_unknown``).
        title: for the person who is asked, in place of the name, such as "Refund".
        describe: gives the sentence about one call for that person, from its arguments as the pydantic model of the
            parameters: ``lambda call: f"Refund {call.cents / 100:.2f} € for {call.order}"``. A call for which it raises
            is not run: the exception is its result.
        dangerous: whether the person has to look a second time before allowing a call.
    """

    name: str
    description: str = ""
    function: Callable[..., Any] | None = None
    arguments: type[BaseModel] | None = None
    resource: ResourceKey = None
    confirm: Confirm = False
    confirm_within: float | None = None
    repeat: ToolRepeat = "always"
    title: str = ""
    describe: Describe | None = None
    dangerous: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            InvalidOptions: neither function nor arguments are given, the function's parameters have no schema,
                ``repeat`` or ``confirm_within`` is none of its values, or an option is a function that takes other
                arguments.
            InvalidId: the name is not a valid id.
        """
        check_id(self.name, "tool name")
        check_choice(f"tool {self.name!r}: repeat", self.repeat, ToolRepeat, InvalidOptions)
        if self.confirm_within is not None:
            seconds_of(f"tool {self.name!r}: confirm_within", self.confirm_within)
        if self.function is None and self.arguments is None:
            raise InvalidOptions(f"tool {self.name!r}: give the function, or the arguments of one that the client runs")
        for given, what, parameter in (
            (self.confirm, "confirm", "arguments"),
            (self.resource, "resource", "arguments"),
            (self.describe, "describe", "call"),
        ):
            if not (given is None or isinstance(given, bool if what == "confirm" else str)):
                check_function(given, f"tool {self.name!r}: {what}", parameter)
        _ = self.parameters

    @cached_property
    def model(self) -> type[BaseModel]:
        """The parameters as a pydantic model."""
        if self.arguments is not None:
            return self.arguments
        assert self.function is not None
        return _model_of(self.name, self.function)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self.model.model_json_schema()

    @cached_property
    def context_parameters(self) -> Sequence[str]:
        """The parameters of the function that get the `ToolContext`; the model does not see them."""
        parameters = [] if self.function is None else _parameters(self.name, self.function)
        return [each.name for each in parameters if each.annotation is ToolContext]

    @property
    def runs_on_client(self) -> bool:
        """Whether the client runs it."""
        return self.function is None

    def to_openai(self) -> dict[str, Any]:
        """As an element of ``tools`` of a chat completion."""
        about = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": about}

    def to_anthropic(self) -> dict[str, Any]:
        """As an element of ``tools`` of a message request."""
        return {"name": self.name, "description": self.description, "input_schema": self.parameters}

    def needs_confirmation(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a person has to allow this call."""
        return call_sync(self.confirm, arguments) if callable(self.confirm) else self.confirm

    def describe_call(self, arguments: BaseModel) -> str:
        """The sentence about this call for a person; empty without ``describe``.

        Raises:
            TypeError: ``describe`` has returned no text.
            Exception: what it raised.
        """
        if self.describe is None:
            return ""
        sentence = call_sync(self.describe, arguments)
        if not isinstance(sentence, str):
            raise TypeError(f"describe of tool {self.name!r} has returned {sentence!r:.80}, not a text")
        return sentence

    def resource_key(self, arguments: Mapping[str, Any]) -> str | None:
        """The key of the resource that this call uses."""
        return call_sync(self.resource, arguments) if callable(self.resource) else self.resource

    def validate(self, arguments: Mapping[str, Any]) -> BaseModel:
        """The arguments as the model of the parameters.

        Raises:
            pydantic.ValidationError: they do not fit.
        """
        return self.model.model_validate(arguments)

    def runs_once(self, *, is_allowed: bool) -> bool:
        """Whether a call, which a person has allowed, may not be begun a second time."""
        return self.repeat == "never" or (is_allowed and self.repeat != "approved")

    async def run(self, arguments: BaseModel, context: ToolContext | None = None) -> JsonValue:
        """The result of the function, as a JSON value. ``context``: of the call, for a parameter with that annotation.

        Raises:
            NotSerializable: it has no JSON form, or one that cannot be read back, such as a number of 5,000 digits.
            Exception: what the function raised.
        """
        assert self.function is not None
        return await self.call(self.function, arguments, context)

    async def call(
        self, function: Callable[..., Any], arguments: BaseModel, context: ToolContext | None = None
    ) -> JsonValue:
        """As `run`, of a function in place of its own, with the same parameters."""
        given = {name: getattr(arguments, name) for name in type(arguments).model_fields}
        given |= dict.fromkeys(self.context_parameters, context)
        result = await call_any(function, **given)
        try:
            _, value = json_of(result)
        except BaseException as error:  # its types may be the application's
            problem = problem_of(as_error(error))
            raise NotSerializable(f"the result of tool {self.name!r} has no JSON form: {problem}") from error
        return cast(JsonValue, value)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    resource: ResourceKey = ...,
    confirm: Confirm = ...,
    confirm_within: float | None = ...,
    repeat: ToolRepeat = ...,
    title: str = ...,
    describe: Describe | None = ...,
    dangerous: bool = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    resource: ResourceKey = None,
    confirm: Confirm = False,
    confirm_within: float | None = None,
    repeat: ToolRepeat = "always",
    title: str = "",
    describe: Describe | None = None,
    dangerous: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a `Tool`, by decoration; its name and docstring describe it by default.

    ::

        @affinity.agent.tool(confirm=True)
        async def refund(order: str, cents: int) -> str:
            \"\"\"Refund an order.\"\"\"

    Raises:
        InvalidOptions: a parameter has no schema, or is positional only; or the function has no name, as a partial.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(
            name=_name_of(function) if name is None else name,
            description=_first_paragraph(function) if description is None else description,
            function=function,
            resource=resource,
            confirm=confirm,
            confirm_within=confirm_within,
            repeat=repeat,
            title=title,
            describe=describe,
            dangerous=dangerous,
        )

    return make if function is None else make(function)


def tools_by_name(tools: Iterable[Tool | Callable[..., Any]], builtins: Iterable[Tool] = ()) -> dict[str, Tool]:
    """The tools by name; functions become tools.

    Raises:
        InvalidOptions: two have one name, or one has the name of a built-in tool.
    """
    found: dict[str, Tool] = {}
    for given in tools:
        each = given if isinstance(given, Tool) else tool(given)
        if each.name in BUILT_IN_NAMES:
            raise InvalidOptions(f"tool {each.name!r} has the name of a built-in tool: give it another one")
        if found.setdefault(each.name, each) is not each:
            raise InvalidOptions(f"two tools have the name {each.name!r}")
    return found | {each.name: each for each in builtins}


def error_value(kind: ToolErrorKind, message: str, **fields: JsonValue) -> JsonValue:
    """The error that the model reads in place of a result."""
    return {"error": {"kind": kind, "message": message, **fields}}


def checked_arguments(found: Mapping[str, Tool], call: ToolUse | CustomToolUse) -> BaseModel | JsonValue:
    """The arguments of a call, or the error that the model gets: an unknown tool, or arguments that do not fit."""
    raw = call.raw_arguments if isinstance(call, ToolUse) else None
    known = found.get(call.tool)
    if known is None:
        names: list[JsonValue] = [*sorted(found)]
        return error_value("unknown_tool", f"there is no tool {call.tool!r}", tools=names)
    if raw is not None:
        return error_value("invalid_tool_arguments", "the arguments are not one JSON object", arguments=raw)
    try:
        return known.validate(call.arguments)
    except BaseException as error:  # its types may be the application's
        return error_value("invalid_tool_arguments", problem_of(as_error(error)))


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if isinstance(function, str):
        raise InvalidOptions(f"a name is given by keyword: @tool(name={function!r})")
    if not callable(function) or isinstance(function, type):
        raise InvalidOptions(f"only functions can be tools, not {function!r:.80}")
    if not isinstance(name, str):
        raise InvalidOptions(f"{function!r:.80} has no name of its own: give it one, tool(name=...)(...)")
    return name


def _model_of(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for each in _parameters(name, function):
        if each.annotation is ToolContext:
            continue
        if each.kind in {each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            raise InvalidOptions(f"tool {name!r}: parameter {each.name!r} cannot be given by name")
        if each.annotation is each.empty and each.name in {"self", "cls"}:
            raise InvalidOptions(f"tool {name!r} takes {each.name!r}: make a tool of the method of an object")
        if each.annotation is each.empty:
            raise InvalidOptions(f"tool {name!r}: parameter {each.name!r} has no annotation")
        if isinstance(each.annotation, type) and issubclass(each.annotation, (Wake, ActivityContext)):
            raise InvalidOptions(f"tool {name!r}: parameter {each.name!r} must be a ToolContext, which has the wake")
        fields[each.name] = (each.annotation, _field_of(each))
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return create_model(f"{name}_arguments", __config__=config, **fields)
    except Exception as error:
        raise InvalidOptions(f"tool {name!r}: its parameters have no schema: {problem_of(error)}") from error


def _parameters(name: str, function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return [*inspect.signature(function, eval_str=True).parameters.values()]
    except Exception as error:
        raise InvalidOptions(f"tool {name!r}: its annotations cannot be read: {problem_of(error)}") from error


def _field_of(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is parameter.empty:
        return Field()
    return default if isinstance(default, FieldInfo) else Field(default=default)


def _first_paragraph(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def in_chains(calls: Sequence[ToolUse], keys: Sequence[str | None]) -> list[list[int]]:
    """The numbers of the calls in chains: one for each key, and one for each call without a key."""
    chains: dict[object, list[int]] = {}
    for number, key in enumerate(keys[: len(calls)]):
        chains.setdefault((number,) if key is None else key, []).append(number)
    return list(chains.values())
