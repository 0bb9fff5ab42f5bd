"""Every limit, with its reason, and the functions that check values where they enter."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from math import ceil, isfinite
from typing import Any, Final, TypeGuard, TypeVar, get_args

from pydantic_core import from_json

from affinity.errors import AffinityError, InvalidId, InvalidInput, InvalidOptions, PayloadTooLarge

__all__ = [
    "MAX_BATCH",
    "MAX_COUNT",
    "MAX_FAILURES_SEARCHED",
    "MAX_ID_BYTES",
    "MAX_PAGE",
    "MAX_QUOTA",
    "MAX_REQUEST_BYTES",
    "check_choice",
    "check_id",
    "check_items",
    "seconds_of",
    "truncate",
]

T = TypeVar("T")

_SHOWN_BITS: Final = 128

MAX_ID_BYTES: Final = 256
"""UTF-8 bytes of an instance, session, worker id or a registered name: fits an index row with room for two of them."""

MAX_PROJECT_NAME: Final = 64
"""Characters of a project of ``affinity init``: names of files and of a kind of conversations are made from it."""

MAX_SCHEMA_BYTES: Final = 16 * 1024
"""UTF-8 bytes of the JSON Schema of an input or event that a worker registers: a larger one is left out."""

MAX_SCHEMAS_BYTES: Final = 256 * 1024
"""UTF-8 bytes of all schemas that a worker registers: they are in its row. Those that do not fit are left out."""

ANY_TAG: Final = "any"
"""In place of a worker's tags: it takes work with any tag. No work has this tag."""

MAX_WAITING_TAGS: Final = 256
"""Tags of waiting work that a worker for any tag fetches with."""

MAX_TAG_BYTES: Final = 64
"""UTF-8 bytes of a tag: it is part of a route, which is in an index."""

MAX_TAGS: Final = 8
"""Tags of one worker: each costs one more range of an index in each of its fetches."""

MAX_HEADERS: Final = 32
"""Headers of one message."""

MAX_HEADER_NAME: Final = 64
"""Characters of the name of a header."""

MAX_HEADER_BYTES: Final = 4 * 1024
"""UTF-8 bytes of the names and texts of all headers of one message: they are copied to all work that it causes."""

MAX_PAYLOAD_BYTES: Final = 2 * 1024 * 1024
"""UTF-8 bytes of one input, result or event as JSON: histories are replayed, so large data belongs in a store."""

MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the body of a request to `affinity.integrations.web`: browsers may send all messages of a chat each time."""

MAX_BLOB_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of one `affinity.Blob`, which is streamed: its table of parts is read into memory, with 32 bytes for each."""

BLOB_PART_BYTES: Final = 1024 * 1024
"""Bytes of a part of a blob. Parts are encoded, checked and read one by one: a stream takes the memory of a few."""

