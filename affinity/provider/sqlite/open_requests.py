"""The requests that wait for an answer, over all journals."""

from __future__ import annotations

import math
from typing import Final

from affinity.journal import OpenRequestPage, RequestFilter
from affinity.provider import listing
from affinity.provider.sqlite.driver.clock import instant
from affinity.provider.sqlite.driver.transaction import Tx, to_json
from affinity.provider.statements import load_statements, with_parts

LIST: Final = load_statements(__package__, "open_requests.sql")["list"]


def list_requests(tx: Tx, where: RequestFilter, limit: int) -> OpenRequestPage:
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
    rows = tx.rows(with_parts(LIST, frozenset({listing.part_of(where)})), arguments)
    return listing.to_request_page(rows, window, limit, instant)
