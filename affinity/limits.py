"""Every bound in one place, each with its reason. Checked once, at the edge, by the functions below."""

from __future__ import annotations

import unicodedata
from math import ceil
from typing import Final

from pydantic_core import from_json

from affinity.errors import InvalidId, InvalidOptions, PayloadTooLarge

_SHOWN_BITS: Final = 128

MAX_ID_BYTES: Final = 256
"""UTF-8 bytes of an instance, session, worker id or a registered name: fits an index row with room for two of them."""

MAX_PAYLOAD_BYTES: Final = 2 * 1024 * 1024
"""UTF-8 bytes of one input, result or event as JSON: histories are replayed, so large data belongs in a store."""

MAX_PAYLOAD_DEPTH: Final = 180
"""Arrays and objects within each other in one input, result or event: `JSON_DEPTH`, with room for the event, the
message and the list of carried events that a payload travels in.
"""

JSON_DEPTH: Final = 200
"""How deep pydantic reads JSON: a constant of that library."""

MAX_INTEGER: Final = 2**31 - 1
"""The largest count or version in a column of its own: what every store can hold."""

MAX_CUSTOM_STATUS_BYTES: Final = 4 * 1024
"""UTF-8 bytes of a custom status as JSON: it is written into the instance row and listed."""

MAX_ERROR_BYTES: Final = 16 * 1024
"""UTF-8 bytes kept of an error's text. A longer one is truncated, with a mark, never refused: a failure must be
recorded.
"""

MAX_STACK_BYTES: Final = 8 * 1024
"""UTF-8 bytes recorded of the stack of an error, in the history and beside the instance: some thirty frames."""

MAX_STACK_FRAMES: Final = 50
"""Frames of one exception that are formatted for its stack, the innermost ones: an endless recursion has thousands."""

MAX_ERROR_NAMES: Final = 32
"""Base classes, and fields, recorded of an error, each: more than any tree of errors has."""

MAX_HISTORY_EVENTS: Final = 50_000
"""Events in one execution: past it, replay after a crash takes seconds; use ``continue_as_new``."""

MAX_UNREAD_EVENTS: Final = 10_000
"""External events of one instance that its code has not read: the next one is refused to its sender."""

MAX_BUFFERED_EVENTS: Final = 2 * MAX_UNREAD_EVENTS
"""Events in the memory of one execution that its code has not read. Senders are refused long before; moves of sessions
count too, and nobody can be refused those.
"""

MAX_QUOTA: Final = 2**53
"""The largest quota: what JSON and every store keep exactly."""

UNREAD_STEP: Final = 100
"""Unread events are reported to the database in steps of so many, so that a turn that reads its event need not."""

MAX_TIMER_SECONDS: Final = 10 * 366 * 86_400.0
"""Ten years: a longer timer is a unit mistake (milliseconds for seconds)."""

LOCK_TIMEOUT_SECONDS: Final = 2
"""How long a migration waits for a lock. What comes after it waits behind it, so it is less than any call may take."""

MIGRATION_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts of a migration to get its locks; the last one again and again."""

MAX_BATCH: Final = 1_000
"""Items in one call of a batch verb: bounds the size of one statement and of one transaction."""

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""UTF-8 bytes of payloads in one call of a batch verb, if it has more than one: in memory it is there several times, as
text, as a message of the database's protocol and decoded. A worker may be given another bound (``max_batch_bytes``).
"""

MAX_OUTSTANDING_BYTES: Final = 128 * 1024 * 1024
"""Default of ``max_outstanding_bytes``: eight batches keep any database busy, and leave room in a container of 1 GB."""

INSTANCE_CACHE_BYTES: Final = 256 * 1024 * 1024
"""Default of ``instance_cache_bytes``: 10,000 instances, the default number, of 26 KB each."""

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Largest ``max_batch_bytes``: escaped, and with what surrounds it, a batch must stay below the gigabyte that a message
to PostgreSQL, or a text in SQLite, may have.
"""

MAX_BYTES: Final = 2**40
"""Largest number of bytes that an option takes: a terabyte is a mistake of unit."""

MAX_PAGE_EVENTS: Final = 4_000
"""Events in one page of a history: to read them takes the database, and to replay them a worker, less than 100 ms."""

MAX_REROUTE: Final = 1_000
"""Queue rows that one statement re-marks when a session moves; the sweep does the rest in steps of this size."""

PRUNE_WINDOW: Final = 1_000
"""Ended instances, or executions, that one step of pruning looks at: some milliseconds."""

PRUNE_EVENTS: Final = 10_000
"""Events of histories that one step of pruning removes, or one tree of instances: some tens of milliseconds."""

PRUNE_TREE_EVENTS: Final = 500_000
"""Events of the largest tree of instances that a sweep removes: one statement takes all of a tree. Larger ones are left
to whoever prunes by hand, with a ``statement_timeout`` to match.
"""

MAX_RETENTION_SECONDS: Final = 100 * 366 * 86_400.0
"""A hundred years: a longer retention is a unit mistake (milliseconds for seconds)."""

SHARE_DIVISOR: Final = 2
"""In how many rounds, about, the workers take a burst: see `fair_share`."""

MIN_SHARE: Final = 5
"""What one fetch takes however small the burst: a few sessions are no burden, a look for each would be."""

MAX_STATE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one session's state, before it is packed: it travels in one statement, and is in memory more than once."""

