"""The audit log: who did what, when, with what result. A guest of the kernel.

* ``entries``, ``acting``: the entries; users who act, and the entries that their actions leave.
* ``client``, ``command``, ``page``: the calls of `affinity.Client`; the command; the page of the console.
* ``store``: the table, verbs and their contract; what joins the transaction of an action.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.audit.acting import administering, record_refusal
    from affinity.audit.client import acting_where_kept
    from affinity.audit.entries import AuditEntry

__all__ = ["AuditEntry", "acting_where_kept", "administering", "record_refusal"]

_MODULES: typing.Final = {
    "AuditEntry": "entries",
    "acting_where_kept": "client",
    "administering": "acting",
    "record_refusal": "acting",
}

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: a worker imports no client."""
        if name not in _MODULES:
            raise AttributeError(f"module 'affinity.audit' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.audit.{_MODULES[name]}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value
