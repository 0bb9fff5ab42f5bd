"""Deleting and pruning families in steps: in the memory of the test, in an SQLite file, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import pytest

from affinity import SessionManager, SessionStore
from affinity.errors import SessionNotFound
from affinity.session import SessionFilter
from tests.session.clocked import ClockedStore

STEP = 4


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families are larger than a step, and levels of a tree than a page."""
    monkeypatch.setattr("affinity.session.removal.DELETE_STEP", STEP)
    monkeypatch.setattr("affinity.session.removal.MAX_PAGE", 3)
    monkeypatch.setattr("affinity.session.manager.MAX_PAGE", 3)


class Watched:
    """A store that says what it is about to delete."""

    def __init__(self, store: SessionStore, before: Callable[[Collection[str]], Awaitable[None]]) -> None:
        self._store, self._before = store, before
        self.steps: list[Collection[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def delete(self, session_ids: Collection[str], **which: Any) -> Any:
        if not which.get("dry_run"):
            await self._before(session_ids)
            self.steps.append(session_ids)
        return await self._store.delete(session_ids, **which)


async def nothing(_: Collection[str]) -> None:
    """Before a deletion."""


async def a_tree(stage: ClockedStore) -> list[str]:
    """Three levels of 1, 5 and 10 records; and others, with and without a parent."""
    names = {"top": None, **{f"kid{n}": "top" for n in range(5)}, **{f"grandkid{n}": f"kid{n % 5}" for n in range(10)}}
    for name, parent in {**names, "other": None, "orphan": "gone"}.items():
        await stage.put(name, parent=parent, kind="tree" if name in names else "")
    return list(names)


async def test_a_deletion_goes_in_steps_from_the_last_descendants(stage: ClockedStore) -> None:
    """No step has more records than it may, and a parent goes after its children, or with them."""
    names = await a_tree(stage)
    store, done = Watched(stage.store, nothing), list[int]()
    manager = SessionManager(store)
    would = await manager.delete("top", dry_run=True)
    assert (would[0], sorted(would)) == ("top", sorted(names))
    removed = await manager.delete("top", progress=done.append)
    assert (removed[0], sorted(removed)) == ("top", sorted(names))
    assert done == [4, 8, 12, 16]
    assert all(len(step) <= STEP for step in store.steps)
    order = [name for step in store.steps for name in step]
    assert order.index("kid0") > max(order.index(name) for name in ("grandkid0", "grandkid5"))
    assert sorted(await stage.ids()) == ["orphan", "other"]


async def test_an_interrupted_deletion_goes_on_when_it_is_repeated(stage: ClockedStore) -> None:
    """The remaining records hang together below the record that was named."""
    names = await a_tree(stage)

    async def interrupted(_: Collection[str]) -> None:
        if len(store.steps) == 2:
            raise InterruptedError

    store = Watched(stage.store, interrupted)
    with pytest.raises(InterruptedError):
        await SessionManager(store).delete("top")
    left = await stage.ids()
    assert len(left) == len(names) + 2 - 2 * STEP
    assert sorted(await stage.manager.delete("top")) == sorted(set(left) - {"other", "orphan"})
    with pytest.raises(SessionNotFound):
        await stage.manager.delete("top")


async def test_a_descendant_that_is_added_meanwhile_is_deleted_too(stage: ClockedStore) -> None:
    """And no record is left without the parent that it has named."""
    names = await a_tree(stage)
    late = [f"late{number}" for number in range(STEP)]
    coming = list(late)

    async def added(step: Collection[str]) -> None:
        while "kid4" in step and coming:
            await stage.put(coming.pop(), parent="kid4")

    removed = await SessionManager(Watched(stage.store, added)).delete("top")
    assert sorted(removed) == sorted([*names, *late])
    assert sorted(await stage.ids()) == ["orphan", "other"]


async def test_a_circle_of_parents_larger_than_a_step_is_deleted(stage: ClockedStore) -> None:
    """With the records below it."""
    for number in range(10):
        await stage.put(f"c{number}", parent=f"c{(number + 1) % 10}")
    await stage.put("below", parent="c3")
    assert sorted(row.session_id for row in (await stage.manager.family("below")).members) == sorted(await stage.ids())
    assert len(await stage.manager.delete("c7")) == 11
    assert await stage.ids() == []


async def test_families_are_pruned_in_steps(stage: ClockedStore) -> None:
    """As a whole where a step has room for them, and several in one step; a larger one alone."""
    names = await a_tree(stage)
    for head in ("one", "two"):
        await stage.put(head)
        await stage.put(f"{head} kid", parent=head)
    await stage.advance(100)
    await stage.put("young")
    store = Watched(stage.store, nothing)
    would = await SessionManager(store).prune(keep=1, family=True, dry_run=True)
    assert not store.steps
    pruned = await SessionManager(store).prune(keep=1, family=True)
    assert (
        sorted(would.removed)
        == sorted(pruned.removed)
        == sorted(set(names) | {"one", "one kid", "two", "two kid"} | {"other", "orphan"})
    )
    assert pruned.left == []
    assert all(len(step) <= STEP for step in store.steps)
    assert {"one", "one kid"} <= set(next(step for step in store.steps if "one" in step))
    assert await stage.ids() == ["young"]


async def test_nothing_of_a_large_family_goes_if_a_record_of_it_has_changed(stage: ClockedStore) -> None:
    """A record that was written between the reading and the first step keeps all of them."""
    await a_tree(stage)

    class Stale(Watched):
        async def delete(self, session_ids: Collection[str], **which: Any) -> Any:
            await stage.put("kid1", parent="top", kind="tree")
            return await super().delete(session_ids, **which)

    store = Stale(stage.store, nothing)
    pruned = await SessionManager(store).prune(keep=0, kind="tree", family=True)
    assert (list(pruned.removed), store.steps) == ([], [])
    assert sorted(pruned.left) == sorted(set(await stage.ids()) - {"other", "orphan"})


async def test_a_record_that_is_used_while_its_family_goes_stays_with_what_is_above_it(stage: ClockedStore) -> None:
    """No child is left without its parent."""
    names = await a_tree(stage)

    async def written(_: Collection[str]) -> None:
        if len(store.steps) == 2:
            await stage.put("kid0", parent="top")

    store = Watched(stage.store, written)
    pruned = await SessionManager(store).prune(keep=0, family=True)
    assert set(pruned.left) == {"top", "kid0", "kid1", "kid2"}
    assert set(pruned.removed) == {*names, "other", "orphan"} - set(pruned.left)
    assert await stage.manager.count(SessionFilter(orphaned=True)) == 0
