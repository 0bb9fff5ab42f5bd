"""Journals on SQLite: what their verbs cost in a long journal, and streams that another process sees."""

from __future__ import annotations

import re
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Final, LiteralString

import anyio
import pytest

from affinity.conversation.journal import Answer, NewRequest, RequestFilter, StreamCursor
from affinity.conversation.store.sqlite import admin, requests
from affinity.provider.sqlite import Clock, SqliteProvider
from affinity.provider.sqlite.driver.database import Database, connect
from affinity.provider.statements import with_parts
from affinity_conformance.providers.builders import message_ids
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, new_input, output
from tests.provider.sqlite_files import create_file
from tests.provider.sqlite_steps import FEW, MUCH, Verb, cost_in_steps, fill_tables, opened_file, steps

__all__ = ["steps"]

pytestmark = pytest.mark.anyio

CROWD: Final = (
    "INSERT INTO journal_entries (journal_id, seq, kind, wake_id, is_input, recorded_at, payload)"
    " SELECT j.journal_id, j.last_seq + i, 'agent.message', 'w' || i / 4, 0, 0, '1' FROM journals AS j, numbers",
    "UPDATE journals SET last_seq = last_seq + (SELECT count(*) FROM numbers)",
    "INSERT INTO journals (journal_id, session_id, kind, parent, last_seq, oldest_at, created_at, updated_at)"
    " SELECT i, 'other' || i, 'chat', 'p', 1, 0, 0, 0 FROM numbers",
    "INSERT INTO journal_entries (journal_id, seq, kind, event_id, is_input, recorded_at, payload)"
    " SELECT i, 1, 'user.message', 'e', 1, 0, '1' FROM numbers",
    "INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, created_at, payload)"
    " SELECT i, 'q', 'confirm', 'w', 1, 0, '1' FROM numbers",
    "INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note)"
    " SELECT i, 'k', 0, 0, '', '1' FROM numbers",
    "INSERT INTO journal_delegations (journal_id, delegation_id, child) SELECT i, 'd', 'child' || i FROM numbers",
    "INSERT INTO journal_streams (journal_id, wake_id, attempt, number, payload) SELECT i, 'w', 1, 1, '1' FROM numbers",
)
"""A long journal, and many others."""

WRITER: Final = """
import asyncio, sys, time
from pathlib import Path
from affinity.conversation.journal import JournalQuery, StreamPart
from affinity.provider.sqlite import SqliteProvider

async def main():
    provider = await SqliteProvider.open(Path(sys.argv[1]))
    (page,) = await provider.read_journal([JournalQuery(session_id="s")])
    for number in range(1, 41):
        part = StreamPart(session_id="s", journal_id=page.journal_id, wake_id="w", attempt=1, number=number,
                          payload=str(time.time()))
        await provider.write_stream([part])
        await asyncio.sleep(0.03)
    await provider.aclose()

asyncio.run(main())
"""
PARTS: Final = 40
SEEN_WITHIN: Final = 0.5
"""Seconds, median; 0.02 on an idle machine. Ten times the promise: tests run on machines that are busy."""


async def test_a_wake_costs_the_same_in_a_long_journal(tmp_path: Path, steps: Iterator[int]) -> None:
    """An input, what the wake has to do, its stream, its commit, and reading what it has added."""
    costs = []
    for rows in (FEW, MUCH):
        async with opened_file(tmp_path / f"{rows}.db") as (peer, path):
            await Conversation(peer.provider).append(event_id="first")
            owner = await ConversationOwner.of(peer)
            await owner.commit_wake(entries=[output()])
            fill_tables(path, CROWD, rows)
            costs.append([await cost_in_steps(steps, verb) for verb in await _verbs(owner)])
    assert costs[1] == costs[0]


async def _verbs(owner: ConversationOwner) -> list[Verb]:
    talk = owner.conversation
    last = (await talk.page()).last_seq
    part = await talk.part(1, wake_id="next")
    inputs = [new_input("s", event_id="new"), new_input("s", event_id="first")]
    appended = await talk.journals.append_journal([new_input("s", event_id="waits")])
    write = await owner.new_write(
        entries=[output("1", "next"), output("2", "next", event_id="mine")],
        wake_id="next",
        clear_stream=True,
        appends=[new_input("other5", start=None, message=None)],
    )
    assert appended[0].seq == write.processed == last + 1
    return [
        partial(talk.journals.append_journal, inputs),
        talk.pending,
        partial(talk.journals.write_stream, [part]),
        partial(talk.page, after=last, stream=StreamCursor()),
        partial(owner.commit, write, consumed=message_ids(owner.at)),
        partial(talk.page, wake_id="next"),
        partial(talk.page, event_id="first"),
        partial(talk.page, pending=True),
        partial(talk.page, newest_first=True, limit=5),
        partial(talk.page, kinds=["user.message"], newest_first=True, limit=5),
        talk.requests,
    ]


