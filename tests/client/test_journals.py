"""The worker that a client expects to fetch what an append queues, with a provider that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from affinity.client.changes import Changes
from affinity.client.parts import ClientServices
from affinity.conversation.journal import Appended, JournalAppend, NewEntry
from affinity.conversation.journals import Journals
from affinity.errors import Contention
from affinity.provider.contract import Hint

pytestmark = pytest.mark.anyio

INPUT: Final = JournalAppend(
    session_id="s", kind="chat", entry=NewEntry(kind="user.message", payload="1", is_input=True), message="wake"
)
UNPARKED: Final = Appended("appended", 1, journal_id=1, unparked=True, holder="b")


class Stage:
    """A client's journals. ``replies``: to the next calls."""

    def __init__(self) -> None:
        self.calls: list[Mapping[str | None, Hint] | None] = []
        self.notified: list[object] = []
        self.replies: list[Sequence[Appended] | Exception] = []
        provider: Any = SimpleNamespace(
            append_journal=self._append, notify_changes=self._notify, read_journal=None, watch_changes=None
        )
        hints: Any = self
        changes = Changes(provider.watch_changes)
        self.journals = Journals(ClientServices(provider=provider, hints=hints, changes=changes))

    async def _append(
        self, appends: Sequence[JournalAppend], *, notify: Mapping[str | None, Hint] | None = None
    ) -> Sequence[Appended]:
        self.calls.append(notify)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _notify(self, *args: object, **options: object) -> None:
        pass

    def notify_all(self) -> None:
        self.notified.append("all")

    def notify_owners(self, instance_ids: Iterable[str]) -> None:
        self.notified += [("owner", each) for each in instance_ids]

    def notify_holder(self, worker_id: str | None) -> None:
        self.notified.append(("holder", worker_id))

    async def append(self, *replies: Appended, append: JournalAppend = INPUT) -> None:
        """Append as many inputs together as there are replies."""
        self.replies.append(replies)
        futures = [self.journals.append(append) for _ in replies]
        for future in futures:
            await future

    def wake_is_written(self) -> None:
        """A hint of it comes."""
        self.journals._on_hint({"s": True})


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    played = Stage()
    async with played.journals._appends:
        yield played


EXPECTED: Final = {"b": Hint(only_own=True)}


async def test_the_holder_of_the_last_wake_is_notified_with_the_append(stage: Stage) -> None:
    """Once a wake has written since; and then by nothing else."""
    await stage.append(UNPARKED)
    stage.wake_is_written()
    await stage.append(UNPARKED)
    assert stage.calls == [{}, EXPECTED]
    assert stage.notified == [("holder", "b")]


async def test_while_a_wake_may_run_none_is_expected(stage: Stage) -> None:
    """The append sends a message to the instance, whose owner is notified."""
    await stage.append(UNPARKED)
    await stage.append(UNPARKED._replace(unparked=False, holder=None))
    assert stage.calls == [{}, {}]
    assert stage.notified == [("holder", "b"), ("owner", "s")]
    stage.wake_is_written()
    await stage.append(UNPARKED)
    await stage.append(UNPARKED)
    assert stage.calls[2:] == [EXPECTED, {}]


@pytest.mark.parametrize("holder", ["c", None])
async def test_the_holder_is_notified_where_another_was_expected(stage: Stage, holder: str | None) -> None:
    """It is expected next."""
    await stage.append(UNPARKED)
    for _ in range(2):
        stage.wake_is_written()
        await stage.append(UNPARKED._replace(holder=holder))
    assert stage.calls == [{}, EXPECTED, {} if holder is None else {holder: Hint(only_own=True)}]
    assert stage.notified == [("holder", "b"), *[("holder", holder)] * (2 if holder is None else 1)]


async def test_where_no_item_was_unparked_the_owner_is_notified(stage: Stage) -> None:
    """Though a holder was expected."""
    await stage.append(UNPARKED)
    stage.wake_is_written()
    await stage.append(UNPARKED._replace(unparked=False, holder=None))
    assert stage.calls == [{}, EXPECTED]
    assert stage.notified == [("holder", "b"), ("owner", "s")]


async def test_several_appends_at_once_expect_none(stage: Stage) -> None:
    await stage.append(UNPARKED)
    stage.wake_is_written()
    await stage.append(UNPARKED, UNPARKED._replace(seq=2, unparked=False, holder=None))
    assert stage.calls == [{}, {}]
    assert stage.notified == [("holder", "b")] * 2 + [("owner", "s")]


async def test_what_is_no_input_expects_none(stage: Stage) -> None:
    await stage.append(UNPARKED)
    stage.wake_is_written()
    await stage.append(UNPARKED._replace(unparked=False, holder=None), append=replace(INPUT, entry=None))
    assert stage.calls == [{}, {}]


async def test_an_append_that_is_repeated_expects_none(stage: Stage) -> None:
    """Its hint may have gone out before."""
    await stage.append(UNPARKED)
    stage.wake_is_written()
    stage.replies.append(Contention("once"))
    await stage.append(UNPARKED)
    assert stage.calls == [{}, EXPECTED, {}]
    assert stage.notified == [("holder", "b")] * 2


async def test_a_journal_that_is_gone_is_forgotten(stage: Stage) -> None:
    await stage.append(UNPARKED)
    stage.wake_is_written()
    await stage.append(Appended("unknown"))
    stage.wake_is_written()
    await stage.append(UNPARKED)
    assert stage.calls == [{}, EXPECTED, {}]
