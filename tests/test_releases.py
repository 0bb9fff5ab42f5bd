"""The release before and this one side by side on one database, as in a rollout and when it is rolled back."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
import pytest

from affinity import AgentMessage, UserMessage
from affinity.client import Client, ExternalEvent
from affinity.conversation.conversations import SLEEPS
from affinity.errors import NoReply
from affinity.orchestration.events import CarriedEvent, EventRaised, OrchestrationStarted
from affinity.orchestration.wire import ActivityTask, encode_event, encode_task
from affinity.provider import migrate
from affinity.provider.postgres import migration as postgres
from affinity.provider.schema import Migration
from affinity.provider.sqlite import migration as sqlite
from tests.conversation.process_app import conversations as steered
from tests.later_release import EXPANDS, upgrade
from tests.processes import PATIENCE, ROOT, open_workers
from tests.scribes import check, schedule
from tests.talk import CODE, Word, say

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

RELEASE_BEFORE: Final = "f8979fe8c23643ff97ddb67d71ad4b2bca7f3f7a"

RELEASED: Final = {"postgres": 50, "sqlite": 29}
"""The schema versions that it knows."""

APP: Final = "tests.talk:app"
STEERED: Final = "tests.conversation.process_app:app"


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the code of the release before, out of the repository's history."""
    archive = subprocess.run(
        ["git", "archive", RELEASE_BEFORE, "affinity"], cwd=ROOT, capture_output=True, check=False
    )  # fmt: skip
    if archive.returncode:
        pytest.skip(f"the history of the repository is not here: {archive.stderr.decode().strip()}")
    place = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as code:
        code.extractall(place, filter="data")
    return place


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that was never migrated."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'affinity.db'}"
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
def postgres_age() -> str:
    """One version will do: the conformance suite runs on both."""
    return "new"


async def test_a_rollout_and_its_rollback(before: Path, empty_url: str) -> None:
    """Through a migration, a rollout and a rollback a client and workers of the release before serve and are served; a
    conversation that lasts all the time loses nothing.
    """
    with open_workers(empty_url) as workers:
        old = workers.start("old", app=APP, root=before)
        with talking(empty_url, before) as traffic:
            await traffic.goes_on()
            version, known = await migrate(empty_url)
            assert version > 0
            await traffic.goes_on()
            assert await upgrade(empty_url, EXPANDS) == known + 1  # one release more, which both do not know
            await traffic.goes_on()
            new = workers.start("new", app=APP)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            await traffic.goes_on()
            workers.start("old", app=APP, root=before)
            async with Client(empty_url) as client:
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
            told = await traffic.end()
    assert [(one["word"], one["heard"]) for one in told] == [(str(n), n) for n in range(1, len(told) + 1)]
    assert [code for code, _ in groupby(one["code"] for one in told)] == [str(before), CODE, str(before)]


@pytest.mark.slow
async def test_the_release_before_keeps_the_order_of_a_session(before: Path, empty_url: str, tmp_path: Path) -> None:
    """A worker of the release before holds the session, and this one commits ordered work to it; then that worker
    leaves, and comes back. The work runs in its order on both.
    """
    await migrate(empty_url)
    notes, lines = tmp_path / "notes", 45
    with open_workers(empty_url) as workers:
        old = workers.start("old", app="tests.scribes:hands", root=before)
        workers.start("scribe", app="tests.scribes:app", max_sessions_per_runtime=0)
        async with Client(empty_url) as client:
            scribes = [(await client.start("scribe", str(notes))).instance_id for _ in range(3)]
            for number in range(lines):
                await schedule(client, scribes[number % 3], number)
                if number == lines // 3:
                    assert [session.worker_id async for session in client.sessions()] == ["old"]
                    new = workers.start("new", app="tests.scribes:app")
                    old.send(signal.SIGTERM)
                if number == 2 * lines // 3:
                    workers.start("old", app="tests.scribes:hands", root=before)
                    new.send(signal.SIGKILL)
            await client.raise_events(ExternalEvent(scribe, "line", -1) for scribe in scribes)
            for scribe in scribes:
                await client.wait(scribe, timeout=PATIENCE)
            await check(client, notes, lines)


