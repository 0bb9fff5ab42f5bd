"""How a page shows times: relative, or exact in a zone, which its address names.

The last choice is kept in a cookie; an address without one is sent on to the same address with it, so that each address
that is copied has the zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from affinity.errors import InvalidInput

FIELD: Final = "times"
"""Of the query: `RELATIVE`, ``UTC``, or the name of a zone, such as ``Europe/Berlin``."""

RELATIVE: Final = "relative"

COOKIE: Final = "affinity_times"

MAX_NAME: Final = 64
"""Characters of the name of a zone."""


def zone_of(query: Mapping[str, str]) -> tzinfo | None:
    """Return the zone in which a page shows exact times; None: they are relative.

    Raises:
        InvalidInput: there is no such zone.
    """
    name = query.get(FIELD) or RELATIVE
    if name == RELATIVE:
        return None
    if name == "UTC":
        return UTC
    try:
        if len(name) <= MAX_NAME:
            return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown; no name of a file; a folder of zones
        pass
    raise InvalidInput(f"there is no time zone {name!r:.80}: write UTC, or a name such as Europe/Berlin")


def to_last_choice(request: Request) -> Response | None:
    """Return the redirect to the same address with the last choice; None: it has one, or nothing was chosen."""
    chosen = request.cookies.get(COOKIE, RELATIVE)
    if FIELD in request.query_params or chosen == RELATIVE:
        return None
    try:
        zone_of({FIELD: chosen})
    except InvalidInput:
        return None
    path, query = request.url.path, request.url.include_query_params(**{FIELD: chosen}).query
    return RedirectResponse(f"/{path.lstrip('/')}?{query}", 303, {"cache-control": "no-store"})


def keep_choice(request: Request, response: Response) -> None:
    """Keep the choice of this address, for addresses without one."""
    chosen = request.query_params.get(FIELD)
    if chosen is not None and chosen != request.cookies.get(COOKIE, RELATIVE):
        path, secure = request.scope.get("root_path") or "/", request.url.scheme == "https"
        response.set_cookie(COOKIE, chosen or RELATIVE, path=path, httponly=True, samesite="lax", secure=secure)
