"""Verbs of the provider, made from operations on a connection's thread: of the kernel, and of guests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Tx

P = ParamSpec("P")
T = TypeVar("T")


class VerbRunner(Protocol):
    """The provider, which runs operations."""

    @property
    def _writer(self) -> DatabaseThread: ...
    async def _write(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def _read(self, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def _act(
        self, name: str, kind: str, operation: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...


Operation: TypeAlias = Callable[Concatenate[Tx, P], T]
Verb: TypeAlias = Callable[Concatenate[VerbRunner, P], Coroutine[Any, Any, T]]


def writes(operation: Operation[P, T]) -> Verb[P, T]:
    """Return the verb that runs an operation with the lock that writers need."""

    @wraps(operation)
    async def verb(self: VerbRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(operation, *args, **kwargs)

    return verb


def acts(name: str, kind: str, operation: Operation[P, T]) -> Verb[P, T]:
    """Return an action, a verb that users call: like `writes`, but with ``dry_run`` it only reads. ``kind``: of its
    targets.
    """

    @wraps(operation)
    async def verb(self: VerbRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("dry_run"):
            return await self._read(operation, *args, **kwargs)
        return await self._act(name, kind, operation, *args, **kwargs)

    return verb


def reads(operation: Operation[P, T]) -> Verb[P, T]:
    """Return the verb that runs an operation that only reads."""

    @wraps(operation)
    async def verb(self: VerbRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._read(operation, *args, **kwargs)

    return verb


def looks_first(operation: Callable[Concatenate[Database, P], T]) -> Verb[P, T]:
    """Return the verb whose operation reads, and takes the lock that writers need only when there is work to do."""

    @wraps(operation)
    async def verb(self: VerbRunner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._writer.call(operation, *args, **kwargs)

    return verb
