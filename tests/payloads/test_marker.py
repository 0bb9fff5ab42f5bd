"""With a codec, nothing that users store can be found in the database, in log lines, spans and metrics, and all
features work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.payloads.marked_app import MARK, use_everything
from tests.support.span_exporter import traced


def readable(rows: Iterator[Any]) -> list[str]:
    return [text for row in rows if MARK in (text := repr(row))]


def lines_of(records: list[logging.LogRecord]) -> list[str]:
    """All that a handler may write of the records of affinity: with the traceback, and the arguments."""
    formatter = logging.Formatter("%(name)s %(message)s")
    own = [record for record in records if record.name.split(".")[0] == "affinity"]
    return [f"{formatter.format(record)} {vars(record)}" for record in own]


async def test_nothing_is_readable_in_a_file(tmp_path: Path) -> None:
    await use_everything(f"sqlite:///{tmp_path}/marked.db")
    for path in tmp_path.iterdir():
        assert MARK.encode() not in path.read_bytes(), path


async def test_nothing_is_readable_in_a_server(postgres_migrated: str) -> None:
    await use_everything(postgres_migrated)
    with psycopg.connect(postgres_migrated) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'affinity'"
        ).fetchall()
        assert len(tables) > 30
        for (table,) in tables:
            rows = connection.execute(f"SELECT t::text FROM {table} t").fetchall()
            assert not readable(iter(rows)), table


async def test_nothing_is_readable_in_logs_spans_and_metrics(any_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "affinity")
    with traced() as spans:
        samples = await use_everything(any_url)
        exported = [span.to_json() for span in spans.get_finished_spans()]
    lines = lines_of(caplog.records)
    assert "LookupError: its text is encrypted" in str(lines)
    assert "LookupError: its text is encrypted" in str(exported)
    assert "affinity_activities_total" in str(samples)
    for found in (lines, exported, samples):
        assert [text for text in found if MARK in text] == []


async def test_without_a_codec_logs_and_spans_have_the_texts(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """So the test above looks where they are."""
    caplog.set_level(logging.DEBUG, "affinity")
    with traced() as spans:
        await use_everything(sqlite_url, None)
        exported = [span.to_json() for span in spans.get_finished_spans()]
    lines = [line for line in lines_of(caplog.records) if MARK in line]
    for found in (f"LookupError: {MARK} flaky", f"RuntimeError: {MARK}", f"LookupError: {MARK} failed"):
        assert found in str(lines)
    assert MARK in str(exported)
