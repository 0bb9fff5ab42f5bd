"""Effects once in tables of the application: `affinity.once`. A guest of the kernel, without tables in its database.

* ``once``: the block, whose result commits with the application's rows.
* ``connections``: connections of the libraries that it knows, in one form.
* ``table``, ``command``: the table of the application's database; the command that creates it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.effects.once import OnceBlock, SyncOnceBlock
    from affinity.effects.table import create_table, delete_older_than, table_sql

__all__ = ["OnceBlock", "SyncOnceBlock", "create_table", "delete_older_than", "table_sql"]

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a worker may use none."""
        if name not in __all__:
            raise AttributeError(f"module 'affinity.effects' has no attribute {name!r}")
        module = "once" if name.endswith("OnceBlock") else "table"
        value = globals()[name] = getattr(importlib.import_module(f"affinity.effects.{module}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value
