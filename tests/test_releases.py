"""This release and a later one side by side on one database, as in a rollout and when it is rolled back.

There is no later release yet: the tests make one, a copy of this code with one more migration, which adds a column and
replaces a function.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from affinity import Client, ExternalEvent, migrate
from affinity.conversation import AgentMessage, UserMessage
from affinity.errors import NoReply, SchemaMismatch
from affinity.orchestration.events import CarriedEvent, EventRaised, OrchestrationStarted
from affinity.orchestration.wire import ActivityTask, decode_event, decode_task, encode_event, encode_task
from tests.conversation.process_app import conversations as steered
from tests.support.later_release import EXPANDS, write_first_migrations
from tests.support.ordered_log_app import check, schedule
from tests.support.two_releases_app import CODE, Word, say
from tests.support.worker_processes import PATIENCE, ROOT, open_workers

pytestmark = pytest.mark.anyio

APP: Final = "tests.support.two_releases_app:app"
STEERED: Final = "tests.conversation.process_app:app"

LATER: Final = {
    "sqlite": EXPANDS + ";\n",
    "postgres": EXPANDS
    + """;
DO $do$
BEGIN
    EXECUTE replace(pg_get_functiondef('send_messages'::regproc), 'BEGIN', 'BEGIN PERFORM 1;');
END $do$;
""",
}
"""The migration of the later release."""


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the code of a later release."""
    place = tmp_path_factory.mktemp("later")
    shutil.copytree(ROOT / "affinity", place / "affinity", ignore=shutil.ignore_patterns("__pycache__"))
    if not (place / "affinity" / "provider" / "sqlite" / "migrations").exists():  # until the first release
        write_first_migrations(place, *LATER)
    for dialect, script in LATER.items():
        (place / "affinity" / "provider" / dialect / "migrations" / "0002_later.sql").write_text(script)
    return place


@pytest.fixture
def postgres_age() -> str:
    """One version will do: the conformance suite runs on both."""
    return "new"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a database with the schema of this release."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_migrated")
    return found


async def migrate_by(root: Path, url: str) -> None:
    """Migrate by the code in a directory."""
    command = [sys.executable, "-m", "affinity", "migrate", "--url", url]
    await anyio.run_process(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})


@pytest.mark.slow_cases("postgresql")
async def test_a_rollout_and_its_rollback(later: Path, url: str) -> None:
    """Through a migration, a rollout and a rollback a client and workers of this release serve and are served; a
    conversation that lasts all the time loses nothing.
    """
    _, known = await migrate(url)
    with open_workers(url) as workers:
        old = workers.start("old", app=APP)
        with talking(url, ROOT) as traffic:
            await traffic.goes_on()
            await migrate_by(later, url)
            assert await migrate(url) == (known + 1, known + 1)
            await traffic.goes_on()
            new = workers.start("new", app=APP, root=later)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            await traffic.goes_on()
            workers.start("old", app=APP)
            async with Client(url) as client:
                await client.start("talk", "t", instance_id="other")
                await say(client, "other", 1)
                new.send(signal.SIGTERM)
                assert new.wait() == 0
                await traffic.goes_on()
                await say(client, "other", 2)
                moves = [move for move in await client.session_moves() if move.reason != "new"]
                assert {(move.from_worker, move.to_worker) for move in moves} == {("old", "new"), ("new", "old")}
                reasons = {move.reason for move in moves}
                assert {"drained"} <= reasons <= {"drained", "lease_expired"}, moves  # a busy machine may end a lease
            words = await traffic.end()
    assert [(one["word"], one["heard"]) for one in words] == [(str(n), n) for n in range(1, len(words) + 1)]
    assert [code for code, _ in groupby(one["code"] for one in words)] == [CODE, str(later), CODE]


async def test_later_code_migrates_first(later: Path, url: str) -> None:
    """It refuses a schema that lacks what it needs, and names the command."""
    code = "import sys, anyio, affinity.provider as p; anyio.run(p.open_provider, sys.argv[1])"
    done = await anyio.run_process(
        [sys.executable, "-c", code, url], cwd=later, env=os.environ | {"PYTHONPATH": str(later)}, check=False
    )
    assert SchemaMismatch.__name__ in done.stderr.decode()
    assert "affinity migrate" in done.stderr.decode()


@pytest.mark.slow
@pytest.mark.nightly_cases("sqlite")
async def test_both_releases_keep_the_order_of_a_session(later: Path, url: str, tmp_path: Path) -> None:
    """A worker of one release holds the session, and the other one commits ordered work to it; then that worker leaves,
    and comes back. The work runs in its order on both.
    """
    await migrate_by(later, url)
    notes, lines = tmp_path / "notes", 45
    with open_workers(url) as workers:
        old = workers.start("old", app="tests.support.ordered_log_app:activities")
        workers.start("writer", app="tests.support.ordered_log_app:app", root=later, max_sessions_per_runtime=0)
        async with Client(url) as client:
            writers = [(await client.start("write_lines", str(notes))).instance_id for _ in range(3)]
            for number in range(lines):
                await schedule(client, writers[number % 3], number)
                if number == lines // 3:
                    assert [session.worker_id async for session in client.sessions()] == ["old"]
                    new = workers.start("new", app="tests.support.ordered_log_app:app", root=later)
                    old.send(signal.SIGTERM)
                if number == 2 * lines // 3:
                    workers.start("old", app="tests.support.ordered_log_app:activities")
                    new.send(signal.SIGKILL)
            await client.raise_events(ExternalEvent(writer, "line", -1) for writer in writers)
            for writer in writers:
                await client.wait(writer, timeout=PATIENCE)
            await check(client, notes, lines)


