"""The SQLite provider: the embedded default, one machine, many processes.

`provider` holds the verbs and hands each to a thread (`thread`) that owns a connection (`database`); what a verb
does is a plain function of a transaction, in the module of its theme, with its SQL in the ``.sql`` file beside it.
"""

from affinity.provider.sqlite.clock import Clock
from affinity.provider.sqlite.provider import SqliteProvider

__all__ = ["Clock", "SqliteProvider"]
