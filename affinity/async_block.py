"""The base of classes that are used in an ``async with``."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Self

__all__ = [
    "ClosedBlock",
]

if TYPE_CHECKING:  # a type checker refuses a plain `with`, since it finds no `__enter__`

    class AsyncBlock:
        """Used in an ``async with``."""

        _instead: str

else:

    class AsyncBlock:
        """Used in an ``async with``; a plain ``with`` raises a `TypeError` that says so."""

        __slots__ = ()

        _instead = ""  # what else there is, for sync code

        def __enter__(self):
            name, instead = type(self).__name__, f"; {self._instead}" if self._instead else ""
            raise TypeError(f"{name} is opened with `async with`, in an async function, not with `with`{instead}")

        def __exit__(self, *error):
            raise AssertionError("never entered")


class ClosedBlock(AsyncBlock):
    """An `AsyncBlock` that gives itself, and ends with its `aclose`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Free its resources."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
