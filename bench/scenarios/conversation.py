"""``conversation``: asks beside the same rows by SQL alone, deliveries to followers, streams beside turns, a long
journal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median

import anyio

from affinity import Client, ConversationHandle
from affinity.conversation import AgentMessage, JournalEntry, Streamed, UserMessage
from bench.asks import AskLoop
from bench.measures import RATE, Metric, Report, over_rounds
from bench.run import Bed, Run
from bench.systems.ours_app import Emit, Lengthen, talks
from bench.work import Walk, WrongResults

ASKS = Metric(name="asks/s")
CPU = Metric(name="worker CPU, µs/ask", better="less")
MEDIAN_ASK = Metric(name="median ask, ms", better="less", digits=2)
TOKENS = Metric(name="median delivery of a token, ms", better="less", digits=2)
ENTRIES = Metric(name="median delivery of an entry, ms", better="less", digits=2)
LONG = Metric(name="time / time with a short journal", better="less", digits=2)

SHARE_BAR = 0.2
ASK_BAR = 2.5
DELIVERY_BAR = 50.0
STREAM_BAR = 0.9
LONG_BAR = 1.1

CONVERSATIONS = "conversations"
SQL = "sql"
ALONE = "one at a time"
FOLLOWER = "a follower"

WARM_UP = 20
"""Rounds of the loop that do not count."""

ENTRIES_OF_A_WAKE = 500

TOKEN_PAUSE = 0.02
"""Seconds between two tokens of a stream."""

ROOM = {"max_sessions_per_runtime": 1_200}
"""All sessions of a measurement, and of the warm-up, on one worker."""


def conversation(run: Run) -> Report:
    """An ask is an input, and the wake that answers it: it commits two entries of its span, the answer, why it ends,
    the state, and the watermark. Beside it are the same rows by SQL alone, on PostgreSQL. Replies, tokens and states
    are checked.
    """
    report = Report("conversation")
    sizes = [(run.sized(50, 3), run.sized(40, 3)), (run.sized(500, 6), run.sized(10, 3))]
    alone = run.sized(300, 5)
    measures = [partial(_asks, run, report, sessions, length) for sessions, length in sizes]
    measures += [partial(_alone, run, report, alone), partial(_delivery, run, report, run.sized(100, 50))]
    if run.place.dialect == "postgresql":
        measures += [partial(_loop, run, report, f"{size} x {length}", size, length) for size, length in sizes]
        measures.append(partial(_loop, run, report, ALONE, 1, alone))
    over_rounds(run.rounds, measures)
    for sessions, length in sizes:
        case = f"{sessions} x {length}"
        asks, bare = report.median(case, CONVERSATIONS, ASKS), report.median(case, SQL, ASKS)
        report.bar(f"{case}: share of the same rows by SQL alone", asks / bare if asks and bare else None, SHARE_BAR)
    ask, bare = report.median(ALONE, CONVERSATIONS, MEDIAN_ASK), report.median(ALONE, SQL, MEDIAN_ASK)
    report.bar(f"{ALONE}: times the same rows by SQL alone", ask / bare if ask and bare else None, ASK_BAR, "less")
    for metric in (TOKENS, ENTRIES):
        report.bar(f"{FOLLOWER}: {metric.name}", report.median(FOLLOWER, CONVERSATIONS, metric), DELIVERY_BAR, "less")
    _beside_streams(run, report)
    _long_journal(run, report)
    return report


def _loop(run: Run, report: Report, case: str, batch: int, asks: int) -> None:
    """So many asks of each of a batch of conversations, which are written together."""
    with run.place.database(run.ours) as url:
        loop = AskLoop(url, batch)
        loop.run(WARM_UP)
        times = loop.run(asks)
        loop.close()
    values = {ASKS: batch * asks / sum(times)}
    run.note(report, case, SQL, values | ({MEDIAN_ASK: median(times) * 1e3} if batch == 1 else {}))


@contextmanager
def _talking(run: Run) -> Iterator[Bed]:
    """One worker that has answered some asks."""
    with run.bed(run.ours) as bed:
        bed.start_workers(1, app="talking", **ROOM)
        bed.ours.call(partial(_ask_all, ids=[f"warm-up-{number}" for number in range(5)], length=5))
        yield bed


def _asks(run: Run, report: Report, sessions: int, length: int) -> None:
    with run.bed(run.ours) as bed:
        (worker,) = bed.start_workers(1, app="talking", **ROOM)
        bed.ours.call(partial(_ask_all, ids=[f"warm-up-{number}" for number in range(25)], length=5))
        before = worker.cpu_seconds()
        ids = [f"talk-{number}" for number in range(sessions)]
        times = bed.ours.call(partial(_ask_all, ids=ids, length=length))
        asks = sessions * length
        values = {ASKS: asks / times[1], CPU: (worker.cpu_seconds() - before) / asks * 1e6}
        run.note(report, f"{sessions} x {length}", CONVERSATIONS, values)


async def _ask_all(client: Client, *, ids: Sequence[str], length: int) -> tuple[list[float], float]:
    """Ask each so often, one after the other; the seconds of each ask, and of all."""
    times: list[float] = []
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for one in ids:
            tasks.start_soon(_ask, client.conversation(talks, one), length, times)
    return times, time.monotonic() - began


async def _ask(talk: ConversationHandle, length: int, times: list[float]) -> None:
    for number in range(length):
        began = time.monotonic()
        reply = await talk.ask(UserMessage(f"question {number}"), timeout=600)
        times.append(time.monotonic() - began)
        if reply.text != f"answer to question {number}, after {number}":
            raise WrongResults(f"{talk.conversation_id} answered question {number} with {reply.text!r}")


def _alone(run: Run, report: Report, length: int) -> None:
    with _talking(run) as bed:
        times, _ = bed.ours.call(partial(_ask_all, ids=["alone"], length=length))
        run.note(report, ALONE, CONVERSATIONS, {MEDIAN_ASK: median(times) * 1e3})


def _delivery(run: Run, report: Report, tokens: int) -> None:
    """From the moment in which the handler writes it to that in which a follower in another process has it."""
    with _talking(run) as bed:
        streamed, committed = bed.ours.call(partial(_follow, tokens=tokens))
        values = {TOKENS: median(streamed) * 1e3, ENTRIES: median(committed) * 1e3}
        run.note(report, FOLLOWER, CONVERSATIONS, values)


async def _follow(client: Client, *, tokens: int) -> tuple[list[float], list[float]]:
    """The seconds of each token of a stream that came, and of as many entries as were streamed, one after the other."""
    talk = client.conversation(talks, "followed")
    streamed: list[float] = []
    numbers: list[int] = []
    committed: list[float] = []
    seq = await talk.send(Emit(tokens=tokens, pause=TOKEN_PAUSE))
    async for item in talk.events(after=seq, follow=True):
        if isinstance(item, Streamed):
            streamed.append(time.monotonic() - item.value)
            numbers.append(item.number)
        elif isinstance(item, JournalEntry) and isinstance(item.event, AgentMessage):
            committed.append(time.monotonic() - float(item.event.text))
            if len(committed) > tokens:
                break
            await talk.send(Emit(tokens=0, pause=0.0))
    check_parts(numbers, tokens)
    return streamed, committed[1:]


def check_parts(numbers: Sequence[int], tokens: int) -> None:
    """In order and without gaps. The commit replaces the last ones, which a slow machine has then not delivered yet."""
    if list(numbers) != list(range(1, len(numbers) + 1)) or not tokens / 2 < len(numbers) <= tokens:
        raise WrongResults(f"{tokens} tokens were streamed, and of these came {list(numbers)}")


def _beside_streams(run: Run, report: Report) -> None:
    """Turns of a worker that streams meanwhile, and of one that does not."""
    streams, seconds = run.sized(50, 2), run.sized(20, 2)
    walks, walk = run.sized(50, 2), Walk(turns=run.sized(100, 3))
    case = f"{walks} x {walk.turns} beside streams"
    measures = [partial(_walk_beside, run, report, case, (number, seconds), (walks, walk)) for number in (0, streams)]
    over_rounds(run.rounds, measures)
    alone, beside = report.median(case, "no stream", RATE), report.median(case, f"{streams} streams", RATE)
    if alone and beside:
        report.bar(f"{case}: turns/s, of the rate without", beside / alone, STREAM_BAR)


def _walk_beside(run: Run, report: Report, case: str, load: tuple[int, int], size: tuple[int, Walk]) -> None:
    streams, seconds = load
    with _talking(run) as bed:
        bed.warm_up()
        ids = [f"stream-{number}" for number in range(streams)]
        tokens = round(seconds / TOKEN_PAUSE)
        bed.ours.call(partial(_start_streams, ids=ids, tokens=tokens))
        began = time.monotonic()
        rates: list[float] = []
        while not rates or time.monotonic() - began < seconds / 2:
            rates.append(bed.walk(f"walk-{len(rates)}", *size).rate)
        if streams and bed.ours.call(partial(_count_idle, ids=ids)):
            raise WrongResults("a stream has ended before the turns")
        run.note(report, case, f"{streams} streams" if streams else "no stream", {RATE: median(rates)})


async def _start_streams(client: Client, *, ids: Sequence[str], tokens: int) -> None:
    """Start streams, and wait until each of them has begun."""
    for one in ids:
        await client.conversation(talks, one).send(Emit(tokens=tokens, pause=TOKEN_PAUSE))
    for one in ids:
        async for item in client.conversation(talks, one).events(follow=True):
            if isinstance(item, Streamed):
                break


async def _count_idle(client: Client, *, ids: Sequence[str]) -> int:
    return sum([await client.conversation(talks, one).status() == "idle" for one in ids])


def _long_journal(run: Run, report: Report) -> None:
    """Asks of a conversation with a long journal, and of one with a short journal, in turn."""
    short, long, asks = run.sized(100, 10), run.sized(100_000, 2_000), run.sized(300, 10)
    case = f"{long:,} entries"
    with _talking(run) as bed:
        for one, size in (("short", short), ("long", long)):
            bed.ours.call(partial(_ask_all, ids=[one], length=1))
            bed.ours.call(partial(_lengthen, conversation_id=one, size=size))
            run.say(f"conversation  a journal of {size:,} entries")
        for _ in range(run.rounds):
            times = bed.ours.call(partial(_ask_in_turn, ids=["short", "long"], asks=asks))
            run.note(report, case, CONVERSATIONS, {LONG: median(times["long"]) / median(times["short"])})
    report.bar(f"{case}: {LONG.name}", report.median(case, CONVERSATIONS, LONG), LONG_BAR, "less")


async def _lengthen(client: Client, *, conversation_id: str, size: int) -> None:
    """Add entries, in wakes of at most `ENTRIES_OF_A_WAKE`."""
    talk = client.conversation(talks, conversation_id)
    for first in range(0, size, ENTRIES_OF_A_WAKE):
        await talk.ask(Lengthen(entries=min(ENTRIES_OF_A_WAKE, size - first)), timeout=600)


async def _ask_in_turn(client: Client, *, ids: Sequence[str], asks: int) -> dict[str, list[float]]:
    """The seconds of asks of conversations, one after the other, in turn."""
    times: dict[str, list[float]] = {one: [] for one in ids}
    for _ in range(asks):
        for one in ids:
            began = time.monotonic()
            await client.conversation(talks, one).ask(UserMessage("question"), timeout=600)
            times[one].append(time.monotonic() - began)
    return times
