"""`Sessions` outside activities: load on entry, save at a clean end."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

from affinity import Sessions
from affinity.errors import (
    InvalidOptions,
    NotSerializable,
    SessionError,
    SessionLoadFailed,
    SessionSaveFailed,
    SessionWriteConflict,
)
from affinity.session import CacheStats, SessionMetadata, SessionRecord, SessionState
from affinity.telemetry import current_session_id, session_scope
from tests.session.activities import Chat, CountingStore, Host, fail

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def chats(store: CountingStore) -> Sessions[Chat]:
    return Sessions(Chat, kind="chat", store=store)


async def lines(chats: Sessions[Chat], session_id: str = "s") -> list[str]:
    async with chats.open(session_id, auto_save=False) as chat:
        return chat.lines


async def test_it_loads_on_entry_and_saves_at_a_clean_end(store: CountingStore, chats: Sessions[Chat]) -> None:
    for number in range(2):
        opening = chats.open("s")
        async with opening as chat:
            assert (opening.session_id, opening.is_new, opening.version) == ("s", number == 0, number)
            assert current_session_id() == "s"
            chat.lines.append(str(number))
        assert opening.version == number + 1
    assert current_session_id() is None
    assert (store.loads, store.saves) == (2, 2)
    assert await lines(chats) == ["0", "1"]
    assert chats.stats == CacheStats()


async def test_unchanged_state_is_not_written_except_a_new_one(store: CountingStore, chats: Sessions[Chat]) -> None:
    for _ in range(3):
        async with chats.open("s"):
            pass
    assert store.saves == 1


async def test_nothing_is_saved_after_an_error(store: CountingStore, chats: Sessions[Chat]) -> None:
    with pytest.raises(ZeroDivisionError):
        await fail(chats.open("s"))
    assert store.saves == 0


async def test_auto_save_can_be_left_out(store: CountingStore) -> None:
    chats = Sessions(Chat, kind="chat", store=store, auto_save=False)
    async with chats.open("s") as chat:
        chat.turns = 1
    assert store.saves == 0
    async with chats.open("s", auto_save=True) as chat:
        chat.turns = 1
    assert store.saves == 1


async def test_an_explicit_save_includes_what_the_body_has_changed(store: CountingStore, chats: Sessions[Chat]) -> None:
    async def script() -> None:
        opening = chats.open("s")
        async with opening as chat:
            chat.lines.append("step 1")
            await opening.save()
            assert await lines(chats) == ["step 1"]
            assert opening.version == 1
            await opening.save()  # nothing new
            chat.lines.append("step 2")
            await opening.save()
            chat.lines.append("never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await script()
    assert await lines(chats) == ["step 1", "step 2"]
    assert store.saves == 2


async def test_a_write_by_other_code_is_a_conflict(chats: Sessions[Chat]) -> None:
    async def late() -> None:
        async with chats.open("s") as chat:
            async with chats.open("s") as other:
                other.lines.append("first")
            chat.lines.append("late")

    with pytest.raises(SessionWriteConflict) as caught:
        await late()
    assert (caught.value.session_id, caught.value.expected_version, caught.value.version) == ("s", 0, 1)
    assert await lines(chats) == ["first"]


@pytest.mark.parametrize("saves", [0, 1])
async def test_a_record_that_was_recreated_is_not_overwritten(
    store: CountingStore, chats: Sessions[Chat], saves: int
) -> None:
    """Its version is the one that the script has loaded, or has written itself."""

    async def late() -> None:
        opening = chats.open("s")
        async with opening as chat:
            for _ in range(saves):
                chat.lines.append("first")
                await opening.save()
            await store.delete(["s"])
            async with chats.open("s") as other:
                other.lines.append("anew")
            chat.lines.append("late")

    if not saves:
        async with chats.open("s") as chat:
            chat.lines.append("first")
    with pytest.raises(SessionWriteConflict, match="another one was created"):
        await late()
    assert await lines(chats) == ["anew"]


async def test_a_store_that_fails_to_save_gives_the_state_back(store: CountingStore, chats: Sessions[Chat]) -> None:
    async def script() -> None:
        async with chats.open("s") as chat:
            chat.lines.append("precious")
            store.failure = OSError("disk full")

    with pytest.raises(SessionSaveFailed, match="disk full") as caught:
        await script()
    assert caught.value.state == Chat(lines=["precious"])
    assert isinstance(caught.value.__cause__, OSError)


async def test_a_store_that_fails_to_load_runs_no_code(store: CountingStore, chats: Sessions[Chat]) -> None:
    store.failure = OSError("gone")
    with pytest.raises(SessionLoadFailed, match="gone"):
        async with chats.open("s"):
            pytest.fail("code has run")
    assert current_session_id() is None


async def test_what_cannot_be_encoded_is_not_saved(store: CountingStore, chats: Sessions[Chat]) -> None:
    with pytest.raises(NotSerializable):
        async with chats.open("s") as chat:
            chat.turns = "many"  # type: ignore[assignment]
    assert store.saves == 0


async def test_without_a_store_the_id_is_still_visible() -> None:
    opening = Sessions(Chat).open("s", allow_transient=True)
    async with opening as chat:
        assert (opening.session_id, opening.version, opening.is_new) == ("s", 0, True)
        assert current_session_id() == "s"
        chat.turns = 1
        await opening.save()
    assert opening.version == 0


async def test_without_an_id_the_store_is_never_called(store: CountingStore, chats: Sessions[Chat]) -> None:
    opening = chats.open(None, labels={"a": "b"}, allow_transient=True)
    async with opening as chat:
        chat.turns = 1
        await opening.save()
    assert opening.session_id is None
    assert (store.loads, store.saves) == (0, 0)


@pytest.mark.parametrize("open_it", ["open", "open_sync"])
def test_what_would_be_lost_is_refused(store: CountingStore, open_it: str) -> None:
    """A script that forgot the store, or whose variable holds no id; before anything runs."""
    with pytest.raises(InvalidOptions, match=r"'s' .* without a store, .* store=.* allow_transient=True"):
        getattr(Sessions(Chat), open_it)("s")
    with pytest.raises(SessionError, match=r"no session.* allow_transient=True"):
        getattr(Sessions(Chat, store=store), open_it)(None)


async def test_the_state_is_disposed_at_the_end(store: CountingStore) -> None:
    disposed: list[tuple[str, int]] = []
    chats = Sessions(
        Chat, kind="chat", store=store, dispose=lambda session_id, chat: disposed.append((session_id, chat.turns))
    )
    async with chats.open("s") as chat:
        chat.turns = 3
    assert disposed == [("s", 3)]


async def test_a_store_for_one_opening(chats: Sessions[Chat]) -> None:
    other = CountingStore()
    async with chats.open("s", store=other) as chat:
        chat.lines.append("there")
    assert await lines(chats) == []
    assert (other.loads, other.saves) == (1, 1)


@pytest.mark.parametrize("session_id", ["a/b", "ab", "..", "ж" * 128, "%_", " "])
async def test_any_valid_id_is_a_session_of_its_own(chats: Sessions[Chat], session_id: str) -> None:
    async with chats.open(session_id) as chat:
        chat.lines.append(session_id)
    assert await lines(chats, session_id) == [session_id]


async def test_the_session_is_named_from_before_the_load_to_after_the_save() -> None:
    """Also for what migrates, makes and describes a state, and where it fails."""
    seen: list[tuple[str, str | None]] = []

    def note(what: str) -> None:
        seen.append((what, current_session_id()))

    class Noting(CountingStore):
        async def load(self, session_id: str) -> SessionRecord | None:
            note("load")
            return await super().load(session_id)

        async def save(self, new: SessionState, **fences: Any) -> int:
            note("save")
            return await super().save(new, **fences)

    def initial(session_id: str) -> Chat:
        note("initial")
        return Chat()

    def about(chat: Chat) -> SessionMetadata:
        note("metadata")
        return SessionMetadata()

    store = Noting()
    async with Sessions(Chat, kind="chat", store=store, initial=initial, metadata=about).open("s"):
        note("block")
    newer = Sessions(Chat, kind="chat", schema_version=2, store=store, dispose=lambda *_: note("dispose"))

    @newer.migration(1, 2)
    def migrate(plain: dict[str, Any]) -> dict[str, Any]:
        note("migrate")
        return plain

    def script() -> None:
        with newer.open_sync("s"):
            note("block")

    await anyio.to_thread.run_sync(script)
    store.failure = OSError()
    with pytest.raises(SessionLoadFailed):
        async with newer.open("s"):
            pass
    first = ["load", "initial", "block", "metadata", "save"]
    second = ["load", "migrate", "block", "save", "dispose"]
    assert seen == [(what, "s") for what in (*first, *second, "load")]
    assert current_session_id() is None


async def test_a_copy_that_another_session_drives_out_is_disposed_under_its_own_name() -> None:
    host, disposed = Host(), list[tuple[str, str | None]]()
    chats = Sessions(
        Chat, kind="chat", max_sessions=1, dispose=lambda name, _: disposed.append((name, current_session_id()))
    )
    for name in ("a", "b"):
        with session_scope(name):
            await host.read(chats, name)
    assert disposed == [("a", "a")]
