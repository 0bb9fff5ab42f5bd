"""Web pages that show what workers, sessions, instances and conversations do: the extra ``console``.

`create` gives an ASGI application to mount in another one, behind its login; ``affinity console`` serves it alone.

============  ==============================================================================================
access        who may read, and who may act
app           the application: pages, actions, downloads, live updates
requests      what a request must have: origin, token, a user; headers of answers
pages         what each page reads, by subject
payloads      values of the application: redacted, pretty, cut
callbacks     functions of the application: who may what, what is redacted
links         to logs and traces, by addresses of the operator
times         relative, or exact in the zone of the address
rendering     templates, in which all stored text is hostile
strip         the bars of a session's life
gantt         the time axis of an instance, or of a wake
streams       what wakes say, as it comes
recent        one read for all browsers that look at the same page
serving       the command: addresses, logins
dev           the console of `affinity dev`, with a button that kills the worker
============  ==============================================================================================
"""

from affinity.console.access import ALL, NONE, READ, Access, AccessFunction, Action, read_only
from affinity.console.app import Console, create
from affinity.console.payloads import Redact, hide_payloads

__all__ = [
    "ALL",
    "NONE",
    "READ",
    "Access",
    "AccessFunction",
    "Action",
    "Console",
    "Redact",
    "create",
    "hide_payloads",
    "read_only",
]
