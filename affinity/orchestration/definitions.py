"""Registered functions, and the codecs of their inputs and results."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from affinity.errors import InvalidApp, NotSerializable, OrchestrationMisuse
from affinity.limits import check_integer
from affinity.orchestration.codec import Codec


class _Missing:
    """Marks that no input was given, which differs from None."""

    def __repr__(self) -> str:
        return "<no input>"


MISSING: Final = _Missing()

_NO_INPUT: Final = "null"
DEFINITION_ATTRIBUTE: Final = "__affinity_definition__"


class Definition:
    """A registered function, with the codecs of its input and result.

    The codecs are built on first use, so that annotations may name types that the module defines later. ``App.check``
    builds all of them.
    """

    kind: typing.ClassVar[str]

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self.reference: object = function
        """What the decorator has returned: the function as its module sees it."""
        self._parameter = _input_parameter(self.description, function)

    @property
    def description(self) -> str:
        """Its name in messages: "activity 'reply'"."""
        return f"{self.kind} {self.name!r}"

    @functools.cached_property
    def input_codec(self) -> Codec | None:
        """Codec of the input; None if the function takes no input.

        Raises:
            InvalidApp: the annotation cannot be resolved, or has no JSON form.
        """
        if self._parameter is None:
            return None
        return Codec(_annotation(self, self._parameter.name), f"input of {self.description}")

    @functools.cached_property
    def result_codec(self) -> Codec:
        """Codec of the result.

        Raises:
            InvalidApp: the annotation cannot be resolved, or has no JSON form.
        """
        return Codec(_annotation(self, "return"), f"result of {self.description}")

    def encode_input(self, value: Any = MISSING) -> str:
        """Return an input as JSON text; without an input, the parameter's default.

        Raises:
            OrchestrationMisuse: the function takes no input, or one is required and none was given.
            NotSerializable: the value does not fit.
            PayloadTooLarge: it is over the limit.
        """
        if self.input_codec is None or self._parameter is None:
            if value is not MISSING and value is not None:
                raise OrchestrationMisuse(f"{self.description} takes no input, but was given one")
            return _NO_INPUT
        if value is MISSING:
            value = self._parameter.default
            if value is inspect.Parameter.empty:
                raise OrchestrationMisuse(f"{self.description} takes an input, but was given none")
        return self.input_codec.encode(value)

    def arguments(self, text: str) -> tuple[Any, ...]:
        """Return the arguments of the function after its context: one decoded input, or none.

        A caller that schedules by name sends null for no input. It stands for the default if null does not fit.

        Raises:
            NotSerializable: the input does not fit the annotation.
        """
        if self.input_codec is None or self._parameter is None:
            return ()
        try:
            return (self.input_codec.decode(text),)
        except NotSerializable:
            if text == _NO_INPUT and self._parameter.default is not inspect.Parameter.empty:
                return ()
            raise

    def encode_result(self, value: Any) -> str:
        """Return a result as JSON text.

        Raises:
            NotSerializable: it does not fit the annotation.
            PayloadTooLarge: it is over the limit.
        """
        return self.result_codec.encode(value)

    def __repr__(self) -> str:
        return f"<{self.description}>"


class ActivityDefinition(Definition):
    """A registered activity."""

    kind = "activity"

    def __init__(self, name: str, function: Callable[..., Any], journal_inputs: int = 0) -> None:
        super().__init__(name, function)
        self.is_async: bool = is_async(function)
        """Whether a call returns a coroutine; other activities run in a thread."""
        self.journal_inputs: int = check_integer(journal_inputs, "journal_inputs")
        """See `App.activity`."""


class OrchestrationDefinition(Definition):
    """A registered orchestration, in one version."""

    kind = "orchestration"

    def __init__(self, name: str, version: str, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        if not is_async(function):
            raise InvalidApp(f"orchestration {name!r} must be an async def: it awaits the futures of its context")
        self.version = version
        super().__init__(name, function)

    @property
    def key(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    @property
    def description(self) -> str:
        """Its name in messages: "orchestration 'chat@1.0.0'"."""
        return f"{self.kind} {self.key!r}"


def definition_of(function: object) -> Definition | None:
    """Return the definition of a registered function, or None.

    Raises:
        InvalidApp: it is a decorated form of the registered function: the decorator would not run.
    """
    found = getattr(function, DEFINITION_ATTRIBUTE, None)
    if not isinstance(found, Definition):
        return None
    own = getattr(function, "__func__", function)
    if own is not found.reference and own is not found.function and _decorates(own, found.reference):
        raise _decorated(found.description)
    return found


def check_decorators(function: Callable[..., Any], reference: object, description: str) -> None:
    """Check that a registered function has no decorator above the one that registers it: workers would not call it.

    The name of the function in its module is looked up, so functions within functions pass.

    Raises:
        InvalidApp: there is one.
    """
    found: object = sys.modules.get(getattr(function, "__module__", ""))
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if _decorates(found, reference):
        raise _decorated(description)


def _decorates(function: object, reference: object) -> bool:
    """Whether a function wraps another one, as far as `functools.wraps` shows it."""
    while (function := getattr(function, "__wrapped__", None)) is not None:
        if function is reference:
            return True
    return False


def _decorated(description: str) -> InvalidApp:
    return InvalidApp(
        f"{description} has a decorator above the one that registers it, which workers would not call: put it below"
    )


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _input_parameter(description: str, function: Callable[..., Any]) -> inspect.Parameter | None:
    parameters = list(inspect.signature(function).parameters.values())
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidApp(f"{description} is a generator: it must return one result")
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(p.kind not in positional for p in parameters):  # noqa: PLR2004
        _refuse_signature(description, function)
    return parameters[1] if parameters[1:] else None


def _refuse_signature(description: str, function: Callable[..., Any]) -> NoReturn:
    signature = inspect.signature(function)
    raise InvalidApp(
        f"{description} must take its context and at most one input (put several into a model), not {signature}"
    )


def _annotation(definition: Definition, name: str) -> Any:
    """Resolve one annotation, but not the context's: it is often imported for type checkers only."""
    function = inspect.unwrap(definition.function)
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        function = getattr(function, "func", None) or type(function).__call__
    try:
        declared = getattr(function, "__annotations__", {}).get(name, Any)
        holder = SimpleNamespace(__annotations__={name: declared})
        resolved = typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception as error:
        raise InvalidApp(f"{definition.description}: the annotation of {name!r} cannot be resolved: {error}") from error
    return Any if resolved in (NoReturn, typing.Never) else resolved


def qualname(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
