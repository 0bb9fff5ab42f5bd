"""The requests that wait for an answer, over all journals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from affinity.conversation.journal import OpenRequestPage, RequestFilter
from affinity.conversation.store import listing
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements, with_parts

_SQL: Final = load_statements(__package__, "requests.sql")
LIST: Final = _SQL["list"]
BY_EXPIRY: Final = (
    LIST.replace("r.created_at, r", "ifnull(r.expires_at, 253370764800.0), r")
    .replace("ORDER BY p.created_at", "ORDER BY ifnull(p.expires_at, 253370764800.0)")
    .replace("journal_requests_by_creation", "journal_requests_by_expiry")
)
MARK: Final = _SQL["mark"]


def list_requests(tx: Tx, where: RequestFilter, limit: int) -> OpenRequestPage:
    part = listing.part_of(where)
    mark = tx.value(MARK) if part == "all" and where.after is None else None
    if mark is not None and mark == where.mark:
        return OpenRequestPage(requests=[], after=None, mark=mark)
    window = listing.request_window(where, limit)
    time, journal_id, place, _ = where.after or (None, 0, 0, "")
    arguments = {
        "after_time": -math.inf if time is None else time.timestamp(),
        "after_journal": journal_id,
        "after_place": place,
        "any_kind": not where.kinds,
        "kinds": to_json(list(where.kinds)),
        "owner": where.owner,
        "labels": to_json(dict(where.labels)),
        "prefix": where.prefix,
        "session_ids": None if where.session_ids is None else to_json(list(where.session_ids)),
        "below": where.below,
        "most": listing.MOST_BELOW,
        "now": tx.now,
        "window": window,
        "limit": limit,
    }
    rows = tx.rows(with_parts(BY_EXPIRY if where.by_expiry else LIST, frozenset({part})), arguments)
    return replace(listing.to_request_page(rows, where, window, limit, instant), mark=mark)