BLOB_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of payloads that a process keeps when it has written or read them in a blob store: most are read again soon."""

BLOB_TRANSFERS: Final = 8
"""Calls of a blob store that one process makes side by side."""

MAX_COLLECTED: Final = 10_000
"""Blobs that one collection deletes at most: their digests are in memory, and in one statement."""

MAX_LISTED_BLOBS: Final = 200_000
"""Blobs whose digests a collection has in memory, about 25 MB; for more of them it reads all rows once more."""

MAX_REENCRYPTED: Final = 1_000
"""Rows whose payloads are encoded again in one transaction at most."""

MIN_BLOB_GRACE: Final = 60.0
"""Seconds between the last use of a blob and its deletion: a worker commits within its lease what names the blob. By
the database's clock.
"""

BLOB_GRACE: Final = 86_400.0
"""Seconds, by default: a day, in which a client may use the `affinity.Blob` that it has put."""

MIN_BLOB_BOUND: Final = 4 * 1024
"""Bytes. A smaller payload costs less in its row than a blob of its own."""

MAX_PAYLOAD_DEPTH: Final = 180
"""Nested arrays and objects in one input, result or event: `JSON_DEPTH`, less the levels of the event, the message and
the list of carried events around a payload.
"""

JSON_DEPTH: Final = 200
"""The depth of nesting up to which pydantic reads JSON: a constant of that library."""

MAX_INTEGER: Final = 2**31 - 1
"""The largest count or version with a column of its own: every store can hold it."""

MAX_EPOCH: Final = 2**63 - 1
"""The greatest epoch that a database can issue."""

MAX_WAITS_READ: Final = 1_000
"""Waits of activities that are read to find a circle; a longer one is not found."""

MAX_STREAM_BYTES: Final = 8 * 1024 * 1024
"""UTF-8 bytes that one attempt of a wake may stream: a reader that comes late reads all of them."""

SHOWN_WAIT: Final = 0.1
"""Seconds. An activity that waited longer in the queue has the wait beside its result, for people. Others have not: it
would cost most turns more than it shows.
"""

MAX_STREAMED_TOOLS: Final = 1024 * 1024
"""Bytes that one attempt of a wake streams for calls of tools, without its values; later ones are left out."""

MAX_STREAMED_ARGUMENTS: Final = 2 * 1024
"""UTF-8 bytes of the arguments of a call in a `ToolStarted`: a reader shows them; the entry of the call has all."""

MAX_STREAMED_ARGUMENT: Final = 256
"""UTF-8 bytes of each of them, when they are cut."""

MIN_ONCE_SECONDS: Final = 86_400.0
"""A row of `affinity.once` is kept for at least so long: its activity may still be repeated."""

MAX_CUSTOM_STATUS_BYTES: Final = 4 * 1024
"""UTF-8 bytes of a custom status as JSON: it is written into the instance row and listed."""

MAX_VALUES: Final = 150
"""Values of one instance. A worker reads all of them when it takes up an execution that is not the first."""

MAX_VALUE_BYTES: Final = 64 * 1024
"""UTF-8 bytes of one value of an instance, as JSON."""

MAX_ERROR_BYTES: Final = 16 * 1024
"""UTF-8 bytes kept of an error's text. A longer one is truncated, with a mark: a failure must be recorded."""

MAX_STACK_BYTES: Final = 8 * 1024
"""UTF-8 bytes recorded of the stack of an error, in the history and with the instance: about forty frames."""

MAX_STACK_FRAMES: Final = 50
"""The innermost frames of one exception that its stack contains: an endless recursion has thousands."""

MAX_ERROR_NAMES: Final = 32
"""Base classes recorded of an error, and fields: more than any tree of errors has."""

MAX_HISTORY_EVENTS: Final = 50_000
"""Events in one execution: beyond it, a replay takes seconds; use ``continue_as_new``."""

MAX_UNREAD_EVENTS: Final = 10_000
"""Unread external events of one instance: further ones are refused to their senders."""

MAX_BUFFERED_EVENTS: Final = 2 * MAX_UNREAD_EVENTS
"""Unread events in the memory of one execution. Senders are refused at a half of it; moves of sessions, which have no
sender to refuse, count too.
"""

MAX_QUOTA: Final = 2**53
"""The largest quota: JSON and every store represent it exactly."""

UNREAD_EXACT: Final = 100
"""Below this, the number of unread events is reported to the database as it is; from here on its first two digits, so
that few turns report it.
"""

MAX_TIMER_SECONDS: Final = 10 * 366 * 86_400.0
"""Ten years: a longer timer is a mistake of unit (milliseconds for seconds)."""

MAX_PRIORITY: Final = 1000
"""The greatest priority of work. Priorities begin at 0, which is the default."""

PRIORITY_SECONDS: Final = 3600.0
"""Seconds of waiting that count as much as one more of priority, where work waits at no limit."""

MAX_GATE_LIMITS: Final = 8
"""Limits of one piece of work: all are taken together, so each is looked at for each admission."""

MIN_RETRY_AFTER: Final = 0.1
"""Seconds: an `affinity.RetryAfter` of less counts as this, so that work which raises it again and again is no loop."""

MAX_REASON_BYTES: Final = 256
"""UTF-8 bytes of the text that says why a limit is closed: it is shown in lists."""

MAX_GATE_BYTES: Final = 2 * 1024
"""UTF-8 bytes of all limits of one piece of work as text, which is in an index. A name or a key has `MAX_ID_BYTES`."""

MAX_WEIGHT: Final = 1000.0
"""The greatest weight of a key of a limit, and its inverse the least: a key of weight 1 gets its turn in any case."""

