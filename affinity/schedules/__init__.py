"""Schedules, which start orchestrations or send events at given times. A guest of the kernel.

* ``spec``: the target and the due times of a schedule; pure.
* ``declaring``, ``client``: the calls of `affinity.App` and of `affinity.Client`.
* ``firing``, ``worker``: the starts and messages of a tick; the loops of a worker.
* ``reasons``, ``command``, ``page``: why a schedule does not tick; the command; the page of the console.
* ``store``: tables, verbs and their contract.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.orchestration.overlap import Overlap
    from affinity.schedules.client import Schedule, Schedules, ScheduleState
    from affinity.schedules.reasons import TickReason
    from affinity.schedules.spec import ScheduleTarget

__all__ = ["Overlap", "Schedule", "ScheduleState", "ScheduleTarget", "Schedules", "TickReason"]

_MODULES: typing.Final = {
    "Overlap": "spec",
    "Schedule": "client",
    "ScheduleState": "client",
    "ScheduleTarget": "spec",
    "Schedules": "client",
    "TickReason": "reasons",
}

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a worker imports no client."""
        if name not in _MODULES:
            raise AttributeError(f"module 'affinity.schedules' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.schedules.{_MODULES[name]}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value
