"""Entries of the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from affinity.limits import check_conditions
from affinity.records import frozen


@frozen(kw_only=True)
class AuditEntry:
    """One entry of the audit log."""

    entry_id: int
    at: datetime
    user: str  # as the caller stated; "": unknown
    source: str  # where the call came from: "console", "command", or as the application named it
    role: str | None  # the database's login role, then " as " and the role set with SET ROLE; None on SQLite
    action: str  # "cancel", "move", …
    kind: str  # of the target: "instance", "session", "conversation", "worker", "schedule"; or ""
    target: str  # its id or name; "": the whole database
    outcome: str  # "done", "resumed", "busy", "UnknownInstance", …
    succeeded: bool  # False: it changed nothing
    details: Mapping[str, Any]  # names, numbers and reasons among the arguments


@frozen(kw_only=True)
class NewAuditEntry:
    """An entry to write; the provider fills the other columns."""

    user: str
    source: str
    action: str
    kind: str
    target: str
    outcome: str
    succeeded: bool
    details: str  # JSON


@frozen(kw_only=True)
class AuditFilter:
    """The entries to list, newest first; all conditions hold."""

    user: str | None = None
    source: str | None = None
    action: str | None = None
    target: str | None = None
    succeeded: bool | None = None
    since: datetime | None = None
    until: datetime | None = None  # before this time
    after: tuple[datetime, int] | None = None  # time and id of the last entry of the page before

    def __post_init__(self) -> None:
        check_conditions(self)


class AuditLog(Protocol):
    """The audit log of a database: a provider."""

    @property
    def database(self) -> str:
        """See `ProviderConnection.database`."""
        ...

    async def write_audit(self, entries: Sequence[NewAuditEntry]) -> None:
        """Write entries in a transaction of their own."""
        ...
