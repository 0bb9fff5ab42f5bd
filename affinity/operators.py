"""Operators that a class does not have, with a message that names the remedy in place of the interpreter's.

They are added when a class is complete, so that type checkers go on to refuse them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_BINARY: Final = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
)
_UNARY: Final = (
    *("neg", "pos", "abs", "invert", "int", "float", "complex", "index"),
    *("round", "trunc", "floor", "ceil"),
)

ARITHMETIC: Final = (
    *(f"__{side}{name}__" for name in _BINARY for side in ("", "r")),
    *(f"__{name}__" for name in _UNARY),
)
"""Operators of numbers and texts, with those of a right operand."""

ORDER: Final = ("__lt__", "__le__", "__gt__", "__ge__")
"""Comparisons, but for equality."""

ITEMS: Final = ("__len__", "__getitem__", "__setitem__", "__delitem__", "__reversed__")
"""Length, and items by index or key. A loop uses them too: without ``__iter__`` a class is no ``Iterable``."""

ASYNC_ITEMS: Final = ("__aiter__", "__anext__")
"""An ``async for``."""

BLOCK: Final = ("__enter__", "__exit__")
"""A ``with``."""

ASYNC_BLOCK: Final = ("__aenter__", "__aexit__")
"""An ``async with``."""


def refuse_operators(of: type, names: tuple[str, ...], error: Callable[[Any], Exception]) -> None:
    """Let these operators of a class raise an error, which is made of the object; those that it has stay."""

    def refuse(self: Any, *_: object) -> None:
        raise error(self)

    for name in names:
        if name not in vars(of):
            setattr(of, name, refuse)


def refuse_equality(of: type, error: Callable[[Any], Exception]) -> None:
    """Let the comparison with an object of another kind raise an error; objects of the class are equal by identity."""

    def equal(self: Any, other: object) -> bool:
        if isinstance(other, of):
            return self is other
        raise error(self)

    def differ(self: Any, other: object) -> bool:
        return not equal(self, other)

    for name, function in {"__eq__": equal, "__ne__": differ}.items():
        setattr(of, name, function)
