"""The page of the audit log: who did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from affinity.audit.client import AuditCalls
from affinity.console.actions import Verb
from affinity.console.pages.base import ROWS, Page, Query, given, time_of
from affinity.console.payloads import Payloads


async def audit(client: AuditCalls, query: Query, payloads: Payloads) -> dict[str, Any]:
    """Read a page of the audit log, newest first."""
    where: dict[str, Any] = given(query, "user", "action", "target", "source")
    where |= {name: time_of(query, name) for name in given(query, "since", "until")}
    if outcome := query.get("outcome"):
        where["succeeded"] = outcome == "done"
    return {
        "page": await client.audit(**where).page(query.get("after") or None, limit=ROWS),
        "say": payloads.text,
    }


PAGES: Final = (Page("/audit", "Audit", "audit/page.html", audit, is_in_menu=True, is_last=True),)

VERBS: Final[Mapping[str, Verb]] = {}