async def test_a_stream_is_seen_by_another_process(tmp_path: Path) -> None:
    """As it is written: nothing notifies this process, which looks for commits while a reader waits."""
    path = tmp_path / "affinity.db"
    create_file(path)
    async with aclosing(await SqliteProvider.open(path)) as provider:
        talk = Conversation(provider)
        await talk.append()
        delays: list[float] = []
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
            try:
                async with talk.journals.watch_changes() as watch:
                    with anyio.fail_after(60):
                        while len(delays) < PARTS:
                            await watch.wait(10.0)
                            seen = StreamCursor(wake_id="w", attempt=1, number=len(delays))
                            parts = (await talk.page(stream=seen)).stream
                            delays += [time.time() - float(part.payload) for part in parts]
            finally:
                writer.terminate()
        assert statistics.median(delays) < SEEN_WITHIN, delays


async def test_a_commit_behind_a_stream_waits_for_the_disk(tmp_path: Path) -> None:
    """Parts of streams do not, and later commits do, also when setting it failed in between."""
    path = tmp_path / "affinity.db"
    create_file(path)
    with closing(connect(path)) as connection:
        waits: list[int] = []

        def note(_: object) -> None:
            waits.extend(connection.execute("PRAGMA synchronous").fetchone())

        database = Database(connection, Clock())
        database.write(note)
        database.write_unsynced(note)
        with pytest.raises(ZeroDivisionError):
            database.write_unsynced(lambda _: 1 / 0)
        database.write_unsynced(note)
        database.write(note)
        database.write(note)
    full, normal = 2, 1
    assert waits == [full, normal, normal, full, full]


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (admin.SQL["list"], "journals_by_age"),
        (admin.BY_ID, "sqlite_autoindex_journals_1"),
        (admin.BY_KIND, "journals_by_kind"),
        (admin.BY_PARENT, "journals_by_parent"),
        (admin.BY_OWNER, "journals_by_owner"),
    ],
)
async def test_a_listing_reads_the_index_of_its_condition(tmp_path: Path, statement: str, index: str) -> None:
    path = tmp_path / "affinity.db"
    create_file(path)
    names = (
        "before",
        "before_id",
        "session_id",
        "kind",
        "status",
        "prefix",
        "parent",
        "parent_journal",
        "made_from",
        "updated_since",
        "updated_before",
        "closed",
        "owner",
        "labels",
        "now",
        "window",
        "limit",
    )
    arguments = dict.fromkeys(names)
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]
    read, behind = plan[plan.index("MATERIALIZE page") + 1 :][:2]
    assert read.startswith(f"SEARCH j USING INDEX {index} ("), plan
    assert "TEMP B-TREE" not in behind, plan


@pytest.mark.parametrize(
    ("sql", "part", "reads"),
    [
        (requests.BY_EXPIRY, "all", ["SCAN r USING INDEX journal_requests_by_expiry"]),
        (
            requests.LIST,
            "all",
            ["SEARCH r USING INDEX journal_requests_by_creation ((created_at,journal_id)>(?,?))"],
        ),
        (
            requests.LIST,
            "some",
            [
                "SCAN a VIRTUAL TABLE INDEX 1:",
                "SEARCH j USING COVERING INDEX sqlite_autoindex_journals_1 (session_id=?)",
                "SEARCH r USING INDEX sqlite_autoindex_journal_requests_1 (journal_id=?)",
            ],
        ),
    ],
)
async def test_a_page_of_requests_reads_an_index_of_them(
    tmp_path: Path, sql: LiteralString, part: LiteralString, reads: list[str]
) -> None:
    """And the journal and the instance of each by their keys."""
    path = tmp_path / "affinity.db"
    create_file(path)
    statement = with_parts(sql, frozenset({part}))
    arguments = dict.fromkeys(re.findall(r":([a-z_]+)", statement))
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", arguments)]
    assert [line for line in plan if re.match("(SCAN|SEARCH) [raji] ", line)] == [
        *reads,
        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH i USING INDEX sqlite_autoindex_instances_1 (instance_id=?)",
    ]
    assert part == "some" or "TEMP B-TREE" not in "".join(plan[: plan.index("MATERIALIZE judged")])


async def test_a_page_of_requests_has_a_mark_while_none_comes_or_goes(tmp_path: Path) -> None:
    """With the mark nothing else is read."""
    async with opened_file(tmp_path / "affinity.db") as (peer, path):
        talk = Conversation(peer.provider)
        await talk.append()
        owner = await ConversationOwner.of(peer)

        async def page(mark: str | None = None) -> tuple[list[str], str | None]:
            found = await talk.journals.list_requests(RequestFilter(mark=mark), 10)
            return [each.request_id for each in found.requests], found.mark

        _, empty = await page()
        await owner.commit_wake(requests=[NewRequest(request_id="r", kind="confirm", payload="1")])
        names, first = await page(empty)
        assert (names, await page(first)) == (["r"], ([], first))
        await talk.append(event_id="more")
        assert await page(first) == ([], first)
        answer = Answer(request_id="r", kind="confirm")
        await talk.append(answers=answer)
        await owner.commit_wake(requests=[NewRequest(request_id="r", kind="confirm", payload="1")])
        assert len({empty, first, (await page())[1]}) == 3
        with closing(sqlite3.connect(path)) as connection:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {requests.MARK}")]
        assert plan == ["SCAN journal_requests USING COVERING INDEX journal_requests_by_creation"]
