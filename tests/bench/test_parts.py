"""The parts of the benchmark that decide what its figures mean."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import anyio
import psycopg
import pytest
from click.testing import CliRunner

from affinity import Client, Worker
from affinity.conversation import UserMessage
from bench.asks import AskLoop
from bench.bare import BareLoop
from bench.chats import Chat, chat_after
from bench.cli import main
from bench.fused import FusedLoop
from bench.measures import MEDIAN_TURN, RATE, Bar, Report, over_rounds
from bench.places import SqlitePlace
from bench.processes import WorkerFailed, WorkerProcess
from bench.run import Run
from bench.scenarios.conversation import check_parts
from bench.scenarios.state import Shape, check
from bench.systems import SYSTEMS
from bench.systems.base import Client as BenchClient
from bench.systems.base import FloodingClient, System, WaitingClient, module_launch
from bench.systems.ours import OurClient
from bench.systems.ours_app import talking, talks
from bench.wire import Messages, wire
from bench.work import Stamp, Walk, Walked, WrongResults
from tests.support.terminals import on_terminal


def stamps(*turns: int) -> list[list[float]]:
    return [[turn, 1, 10.0 + turn] for turn in turns]


# --- rounds -----------------------------------------------------------------------------------------------------------

ROUNDS = """
from functools import partial
from bench.measures import over_rounds
from bench.progress import say
over_rounds(2, [partial(say, name) for name in ("tea", "milk")])
"""


def test_rounds_have_a_bar_on_a_terminal_and_are_only_called_elsewhere() -> None:
    """Lines of measurements stay above the bar, which is gone at the end."""
    shown = on_terminal([sys.executable, "-c", ROUNDS], "xterm")
    assert all(f"{number}/4" in shown for number in range(5))
    assert [shown.count(f"\x1b[2K{name}\r\n") for name in ("tea", "milk")] == [2, 2]
    assert shown.rstrip().endswith("\x1b[2K")
    done = subprocess.run([sys.executable, "-c", ROUNDS], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "tea\nmilk\nmilk\ntea\n")


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_walk_accepts_its_turns_in_order() -> None:
    assert Walk(turns=2).check(stamps(0, 1, 2))[2] == Stamp(2, 1, 12.0)


@pytest.mark.parametrize("output", [stamps(0, 1), stamps(0, 2, 1), stamps(0, 1, 1, 2), None, "failed", [[1]]])
def test_a_walk_refuses_anything_else(output: object) -> None:
    with pytest.raises(WrongResults):
        Walk(turns=2).check(output)


def test_only_a_peer_may_fail_a_round(tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(place=SqlitePlace(tmp_path), systems=list(SYSTEMS.values()), rounds=1, quick=True, say=said.append)
    report = Report("turns")
    with run.excused(report, "1 x 1", SYSTEMS["duroxide"]):
        Walk(turns=1).check("database is locked")
    assert [note.startswith("1 x 1: a round of duroxide failed") for note in report.notes] == [True]
    assert "database is locked" in said[0]
    with pytest.raises(WrongResults), run.excused(report, "1 x 1", run.ours):
        Walk(turns=1).check("locked")


def test_a_turn_counts_once_the_next_has_begun() -> None:
    walked = Walked(began=9.0, walks=[Walk(turns=2).check(stamps(0, 1, 2))] * 3)
    assert (walked.turns, walked.seconds, walked.rate) == (6, 3.0, 2.0)
    assert walked.gaps == [1.0] * 6


# --- streams ----------------------------------------------------------------------------------------------------------


def test_the_last_tokens_of_a_stream_may_be_missed() -> None:
    """The commit of the wake replaces them."""
    for came in (3, 5):
        check_parts(range(1, came + 1), 5)


@pytest.mark.parametrize("numbers", [[1, 2], [2, 3, 4], [1, 3, 4], [1, 3, 2], [1, 1, 2, 3], [1, 2, 3, 4, 5, 6]])
def test_a_stream_has_no_gap_no_repetition_and_most_of_its_tokens(numbers: list[int]) -> None:
    with pytest.raises(WrongResults):
        check_parts(numbers, 5)


# --- state ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_chat_keeps_its_size_and_is_as_dense_as_english(size: int) -> None:
    chat = Chat()
    for _ in range(3):
        chat.go_on("session-1", size)
    assert chat == chat_after("session-1", 3, size)
    raw = chat.model_dump_json().encode()
    assert 0.95 * size < len(raw) < 1.05 * size
    assert 0.3 < len(zlib.compress(raw, 1)) / len(raw) < 0.6


def test_a_record_must_have_every_turn_once() -> None:
    shape = Shape(sessions=["a", "b"], together=Walk(turns=3), alone=Walk(turns=4))
    right = {"a": 2 + 4 + 5, "b": 2 + 4}  # a walk of T turns runs T + 1 activities
    records = [(turns, chat_after(session, turns, 1_000)) for session, turns in right.items()]
    check(records, shape, 1_000)
    (version, chat), other = records
    for wrong in [
        (version - 1, chat),
        (version, chat_after("a", version + 1, 1_000)),
        (version, chat_after("b", 11, 0)),
    ]:
        with pytest.raises(WrongResults):
            check([wrong, other], shape, 1_000)


# --- reports ----------------------------------------------------------------------------------------------------------


def test_ratios_follow_the_direction_of_the_metric() -> None:
    report = Report("test")
    for system, factor in {"affinity": 1.0, "peer": 4.0}.items():
        for value in (1.0, 5.0, 2.0):
            report.add("case", system, {RATE: 100 / factor * value, MEDIAN_TURN: factor * value})
    report.ratio_bar("case", RATE, "affinity", "peer", 4.0)
    report.ratio_bar("case", MEDIAN_TURN, "affinity", "peer", 4.1)
    report.ratio_bar("case", MEDIAN_TURN, "affinity", "not installed", 2.0)
    assert [(bar.value, bar.met) for bar in report.bars] == [(4.0, True), (4.0, False)]


def test_bars_have_two_directions() -> None:
    assert Bar("a", 2.0, 2.0).met
    assert not Bar("a", 1.9, 2.0).met
    assert Bar("a", 2.0, 2.0, "less").met
    assert not Bar("a", 2.1, 2.0, "less").met


def test_every_measure_comes_first_in_its_turn() -> None:
    seen: list[str] = []
    over_rounds(3, [lambda: seen.append("a"), lambda: seen.append("b"), lambda: seen.append("c")])
    assert "".join(seen) == "abcbcacab"


# --- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_statements_are_counted_whatever_the_chunks(size: int) -> None:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!I", len(body) + 4) + body

    said = message(b"D", b"C" * 20) + message(b"C", b"SELECT 1\0") + message(b"Z", b"I") + message(b"C", b"INSERT\0")
    counter = Messages()
    assert sum(counter.feed(said[start : start + size]) for start in range(0, len(said), size)) == 2


@pytest.mark.parametrize(("kind", "statements"), [(FusedLoop, 1), (AskLoop, 4)])
def test_a_loop_sends_its_statements_and_the_wire_counts_them(
    postgres_migrated: str, kind: type[BareLoop], statements: int
) -> None:
    """A turn is one statement; an ask is an append, a fetch, a commit and a read."""
    with wire(postgres_migrated) as counted:
        loop = kind(counted.url, 3)
        before = counted.statements
        assert len(loop.run(4)) == 4
        assert counted.statements - before == 4 * statements
        loop.close()


def test_the_loop_writes_the_rows_of_asks(postgres_migrated: str) -> None:
    """As many of each kind, and about as many bytes."""

    async def ask() -> Sequence[Written]:
        async with Worker(talking, postgres_migrated), Client(postgres_migrated) as client:
            talk, found = client.conversation(talks, "talk"), []
            for _ in range(2):
                for _ in range(5):
                    await talk.ask(UserMessage("question 10"), timeout=60)
                found.append(written(postgres_migrated))
            return found

    loop = AskLoop(postgres_migrated, 1)
    before = written(postgres_migrated)
    loop.run(5)
    loop.close()
    bare = added(before, written(postgres_migrated))
    own = added(*anyio.run(ask))
    assert {name: rows for name, (rows, _) in bare.items()} == {name: rows for name, (rows, _) in own.items()}
    assert 0.9 < sum(size for _, size in bare.values()) / sum(size for _, size in own.values()) < 1.1


Written = dict[str, tuple[int, int]]
"""Rows and bytes, by kind."""


def written(url: str) -> Written:
    with psycopg.connect(url, options="-c search_path=affinity") as connection:
        found = connection.execute("""
            SELECT kind, count(*), sum(octet_length(payload)) FROM journal_entries GROUP BY kind
            UNION ALL SELECT event::json ->> 'type', count(*), sum(octet_length(event)) FROM history GROUP BY 1
            UNION ALL SELECT 'wake', count(*), count(*) FROM journal_wakes
            UNION ALL SELECT 'queued', count(*), 0 FROM worker_queue""")
        return {name: (rows, int(size or 0)) for name, rows, size in found}


def added(before: Written, after: Written) -> Written:
    differences = {name: [a - b for a, b in zip(after[name], before.get(name, (0, 0)), strict=True)] for name in after}
    return {name: (rows, size) for name, (rows, size) in differences.items() if rows}


# --- systems and processes --------------------------------------------------------------------------------------------


def test_our_client_has_every_capability() -> None:
    def takes(client: OurClient) -> tuple[BenchClient, WaitingClient, FloodingClient]:
        return client, client, client

    assert takes.__annotations__


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_settings_are_stated(system: System) -> None:
    assert system.settings()
    assert system.packages


def test_a_worker_that_ends_is_reported_with_its_log() -> None:
    worker = WorkerProcess(module_launch("bench.no_such_module"))
    try:
        with pytest.raises(WorkerFailed, match="no_such_module"):
            worker.ready()
    finally:
        worker.end()


@pytest.mark.parametrize(
    "arguments",
    [
        ["limit", "--provider", "sqlite"],
        ["turns", "--provider", "sqlite", "--postgres", "15"],
        ["turns", "--postgres", "3"],
        ["no-such-scenario"],
    ],
)
def test_misuse_is_refused(arguments: list[str]) -> None:
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code in {1, 2}
    assert "Error" in refused.output
