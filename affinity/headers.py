"""Headers: small texts, such as the id of a request or of a tenant, that go with a call to all work that it causes.

They are set for a block of code with `use_headers`, are stored with the start or event that is sent in it, and are set
again where activities and wakes run that come of it. Without headers nothing is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, TypeAlias

from affinity.errors import InvalidInput
from affinity.limits import MAX_HEADER_BYTES, MAX_HEADER_NAME, MAX_HEADERS
from affinity.user_code import refuse_in_orchestration

Headers: TypeAlias = Mapping[str, str]
"""Texts by name."""

NO_HEADERS: Final[Headers] = MappingProxyType({})

_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_HEADER_NAME}}}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_headers: Final[ContextVar[Headers | None]] = ContextVar("affinity.headers", default=None)


@contextmanager
def use_headers(headers: Mapping[str, str]) -> Iterator[None]:
    """Send these headers with each start, ask, event and input of a conversation that a client sends in the block, with
    those of the blocks around it.

    ::

        with affinity.use_headers({"tenant": "acme"}):
            await client.start(order, Order(17))

    Code reads them as ``ctx.headers``, in the instance and in its activities, children, and the instances to which
    they send events; and ``wake.headers`` in conversations. In activities and wakes they are set as by this block.

    They are stored as plain text, also where payloads are encrypted: put no secrets in them. And they are what the
    client says: check them as any input.

    Args:
        headers: texts by name: a name has up to 64 ASCII letters, digits and ``_.-``; a text has no control
            characters. At most 32, of 4 KiB together.

    Raises:
        InvalidInput: they are something else, or too many or too large with those around.
        OrchestrationMisuse: the caller is the code of an orchestration.
    """
    refuse_in_orchestration("use_headers")
    token = _headers.set(check_headers({**(_headers.get() or NO_HEADERS), **_mapping(headers)}))
    try:
        yield
    finally:
        _headers.reset(token)


def current_headers() -> Mapping[str, str]:
    """Return the headers that the calling code sends with its calls; empty for none."""
    return _headers.get() or NO_HEADERS


def sent_headers() -> Headers | None:
    """Return `current_headers` in the form in which a message has them; None for none."""
    return _headers.get() or None


def enter_headers(headers: Headers | None) -> None:
    """Set the headers of the calling task, in place of those that it has."""
    _headers.set(headers)


def check_headers(headers: Headers) -> Headers:
    """Return a copy of headers that cannot be changed.

    Raises:
        InvalidInput: they are out of bounds.
    """
    found = dict(_mapping(headers))
    if len(found) > MAX_HEADERS:
        raise InvalidInput(f"{len(found)} headers, over the limit of {MAX_HEADERS}")
    size = 0
    for name, text in found.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidInput(
                f"the name of a header is 1 to {MAX_HEADER_NAME} ASCII letters, digits, '_', '.' and '-', "
                f"not {name!r:.80}"
            )
        if not isinstance(text, str) or _CONTROL.search(text) is not None:
            raise InvalidInput(f"header {name!r} is a text without control characters, not {text!r:.80}")
        try:
            size += len(name) + len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidInput(f"header {name!r} has a lone surrogate, which is no text") from error
    if size > MAX_HEADER_BYTES:
        raise InvalidInput(f"the headers have {size} bytes, over the limit of {MAX_HEADER_BYTES}")
    return MappingProxyType(found)


def _mapping(headers: object) -> Mapping[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers are texts by name, as {{'tenant': 'acme'}}, not {headers!r:.80}")
    return headers