@pytest.mark.slow_cases("postgresql")
async def test_events_with_keys_reach_both_releases(later: Path, url: str) -> None:
    """Once each, also where one release replays what the other has recorded; and each replies."""
    await migrate_by(later, url)
    with open_workers(url) as workers:
        old = workers.start("old", app=APP)
        async with Client(url) as client:
            await client.start("talk", "s", instance_id="t")

            async def ask_twice(count: int) -> None:
                for _ in range(2):
                    reply = await client.ask("t", Word(str(count)), idempotency_key=f"word {count}", timeout=PATIENCE)
                    assert reply == count

            await ask_twice(1)
            new = workers.start("new", app=APP, root=later)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            await ask_twice(2)
            workers.start("old", app=APP)
            new.send(signal.SIGTERM)
            assert new.wait() == 0
            await ask_twice(3)
            with pytest.raises(NoReply):
                await client.ask("t", Word(""), timeout=PATIENCE)
            words = await client.wait("t", timeout=PATIENCE)
            assert [(one["word"], one["heard"]) for one in words] == [("1", 1), ("2", 2), ("3", 3)]
            assert [one["code"] for one in words] == [CODE, str(later), CODE]


def test_fields_of_a_later_release_are_ignored() -> None:
    """In each event, and in tasks."""
    start = OrchestrationStarted("talk", "1.0.0", "1", carried=(CarriedEvent("e", "2", "k"),), custom_status="3")
    for event in (start, EventRaised("e", "2", "k")):
        assert decode_event(encode_event(event).replace("{", '{"later":[1],', 1)) == event
    task = ActivityTask(input="4", orchestration="talk", version="1.0.0")
    assert decode_task(encode_task(task).replace("{", '{"later":[1],', 1)) == task


@pytest.mark.slow
async def test_conversations_through_a_rollout_and_its_rollback(later: Path, url: str) -> None:
    """Each release goes on with conversations that the other has begun, and what either appends wakes them."""
    ask_later = partial(ask_of, later, url)
    with open_workers(url) as workers:
        old = workers.start("old", app=STEERED)
        async with Client(url) as client:
            first, second = client.conversation(steered, "c"), client.conversation(steered, "n")
            assert (await first.ask(UserMessage("quick 1"), timeout=PATIENCE)).text == "re: quick 1"
            await migrate_by(later, url)
            await ask_later("c", "quick 2")
            new = workers.start("new", app=STEERED, root=later)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            for number in range(1, 4):
                assert (
                    await second.ask(UserMessage(f"quick {number}"), timeout=PATIENCE)
                ).text == f"re: quick {number}"
            await ask_later("n", "quick 4")  # wakes what is parked
            await ask_later("c", "quick 3")
            workers.start("old", app=STEERED)
            new.send(signal.SIGTERM)
            assert new.wait() == 0
            assert (await first.ask(UserMessage("quick 4"), timeout=PATIENCE)).text == "re: quick 4"
            assert (await second.ask(UserMessage("quick 5"), timeout=PATIENCE)).text == "re: quick 5"
            for talk, most in ((first, 4), (second, 5)):
                events = [each.event for each in await talk.history(kinds=[UserMessage, AgentMessage], limit=100)]
                sent = [event.text for event in events if isinstance(event, UserMessage)]
                replies = [event.text for event in events if isinstance(event, AgentMessage)]
                assert sent == [f"quick {number}" for number in range(1, most + 1)]
                assert [text.removeprefix("re: ") for text in replies] == sent
                state = await client.session_store.load(talk.conversation_id)
                assert state is not None
                assert json.loads(state.state)["received"] == sent


async def ask_of(root: Path, url: str, conversation_id: str, text: str) -> None:
    """A client with the code in a directory asks."""
    paths = os.pathsep.join([str(root), str(ROOT)])
    done = await anyio.run_process(
        [sys.executable, "-c", ASK, url, conversation_id, text], cwd=root, env=os.environ | {"PYTHONPATH": paths}
    )
    assert done.stdout.decode().split() == [str(root), *f"re: {text}".split()]


ASK: Final = """
import sys, anyio, affinity
from pathlib import Path
from tests.conversation.process_app import conversations

async def main(url, conversation_id, text):
    async with affinity.Client(url) as client:
        talk = client.conversation(conversations, conversation_id)
        reply = await talk.ask(affinity.conversation.UserMessage(text), timeout=60)
        print(Path(affinity.__file__).parent.parent, reply.text)

anyio.run(main, *sys.argv[1:])
"""


class Traffic:
    """A client, which prints how many words were heard, and the conversation in the end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    async def goes_on(self) -> None:
        """Return when two more words were heard: the first may have been said before."""
        wanted = len(self._lines) + 2
        with anyio.fail_after(PATIENCE):
            while len(self._lines) < wanted:
                assert self._process.poll() is None, "the client has ended"
                await anyio.sleep(0.02)

    async def end(self) -> list[dict[str, Any]]:
        """The whole conversation."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await anyio.to_thread.run_sync(self._reader.join, PATIENCE)
        words: list[dict[str, Any]] = json.loads(self._lines[-1])
        return words


@contextmanager
def talking(url: str, root: Path) -> Iterator[Traffic]:
    """A client that talks, of the code in that directory."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.two_releases_app", url],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Traffic(process)
        finally:
            process.kill()