async def test_events_with_keys_reach_both_releases(before: Path, empty_url: str) -> None:
    """Once each, also where one release replays what the other has recorded; and each replies."""
    await migrate(empty_url)
    with open_workers(empty_url) as workers:
        old = workers.start("old", app=APP, root=before)
        async with Client(empty_url) as client:
            await client.start("talk", "s", instance_id="t")

            async def ask_twice(count: int) -> None:
                for _ in range(2):
                    reply = await client.ask("t", Word(str(count)), idempotency_key=f"word {count}", timeout=PATIENCE)
                    assert reply == count

            await ask_twice(1)
            new = workers.start("new", app=APP)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            await ask_twice(2)
            workers.start("old", app=APP, root=before)
            new.send(signal.SIGTERM)
            assert new.wait() == 0
            await ask_twice(3)
            with pytest.raises(NoReply):
                await client.ask("t", Word(""), timeout=PATIENCE)
            words = await client.wait("t", timeout=PATIENCE)
            assert [(one["word"], one["heard"]) for one in words] == [("1", 1), ("2", 2), ("3", 3)]
            assert [one["code"] for one in words] == [str(before), CODE, str(before)]


def test_the_release_before_reads_what_this_one_writes(before: Path) -> None:
    """And ignores the fields that it does not know."""
    start = OrchestrationStarted("talk", "1.0.0", "1", carried=(CarriedEvent("e", "2", "k"),), custom_status="3")
    texts = [encode_event(start), encode_event(EventRaised("e", "2", "k"))]
    task = encode_task(ActivityTask(input="4", orchestration="talk", version="1.0.0"))
    code = (
        "import sys, json; from affinity.orchestration.wire import decode_event, decode_task, encode_event\n"
        "*events, task = json.load(sys.stdin)\n"
        "print(json.dumps([*(encode_event(decode_event(event)) for event in events), decode_task(task).input]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=before,
        env=os.environ | {"PYTHONPATH": str(before)},
        input=json.dumps([text.replace("{", '{"later":[1],', 1) for text in [*texts, task]]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [*texts, "4"]


BODY: Final = re.compile(r"\$\$.*?\$\$", re.DOTALL)
CHANGES: Final = re.compile(
    r"^\s*(?:DROP\b|ALTER\b.*\b(?:RENAME|DROP)\b|.*\bALTER COLUMN \w+ (?:TYPE|SET NOT NULL)|RENAME\b"
    r"|(?:ALTER TABLE \w+ )?ADD COLUMN (?!.*DEFAULT).*NOT NULL)",
    re.MULTILINE | re.IGNORECASE,
)


@pytest.mark.parametrize(("dialect", "migrations"), [("postgres", postgres.MIGRATIONS), ("sqlite", sqlite.MIGRATIONS)])
def test_migrations_expand(dialect: str, migrations: Sequence[Migration]) -> None:
    """The release before goes on: nothing is changed or removed but by a file that says which code may go on."""
    released = RELEASED[dialect]
    for each in migrations[released:]:
        assert each.oldest_code or not CHANGES.search(BODY.sub("", each.script)), each.name
        assert (each.oldest_code or 0) <= released, each.name


def test_functions_that_are_dropped_are_not_called(before: Path, postgres_migrated: str) -> None:
    """By no code, the release before included, and by no function that is left."""
    scripts = "".join(each.script for each in postgres.MIGRATIONS[RELEASED["postgres"] :])
    dropped = set(re.findall(r"^DROP FUNCTION (\w+);$", scripts, re.MULTILINE))
    assert len(dropped) == scripts.count("DROP FUNCTION")
    with psycopg.connect(postgres_migrated) as connection:
        found = connection.execute(
            "SELECT prosrc FROM pg_proc WHERE pronamespace = 'affinity'::regnamespace"
        ).fetchall()
    texts = [body for (body,) in found]
    for root in (before, ROOT):
        folder = root / "affinity" / "provider" / "postgres"
        texts += [file.read_text() for file in folder.iterdir() if file.suffix in (".py", ".sql")]
    assert len(texts) > 100
    assert not dropped.intersection(re.findall(r"\w+", "\n".join(texts)))


@pytest.mark.parametrize(("dialect", "migrations"), [("postgres", postgres.MIGRATIONS), ("sqlite", sqlite.MIGRATIONS)])
def test_migrations_that_were_released_stay(before: Path, dialect: str, migrations: Sequence[Migration]) -> None:
    """Databases have them already."""
    files = sorted((before / "affinity" / "provider" / dialect / "migrations").glob("*.sql"))
    assert [file.stem for file in files] == [each.name for each in migrations[: RELEASED[dialect]]]
    assert [file.read_text() for file in files] == [each.script for each in migrations[: RELEASED[dialect]]]


@pytest.mark.slow
async def test_conversations_through_a_rollout_and_its_rollback(before: Path, empty_url: str) -> None:
    """Either release goes on with those that the other has begun, and what either appends wakes them."""
    talk_of = partial(ask_of_before, before, empty_url)
    with open_workers(empty_url) as workers:
        old = workers.start("old", app=STEERED, root=before)
        await talk_of("c", "quick 1")
        await migrate(empty_url)
        async with Client(empty_url) as client:
            first, second = client.conversation(steered, "c"), client.conversation(steered, "n")
            assert (await first.ask(UserMessage("quick 2"), timeout=PATIENCE)).text == "re: quick 2"
            new = workers.start("new", app=STEERED)
            old.send(signal.SIGTERM)
            assert old.wait() == 0
            for number in range(1, 4):
                assert (
                    await second.ask(UserMessage(f"quick {number}"), timeout=PATIENCE)
                ).text == f"re: quick {number}"
            await talk_of("n", "quick 4")  # wakes what sleeps
            await talk_of("c", "quick 3")
            assert (await client.status("n")).version == SLEEPS
            workers.start("old", app=STEERED, root=before)
            new.send(signal.SIGTERM)
            assert new.wait() == 0
            assert (await first.ask(UserMessage("quick 4"), timeout=PATIENCE)).text == "re: quick 4"
            assert (await second.ask(UserMessage("quick 5"), timeout=PATIENCE)).text == "re: quick 5"
            workers.start("new", app=STEERED)
            for talk, most in ((first, 4), (second, 5)):
                events = [each.event for each in await talk.history(kinds=[UserMessage, AgentMessage], limit=100)]
                sent = [event.text for event in events if isinstance(event, UserMessage)]
                told = [event.text for event in events if isinstance(event, AgentMessage)]
                assert sent == [f"quick {number}" for number in range(1, most + 1)]
                assert [text.removeprefix("re: ") for text in told] == sent
                state = await client.session_store.load(talk.conversation_id)
                assert state is not None
                assert json.loads(state.state)["received"] == sent


async def ask_of_before(before: Path, url: str, conversation_id: str, text: str) -> None:
    """A client of the release before asks."""
    done = await anyio.run_process(
        [sys.executable, "-c", ASK, url, conversation_id, text], cwd=before, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.decode().split() == [str(before), *f"re: {text}".split()]


ASK: Final = """
import sys, anyio, affinity
from pathlib import Path
from tests.conversation.process_app import conversations

async def main(url, conversation_id, text):
    async with affinity.Client(url) as client:
        talk = client.conversation(conversations, conversation_id)
        reply = await talk.ask(affinity.UserMessage(text), timeout=60)
        print(Path(affinity.__file__).parent.parent, reply.text)

anyio.run(main, *sys.argv[1:])
"""


class Traffic:
    """A client of the release before, which prints how many words were heard, and the conversation in the end."""

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
        told: list[dict[str, Any]] = json.loads(self._lines[-1])
        return told


@contextmanager
def talking(url: str, root: Path) -> Iterator[Traffic]:
    """A client that talks, of the code in that directory."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.talk", url],
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
