"""The client's calls on the audit log: who acts, and what was done."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from affinity.actions import stated
from affinity.audit.acting import Acting
from affinity.audit.entries import AuditEntry, AuditFilter
from affinity.audit.store.contract import audit_of, keeps_audit
from affinity.client.calls import retry
from affinity.client.conditions import conditions_of
from affinity.client.registered import RegisteredCalls
from affinity.limits import check_id
from affinity.paging import Page, Pages, next_cursor, read_cursor, read_number


class AuditConditions(TypedDict, total=False):
    """The entries of the audit log to list; all conditions hold."""

    user: str | None
    source: str | None
    action: str | None
    target: str | None
    """Its whole id."""
    succeeded: bool | None
    """Only actions that took effect, or only others."""
    since: datetime | None
    until: datetime | None
    """Before this time."""


class AuditCalls(RegisteredCalls):
    """The client's calls on the audit log."""

    def acting_as(self, user: str, *, source: str = "client") -> AbstractContextManager[None]:
        """State who makes the calls of a block: the audit log has what they change, by whom, and with what outcome.

        ::

            with client.acting_as(request.user.name, source="admin"):
                await client.cancel("chat-17", reason="asked by mail")

        What takes effect has its entry in the same transaction. A call that is refused has one of its own. It holds for
        the task of the block and for tasks that it starts, and for all their clients of this database.

        Args:
            user: at most `limits.MAX_ID_BYTES` bytes; empty: unknown.
            source: where the calls come from, likewise.

        Raises:
            InvalidId: a name is refused.
            InvalidOptions: the provider of this database keeps no audit log.
            ClientError: the client is not open.
        """
        log = audit_of(self._open_provider)
        return stated(Acting(user and check_id(user, "user"), check_id(source, "source"), log))

    def audit(self, **where: Unpack[AuditConditions]) -> Pages[AuditEntry]:
        """List the entries of the audit log, newest first.

        Args:
            where: conditions; see `affinity.audit.client.AuditConditions`.

        Raises:
            InvalidInput: a condition that does not exist, or a text that no store can keep.
        """
        wanted = AuditFilter(**conditions_of(where, AuditConditions))

        async def read(after: str | None, limit: int) -> Page[AuditEntry]:
            at = wanted if after is None else replace(wanted, after=_read_cursor(after))
            items = await retry(partial(audit_of(self._provider).list_audit, at, limit))
            return Page(items=items, next=next_cursor(items, limit, "at", "entry_id"))

        return Pages(read)


def acting_where_kept(client: AuditCalls, user: str, *, source: str) -> AbstractContextManager[None]:
    """State a user as `affinity.Client.acting_as`; without effect on a database whose provider keeps no audit log."""
    if not keeps_audit(client._open_provider):
        return nullcontext()
    return client.acting_as(user, source=source)


def _read_cursor(cursor: str) -> tuple[datetime, int]:
    at, entry_id = read_cursor(cursor)
    return at, read_number(entry_id, cursor)
