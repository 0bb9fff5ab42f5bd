"""Deleting: what was named, and what was asked for with it, and nothing else."""

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
    """`delete`."""

    async def test_what_is_named_is_removed(self, store: SessionStore) -> None:
        """And told of, in the order in which it was named."""
        await _family(store, a=None, b=None, c=None, d=None)
        assert list(await store.delete(["c", "a"])) == ["c", "a"]
        assert [await store.load(name) for name in ("a", "c")] == [None, None]
        assert await _left(store) == "bd"

    async def test_deleting_again_is_no_error(self, store: SessionStore) -> None:
        """Unknown ids are passed over, and what was named twice goes once."""
        await _family(store, a=None, b=None)
        assert list(await store.delete(["x", "a", "y", "a"])) == ["a"]
        assert list(await store.delete(["a"])) == list(await store.delete([])) == []
        assert await _left(store) == "b"

    async def test_a_record_begins_anew_after_its_deletion(self, harness: StoreHarness, store: SessionStore) -> None:
        """Nothing of the one before is left."""
        await store.save(state(content=b"old", name="old"), epoch=7)
        await store.save(state(content=b"old", name="old"), epoch=7)
        old = await loaded(store)
        await store.delete(["s"])
        await harness.advance(100)
        assert await store.save(state(), expected_version=0) == 1
        new = await loaded(store)
        assert (new.state, new.version, new.epoch, new.metadata.name) == (b"state", 1, None, None)
        assert new.created_at - old.created_at >= timedelta(seconds=100)

    async def test_children_stay_unless_asked(self, store: SessionStore) -> None:
        """As they are: with the name of a parent that is gone."""
        await _family(store, a=None, b="a")
        before = await loaded(store, "b")
        assert list(await store.delete(["a"])) == ["a"]
        assert await loaded(store, "b") == before

    async def test_a_cascade_reaches_every_generation(self, store: SessionStore) -> None:
        """The named one first; brothers and parents stay."""
        await _family(store, root=None, a="root", z="root", b="a", c="a", d="c", e="d", y="z")
        removed = list(await store.delete(["a"], cascade=True))
        assert removed[0] == "a"
        assert sorted(removed) == ["a", "b", "c", "d", "e"]
        assert sorted(await ids(store)) == ["root", "y", "z"]

    async def test_what_is_named_comes_before_its_children(self, store: SessionStore) -> None:
        """In the order in which it was named, also when one is the other's child; each once."""
        await _family(store, a=None, b="a", c="b", d="a", x=None)
        removed = list(await store.delete(["c", "x", "a"], cascade=True))
        assert removed[:3] == ["c", "x", "a"]
        assert sorted(removed[3:]) == ["b", "d"]

    async def test_a_circle_of_parents_ends(self, store: SessionStore) -> None:
        """Of two, and of one that is its own."""
        await _family(store, a="b", b="a", c="c", d="c", x=None)
        assert sorted(await store.delete(["a"], cascade=True)) == ["a", "b"]
        assert sorted(await store.delete(["c"], cascade=True)) == ["c", "d"]
        assert await _left(store) == "x"

    async def test_a_parent_without_a_record_takes_nobody_along(self, store: SessionStore) -> None:
        """Neither those that name it, nor those that name none."""
        await _family(store, a="missing", b=None, c="other")
        assert list(await store.delete(["missing"], cascade=True)) == []
        assert await _left(store) == "abc"

    async def test_an_empty_parent_takes_nobody_along(self, store: SessionStore) -> None:
        """An empty name is nobody's id, and nobody's parent."""
        await _family(store, a=None, b="", c="a")
        assert list(await store.delete([""], cascade=True)) == []
        assert list(await store.delete([], cascade=True)) == []
        assert await _left(store) == "abc"

    async def test_parents_are_told_apart_exactly(self, store: SessionStore) -> None:
        """Not by case, not by pattern, not by beginning."""
        await _family(store, **{"p_": None, "a": "pq", "b": "P_", "c": "p", "d": "p_x", "e": " p_", "f": "p_"})
        assert sorted(await store.delete(["p_"], cascade=True)) == ["f", "p_"]
        assert await _left(store) == "abcde"

    async def test_another_version_is_left(self, store: SessionStore) -> None:
        """It was written since it was seen; of whom no version is told, any will do."""
        await _family(store, a=None, b=None, c=None)
        await store.save(state("b"))
        assert list(await store.delete(["a", "b", "c"], versions={"a": 1, "b": 1, "x": 1})) == ["a", "c"]
        assert list(await store.delete(["b"], versions={"b": 3})) == []
        assert list(await store.delete(["b"], versions={"b": 2})) == ["b"]

    async def test_what_was_made_anew_is_left(self, store: SessionStore) -> None:
        """Though it has the version of the one before; with its children, and as a child."""
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
        """And its own children with it: a record that stays keeps them, unless they are named themselves."""
        await _family(store, a=None, b="a", c="b", d="b", e="a")
        versions = {"b": 2}
        assert sorted(await store.delete(["a", "d"], cascade=True, versions=versions)) == ["a", "d", "e"]
        assert await _left(store) == "bc"

    async def test_a_named_one_that_is_left_keeps_its_children(self, store: SessionStore) -> None:
        await _family(store, a=None, b="a")
        assert list(await store.delete(["a"], cascade=True, versions={"a": 2})) == []
        assert await _left(store) == "ab"

    async def test_a_dry_run_tells_and_changes_nothing(self, harness: StoreHarness, store: SessionStore) -> None:
        """The same as would be removed."""
        await _family(store, a=None, b="a", c="b", d="a", x=None)
        before = [await loaded(store, name) for name in "abcdx"]
        await harness.advance(100)
        told = list(await store.delete(["x", "a"], cascade=True, versions={"d": 9}, dry_run=True))
        assert [await loaded(store, name) for name in "abcdx"] == before
        assert list(await store.delete(["x", "a"], cascade=True, versions={"d": 9})) == told == ["x", "a", "b", "c"]

    async def test_the_idle_may_go_where_nobody_holds_them(self, store: SessionStore) -> None:
        """A store that cannot know who holds a session spares none."""
        await _family(store, a=None, b="a", c=None)
        assert list(await store.delete(["a"], cascade=True, idle_only=True)) == ["a", "b"]
        assert await _left(store) == "c"

    async def test_many_are_removed_at_once(self, store: SessionStore) -> None:
        """Children by the hundred, and as many names."""
        names = [f"s{number:03}" for number in range(300)]
        for name in names:
            await store.save(state(name, parent="s000"))
        await store.save(state("kept"))
        first, *children = await store.delete(["s000"], cascade=True, dry_run=True)
        assert (first, sorted(children)) == ("s000", names[1:])
        assert list(await store.delete(names[::-1])) == names[::-1]
        assert await ids(store) == ["kept"]

    async def test_what_stays_is_as_it_was(self, harness: StoreHarness, store: SessionStore) -> None:
        """Its state, its metadata and its time."""
        await _family(store, a=None)
        await store.save(state("b", b"kept", labels={"x": "1"}, participants=["ann"]), epoch=3, idempotency_key="t")
        before = await loaded(store, "b")
        await harness.advance(100)
        await store.delete(["a"], cascade=True)
        after = await loaded(store, "b")
        assert after == before
        assert plain(after.metadata) == plain(before.metadata)

    async def test_a_whole_family_goes_or_nothing_of_it(self, store: SessionStore) -> None:
        """Each that is named is judged with all its descendants."""
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
        """Where the caller says what was seen; also when one is there that was made anew."""
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
    """A record for each name, with that parent."""
    for name, parent in parents.items():
        await store.save(state(name, parent=parent))


async def _left(store: SessionStore) -> str:
    """The names of one letter that are left, in order."""
    return "".join(sorted(await ids(store)))