MAX_ADMISSIONS: Final = 500
"""Pieces of work that one call of `LimitProvider.admit` looks at, and that it admits: the call locks out all others."""

UNTAKEN_SECONDS: Final = 2.0
"""Seconds for which admitted work keeps its slots though no worker fetches it, while other work waits for them."""

UNTAKEN_PAUSE: Final = 60.0
"""Seconds, at most, after which such work asks for its slots again: a worker that can take it may have come."""

MAX_SCHEDULE_NAME_BYTES: Final = 180
"""UTF-8 bytes of the name of a schedule: the ids of its instances are the name, its generation and a time."""

MIN_SCHEDULE_SECONDS: Final = 1.0
"""The shortest time between two ticks of a schedule. For anything faster use a loop with a timer."""

MAX_SCHEDULE_TIMES: Final = 1_000
"""Times in the list of one schedule: each tick reads all of them."""

MAX_CATCH_UP_SECONDS: Final = 31 * 86_400.0
"""The longest catch-up window of a schedule. Older ticks need a backfill, which a person starts."""

MAX_JITTER_SECONDS: Final = 86_400.0
"""The longest jitter of a schedule: a day."""

MAX_BACKFILL: Final = 10_000
"""Ticks of one backfill: about a minute's work of a database."""

SCHEDULE_STEP: Final = 100
"""Schedules that one step of a worker fires, and ticks of one schedule in it: some tens of milliseconds."""

LOCK_TIMEOUT_SECONDS: Final = 2
"""How long a migration waits for a lock. Other calls queue behind it, so it is less than the timeout of any call."""

MIGRATION_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds between the attempts of a migration to get its locks; the last pause repeats."""

MAX_BATCH: Final = 1_000
"""Items in one call of a batch verb: bounds the size of one statement and of one transaction."""

MAX_BATCH_BYTES: Final = 16 * 1024 * 1024
"""UTF-8 bytes of payloads in one call of a batch verb with more than one item. A payload is in memory several times: as
text, as a message of the database's protocol, and decoded. The option ``max_batch_bytes`` of a worker overrides it.
"""

MAX_FETCHED_INPUT: Final = 64 * 1024
"""UTF-8 bytes of an input of a conversation that a fetch brings with the work item of its wake: one fetch has many. The
wake itself reads a larger one.
"""

MAX_OUTSTANDING_BYTES: Final = 128 * 1024 * 1024
"""Default of ``max_outstanding_bytes``: eight batches, which keep a database busy and fit a container of 1 GB."""

INSTANCE_CACHE_BYTES: Final = 256 * 1024 * 1024
"""Default of ``instance_cache_bytes``: 10,000 instances, the default number, of 26 KB each."""

MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Largest ``max_batch_bytes``: a batch, escaped, must stay below 1 GB, the limit of a message to PostgreSQL and of a
text in SQLite.
"""

MAX_BYTES: Final = 2**40
"""Largest number of bytes that an option takes: more than a terabyte is a mistake of unit."""

MAX_PAGE_EVENTS: Final = 4_000
"""Events in one page of a history: the database reads them, and a worker replays them, in less than 100 ms each."""

MAX_REROUTE: Final = 1_000
"""Queue rows that one statement reroutes when a session moves; the sweep reroutes the rest in steps of this size."""

MAX_MOVE_QUEUED: Final = 1_000
"""Where the count of a session's work items stops that is recorded when it moves; migrations have the same number."""

PRUNE_WINDOW: Final = 1_000
"""Ended instances, executions, or journals, that one step of pruning examines: some milliseconds."""

PRUNE_EVENTS: Final = 10_000
"""Events of histories, or entries of journals, that one step of pruning removes, or one tree of instances: some tens of
milliseconds.
"""

SWEEP_LOOK: Final = 200
"""Records, or whole journals, that one step of a sweep looks at."""

SWEEP_ROWS: Final = 250
"""Moves, or audit entries, that one step of a sweep removes: some milliseconds."""

SWEEP_EVENTS: Final = 1_000
"""Events of histories, or entries of journals, that one step of a sweep removes; one instance or journal goes whole."""

