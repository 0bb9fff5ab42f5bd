"""Session state under fire: workers are killed and paused while sessions count, and in the end the state of each
session is exactly what its history says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from affinity import Client, Start
from tests.support.counter_app import STOP_FILE, Counter, Entry
from tests.support.fault_injection import KILL_EVERY, PAUSE, FaultInjector
from tests.support.worker_processes import Workers, open_workers

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SESSIONS = 200
SHARED = 50
"""Sessions on which two orchestrations count at the same time."""

SECONDS = 20.0
"""Of kills and pauses."""

SECONDS_OF_ALL = 60.0
"""The same with ``--all``."""

OPTIONS = {"max_sessions_per_runtime": SESSIONS, "max_attempts": 100}


@pytest.fixture
def stop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stop"
    monkeypatch.setenv(STOP_FILE, str(path))
    return path


@pytest.fixture
def workers(any_url: str, stop_file: Path) -> Iterator[Workers]:
    with open_workers(any_url) as workers:
        yield workers


@pytest.fixture
async def client(any_url: str) -> AsyncIterator[Client]:
    async with Client(any_url) as client:
        yield client


@dataclass(frozen=True)
class SessionOutcome:
    """One session in the history and in the store."""

    counts: Mapping[str, Sequence[int]]  # by instance: the count after each of its turns
    state: Counter

    @property
    def turns(self) -> int:
        return sum(len(counts) for counts in self.counts.values())

    def agrees(self) -> bool:
        """Whether every turn is in the state once, in its place."""
        entries = {f"{name}:{n}" for name, counts in self.counts.items() for n in range(len(counts))}
        in_place = all(
            self.state.entries[count - 1] == f"{name}:{n}"
            for name, counts in self.counts.items()
            for n, count in enumerate(counts)
        )
        exact = self.state.count == self.turns == len(self.state.entries)
        return exact and set(self.state.entries) == entries and in_place


async def _start(client: Client) -> dict[str, str]:
    """Orchestrations by id, each with the session that it counts on."""
    on = {f"one-{n}": f"session-{n}" for n in range(SESSIONS)} | {f"two-{n}": f"session-{n}" for n in range(SHARED)}
    await client.start_many([Start("keep_entering", Entry(session_id=session), name) for name, session in on.items()])
    return on


async def _counts(client: Client, on: Mapping[str, str]) -> dict[str, dict[str, list[int]]]:
    """By session and instance, from the results."""
    counts: dict[str, dict[str, list[int]]] = {}
    for name, session in on.items():
        counts.setdefault(session, {})[name] = await client.wait(name, timeout=120)
    return counts


async def _outcome(client: Client, session: str, counts: Mapping[str, Sequence[int]]) -> SessionOutcome:
    record = await client.session_store.load(session)
    assert record is not None
    return SessionOutcome(counts, Counter.model_validate_json(record.state))


@pytest.mark.first
@pytest.mark.slow
@pytest.mark.parametrize("postgres_age", ["old"], indirect=True)
async def test_state_and_history_agree_whatever_happens_to_the_workers(
    sqlite_url: str, postgres_migrated: str, stop_file: Path, pytestconfig: pytest.Config
) -> None:
    """200 sessions, 3 workers, a SIGKILL every two seconds and pauses longer than every lease, with ``--all`` for a
    minute; on both providers, side by side.
    """
    seconds = SECONDS_OF_ALL if pytestconfig.getoption("--all") else SECONDS
    async with anyio.create_task_group() as tasks:
        for url in (sqlite_url, postgres_migrated):
            tasks.start_soon(_survive, url, stop_file, seconds)


async def _survive(url: str, stop_file: Path, seconds: float) -> None:
    async with Client(url) as client:
        with open_workers(url) as workers:
            faults = FaultInjector(workers, "tests.support.counter_app:app", **OPTIONS)
            await faults.start()
            on = await _start(client)
            began = time.monotonic()
            await faults.inject(seconds)
            assert time.monotonic() - began >= seconds
            stop_file.touch()
            counts = await _counts(client, on)
        outcomes = {session: await _outcome(client, session, of_it) for session, of_it in counts.items()}
    disagree = [session for session, outcome in outcomes.items() if not outcome.agrees()]
    assert not disagree, outcomes[disagree[0]]
    assert len(outcomes) == SESSIONS
    assert faults.kills > seconds / KILL_EVERY / 2
    assert faults.pauses > seconds / PAUSE / 3


@pytest.mark.slow
@pytest.mark.parametrize("any_url", ["sqlite"], indirect=True)
async def test_a_store_in_memory_is_lost_with_its_process(workers: Workers, client: Client, stop_file: Path) -> None:
    """The very same with state that ends with its process: the history is whole, and sessions began again from
    nothing.
    """
    faults = FaultInjector(workers, "tests.support.counter_app:forgetful", **OPTIONS)
    await faults.start()
    on = await _start(client)
    await faults.inject(3 * KILL_EVERY)
    stop_file.touch()
    counts = await _counts(client, on)
    began_again = [s for s, of_it in counts.items() if sum(run.count(1) for run in of_it.values()) > 1]
    assert faults.kills
    assert began_again
