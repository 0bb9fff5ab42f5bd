"""Sync forms of async classes: proxies that run each call on the event loop, and give the results a sync form too."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from types import FunctionType, GenericAlias
from typing import Any, ClassVar, Final, Self, TypeVar

from affinity.sync.loop import Opening

T = TypeVar("T")

_ENDED: Final = object()


class Proxy:
    """An object on the event loop of an `Opening`; each public method of its class is a sync one here.

    A subclass names the class, ``of=``. Results that have a sync form get it, and such arguments are given in their
    async form.
    """

    forms: ClassVar[dict[type, type[Proxy]]] = {}
    """The sync form of each class that has one."""

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    def __init_subclass__(cls, *, of: type | None = None, without: frozenset[str] = frozenset()) -> None:
        if of is None:
            return
        Proxy.forms[of] = cls
        for name in dir(of):
            if not name.startswith("_") and name not in without and name not in vars(cls) and name != "aclose":
                setattr(cls, name, _member(name, inspect.getattr_static(of, name)))

    def __init__(self, opening: Opening[Any], of: Any) -> None:
        self._opening, self._of = opening, of

    def _target(self) -> Any:
        return self._of

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._opening.run(function, *args)

    def __getattr__(self, name: str) -> Any:
        attributes = {} if name.startswith("_") else getattr(self._of, "__dict__", {})
        if name not in attributes:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return attributes[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and bool(self._of == other._of)

    def __hash__(self) -> int:
        return hash(self._of)

    def __repr__(self) -> str:
        return f"<sync {self._of!r}>"


class Items(Proxy, Iterator[Any]):
    """An async iterator as a sync one, for one thread at a time. It may be left at any time, or closed before."""

    def __next__(self) -> Any:
        item = self._run(anext, self._of, _ENDED)
        if item is _ENDED:
            raise StopIteration
        return sync_form(self._opening, item)

    def close(self) -> None:
        """Close it, if it is left before its end."""
        if (close := getattr(self._of, "aclose", None)) is not None:
            self._run(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


def sync_form(opening: Opening[Any], value: Any) -> Any:
    """The value, or its proxy; of a list, with the proxies of its items."""
    if isinstance(value, list):
        return [sync_form(opening, each) for each in value]
    for each in type(value).__mro__:
        if (form := Proxy.forms.get(each)) is not None:
            return form(opening, value)
    return Items(opening, value) if isinstance(value, AsyncIterator) else value


def _async_form(value: Any) -> Any:
    return value._of if isinstance(value, Proxy) else value


def _member(name: str, member: Any) -> Any:
    if not isinstance(member, FunctionType):  # a property, or a field
        return property(lambda self: sync_form(self._opening, getattr(self._target(), name)), doc=member.__doc__)

    @wraps(member)
    def call(self: Proxy, *args: Any, **named: Any) -> Any:
        method = getattr(self._target(), name)
        given = {key: _async_form(value) for key, value in named.items()}
        return sync_form(self._opening, self._run(partial(method, *map(_async_form, args), **given)))

    return call
