"""Deleting: the named records, their descendants with a cascade, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from affinity.records import SessionStore
from affinity.testing.conformance.stores.base import (
    EVERYTHING,
    PAGE,
    StoreHarness,
    StoreRules,
    ids,
    loaded,
    plain,
    state,
)


class DeleteRules(StoreRules):
    """What `delete` removes, and what it leaves."""

    async def test_the_named_records_are_removed(self, store: SessionStore) -> None:
        """The ids of the removed records are returned in the order in which they were named."""
        await _family(store, a=None, b=None, c=None, d=None)
        assert list(await store.delete(["c", "a"])) == ["c", "a"]
        assert [await store.load(name) for name in ("a", "c")] == [None, None]
        assert await _left(store) == "bd"

    async def test_deleting_again_is_no_error(self, store: SessionStore) -> None:
        """Unknown ids are skipped, and an id that is named twice is removed once."""
        await _family(store, a=None, b=None)
        assert list(await store.delete(["x", "a", "y", "a"])) == ["a"]
        assert list(await store.delete(["a"])) == list(await store.delete([])) == []
        assert await _left(store) == "b"

    async def test_a_new_record_has_nothing_of_a_deleted_one(self, harness: StoreHarness, store: SessionStore) -> None:
        """A record that is created after a deletion has version 1, no epoch and a new creation time."""
        await store.save(state(content=b"old", name="old"), epoch=7)
        await store.save(state(content=b"old", name="old"), epoch=7)
        old = await loaded(store)
        await store.delete(["s"])
        await harness.advance(100)
        assert await store.save(state(), expected_version=0) == 1
        new = await loaded(store)
        assert (new.state, new.version, new.epoch, new.metadata.name) == (b"state", 1, None, None)
        assert new.created_at - old.created_at >= timedelta(seconds=100)

    async def test_children_stay_without_a_cascade(self, store: SessionStore) -> None:
        """They keep the id of the removed parent."""
        await _family(store, a=None, b="a")
        before = await loaded(store, "b")
        assert list(await store.delete(["a"])) == ["a"]
        assert await loaded(store, "b") == before

    async def test_a_cascade_reaches_every_generation(self, store: SessionStore) -> None:
        """All descendants are removed, the named record first; siblings and parents stay."""
        await _family(store, root=None, a="root", z="root", b="a", c="a", d="c", e="d", y="z")
        removed = list(await store.delete(["a"], cascade=True))
        assert removed[0] == "a"
        assert sorted(removed) == ["a", "b", "c", "d", "e"]
        assert sorted(await ids(store)) == ["root", "y", "z"]

    async def test_named_records_come_before_their_children(self, store: SessionStore) -> None:
        """The result has the named ids in their order, also when one is a child of another, and each id once."""
        await _family(store, a=None, b="a", c="b", d="a", x=None)
        removed = list(await store.delete(["c", "x", "a"], cascade=True))
        assert removed[:3] == ["c", "x", "a"]
        assert sorted(removed[3:]) == ["b", "d"]

    async def test_a_circle_of_parents_ends(self, store: SessionStore) -> None:
        """A cascade ends when records are each other's parents, or when one is its own."""
        await _family(store, a="b", b="a", c="c", d="c", x=None)
        assert sorted(await store.delete(["a"], cascade=True)) == ["a", "b"]
        assert sorted(await store.delete(["c"], cascade=True)) == ["c", "d"]
        assert await _left(store) == "x"

    async def test_a_cascade_from_an_id_without_a_record_removes_nothing(self, store: SessionStore) -> None:
        """Neither records that have this id as their parent nor records without a parent are removed."""
        await _family(store, a="missing", b=None, c="other")
        assert list(await store.delete(["missing"], cascade=True)) == []
        assert await _left(store) == "abc"

    async def test_an_empty_parent_is_no_parent(self, store: SessionStore) -> None:
        """An empty string is no session's id, so a record whose parent is empty is no child."""
        await _family(store, a=None, b="", c="a")
        assert list(await store.delete([""], cascade=True)) == []
        assert list(await store.delete([], cascade=True)) == []
        assert await _left(store) == "abc"

    async def test_parents_are_compared_exactly(self, store: SessionStore) -> None:
        """A cascade compares parents by case and length, and without patterns."""
        await _family(store, **{"p_": None, "a": "pq", "b": "P_", "c": "p", "d": "p_x", "e": " p_", "f": "p_"})
        assert sorted(await store.delete(["p_"], cascade=True)) == ["f", "p_"]
        assert await _left(store) == "abcde"

    async def test_a_record_of_another_version_is_left(self, store: SessionStore) -> None:
        """A record that was written since it was seen is left; without a version any record is removed."""
        await _family(store, a=None, b=None, c=None)
        await store.save(state("b"))
        assert list(await store.delete(["a", "b", "c"], versions={"a": 1, "b": 1, "x": 1})) == ["a", "c"]
        assert list(await store.delete(["b"], versions={"b": 3})) == []
        assert list(await store.delete(["b"], versions={"b": 2})) == ["b"]

    async def test_a_record_of_another_birth_is_left(self, store: SessionStore) -> None:
        """A record that was created again since is left, also when its version is the same, and also as a child."""
        await _family(store, a=None, b="a", c=None)
        births = {name: (await loaded(store, name)).birth for name in "abc"}
        await store.delete(["a", "c"])
        await _family(store, a=None, c="a")
        versions = dict.fromkeys("abc", 1)
        assert list(await store.delete(["a", "c"], cascade=True, versions=versions, births=births)) == []
        anew = births | {"a": (await loaded(store, "a")).birth}
        assert sorted(await store.delete(["a"], cascade=True, births=anew)) == ["a", "b"]
        assert await _left(store) == "c"

    async def test_a_child_of_another_version_is_left(self, store: SessionStore) -> None:
        """A child that is left keeps its own children, unless they are named themselves."""
        await _family(store, a=None, b="a", c="b", d="b", e="a")
        versions = {"b": 2}
        assert sorted(await store.delete(["a", "d"], cascade=True, versions=versions)) == ["a", "d", "e"]
        assert await _left(store) == "bc"

    async def test_a_named_record_that_is_left_keeps_its_children(self, store: SessionStore) -> None:
        await _family(store, a=None, b="a")
        assert list(await store.delete(["a"], cascade=True, versions={"a": 2})) == []
        assert await _left(store) == "ab"

    async def test_a_dry_run_changes_nothing(self, harness: StoreHarness, store: SessionStore) -> None:
        """It returns the ids that the deletion would remove."""
        await _family(store, a=None, b="a", c="b", d="a", x=None)
        before = [await loaded(store, name) for name in "abcdx"]
        await harness.advance(100)
        expected = list(await store.delete(["x", "a"], cascade=True, versions={"d": 9}, dry_run=True))
        assert [await loaded(store, name) for name in "abcdx"] == before
        assert list(await store.delete(["x", "a"], cascade=True, versions={"d": 9})) == expected == ["x", "a", "b", "c"]

    async def test_idle_only_spares_nothing_in_a_store_without_leases(self, store: SessionStore) -> None:
        """A store that does not know which sessions are held removes them all."""
        await _family(store, a=None, b="a", c=None)
        assert list(await store.delete(["a"], cascade=True, idle_only=True)) == ["a", "b"]
        assert await _left(store) == "c"

    async def test_hundreds_are_removed_in_one_call(self, store: SessionStore) -> None:
        """Hundreds of children, and hundreds of named records."""
        names = [f"s{number:03}" for number in range(300)]
        for name in names:
            await store.save(state(name, parent="s000"))
        await store.save(state("kept"))
        first, *children = await store.delete(["s000"], cascade=True, dry_run=True)
        assert (first, sorted(children)) == ("s000", names[1:])
        assert list(await store.delete(names[::-1])) == names[::-1]
        assert await ids(store) == ["kept"]

    async def test_a_record_that_stays_is_unchanged(self, harness: StoreHarness, store: SessionStore) -> None:
        """Its state, its metadata and its times."""
        await _family(store, a=None)
        await store.save(state("b", b"kept", labels={"x": "1"}, participants=["ann"]), epoch=3, idempotency_key="t")
        before = await loaded(store, "b")
        await harness.advance(100)
        await store.delete(["a"], cascade=True)
        after = await loaded(store, "b")
        assert after == before
        assert plain(after.metadata) == plain(before.metadata)

    async def test_a_family_is_removed_as_a_whole_or_not_at_all(self, store: SessionStore) -> None:
        """With ``whole``, a named record stays when one of its descendants has changed."""
        await _family(store, a=None, b="a", c="b", x=None, y="x")
        seen = {row.session_id: row for row in await store.list(EVERYTHING, PAGE)}
        await store.save(state("c", parent="b"))
        versions = {name: row.version for name, row in seen.items()}
        births = {name: row.birth for name, row in seen.items()}
        asked: dict[str, Any] = {"cascade": True, "whole": True, "versions": versions, "births": births}
        assert sorted(await store.delete(["a", "x"], **asked, dry_run=True)) == ["x", "y"]
        assert sorted(await store.delete(["a", "x"], **asked)) == ["x", "y"]
        assert await _left(store) == "abc"
        assert sorted(await store.delete(["a"], cascade=True, whole=True)) == ["a", "b", "c"]

    async def test_a_descendant_that_was_added_since_keeps_the_family(self, store: SessionStore) -> None:
        """A descendant that the caller has not seen, or that was created again, keeps the whole family."""
        await _family(store, a=None, b="a", x=None, y="x")
        seen = {row.session_id: row for row in await store.list(EVERYTHING, PAGE)}
        versions = {name: row.version for name, row in seen.items()}
        births = {name: row.birth for name, row in seen.items()}
        await store.save(state("new", parent="b"))
        await store.delete(["y"])
        await store.save(state("y", parent="x"))
        asked: dict[str, Any] = {"cascade": True, "whole": True, "versions": versions, "births": births}
        assert list(await store.delete(["a", "x"], **asked)) == []
        assert list(await store.delete(["b"], **{**asked, "cascade": False})) == ["b"]


async def _family(store: SessionStore, **parents: str | None) -> None:
    """Save a record for each name, with this parent."""
    for name, parent in parents.items():
        await store.save(state(name, parent=parent))


async def _left(store: SessionStore) -> str:
    """The remaining ids of one letter, in order."""
    return "".join(sorted(await ids(store)))
