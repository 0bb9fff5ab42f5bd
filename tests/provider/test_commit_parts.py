"""The seam of commits: a guest that the kernel has never seen adds rows to turns and acks, beside conversations."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, Final

import pytest

from affinity.provider import open_provider
from affinity.provider.contract import Incarnation, WorkAck, WorkerIdentity
from affinity.provider.postgres import parts as postgres_parts
from affinity.provider.postgres.commit_parts import AckCalls, CommitCalls, PostgresCommit
from affinity.provider.postgres.driver.arrays import Ints, Texts
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.sqlite import parts as sqlite_parts
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import SqliteCommit
from affinity.records import CommitPart, frozen
from affinity_conformance.providers.builders import TIMEOUTS, turn, work_item
from affinity_conformance.providers.conversation.driver import Conversation, ConversationOwner, output
from affinity_conformance.providers.peer import Peer
from tests.provider.postgres_stage import administrator

pytestmark = pytest.mark.anyio

TABLE: Final = "CREATE TABLE notes (session_id text PRIMARY KEY, n integer NOT NULL)"
FUNCTION: Final = """
CREATE FUNCTION write_notes(_session text[], _base bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM unnest(_session, _base) AS w (session_id, base) LEFT JOIN notes t USING (session_id)
    WHERE coalesce(t.n, 0) <> w.base;
    IF FOUND THEN
        PERFORM refuse();
    END IF;
    INSERT INTO notes SELECT w.session_id, w.base + 1 FROM unnest(_session, _base) AS w (session_id, base)
    ON CONFLICT (session_id) DO UPDATE SET n = excluded.n;
END $$"""


@frozen(kw_only=True)
class Note(CommitPart):
    """Counts the results of a session, from the number that its writer has seen."""

    guest = "notes"
    noun = "notes"

    session_id: str
    base: int = 0

    @property
    def sessions(self) -> Sequence[str]:
        return [self.session_id]

    @property
    def size(self) -> int:
        return 8


def columns(parts: Iterable[CommitPart]) -> Params:
    notes = [part for part in parts if isinstance(part, Note)]
    sessions, bases = [note.session_id for note in notes], [note.base for note in notes]
    return {"note_session": Texts(sessions), "note_base": Ints(bases)}


ON_POSTGRES: Final = PostgresCommit(
    lone=lambda _: None,
    calls=lambda parts, _: CommitCalls(["write_notes(%(note_session)s, %(note_base)s)"], columns(parts)),
    fences="""SELECT 'notes', w.n
        FROM unnest(%(note_session)s, %(note_base)s) WITH ORDINALITY AS w (session_id, base, n)
        LEFT JOIN notes t USING (session_id) WHERE coalesce(t.n, 0) <> w.base""",
    fence_params=columns,
    ack_tables="""), noted AS MATERIALIZED (
        SELECT w.n FROM unnest(%(note_ack)s, %(note_session)s, %(note_base)s) AS w (n, session_id, base)
        LEFT JOIN notes t USING (session_id) WHERE coalesce(t.n, 0) = w.base""",
    ack_fence="(n NOT IN (SELECT unnest(%(note_ack)s)) OR n IN (SELECT n FROM noted))",
    acks=lambda parts: AckCalls(
        ["""(SELECT write_notes(array_agg(w.session_id), array_agg(w.base))
            FROM unnest(%(note_ack)s, %(note_session)s, %(note_base)s) AS w (n, session_id, base)
            WHERE w.n IN (SELECT n FROM ours))"""],
        {**columns(part for _, part in parts), "note_ack": Ints([number for number, _ in parts])},
    ),
)  # fmt: skip


class NoteWriter:
    """The same on SQLite."""

    def __init__(self, tx: Tx, _: Sequence[CommitPart]) -> None:
        self._tx = tx
        self._accepted: list[Note] = []

    def find_conflicts(self, parts: Sequence[CommitPart]) -> list[str]:
        noted = {note.session_id for note in self._accepted}
        return [note.session_id for note in parts if note.session_id in noted or not self._fits(note)]

    def _fits(self, note: CommitPart) -> bool:
        n: int | None = self._tx.value("SELECT n FROM notes WHERE session_id = ?", (note.session_id,))
        return isinstance(note, Note) and note.base == (n or 0)

    def accept(self, parts: Iterable[CommitPart]) -> None:
        self._accepted += [part for part in parts if isinstance(part, Note)]

    def write_accepted(self) -> None:
        for note in self._accepted:
            self._tx.run("INSERT OR REPLACE INTO notes VALUES (?, ?)", (note.session_id, note.base + 1))

    def write_to_others(self) -> None:
        return


@pytest.fixture
def notes(any_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """A database whose providers know the guest; what it has stored."""
    on_postgres, on_sqlite = postgres_parts.commits(), sqlite_parts.commits()
    monkeypatch.setattr(postgres_parts, "commits", lambda: {**on_postgres, "notes": ON_POSTGRES})
    monkeypatch.setattr(sqlite_parts, "commits", lambda: {**on_sqlite, "notes": SqliteCommit(writer=NoteWriter)})
    if not any_url.startswith("sqlite"):
        with administrator(any_url) as admin:
            admin.execute(TABLE)
            admin.execute(FUNCTION)

        def stored() -> list[Any]:
            with administrator(any_url) as admin:
                return admin.execute("SELECT session_id, n FROM notes ORDER BY 1").fetchall()

        return stored
    path = any_url.removeprefix("sqlite://")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLE)

    def stored_in_file() -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT session_id, n FROM notes ORDER BY 1").fetchall()

    return stored_in_file


@pytest.fixture
async def peer(any_url: str) -> Any:
    provider = await open_provider(any_url)
    peer = Peer(provider, WorkerIdentity(worker_id="a", incarnation=Incarnation("a-1")))
    await peer.register()
    yield peer
    await provider.aclose()


async def test_turns_commit_parts_of_several_guests_or_nothing(peer: Peer, notes: Callable[[], list[Any]]) -> None:
    await Conversation(peer.provider).append()
    owner = await ConversationOwner.of(peer)
    write, other = await owner.new_write(entries=[output()]), await peer.own("i")
    refused, passed = await peer.commit(
        turn(owner.at, parts=[write, Note(session_id="s", base=7)]), turn(other, parts=[Note(session_id="t")])
    )
    assert (refused.conflicts, passed.committed, notes()) == (["s"], True, [("t", 1)])
    assert await owner.conversation.texts() == ["hello"]
    assert (await peer.commit_one(owner.at, parts=[write, Note(session_id="s")])).committed
    assert (notes(), await owner.conversation.texts()) == ([("s", 1), ("t", 1)], ["hello", "answer"])


async def test_of_turns_with_parts_for_one_session_the_first_passes(peer: Peer, notes: Callable[[], list[Any]]) -> None:
    first, second = await peer.own("i"), await peer.own("k")
    results = await peer.commit(*[turn(at, parts=[Note(session_id="s")]) for at in (first, second)])
    assert [(result.committed, [*result.conflicts]) for result in results] == [(True, []), (False, ["s"])]
    assert notes() == [("s", 1)]


async def test_acks_commit_parts_of_several_guests_or_nothing(peer: Peer, notes: Callable[[], list[Any]]) -> None:
    await Conversation(peer.provider).append()
    owner = await ConversationOwner.of(peer)
    write = await owner.new_write(entries=[output()])
    assert (await peer.commit_one(owner.at, work_items=[work_item(owner.at, n, "s") for n in (2, 3, 4)])).committed
    locks = sorted(item.lock for item in await peer.take(3))
    parts: list[list[CommitPart]] = [
        [write, Note(session_id="s", base=7)],
        [write, Note(session_id="s")],
        [Note(session_id="t")],
    ]
    acks = [WorkAck(lock=lock, message="done", parts=of_ack) for lock, of_ack in zip(locks, parts, strict=True)]
    assert list(await peer.provider.ack_work_item(peer.identity, acks, TIMEOUTS)) == [False, True, True]
    assert (notes(), await owner.conversation.texts()) == ([("s", 1), ("t", 1)], ["hello", "answer"])
