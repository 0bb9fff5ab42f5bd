"""Registered functions, and the codecs of their inputs and results."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from pydantic import BaseModel

from affinity.errors import InvalidApp, InvalidOptions, NotSerializable, OrchestrationMisuse
from affinity.limits import check_integer, seconds_of
from affinity.orchestration.codec import Codec
from affinity.orchestration.gates import LimitUses
from affinity.orchestration.retry import RetryPolicy

F = TypeVar("F", bound=Callable[..., Any])


class _Missing:
    """Marks that no input was given, which differs from None."""

    def __repr__(self) -> str:
        return "<no input>"


MISSING: Final = _Missing()


class _AsDefined:
    """Marks an option of a call that was left out, which differs from None."""

    def __repr__(self) -> str:
        return "<as defined>"


AS_DEFINED: Final[Any] = _AsDefined()

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
        self._parameter = parameter = _input_parameter(self.description, function)
        self._is_untyped = parameter is not None and parameter.annotation is inspect.Parameter.empty
        self._has_result_type = inspect.signature(function).return_annotation is not inspect.Signature.empty

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

    @property
    def requires_input(self) -> bool:
        """Whether it takes an input that has no default."""
        return self._parameter is not None and self._parameter.default is inspect.Parameter.empty

    def encode_input(self, value: Any = MISSING) -> str:
        """Return an input as JSON text; without an input, the parameter's default.

        Raises:
            OrchestrationMisuse: the function takes no input, or one is required and none was given.
            NotSerializable: the value does not fit.
            PayloadTooLarge: it is over the limit.
        """
        if self.input_codec is None or self._parameter is None:
            if value is not MISSING and value is not None:
                raise OrchestrationMisuse(
                    f"{self.description} takes no input, but was given one: its first parameter is the context, the "
                    "second one is the input"
                )
            return _NO_INPUT
        if value is MISSING:
            value = self._parameter.default
            if value is inspect.Parameter.empty:
                raise OrchestrationMisuse(f"{self.description} takes an input, but was given none{self._optional}")
        if self._is_untyped:
            _refuse_typed(value, f"input of {self.description}")
        return self.input_codec.encode(value)

    @property
    def _optional(self) -> str:
        """What a message says of an input that may be None, and has no default."""
        assert self.input_codec is not None
        if not _takes_none(self.input_codec.declared):
            return ""
        return ": it may be None, and has no default; pass None, or write `= None` behind its annotation"

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
        if not self._has_result_type:
            _refuse_typed(value, f"result of {self.description}")
        return self.result_codec.encode(value)

    def __repr__(self) -> str:
        return f"<{self.description}>"


class Prefetch(NamedTuple):
    """What an activity of a guest begins with: something that the guest keeps for the activity's instance. A worker
    reads it ahead: with the fetch of the activity, or during the commit of the turn that schedules it.
    """

    guest: str
    most: int  # how much of it, as the guest counts


class ActivityDefaults(NamedTuple):
    """The options of an activity's definition, which count for each call of `schedule_activity` that has none."""

    retry: RetryPolicy | None = None
    timeout: float | None = None  # seconds
    tag: str | None = None
    limits: LimitUses = ()


NO_DEFAULTS: Final = ActivityDefaults()


def check_retry(retry: object) -> RetryPolicy | None:
    """Return the retry policy of an activity, or None.

    Raises:
        InvalidOptions: it is something else.
    """
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidOptions(f"retry must be a RetryPolicy, not {retry!r:.80}")
    return retry


def check_timeout(timeout: object) -> float | None:
    """Return the seconds that an attempt of an activity may take; None: any time.

    Raises:
        InvalidOptions: it is no number of seconds above 0, and no timedelta.
    """
    seconds = None if timeout is None else seconds_of("timeout", timeout)
    if seconds is not None and seconds <= 0:
        raise InvalidOptions(f"timeout must be above 0, not {timeout!r:.80}")
    return seconds


class ActivityDefinition(Definition):
    """A registered activity."""

    kind = "activity"

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        prefetch: Prefetch | None = None,
        *,
        defaults: ActivityDefaults = NO_DEFAULTS,
        limits: Sequence[object] = (),
    ) -> None:
        super().__init__(name, function)
        self.defaults: ActivityDefaults = defaults
        """See `App.activity`."""
        self.limits: tuple[object, ...] = tuple(limits)
        """The limits of its ``defaults``, as they were given."""
        self.is_async: bool = is_async(function)
        """Whether a call returns a coroutine; other activities run in a thread."""
        if prefetch is not None:
            check_integer(prefetch.most, "prefetch")
        self.prefetch: Prefetch | None = prefetch
        """See `App.activity`."""


def options_of(activity: object, retry: object = AS_DEFINED, timeout: object = AS_DEFINED) -> ActivityDefaults:
    """Return the options of a call of an activity: those of the call, and in place of what it lacks those of the
    activity's definition. One that is given by name has none.

    Raises:
        InvalidOptions: an option is out of range.
    """
    definition: ActivityDefinition | None = getattr(activity, DEFINITION_ATTRIBUTE, None)
    options = NO_DEFAULTS if definition is None else definition.defaults
    if retry is not AS_DEFINED:
        options = options._replace(retry=check_retry(retry))
    if timeout is not AS_DEFINED:
        options = options._replace(timeout=check_timeout(timeout))
    return options


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


