"""Limits, which hold work back before a worker may fetch it. A guest of the kernel.

* ``limit``, ``declaring``: what code declares and names, without a database; the calls of `affinity.App`.
* ``client``: the calls of `affinity.Client`.
* ``reasons``, ``command``, ``page``: why work waits at a limit; the command; the page of the console.
* ``store``: tables, verbs and their contract.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.flow.client import LimitKeyState, Limits, LimitState, LimitStatus

__all__ = ["LimitKeyState", "LimitState", "LimitStatus", "Limits"]

_MODULES: typing.Final = {
    "LimitKeyState": "client",
    "LimitState": "client",
    "LimitStatus": "client",
    "Limits": "client",
}

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a worker imports no client."""
        if name not in _MODULES:
            raise AttributeError(f"module 'affinity.flow' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.flow.{_MODULES[name]}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value