DRAINED_RETENTION_SECONDS: Final = 7 * 86_400.0
"""How long the row of a dead worker stays that an operator has drained, if its name may return: a week."""

PRUNE_STEP_SECONDS: Final = 0.015
"""Time after which a step of pruning ends. What it locks, or on SQLite each write, waits for so long."""

PRUNE_LOOK_SECONDS: Final = 0.25
"""The same for a step that only counts: it locks nothing, and its progress is shown."""

PRUNE_TREE_EVENTS: Final = 500_000
"""Events of the largest tree of instances that a sweep removes: one statement removes a whole tree. Larger ones are
left for `affinity prune`, with a longer ``statement_timeout``.
"""

MAX_RETENTION_SECONDS: Final = 100 * 366 * 86_400.0
"""A hundred years: a longer retention is a mistake of unit (milliseconds for seconds)."""

DELETE_STEP: Final = 500
"""Session records that one transaction of a deletion or of pruning removes: tens of milliseconds, for which a claim of
one of these sessions waits. A family of at most so many records is pruned as a whole or not at all.
"""

PROBE_AFTER: Final = 5.0
"""Seconds without a byte from PostgreSQL after which a client asks on a new connection whether the old one is dead.

A third of a default lease, as for a worker. A call of a client is usually shorter.
"""

MIN_PROBE_AFTER: Final = 1.0
"""The same for a worker with a lease of less than three seconds: a busy machine is silent for shorter than that."""

SHARE_DIVISOR: Final = 2
"""The approximate number of rounds in which workers fetch a burst: see `fair_share`."""

MIN_SHARE: Final = 5
"""Items that one fetch takes of any burst: a few sessions are a small load, a fetch for each would be a large one."""

MAX_STATE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one session's state, uncompressed: it is sent in one statement, and is in memory more than once."""

COMPRESS_STATE_ABOVE: Final = 32 * 1024
"""Bytes from which a state is compressed: below, compression costs more time than it saves space."""

MAX_LABELS: Final = 32
"""Labels of one instance, session or conversation; keys and values are bounded like ids."""

FEW_LABELLED: Final = 1_000
"""A listing by several labels reads by the label that the fewest instances have. It counts no more of each."""

MAX_TITLE_BYTES: Final = 1024
"""UTF-8 bytes of the title of a conversation: each row of a listing has it."""

MAX_PARTICIPANTS: Final = 256
"""Participants named in one session's metadata."""

MAX_HOLD_SECONDS: Final = 7 * 86_400.0
"""How long one wait may hold a session on its worker: a held session counts towards the worker's capacity."""

LOW_DISK_BYTES: Final = 256 * 1024 * 1024
"""Free bytes of a disk below which a check warns: a full disk stops every commit, and the WAL alone may have 64 MB."""

MAX_CLOCK_SKEW: Final = 5.0
"""Seconds between the clock of a machine and the database's above which a check warns. Leases go by the database's
clock; times in logs and on screens are compared by people."""

MAX_PAGE: Final = 1_000
"""Rows in one page of a listing."""

MAX_COUNT: Final = 100_000
"""Where counts in command output stop, to bound the cost of counting."""

SCRAPE_COUNT: Final = 10_000
"""Where counts stop that are read often: for metrics, and of workers' sessions; and instances in one page of counts."""

MAX_EVENT_BYTES: Final = 1024 * 1024
"""UTF-8 bytes of one event of a conversation as JSON: a wake reads, and a reader receives, many of them."""

MAX_KIND_BYTES: Final = 64
"""Bytes of the kind of an event of a conversation: it is in an index, in each entry."""

MAX_WAKE_ENTRIES: Final = 10_000
"""Entries that one wake appends, or inputs that it reads: some megabytes, and one transaction."""

MAX_WAKE_STEPS: Final = 1_000
"""Steps of one wake: its next attempt reads them all. Their results have at most half of `MAX_BATCH_BYTES`."""

MAX_TOKEN: Final = 4_096
"""UTF-8 bytes of the token of a step, as JSON."""

MAX_STEP_CHILDREN: Final = 1_000
"""Children that one transaction interrupts, or terminates: the other ones follow in further steps."""

