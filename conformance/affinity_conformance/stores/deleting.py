"""Deleting: the named records, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from affinity import SessionStore
from affinity.limits import DELETE_STEP
from affinity_conformance.stores.base import (
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
    """The records that `delete` removes, and those that it leaves."""

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

    async def test_children_stay(self, store: SessionStore) -> None:
        """They keep the id of the removed parent."""
        await _family(store, a=None, b="a")
        before = await loaded(store, "b")
        assert list(await store.delete(["a"])) == ["a"]
        assert await loaded(store, "b") == before

    async def test_a_record_of_another_version_is_left(self, store: SessionStore) -> None:
        """A record that was written since it was seen is left; without a version any record is removed."""
        await _family(store, a=None, b=None, c=None)
        await store.save(state("b"))
        assert list(await store.delete(["a", "b", "c"], versions={"a": 1, "b": 1, "x": 1})) == ["a", "c"]
        assert list(await store.delete(["b"], versions={"b": 3})) == []
        assert list(await store.delete(["b"], versions={"b": 2})) == ["b"]

    async def test_a_record_of_another_generation_is_left(self, store: SessionStore) -> None:
        """A record that was created again since is left, also when its version is the same."""
        await _family(store, a=None, b="a", c=None)
        generations = {name: (await loaded(store, name)).generation for name in "abc"}
        await store.delete(["a", "c"])
        await _family(store, a=None, c="a")
        versions = dict.fromkeys("abc", 1)
        assert list(await store.delete(["a", "b", "c"], versions=versions, generations=generations)) == ["b"]
        anew = generations | {"a": (await loaded(store, "a")).generation}
        assert list(await store.delete(["a", "c"], generations=anew)) == ["a"]
        assert await _left(store) == "c"

    async def test_a_dry_run_changes_nothing(self, harness: StoreHarness, store: SessionStore) -> None:
        """It returns the ids that the deletion would remove."""
        await _family(store, a=None, b="a", c="b", d="a", x=None)
        before = [await loaded(store, name) for name in "abcdx"]
        await harness.advance(100)
        expected = list(await store.delete(["x", "d", "a"], versions={"d": 9}, dry_run=True))
        assert [await loaded(store, name) for name in "abcdx"] == before
        assert list(await store.delete(["x", "d", "a"], versions={"d": 9})) == expected == ["x", "a"]

    async def test_idle_only_spares_nothing_in_a_store_without_leases(self, store: SessionStore) -> None:
        """A store that does not know which sessions are held removes them all."""
        await _family(store, a=None, b="a", c=None)
        assert list(await store.delete(["a", "b"], idle_only=True)) == ["a", "b"]
        assert await _left(store) == "c"

    async def test_a_whole_step_is_removed_in_one_call(self, store: SessionStore) -> None:
        """A parent with its children, and by name alone."""
        names = [f"s{number:03}" for number in range(DELETE_STEP)]
        for name in names:
            await store.save(state(name, parent="s000"))
        await store.save(state("kept"))
        family = dict.fromkeys(names, "s000")
        assert list(await store.delete(names, families=family, dry_run=True)) == names
        assert list(await store.delete(names[::-1])) == names[::-1]
        assert await ids(store) == ["kept"]

    async def test_a_record_that_stays_is_unchanged(self, harness: StoreHarness, store: SessionStore) -> None:
        """Its state, its metadata and its times."""
        await _family(store, a=None)
        await store.save(state("b", b"kept", labels={"x": "1"}, participants=["ann"]), epoch=3, idempotency_key="t")
        before = await loaded(store, "b")
        await harness.advance(100)
        await store.delete(["a"], families={"a": "a"})
        after = await loaded(store, "b")
        assert after == before
        assert plain(after.metadata) == plain(before.metadata)

    async def test_a_family_is_removed_as_a_whole_or_not_at_all(self, store: SessionStore) -> None:
        """All records of a family stay when one of them has changed, if ``families`` is set; other families go."""
        await _family(store, a=None, b="a", c="b", x=None, y="x")
        seen = {row.session_id: row for row in await store.list(EVERYTHING, PAGE)}
        await store.save(state("c", parent="b"))
        asked: dict[str, Any] = {
            "versions": {name: row.version for name, row in seen.items()},
            "generations": {name: row.generation for name, row in seen.items()},
            "families": {"a": "1", "b": "1", "c": "1", "x": "2", "y": "2", "gone": "2"},
        }
        names = ["x", "c", "a", "y", "b", "gone"]
        assert list(await store.delete(names, **asked, dry_run=True)) == ["x", "y"]
        assert list(await store.delete(names, **asked)) == ["x", "y"]
        assert await _left(store) == "abc"
        assert list(await store.delete(names, families=asked["families"])) == ["c", "a", "b"]

    async def test_a_child_that_is_not_named_keeps_the_family(self, store: SessionStore) -> None:
        """The child may have been added since, also to a descendant; a child in another family is named as well."""
        await _family(store, a=None, b="a", x=None, y="x")
        families = {"a": "1", "b": "1", "x": "2", "y": "2"}
        await store.save(state("new", parent="b"))
        assert list(await store.delete(["a", "b", "x"], families=families)) == []
        assert list(await store.delete(["a", "b", "x", "y"], families=families)) == ["x", "y"]
        await _family(store, x="new")
        alone = {name: name for name in ("a", "b", "new", "x")}
        assert list(await store.delete(["x", "new"], families=alone)) == ["x", "new"]
        assert list(await store.delete(["a"], families=alone)) == []
        assert list(await store.delete(["b", "a"], families=alone)) == ["b", "a"]

    async def test_parents_are_compared_exactly(self, store: SessionStore) -> None:
        """Case and length count, and patterns do not; an empty text is not a parent."""
        await _family(store, **{"p_": None, "a": "pq", "b": "P_", "c": "p", "d": "p_x", "e": " p_", "f": ""})
        assert list(await store.delete(["p_"], families={"p_": "p_"}, dry_run=True)) == ["p_"]
        await _family(store, g="p_")
        assert list(await store.delete(["p_"], families={"p_": "p_"}, dry_run=True)) == []


async def _family(store: SessionStore, **parents: str | None) -> None:
    """Save a record for each name, with this parent."""
    for name, parent in parents.items():
        await store.save(state(name, parent=parent))


async def _left(store: SessionStore) -> str:
    """The remaining ids of one letter, in order."""
    return "".join(sorted(await ids(store)))