COMPRESS_STATE_ABOVE: Final = 32 * 1024
"""Bytes of a state from which it is compressed: below, the time costs more than the space."""

MAX_LABELS: Final = 32
"""Labels of one session; keys and values are bounded like ids."""

MAX_PARTICIPANTS: Final = 256
"""Participants named in one session's metadata."""

MAX_HOLD_SECONDS: Final = 7 * 86_400.0
"""How long one wait may hold a session on its worker: held sessions take room from others."""

MAX_PAGE: Final = 1_000
"""Rows in one page of a listing."""

MAX_COUNT: Final = 100_000
"""Where counts for people stop: more than that need not be counted to know that it is a lot."""

SCRAPE_COUNT: Final = 10_000
"""The same for metrics, which are read again and again; and instances in one page that are counted by status."""

MAX_NOTED_ERROR_BYTES: Final = 1024
"""UTF-8 bytes of the last error of an activity that is tried again: it is shown, and the final one is kept whole."""


def fair_share(waiting: int, workers: int) -> int:
    """How much of what waits and belongs to nobody one fetch takes, while ``workers`` could have it: a burst is shared
    among them, and does not go to whoever is the first to look.

    A fixed part of what is *left*, so that shares become smaller and smaller and the last ones even out what chance did
    with the first ones ("guided self-scheduling": Polychronopoulos and Kuck, 1987).
    """
    return max(MIN_SHARE, ceil(waiting / (SHARE_DIVISOR * workers)))


def check_id(value: object, what: str) -> str:
    """Return ``value`` as an id that is safe to store, index and print.

    Args:
        value: a non-empty string of at most ``MAX_ID_BYTES`` UTF-8 bytes without control characters or surrogates.
        what: how the message calls it ("session id").

    Raises:
        InvalidId: it is anything else; the message says what is allowed.
    """
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    if not value:
        raise InvalidId(f"{what} must not be empty")
    if value.isascii() and value.isprintable():
        if len(value) > MAX_ID_BYTES:
            raise InvalidId(f"{what} has {len(value)} bytes, over the limit of {MAX_ID_BYTES}")
        return value
    bad = next((c for c in value if unicodedata.category(c) in {"Cc", "Cs"}), None)
    if bad is not None:
        raise InvalidId(f"{what} holds the control character U+{ord(bad):04X}; control characters are not allowed")
    size = len(value.encode())
    if size > MAX_ID_BYTES:
        raise InvalidId(f"{what} has {size} bytes as UTF-8, over the limit of {MAX_ID_BYTES}")
    return value


def check_payload(json_text: str, what: str, limit: int = MAX_PAYLOAD_BYTES) -> str:
    """Return ``json_text`` if it is within ``limit`` UTF-8 bytes.

    Raises:
        PayloadTooLarge: it is larger; the message names the size, the limit and the remedy.
    """
    # A character takes at most four bytes, so most payloads need no encoding to be measured.
    if len(json_text) * 4 > limit and (size := len(json_text.encode())) > limit:
        raise PayloadTooLarge(
            f"{what} has {size} bytes, over the limit of {limit}: keep large data in a store and pass a reference"
        )
    return json_text


def check_depth(json_text: str, what: str) -> str:
    """Return ``json_text`` if nothing in it is nested deeper than ``MAX_PAYLOAD_DEPTH``.

    Raises:
        PayloadTooLarge: something is; it could be written, and never be read again.
    """
    if len(json_text) <= MAX_PAYLOAD_DEPTH:  # as most are
        return json_text
    if json_text.count("[") + json_text.count("{") > MAX_PAYLOAD_DEPTH:  # as good as never
        spare = JSON_DEPTH - MAX_PAYLOAD_DEPTH
        try:
            from_json("[" * spare + json_text + "]" * spare)
        except ValueError as error:
            raise PayloadTooLarge(f"{what} is nested more than {MAX_PAYLOAD_DEPTH} deep: flatten it") from error
    return json_text


def check_integer(value: object, what: str) -> int:
    """Return ``value`` if it is an integer from 0 to ``MAX_INTEGER``.

    Raises:
        InvalidOptions: it is anything else.
    """
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise InvalidOptions(f"{what} must be an integer from 0 to {MAX_INTEGER}, not {_shown(value)}")
    return value


def check_text(value: object, what: str) -> str:
    """Return ``value`` if it is text that every store keeps.

    Raises:
        InvalidId: it is no string, or holds a NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    if bad := next((c for c in value if c == "\x00" or unicodedata.category(c) == "Cs"), None):
        raise InvalidId(f"{what} holds the character U+{ord(bad):04X}, which no store keeps")
    return value


def _shown(value: object) -> str:
    """A value for a message; a large integer has no decimal form, and some objects have no text."""
    if type(value) is int and value.bit_length() > _SHOWN_BITS:
        return f"one of {value.bit_length()} bits"
    return repr(value)[:80] if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def truncate(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Shorten an error's text to ``limit`` UTF-8 bytes, with a mark at the end; NULs are made visible."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    raw = text.encode()
    return text if len(raw) <= limit else raw[: limit - 16].decode("utf-8", "ignore") + " … [truncated]"