MAX_WAKE_SIGNALS: Final = 10_000
"""Messages that a conversation receives during one wake; later ones wait until the wake has ended.

A message is two events. With earlier and unread messages the history stays below `MAX_HISTORY_EVENTS`.
"""

MAX_REQUESTS: Final = 1_000
"""Pending requests of one conversation: each wake reads all of them."""

MAX_REVISITS: Final = 1_000
"""Pending revisits of a conversation at most: each wake reads all of them."""

MAX_DELEGATIONS_READ: Final = MAX_WAKE_ENTRIES + 1
"""Open delegations of one conversation that a wake reads: one more than it can end, so that it knows whether one is
left.
"""

MAX_BELOW: Final = 10_000
"""Conversations below one, whose requests are listed with its own: some tens of milliseconds."""

MAX_CYCLES: Final = 1_000
"""Wakes of a child for one delegation."""

UPDATE_ATTEMPTS: Final = 10
"""Attempts of `Sessions.update` by default. With random pauses they suffice for as many writers as one record has room
for in a second.
"""

MAX_AUDIT_TEXT_BYTES: Final = 1024
"""UTF-8 bytes of one text in the audit log, such as a reason: a target, the longest id, is shorter."""

AUDIT_RETENTION_SECONDS: Final = 365 * 86_400.0
"""How long entries of the audit log are kept, unless the workers' ``audit_retention`` says otherwise: a year."""

MIN_AUDIT_RETENTION_SECONDS: Final = 86_400.0
"""The shortest ``audit_retention``: entries of today cannot be removed today."""

TREND_RETENTION_SECONDS: Final = 2 * 86_400.0
"""How long the counts of trends are kept, unless the workers' ``trend_retention`` says otherwise: two days."""

MIN_TREND_RETENTION_SECONDS: Final = 3_600.0
"""The shortest ``trend_retention``: an hour, which pages and `affinity trends` show."""

MAX_TREND_RETENTION_SECONDS: Final = 31 * 86_400.0
"""The longest ``trend_retention``: a month of minutes is some tens of megabytes for each twenty names."""

MAX_TREND_MINUTES: Final = 1_500
"""Minutes that one read of trends returns: a day, which is read in some milliseconds."""

MAX_TREND_NAMES: Final = 200
"""Names that one read of the sums of trends returns."""

MAX_NOTED_ERROR_BYTES: Final = 1024
"""UTF-8 bytes of the last error of an activity that is retried, for display; the final error has `MAX_ERROR_BYTES`."""

FIRST_STACKS: Final = 5
"""Failed attempts of an activity, from the first on, whose stacks are kept as long as its history."""

LAST_STACKS: Final = 20
"""And as many of its last ones: what is retried for days has the same stack again and again."""

FAILURE_RETENTION_SECONDS: Final = 2 * 86_400.0
"""How long failures without a stack are kept: twice the longest time of a page of errors."""

MAX_FAILURE_SECONDS: Final = 86_400.0
"""The longest time for which failures are listed and counted: a day."""

MAX_FAILURE_GROUPS: Final = 1000
"""Groups of failures, by name and class, that are looked at to find those with the most."""

MAX_FAILURES_SEARCHED: Final = 10_000
"""Failures whose texts one search looks at, newest first: no index has these texts, which may be encrypted."""


def fair_share(waiting: int, workers: int) -> int:
    """How many of the ``waiting`` items without a holder one fetch takes while ``workers`` poll: a burst is split among
    them, and is not taken by the first one.

    It is a fixed part of the *remaining* items, so that shares become smaller, and the last ones balance the first
    ("guided self-scheduling": Polychronopoulos and Kuck, 1987).
    """
    return max(MIN_SHARE, ceil(waiting / (SHARE_DIVISOR * workers)))


def check_code_name(value: object, what: str) -> str:
    """Return ``value`` as the name, or the version, of a function: an id without an ``@``, which parts the two.

    Raises:
        InvalidId: it is anything else.
    """
    name = check_id(value, what)
    if "@" in name:
        raise InvalidId(f"{what} {name!r} must not hold an @: it parts name and version. Give a version by itself")
    return name


