"""Trends: starts, ends, retries, queue ages and durations over time, by minute and name. A guest of the kernel.

* ``durations``: the histogram of durations, and the percentiles that are read from it.
* ``client``, ``command``, ``page``: the calls of `affinity.Client`; the command; the page of the console.
* ``charts``: the rows as lines and bars of the console's charts.
* ``worker``, ``options``: the loop that counts; how long the rows are kept.
* ``store``: the tables, verbs and their contract.

Nothing is counted where it happens. Every ten seconds one worker counts the rows that were written since: instances by
the time of their start and of their end, and failed attempts of activities.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.trends.client import TrendPoint, Trends, TrendTotal

__all__ = ["TrendPoint", "TrendTotal", "Trends"]

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a worker imports no client."""
        if name not in __all__:
            raise AttributeError(f"module 'affinity.trends' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module("affinity.trends.client"), name)
        importlib.import_module("affinity.field_words").show_in_help(value)
        return value
