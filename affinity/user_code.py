"""How code of the application ends: each place that calls it turns any end into a result or an error here.

Beside a result and an ``Exception``, code can end with ``CancelledError`` (a task of its own was cancelled, not the
caller), ``SystemExit``, ``KeyboardInterrupt``, or another ``BaseException``, such as the panic of a compiled module.
Let through, these would end a task group, the event loop or the process, with the result of an effect unrecorded.
``StopIteration`` would end an iterator of the caller. So they are errors of the code: `errors.CodeExited`.

Two ends are no errors of the code. A cancellation that the caller has asked for: the caller knows that
(`affinity.tasks.run_code`). And the ``KeyboardInterrupt`` of a signal (Ctrl-C), which ends the process as in any other
program.
"""

from __future__ import annotations

import decimal
import inspect
import opcode
import os
import sys
import sysconfig
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from affinity.errors import (
    AffinityError,
    CodeExited,
    InvalidOptions,
    OrchestrationMisuse,
    decisive_error,
    errors_in,
    text_of_error,
)
from affinity.limits import MAX_ERROR_NAMES, truncate

__all__ = [
    "as_error",
    "call_sync",
    "check_function",
    "describe_error",
    "leads_to_code",
    "refuse_in_orchestration",
]

T = TypeVar("T")

_RAISES: Final = frozenset({opcode.opmap["RAISE_VARARGS"], opcode.opmap["SEND"]})
"""A ``raise`` statement; an ``await`` of what was given the error."""

_AFFINITY: Final = f"{Path(__file__).parent}{os.sep}"
_ANYIO: Final = f"{os.sep}anyio{os.sep}"
_PYTHON: Final = ("<frozen ", *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")))
_INSTALLED: Final = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))

_ITERATION: Final = (StopIteration, StopAsyncIteration)


def as_error(error: BaseException) -> Exception:
    """Return the error as which an end of the application's code counts.

    Raises:
        KeyboardInterrupt: a signal has interrupted the code.
    """
    if isinstance(error, Exception) and not isinstance(error, _ITERATION):
        return error
    pass_interrupt(error)
    converted = CodeExited(error).with_traceback(error.__traceback__)
    converted.__cause__ = error
    return converted


def describe_error(error: BaseException) -> tuple[str, str]:
    """Name and text of an exception; the text is truncated to `limits.MAX_ERROR_BYTES`. A group of one error is that
    error; the text of any other group has the names and texts of its errors.
    """
    error = decisive_error(error)
    message = text_of_error(error)
    if isinstance(error, BaseExceptionGroup):
        parts = [f"{type(each).__name__}: {text_of_error(each)}" for each in islice(errors_in(error), MAX_ERROR_NAMES)]
        message = "; ".join([message, *parts])
    return type(error).__name__, truncate(message)


def check_function(function: object, what: str, *parameters: str, error: type[AffinityError] = InvalidOptions) -> None:
    """Refuse, where it is given, what cannot be called with these arguments: its first call may come much later.

    Args:
        function: that was given.
        what: names it in the error.
        parameters: names of the arguments, which are given by position.
        error: that is raised.

    Raises:
        AffinityError: it cannot be called, or takes other arguments.
    """
    form = f"({', '.join(parameters)})"
    if not callable(function):
        raise error(f"{what} must be a function {form}, not {function!r:.80}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function without a signature
        return
    try:
        signature.bind(*parameters)
    except TypeError as problem:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise error(f"{what} must be a function {form}, and {name}{signature} is not: {problem}") from None


def leads_to_code(filename: str) -> bool:
    """Whether a file is of affinity, of anyio or of Python: its lines in a stack lead to code of the application, or to
    that of a library which it uses.
    """
    if filename.startswith(_AFFINITY) or _ANYIO in filename:
        return True
    return filename.startswith(_PYTHON) and not filename.startswith(_INSTALLED)


def is_interactive() -> bool:
    """Whether a person types the program in, as into a notebook: what ran before may run again, changed."""
    return hasattr(sys, "ps1")


def is_rerun(former: object, new: object) -> bool:
    """Whether a function takes the place of another one, since a notebook's cell, or a prompt, has defined it again."""
    names = [(getattr(one, "__module__", ""), getattr(one, "__qualname__", None)) for one in (former, new)]
    return is_interactive() and names[0] == names[1] and names[0][0] == "__main__"


def pass_interrupt(error: BaseException) -> None:
    """Raise the error again if it is the ``KeyboardInterrupt`` of a signal, and not one that code has raised."""
    if isinstance(error, KeyboardInterrupt) and not _is_raised(error.__traceback__):
        raise error


def own_context(variables: Context | None = None) -> Context:
    """Return a copy of context variables for code of the application. What it sets, no other code sees: not the
    variables, nor the precision of `decimal`, whose object the copies would share.

    Args:
        variables: None for those of the caller.
    """
    context = copy_context() if variables is None else variables.copy()
    if _DECIMALS in context:  # else the code gets an object of its own at its first use
        context.run(_copy_decimals)
    return context


def lasting_context() -> Context:
    """Return a copy of the caller's context variables, of which `own_context` makes many copies.

    Of `decimal`, only what is not the default is in it: to import a library may set the variable, and the copies of
    its object take time.
    """
    context = Context()
    for variable, value in copy_context().items():
        if variable is not _DECIMALS or not _is_default(value):
            context.run(variable.set, value)
    return context


def _is_default(decimals: decimal.Context) -> bool:
    default, found = decimal.DefaultContext.copy(), decimals.copy()
    default.clear_flags()
    found.clear_flags()
    return repr(found) == repr(default)


def _copy_decimals() -> None:
    decimal.setcontext(decimal.getcontext().copy())


def _find_decimals() -> ContextVar[decimal.Context]:
    """Return the variable of the current context of `decimal`, which has no public name."""
    context = Context()
    context.run(decimal.getcontext)
    (variable,) = context
    return variable


_DECIMALS: Final = _find_decimals()

orchestration_code: Final[ContextVar[str | None]] = ContextVar("affinity.orchestration_code", default=None)
"""Description of the orchestration whose code runs; None: other code."""


def refuse_in_orchestration(what: str) -> None:
    """Refuse what the code of an orchestration must not use: it would happen again in each replay.

    Raises:
        OrchestrationMisuse: the code of an orchestration runs.
    """
    if (description := orchestration_code.get()) is not None:
        raise OrchestrationMisuse(
            f"{what} cannot be used in {description}: it would act again in each replay. Use it in an activity; "
            "for other instances the context has start_detached, schedule_sub_orchestration and raise_event"
        )


def call_sync(function: Callable[..., T], /, *args: Any, **named: Any) -> T:
    """Call a function of the application that is not async, in an `own_context`.

    Raises:
        Exception: as `as_error`.
    """
    try:
        return own_context().run(function, *args, **named)
    except _ITERATION as error:
        raise as_error(error) from error
    except Exception:
        raise
    except BaseException as error:
        raise as_error(error) from error


def _is_raised(trace: TracebackType | None) -> bool:
    """Whether code has raised it; the handler of asyncio for Ctrl-C does so too, and counts as the signal."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    code = trace.tb_frame.f_code
    return code.co_code[trace.tb_lasti] in _RAISES and code.co_name != "_on_sigint"