def check_id(value: object, what: str) -> str:
    """Return ``value`` as an id that is safe to store, index and print.

    Args:
        value: a non-empty string of at most ``MAX_ID_BYTES`` UTF-8 bytes without control characters or surrogates.
        what: its name in messages ("session id").

    Raises:
        InvalidId: it is anything else; the message names the allowed values.
    """
    if not isinstance(value, str):
        remedy = ": await it first" if isinstance(value, Awaitable) else ""
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}{remedy}")
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


def check_tag(value: object) -> str:
    """Return ``value`` as a tag: an id of at most ``MAX_TAG_BYTES`` UTF-8 bytes without ``#``, ``:``, ``,`` and spaces;
    not "any".

    Raises:
        InvalidId: it is anything else; the message names the allowed values.
    """
    tag = check_id(value, "tag")
    if found := next((c for c in tag if c in "#:," or c.isspace()), None):
        raise InvalidId(f"tag {tag!r} holds {found!r}; '#', ':', ',' and spaces are not allowed: commas separate tags")
    if tag == ANY_TAG:
        raise InvalidId("no work has the tag 'any': a worker with it (tags=\"any\") takes work with any tag")
    if (size := len(tag.encode())) > MAX_TAG_BYTES:
        raise InvalidId(f"tag has {size} bytes as UTF-8, over the limit of {MAX_TAG_BYTES}")
    return tag


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an instance, a conversation or a session record, if keys and values are bounded like ids.

    Raises:
        InvalidOptions: they are no mapping, or there are more than `MAX_LABELS`.
        InvalidId: a key or a value is no id.
    """
    if not isinstance(labels, Mapping):
        raise InvalidOptions(f'labels are texts by key, as {{"tenant": "acme"}}, not {_shown(labels)}')
    if len(labels) > MAX_LABELS:
        raise InvalidOptions(f"{len(labels)} labels, over the limit of {MAX_LABELS}")
    return {check_id(key, "label key"): check_id(value, f"label {key!r}") for key, value in labels.items()}


def check_payload(json_text: str, what: str, limit: int = MAX_PAYLOAD_BYTES) -> str:
    """Return ``json_text`` if it is within ``limit`` UTF-8 bytes.

    Raises:
        PayloadTooLarge: it is larger; the message names the size, the limit and the remedy.
    """
    # A character takes at most four bytes, so most payloads are not encoded to be measured.
    if len(json_text) * 4 > limit and (size := len(json_text.encode())) > limit:
        raise PayloadTooLarge(
            f"{what} has {size} bytes, over the limit of {limit}: keep large data in a store and pass a reference"
        )
    return json_text


def check_depth(json_text: str, what: str) -> str:
    """Return ``json_text`` if nothing in it is nested deeper than ``MAX_PAYLOAD_DEPTH``.

    Raises:
        PayloadTooLarge: it is nested deeper: it could be written, and not be read.
    """
    if len(json_text) <= MAX_PAYLOAD_DEPTH:  # most payloads
        return json_text
    if json_text.count("[") + json_text.count("{") > MAX_PAYLOAD_DEPTH:  # hardly ever
        spare = JSON_DEPTH - MAX_PAYLOAD_DEPTH
        try:
            from_json("[" * spare + json_text + "]" * spare)
        except ValueError as error:
            raise PayloadTooLarge(f"{what} is nested more than {MAX_PAYLOAD_DEPTH} deep: flatten it") from error
    return json_text


def count_non_finite(value: Any) -> int:
    """How many NaN and infinities are in a value of plain containers: pydantic writes null for each."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return sum(map(count_non_finite, value.values()))
    return sum(map(count_non_finite, value)) if isinstance(value, (list, tuple, set, frozenset)) else 0


