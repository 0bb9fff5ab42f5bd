"""What a request must have, and what each answer says to the browser.

A form is taken from a page of this console only: the browser names the origin of the page (`Origin`), and the form has
a token that is made from a cookie which no other site can read. An answer may not be framed, loads scripts and styles
from this console alone, and is not stored.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import anyio
from starlette.requests import HTTPConnection, Request

from affinity.errors import AffinityError

COOKIE: Final = "affinity_form"
MAX_FORM_BYTES: Final = 1024 * 1024
FORM_SECONDS: Final = 30.0
"""Seconds within which the fields of a form arrive."""

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # "no-referrer" would take the origin from our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Refused(AffinityError):
    """The console does not answer this request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def new_secret() -> str:
    """The value of a cookie."""
    return secrets.token_urlsafe(32)


def token_of(secret: str) -> str:
    """The token of forms for the browser that has this cookie."""
    return hashlib.sha256(f"affinity form {secret}".encode()).hexdigest()


async def read_form(request: Request, origins: Collection[str]) -> Mapping[str, str]:
    """The fields of a form of this console.

    Raises:
        Refused: it comes from another site, has no token, is too large, or takes too long.
    """
    check_origin(request, origins)
    try:
        with anyio.fail_after(FORM_SECONDS):
            body = await _read_body(request)
    except TimeoutError:
        raise Refused(408, "the form has not arrived in time: send it again") from None
    form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    secret = request.cookies.get(COOKIE, "")
    if not secret or not hmac.compare_digest(token_of(secret).encode(), form.get("token", "").encode()):
        raise Refused(403, "the form has no token of this browser: load the page again")
    return form


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise Refused(413, "the form is too large")
    return body


def check_origin(request: HTTPConnection, origins: Collection[str]) -> None:
    """Raise unless the page that sends is of this host, or of one of these origins ("https://ops.example").

    Raises:
        Refused: it is of another site, or the browser does not say it.
    """
    origin = request.headers.get("origin", "")
    if origin not in origins and (not origin or urlsplit(origin).netloc != request.headers.get("host")):
        raise Refused(403, "the form comes from another site")
