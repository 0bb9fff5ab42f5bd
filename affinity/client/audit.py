"""The client's calls on the audit log: who acts, and what was done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from affinity.audit import Acting, AuditEntry, AuditFilter, stated
from affinity.client.background import ClientBase
from affinity.client.calls import retry
from affinity.client.conditions import conditions_of
from affinity.client.views import read_cursor
from affinity.errors import InvalidInput
from affinity.limits import check_id, check_limit
from affinity.paging import all_items
from affinity.records import frozen


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


@frozen(kw_only=True)
class AuditPage:
    """Some entries of the audit log, newest first."""

    items: Sequence[AuditEntry]
    next: str | None  # the cursor of the page after this one; None at the end


class AuditCalls(ClientBase):
    """The audit log."""

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
            ClientError: the client is not open.
        """
        provider = self._open_provider
        return stated(Acting(user and check_id(user, "user"), check_id(source, "source"), provider))

    async def audit_page(
        self, *, after: str | None = None, limit: int = 100, **where: Unpack[AuditConditions]
    ) -> AuditPage:
        """Some entries of the audit log, newest first.

        Args:
            after: `AuditPage.next` of the page before.
            limit: entries on the page, from 1 to `limits.MAX_PAGE`.
            where: conditions; see `affinity.client.audit.AuditConditions`.

        Raises:
            InvalidInput: a limit out of range, a cursor or condition that is none, or a text that no store can keep.
        """
        check_limit(limit)
        wanted = AuditFilter(
            **conditions_of(where, AuditConditions), after=None if after is None else _read_cursor(after)
        )
        items = await retry(partial(self._provider.list_audit, wanted, limit))
        return AuditPage(items=items, next=_cursor_of(items[-1]) if len(items) == limit else None)

    def audit(self, **where: Unpack[AuditConditions]) -> AsyncIterator[AuditEntry]:
        """All entries of the audit log that fit, newest first, read page by page; see `audit_page`."""
        return all_items(partial(self.audit_page, **where))


def _cursor_of(entry: AuditEntry) -> str:
    return f"{entry.at.isoformat()}/{entry.entry_id}"


def _read_cursor(cursor: str) -> tuple[datetime, int]:
    at, entry_id = read_cursor(cursor)
    if not (entry_id.isascii() and entry_id.isdigit() and len(entry_id) < 19):  # noqa: PLR2004 -- digits of 64 bits
        raise InvalidInput(f"{cursor!r} is not a cursor of this listing")
    return at, int(entry_id)
