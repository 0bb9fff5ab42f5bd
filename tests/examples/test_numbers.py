"""Numbers that the documentation says are those of the code; what they do is tested beside the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from affinity import limits, tracing
from affinity.blobs import worker as blob_worker
from affinity.client import calls as client_calls
from affinity.console import app as console_app
from affinity.console import connections as console_connections
from affinity.console import payloads as console_payloads
from affinity.console.pages import instances as instance_pages
from affinity.conversation import journals, shown_trace, stream
from affinity.effects import once
from affinity.integrations.mcp import tools as mcp_tools
from affinity.payloads import opening, pipeline, vault
from affinity.provider import rounds
from affinity.provider.contract import NEWER_SECONDS, OFFER_SECONDS
from affinity.provider.postgres import sweep
from affinity.provider.postgres.driver import attempts, connections, target
from affinity.provider.postgres.driver import calls as postgres_calls
from affinity.provider.sqlite.driver import database as sqlite_database
from affinity.schedules import worker as schedules_worker
from affinity.session import codec, resources
from affinity.worker import (
    activities,
    isolation,
    maintenance,
    metrics,
    notifier,
    rebalancing,
    sessions,
    worker,
)

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
KIB: Final = 1024
MIB: Final = 1024 * 1024
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86_400.0


def number(value: float) -> str:
    """As pages write it: 0.1, 5, 10,000."""
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


def milliseconds(seconds: float) -> str:
    return number(round(seconds * 1e3, 6))


SENTENCES: Final = {
    "understand/architecture.md": [
        f"Hints are coalesced for {milliseconds(notifier.COALESCE_SECONDS)} ms",
        f"beyond {notifier.FEW_WORKERS}, each waits at random, {milliseconds(notifier.SPREAD_SECONDS)} ms at most",
        f"Streamed parts of wakes are written at most every {milliseconds(stream.FLUSH_SECONDS)} ms",
        f"behind it {milliseconds(notifier.COALESCE_SECONDS)} ms ({milliseconds(notifier.LONE_SECONDS)} ms after a lone"
        f" notice); a client's notices after {milliseconds(journals.NOTIFY_SECONDS)} ms",
    ],
    "understand/claims.md": [
        f"it asks again after {milliseconds(notifier.SHARE_SECONDS)} ms",
    ],
    "understand/leases.md": [
        f"a sweep ends the connection after {number(sweep.HALF_SENT)} s",
        f"load in less than {number(sessions.COSTLY_SECONDS)} s",
        f"up to {number(isolation.FIRST_PAUSE)} s, then {number(4 * isolation.FIRST_PAUSE)} s, then a minute",
    ],
    "learn/sessions.md": [f"later one in {codec.MATCHED_LATER}"],
    "learn/schedules.md": [f"look again every {number(schedules_worker.DECLARE_SECONDS)} s"],
    "learn/once.md": [f"runs again after {number(once.AGAIN_AFTER)} s"],
    "learn/large-payloads.md": [
        f"by a client for {number(opening.BLOB_PATIENCE)} s",
        f"each part of {number(limits.BLOB_PART_BYTES / MIB)} MiB on its own",
        f"up to {number(limits.BLOB_CACHE_BYTES / MIB)} MiB of payloads",
        f"keeps up to {number(limits.MAX_BLOB_BYTES / MIB / KIB)} GiB",
    ],
    "learn/middleware.md": [f"{limits.MAX_HEADERS} headers, {limits.MAX_HEADER_BYTES // KIB} KiB together"],
    "learn/labels.md": [f"An instance has {limits.MAX_LABELS} labels at most"],
    "learn/web.md": [f"after {number(client_calls.RETRY_SECONDS)} s of repeated calls"],
    "learn/integrations/mcp.md": [f"A call waits {number(mcp_tools.TIMEOUT)} seconds"],
    "learn/integrations/web.md": [f"413 above {limits.MAX_REQUEST_BYTES // MIB} MiB (`MAX_REQUEST_BYTES`)"],
    "learn/orchestrations.md": [
        f"Up to {limits.MAX_VALUES} values of {limits.MAX_VALUE_BYTES // KIB} KiB",
        f"an id or name: {limits.MAX_ID_BYTES} bytes",
        f"as JSON: {limits.MAX_PAYLOAD_BYTES // MIB} MiB, nested {limits.MAX_PAYLOAD_DEPTH} deep",
        f"a custom status: {limits.MAX_CUSTOM_STATUS_BYTES // KIB} KiB",
        f"events in one execution: {number(limits.MAX_HISTORY_EVENTS)};",
        f"unread events: about {number(limits.MAX_UNREAD_EVENTS)}; then senders are refused."
        f" {number(limits.MAX_BUFFERED_EVENTS)} from other instances",
        f"that a worker registers: {limits.MAX_SCHEMA_BYTES // KIB} KiB; all of one worker:"
        f" {limits.MAX_SCHEMAS_BYTES // KIB} KiB",
        f"those of a greater `priority` (0 to {limits.MAX_PRIORITY})",
    ],
    "learn/conversations.md": [
        f"(up to {number(limits.MAX_REVISITS)}). {number(limits.MAX_WAKE_STEPS)} steps of a wake,"
        f" {limits.MAX_BATCH_BYTES // MIB // 2} MB of their results. {number(limits.MAX_WAKE_SIGNALS)} events during"
        " one wake",
        f"(an event above {limits.MAX_EVENT_BYTES // MIB} MiB)",
    ],
    "run/placement.md": [
        f"above {number(rebalancing.OVER_SHARE)} times its share and {rebalancing.LEAST_SURPLUS} sessions more",
        f"from 1 to {rebalancing.MOST_OFFERS}, every",
        f"else after {number(NEWER_SECONDS)} s.",
    ],
    "run/monitoring.md": [
        f"at most every {number(metrics.WORK_SECONDS)} s, and omits them if the database does not answer within"
        f" {number(worker.MEASURE_TIMEOUT)} s",
        f"stop at {number(limits.SCRAPE_COUNT)};",
    ],
    "run/databases.md": [
        f"more than {number(limits.MAX_CLOCK_SKEW)} s away",
        f"less than {limits.LOW_DISK_BYTES // MIB} MiB free",
        f"closed after {number(connections.IDLE_TIMEOUT)} s without any",
        f"tries again for {number(sqlite_database.MAX_WAIT)} s, then raises `Contention`",
        f"a client's call for {number(client_calls.RETRY_SECONDS)} s",
        f"(at least {number(limits.MIN_PROBE_AFTER)} s; a client: {number(limits.PROBE_AFTER)} s)",
        f"All others end after {number(postgres_calls.CALL_TIMEOUT)} s",
        f"does not answer for {number(attempts.HOST_PATIENCE)} s",
        f"`lock_timeout` {target.COLD['lock_timeout'][:-1]} s"
        f" ({number(int(target.HOT['lock_timeout'][:-2]) / 1e3)} s for short calls)",
    ],
    "run/upgrades.md": [f"at last every {number(limits.MIGRATION_PAUSES[-1])} s"],
    "run/deploy.md": [f"({number(resources.DISPOSE_SECONDS)} s for each copy of a cache"],
    "run/retention.md": [
        f"A tree of more than {number(limits.PRUNE_TREE_EVENTS)} events",
        f"more than {limits.DELETE_STEP} go in several steps",
        f"not the first {limits.FIRST_STACKS} and the last {limits.LAST_STACKS} failed attempts",
        f"| | {number(limits.FAILURE_RETENTION_SECONDS / DAY)} days |",
        f"`trend_retention`: {number(limits.TREND_RETENTION_SECONDS / DAY)} days, an hour to"
        f" {number(limits.MAX_TREND_RETENTION_SECONDS / DAY)} days",
        f"`audit_retention`: {number(limits.AUDIT_RETENTION_SECONDS / DAY)} days, at least one",
    ],
    "run/console.md": [
        f"the newest {number(limits.MAX_FAILURES_SEARCHED)} failures",
        f"or all in a list, {number(instance_pages.MAX_MATCHING)} at most",
        f"the first {console_payloads.MAX_SHOWN // KIB} KiB of each",
        f"| live pages | {console_app.MAX_LIVE} |",
        f"| {console_connections.MAX_WAITING}, and a quarter of the process's descriptors |",
        f"not complete after {number(console_connections.HEAD_SECONDS)} s is closed",
        f"up to {number(instance_pages.MAX_READ)} events of history",
    ],
}

IN_WORDS: Final = [
    ("understand/claims.md", "is offered to one worker, for a second (`OFFER_SECONDS`)", OFFER_SECONDS == 1.0),
    ("understand/claims.md", "has not waited for two seconds (`NEWER_SECONDS`)", NEWER_SECONDS == 2.0),
    ("understand/architecture.md", "the worker rests for nine times its time", maintenance.BACKLOG_REST == 9.0),
    ("understand/leases.md", "less than four times the usual pause", sessions.REST_PAUSES == 4.0),
    ("understand/leases.md", "and less than a second. They go", sessions.REST_SECONDS == 1.0),
    ("understand/leases.md", "within about ten seconds", sessions.RECHECK_SECONDS == 10.0),
    ("understand/leases.md", "for two minutes at most while the item waits", isolation.ISOLATION_TIMEOUT == 2 * MINUTE),
    ("understand/leases.md", "then 40 s, then a minute", isolation.LONGEST_PAUSE == MINUTE),
    ("run/placement.md", "a tenth of what it holds", rebalancing.MOST_PART == 0.1),
    ("run/placement.md", "stops after three rounds", rebalancing.ROUNDS_WITHOUT_GAIN == 3),
    ("run/retention.md", "rests nine times as long as a step takes", maintenance.BACKLOG_REST == 9.0),
    ("run/retention.md", "looked at again a minute later", rounds.FIRST_PAUSE == MINUTE),
    ("run/retention.md", "up to an hour, and to a twentieth", (rounds.LONGEST_PAUSE, rounds.SHARE) == (HOUR, 20)),
    ("run/encryption.md", "fails for a quarter of an hour", pipeline.SUSPECT_SECONDS == HOUR / 4),
    ("run/encryption.md", "begin within half a minute", activities.UNREADABLE_PAUSE == MINUTE / 2),
    ("run/tracing.md", "it waited for over a minute", tracing.LINK_SECONDS == MINUTE),
    ("learn/large-payloads.md", "refuses for five minutes", vault.SUSPECT_SECONDS == 5 * MINUTE),
    ("learn/large-payloads.md", "at least four times in the grace", blob_worker.SHARE == 4),
    ("learn/large-payloads.md", "`grace=`, a day by default", limits.BLOB_GRACE == DAY),
    ("learn/orchestrations.md", "and has a second for its cleanup", activities.LEAVE_AFTER == 1.0),
    ("learn/orchestrations.md", "a hold: a week", limits.MAX_HOLD_SECONDS == 7 * DAY),
    ("learn/conversations.md", "of a running wake after half a second", shown_trace.SHOWN_AFTER == 0.5),
]


@pytest.mark.parametrize("page", SENTENCES)
def test_numbers_are_those_of_the_code(page: str) -> None:
    text = prose(page)
    assert [sentence for sentence in SENTENCES[page] if sentence not in text] == []


@pytest.mark.parametrize(("page", "words", "is_so"), IN_WORDS, ids=[f"{page}: {words}" for page, words, _ in IN_WORDS])
def test_words_for_numbers_are_those_of_the_code(page: str, words: str, is_so: bool) -> None:
    assert is_so
    assert words in prose(page)


def prose(page: str) -> str:
    """Without the ends of its lines."""
    return re.sub(r"\s+", " ", (DOCS / page).read_text())
