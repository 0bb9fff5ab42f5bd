"""The base of what is used in an ``async with``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker refuses a plain `with`, since it finds no `__enter__`

    class AsyncBlock:
        """Used in an ``async with``."""

else:

    class AsyncBlock:
        """Used in an ``async with``; a plain ``with`` raises a `TypeError` that says so."""

        __slots__ = ()

        def __enter__(self):
            raise TypeError(f"{type(self).__name__} is opened with `async with`, in an async function, not with `with`")

        def __exit__(self, *error):
            raise AssertionError("never entered")
