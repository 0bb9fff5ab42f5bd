"""The requests that wait for an answer, over all journals."""

from __future__ import annotations

import json
from typing import Any, Final

from psycopg.types.numeric import Int8

from affinity.conversation.journal import OpenRequestPage, RequestFilter
from affinity.conversation.store import listing
from affinity.provider.postgres.driver.arrays import Texts
from affinity.provider.postgres.operations import Database, same_time
from affinity.provider.statements import load_statements, with_parts

LIST: Final = load_statements(__package__, "requests.sql")["list"]

_EXPIRY: Final = "coalesce({}.expires_at, '9999-01-01 00:00:00+00')"
BY_EXPIRY: Final = (
    LIST.replace("(r.created_at,", f"({_EXPIRY.format('r')},")
    .replace("ORDER BY r.created_at,", f"ORDER BY {_EXPIRY.format('r')},")
    .replace("ORDER BY p.created_at,", f"ORDER BY {_EXPIRY.format('p')},")
)


async def list_requests(db: Database, where: RequestFilter, limit: int) -> OpenRequestPage:
    window = listing.request_window(where, limit)
    time, journal_id, place, request_id = where.after or ("-infinity", 0, 0, "")
    params: dict[str, Any] = {
        "after_time": time,
        "after_journal": Int8(journal_id),
        "after_place": Int8(place),
        "after_id": request_id,
        "kinds": Texts(where.kinds),
        "owner": where.owner,
        "labels": json.dumps(dict(where.labels)) if where.labels else None,
        "prefix": where.prefix,
        "any_session": where.session_ids is None,
        "sessions": Texts(where.session_ids or ()),
        "window": Int8(window),
        "limit": Int8(limit),
    }
    part = listing.part_of(where)
    if part == "below":
        params |= {"below": where.below, "most": Int8(listing.MOST_BELOW)}
    rows = await db.connections.misc.run(with_parts(BY_EXPIRY if where.by_expiry else LIST, frozenset({part})), params)
    return listing.to_request_page(rows, where, window, limit, same_time)