def check_integer(value: object, what: str, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Return ``value`` if it is an integer from ``least`` to ``most``.

    Raises:
        InvalidOptions: it is anything else.
    """
    if type(value) is not int or not least <= value <= most:
        raise InvalidOptions(f"{what} must be an integer from {least} to {most}, not {_shown(value)}")
    return value


def check_items(items: Iterable[T], what: str, *, error: type[AffinityError] = InvalidOptions) -> tuple[T, ...]:
    """Return several items as a tuple.

    Args:
        items: a list, say. A text counts as one item.
        what: names them in the error.
        error: that is raised.

    Raises:
        AffinityError: one item was given in place of a list.
    """
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise error(f"{what} must be a list: put {_shown(items)} in brackets")
    return tuple(items)


def check_limit(limit: object, most: int = MAX_PAGE, name: str = "limit") -> None:
    """Raise `InvalidInput` unless it is how many items a page may have: an integer from 1 to ``most``."""
    if type(limit) is not int or not 1 <= limit <= most:
        raise InvalidInput(f"{name} = {limit!r:.80}: must be an integer from 1 to {most}")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether the value is a number, and no bool, which Python counts as one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_age(name: str, seconds: float | None) -> None:
    """Raise `InvalidInput` unless it is None, or seconds that every store can subtract from the present time."""
    if seconds is not None and not (is_number(seconds) and 0 <= seconds <= MAX_RETENTION_SECONDS):
        raise InvalidInput(
            f"{name} = {seconds!r:.80}: must be seconds from 0 to {MAX_RETENTION_SECONDS:.0f} (100 years)"
        )


def check_choice(name: str, value: object, choices: object, error: type[InvalidInput] = InvalidInput) -> None:
    """Raise ``error`` unless it is one of the values of a ``Literal``."""
    if value not in get_args(choices):
        raise error(f"{name} = {value!r:.80}: must be one of {', '.join(get_args(choices))}")


def several(value: object, what: str, allowed: Collection[str] = ()) -> list[str]:
    """Return the texts of an argument that takes one or several; a text is one, and not its letters.

    Raises:
        InvalidInput: it is no text and no collection of texts, or one is not among ``allowed``, if any are named.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping):
        raise InvalidInput(f"{what} = {value!r:.80}: must be a text, or several")
    found = [*texts]
    for text in found:
        if not isinstance(text, str) or (allowed and text not in allowed):
            remedy = f"must be among {', '.join(allowed)}" if allowed else "must be a text"
            raise InvalidInput(f"{what} = {text!r:.80}: {remedy}")
    return found


def seconds_of(what: str, value: object) -> float:
    """A number of seconds, or a timedelta, as seconds; a negative one counts as 0.

    Raises:
        InvalidOptions: it is anything else, or longer than ``MAX_TIMER_SECONDS``.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(seconds) or not isfinite(seconds):
        raise InvalidOptions(f"{what} must be seconds or a timedelta, not {value!r:.80}")
    if seconds > MAX_TIMER_SECONDS:
        raise InvalidOptions(f"{what} of {seconds:g} s is over the limit of {MAX_TIMER_SECONDS:g}: is it milliseconds?")
    return max(0.0, float(seconds))


def check_text(value: object, what: str) -> str:
    """Return ``value`` if it is text that every store can keep.

    Raises:
        InvalidId: it is no string, or holds a NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}")
    if value.isprintable():  # most texts are: without a look at each character
        return value
    if bad := next((c for c in value if c == "\x00" or unicodedata.category(c) == "Cs"), None):
        raise InvalidId(f"{what} holds the character U+{ord(bad):04X}, which no store can keep")
    return value


def check_conditions(where: Any) -> None:
    """Check the texts among the fields of a filter, and in its cursor and collections.

    Raises:
        InvalidId: one has a character that no store can keep, so that nothing that is stored fits.
    """
    for condition in fields(where):
        check_condition(getattr(where, condition.name), condition.name)


def check_condition(value: object, what: str) -> None:
    """Check a condition of a listing, or a place in it, and the texts of a collection. Anything else passes.

    Raises:
        InvalidId: a text has a character that no store can keep.
    """
    if isinstance(value, str):
        check_text(value, what)
    elif isinstance(value, Mapping):
        check_condition((*value, *value.values()), what)
    elif isinstance(value, Collection):
        for part in value:
            check_condition(part, what)


def _shown(value: object) -> str:
    """A value for a message; large integers and objects are described."""
    if type(value) is int and value.bit_length() > _SHOWN_BITS:
        return f"one of {value.bit_length()} bits"
    return repr(value)[:80] if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def truncate(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """Shorten an error's text to ``limit`` UTF-8 bytes, with a mark at the end; NULs are made visible."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    raw = text.encode()
    return text if len(raw) <= limit else raw[: limit - 16].decode("utf-8", "ignore") + " … [truncated]"