def one_input(method: F) -> F:
    """Decorates a call that takes a function and its input: arguments that it does not take raise an error that names
    the remedy.
    """
    parameters = inspect.signature(method).parameters.values()
    places = sum(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    names = {each.name for each in parameters}

    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except TypeError:
            if (more := len(args) - places) > 0:
                raise _refused_inputs(method.__name__, 1 + more) from None
            if (unknown := next((name for name in named if name not in names), None)) is not None:
                raise _refused_option(method.__name__, unknown, options) from None
            raise

    @functools.wraps(method)
    async def call_async(*args: Any, **named: Any) -> Any:
        return await call(*args, **named)

    return cast(F, call_async if inspect.iscoroutinefunction(method) else call)


_ONE_INPUT: Final = "it takes one input: put several values into a model"


def _refused_inputs(call: str, count: int) -> OrchestrationMisuse:
    return OrchestrationMisuse(f"{call} was given {count} inputs, and {_ONE_INPUT}")


def _refused_option(call: str, name: str, options: Sequence[str]) -> OrchestrationMisuse:
    if call == "schedule_activity" and name in {"session", "session_id"}:
        return OrchestrationMisuse(f"{call} has no option {name!r}: call .on_session(...) on what it returns")
    return OrchestrationMisuse(
        f"{call} has no option {name!r} (it has {', '.join(options)}). An input is given by position, and {_ONE_INPUT}"
    )


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _input_parameter(description: str, function: Callable[..., Any]) -> inspect.Parameter | None:
    parameters = list(inspect.signature(function).parameters.values())
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidApp(f"{description} is a generator: it must return one result")
    refuse_unbound(description, function)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(p.kind not in positional for p in parameters):  # noqa: PLR2004
        _refuse_signature(description, function)
    return parameters[1] if parameters[1:] else None


def _refuse_signature(description: str, function: Callable[..., Any]) -> NoReturn:
    signature = inspect.signature(function)
    raise InvalidApp(
        f"{description} must take its context and at most one input (put several into a model), not {signature}"
    )


def refuse_unbound(description: str, function: Callable[..., Any]) -> None:
    """Refuse a method that is not bound to an object: no caller would give it one.

    Raises:
        InvalidApp: it is one.
    """
    first = next(iter(inspect.signature(function).parameters), None)
    if first in {"self", "cls"}:
        raise InvalidApp(
            f"{description} takes {first!r}, which no worker has: register the method of an object, outside the class, "
            "or a function"
        )


def refuse_other_context(
    description: str, function: Callable[..., Any], context: type, names: Sequence[str] = ("ctx", "input")
) -> None:
    """Refuse a function whose first parameter is annotated as something else than its context. An annotation that
    cannot be resolved yet passes.

    Raises:
        InvalidApp: it is.
    """
    signature = inspect.signature(function)
    first = next(iter(signature.parameters), None)
    if first is not None and _excludes(_resolved(function, first), context):
        form = f"({names[0]}: {context.__name__}, {names[1]})"
        raise InvalidApp(f"{description} must take its context first, as in {form}, not {signature}")


def _refuse_typed(value: object, what: str) -> None:
    """Refuse a value whose type a reader would not know, since the function has no annotation for it.

    Raises:
        NotSerializable: it is a model or a dataclass.
    """
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        name = type(value).__name__
        raise NotSerializable(f"{what} has no annotation, and would be read as a dict, not a {name}: annotate it")


def _takes_none(annotation: Any) -> bool:
    """Whether an annotation names None, as ``Optional`` does."""
    return annotation is None or annotation is NoneType or any(map(_takes_none, _options_of(annotation)))


def _options_of(annotation: Any) -> Sequence[Any]:
    is_union = typing.get_origin(annotation) in (typing.Union, UnionType)
    return typing.get_args(annotation) if is_union else ()


def _excludes(annotation: Any, context: type) -> bool:
    """Whether no value of a context's class is of the annotated type."""
    if options := _options_of(annotation):
        return all(_excludes(part, context) for part in options)
    kind = typing.get_origin(annotation) or annotation
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return False
    return not (issubclass(kind, context) or issubclass(context, kind))


def _resolved(function: Callable[..., Any], name: str) -> Any:
    """The annotation of a parameter; Any: it has none, or one that cannot be resolved yet."""
    function = _annotated(function)
    declared = getattr(function, "__annotations__", {}).get(name, Any)
    holder = SimpleNamespace(__annotations__={name: declared})
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}))[name]
    except Exception:
        return Any


def _annotation(definition: Definition, name: str) -> Any:
    """Resolve one annotation, but not the context's: it is often imported for type checkers only."""
    function = _annotated(definition.function)
    try:
        declared = getattr(function, "__annotations__", {}).get(name, Any)
        holder = SimpleNamespace(__annotations__={name: declared})
        resolved = typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception as error:
        raise InvalidApp(f"{definition.description}: the annotation of {name!r} cannot be resolved: {error}") from error
    return Any if resolved in (NoReturn, typing.Never) else resolved


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function that has the annotations of a method, a partial or an object."""
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        function = getattr(function, "func", None) or type(function).__call__
    return function


def qualname(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
