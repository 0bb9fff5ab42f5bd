"""Listing and counting: the records that meet all conditions, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta, timezone
from itertools import product
from typing import Any, Final

import pytest

from affinity import SessionStore
from affinity.records import child_cursor
from affinity.session import SessionFilter, SessionMetadata, SessionState, SessionSummary
from affinity_conformance.stores.base import EVERYTHING, PAGE, StoreHarness, StoreRules, ids, loaded, state

KINDS: Final = ["", "chat"]
NAMES: Final = [None, "", "plan"]
PARENTS: Final = [None, "p"]
LABELS: Final[list[Mapping[str, str]]] = [{}, {"x": "1"}, {"x": "1", "y": "2"}, {"x": "12"}]
SCHEMAS: Final = [1, 2]

EAST: Final = timezone(timedelta(hours=5, minutes=30))

HARD_LABELS: Final = ["a.b", "a b", 'a"b', "a'b", "$", "$.a", "[0]", "a/b", "%", "\\", "ключ", "", "null", "🙂"]


class ListRules(StoreRules):
    """`list` and its conditions, `count`, `children` and `ancestors`."""

    async def test_an_empty_store_lists_nothing(self, store: SessionStore) -> None:
        assert list(await store.list(EVERYTHING, PAGE)) == []

    async def test_a_summary_has_no_state(self, store: SessionStore) -> None:
        """It has only the state's size, so a page of large sessions is small."""
        await store.save(state(content=b"x" * 1_000))
        (summary,) = await store.list(EVERYTHING, PAGE)
        assert isinstance(summary, SessionSummary)
        assert "state" not in {field.name for field in fields(summary)}
        assert summary.size == len(b"x" * 1_000)

    async def test_the_newest_come_first(self, harness: StoreHarness, store: SessionStore) -> None:
        """Records are in the order of their last write."""
        for name in "abcd":
            await store.save(state(name))
            await harness.advance(1)
        await store.save(state("b"))
        assert await ids(store) == ["b", "d", "c", "a"]

    async def test_a_page_has_at_most_limit_records(self, harness: StoreHarness, store: SessionStore) -> None:
        """It has the newest ones."""
        for name in "abcd":
            await store.save(state(name))
            await harness.advance(1)
        pages = [[row.session_id for row in await store.list(EVERYTHING, limit)] for limit in (1, 3, 9)]
        assert pages == [["d"], ["d", "c", "b"], ["d", "c", "b", "a"]]

    async def test_conditions_hold_alone_and_together(self, store: SessionStore) -> None:
        """Every combination of kind, name, parent, labels and schema version, on a record of each."""
        written = await _population(store)
        for where in _conditions():
            wanted = sorted(new.session_id for new in written if _meets(new, where))
            assert sorted(await ids(store, where)) == wanted, where

    async def test_conditions_combine_with_time_and_id(self, harness: StoreHarness, store: SessionStore) -> None:
        """All conditions of one filter hold together."""
        for name in ("a1", "a2", "b1"):
            await store.save(state(name, kind="chat", name="n", labels={"x": "1"}))
        old = (await loaded(store, "b1")).updated_at
        await harness.advance(100)
        for name in ("a1", "a3", "b2"):
            await store.save(state(name, kind="chat", name="n", labels={"x": "1"}))
        await store.save(state("a4", kind="other", name="n", labels={"x": "1"}))
        await harness.advance(10)
        conditions: dict[str, Any] = {"kind": "chat", "name": "n", "labels": {"x": "1"}, "prefix": "a", "idle_for": 5.0}
        assert await ids(store, SessionFilter(**conditions, updated_after=old)) == ["a3", "a1"]
        assert await ids(store, SessionFilter(**conditions, created_after=old)) == ["a3"]
        assert await ids(store, SessionFilter(**{**conditions, "idle_for": 50.0})) == ["a2"]

    async def test_updated_after_an_instant(self, harness: StoreHarness, store: SessionStore) -> None:
        """The last write is after the time, not at it."""
        await harness.stop_clock()
        await store.save(state("a"))
        await store.save(state("b"))
        instant = (await loaded(store, "a")).updated_at
        await harness.advance(1)
        await store.save(state("b"))
        await store.save(state("c"))
        assert sorted(await ids(store, SessionFilter(updated_after=instant))) == ["b", "c"]
        assert sorted(await ids(store, SessionFilter(updated_after=instant - timedelta(microseconds=1)))) == [*"abc"]
        assert await ids(store, SessionFilter(updated_after=(await loaded(store, "c")).updated_at)) == []

    async def test_created_after_an_instant(self, harness: StoreHarness, store: SessionStore) -> None:
        """The first write is after the time, not at it; later writes do not count."""
        await harness.stop_clock()
        await store.save(state("a"))
        instant = (await loaded(store, "a")).created_at
        await harness.advance(1)
        await store.save(state("b"))
        await store.save(state("a"))
        assert await ids(store, SessionFilter(created_after=instant)) == ["b"]
        assert sorted(await ids(store, SessionFilter(created_after=instant - timedelta(microseconds=1)))) == ["a", "b"]

    async def test_a_time_may_be_in_any_time_zone(self, harness: StoreHarness, store: SessionStore) -> None:
        """Times are compared as instants."""
        await store.save(state("a"))
        record = await loaded(store, "a")
        await harness.advance(1)
        await store.save(state("b"))
        east = record.updated_at.astimezone(EAST)
        for where in (SessionFilter(updated_after=east), SessionFilter(created_after=east)):
            assert await ids(store, where) == ["b"]
        newest = (await loaded(store, "b")).updated_at
        assert await ids(store, SessionFilter(after=(newest.astimezone(EAST), "b"))) == ["a"]

    async def test_idle_for_a_time(self, harness: StoreHarness, store: SessionStore) -> None:
        """The time since the last write, by the store's clock, is at least this long."""
        for name in "ab":
            await store.save(state(name))
        await harness.advance(100)
        await store.save(state("b"))
        await store.save(state("c"))
        assert await ids(store, SessionFilter(idle_for=100.0)) == ["a"]
        assert await ids(store, SessionFilter(idle_for=200.0)) == []
        assert sorted(await ids(store, SessionFilter(idle_for=0.0))) == ["a", "b", "c"]
        await harness.advance(100)
        assert sorted(await ids(store, SessionFilter(idle_for=100.0))) == ["a", "b", "c"]

    async def test_labels_are_compared_literally(self, store: SessionStore) -> None:
        """Both the key and the value of a label."""
        for label in HARD_LABELS:
            await store.save(state("named", labels={label: "v"}))
            await store.save(state("valued", labels={"k": label}))
            await store.save(state("nested", labels={"a": "b", "b": "v", "null": "x"}))
            assert await ids(store, SessionFilter(labels={label: "v"})) == ["named"]
            assert await ids(store, SessionFilter(labels={"k": label})) == ["valued"]
            assert await ids(store, SessionFilter(labels={label: "v", "k": label})) == []

    async def test_a_participant_is_one_of_several(self, store: SessionStore) -> None:
        """The condition matches the whole text of one participant of the last write."""
        for participant in HARD_LABELS:
            where = SessionFilter(participant=participant)
            await store.save(state("alone", participants=[participant]))
            await store.save(state("among", participants=["a", participant, "z", participant]))
            await store.save(state("others", participants=["a", f"{participant}x", f"x{participant}"]))
            await store.save(state("another"))
            assert sorted(await ids(store, where)) == ["alone", "among"]
            await store.save(state("alone", participants=["a"]))
            await store.save(state("another", participants=[participant]))
            await store.delete(["among"])
            assert await ids(store, where) == ["another"]
            assert await ids(store, SessionFilter(participant=participant, kind="chat")) == []
            assert sorted(await ids(store, SessionFilter(participant="a"))) == ["alone", "others"]

    async def test_orphans_have_a_parent_without_a_record(self, store: SessionStore) -> None:
        """Heads have no parent, or are orphans."""
        for name, parent in {"a": None, "b": "a", "c": "b", "lost": "gone", "below": "lost", "other": "gone"}.items():
            await store.save(state(name, parent=parent, kind="chat" if name == "other" else ""))
        assert sorted(await ids(store, SessionFilter(orphaned=True))) == ["lost", "other"]
        assert sorted(await ids(store, SessionFilter(heads=True))) == ["a", "lost", "other"]
        assert await ids(store, SessionFilter(orphaned=True, kind="chat")) == ["other"]
        await store.delete(["b"])
        assert sorted(await ids(store, SessionFilter(orphaned=True))) == ["c", "lost", "other"]
        await store.save(state("gone"))
        assert await ids(store, SessionFilter(orphaned=True)) == ["c"]
        assert sorted(await ids(store, SessionFilter(heads=True))) == ["a", "c", "gone"]

    async def test_the_count_is_that_of_the_listing(self, store: SessionStore) -> None:
        """The numbers agree for every condition."""
        written = await _population(store)
        for where in _conditions():
            assert await store.count(where) == sum(_meets(new, where) for new in written), where
        await store.save(state("child", parent="s1", participants=["ada"], labels={"only": "1"}))
        found = {
            "participant": await store.count(SessionFilter(participant="ada")),
            "orphaned": await store.count(SessionFilter(orphaned=True)),
            "heads": await store.count(SessionFilter(heads=True)),
            "prefix": await store.count(SessionFilter(prefix="chi")),
            "labels": await store.count(SessionFilter(labels={"only": "1"})),
            "idle_for": await store.count(SessionFilter(idle_for=1e6)),
        }
        orphans = sum(new.metadata.parent is not None for new in written)
        alone = {"participant": 1, "prefix": 1, "labels": 1}
        assert found == {**alone, "orphaned": orphans, "heads": len(written), "idle_for": 0}

    async def test_a_summary_has_the_idle_time(self, harness: StoreHarness, store: SessionStore) -> None:
        """It is given in seconds since the last write, by the store's clock."""
        await store.save(state("a"))
        await harness.advance(100)
        await store.save(state("b", parent="a"))
        await harness.advance(10)
        idle = {row.session_id: row.idle for row in await store.list(EVERYTHING, PAGE)}
        assert idle == {"a": pytest.approx(110, abs=9), "b": pytest.approx(10, abs=9)}
        (alone,) = await store.ancestors("a", PAGE)
        assert alone.idle == pytest.approx(110, abs=9)

    async def test_children_are_read_in_pages(self, harness: StoreHarness, store: SessionStore) -> None:
        """Children of several parents, with records or without, come parent by parent, each once, whatever the size of
        a page.
        """
        parents = {"z": None, "a": "z", "m": "z", "b": "a", "lost": "gone", "alone": None, "self": "self"}
        for number, (name, parent) in enumerate(parents.items()):
            await store.save(state(name, parent=parent, message_count=3, participants=["ada"]))
            await harness.advance(number % 2)
        wanted = ["z", "gone", "a", "self", "b", "missing"]
        for limit in (1, 2, 3, PAGE):
            rows = await _all_children(store, wanted, limit)
            assert [(row.metadata.parent, row.session_id) for row in rows] == [
                ("a", "b"),
                ("gone", "lost"),
                ("self", "self"),
                ("z", "a"),
                ("z", "m"),
            ]
        listed = {row.session_id: row for row in await store.list(EVERYTHING, PAGE)}
        for row in rows:
            assert replace(row, idle=0.0) == replace(listed[row.session_id], idle=0.0)
        assert list(await store.children([], PAGE)) == list(await store.children(["b", "missing"], PAGE)) == []

    async def test_many_children_of_one_second_are_read_in_pages(self, store: SessionStore) -> None:
        """None is missing, and none comes twice, where the page ends among records of the same time."""
        names = [f"c{number:02}" for number in range(30)]
        for name in reversed(names):
            await store.save(state(name, parent="p"))
        found = [row.session_id for row in await _all_children(store, ["p"], 7)]
        assert (sorted(found), len(found)) == (names, 30)

    async def test_a_child_that_is_written_meanwhile_is_not_missed(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """It moves behind the page that was read, and may come again."""
        for name in ("c1", "c2", "c3"):
            await store.save(state(name, parent="p"))
            await harness.advance(2)
        (first,) = await store.children(["p"], 1)
        await store.save(state("c2", parent="p"))
        rows = await store.children(["p"], PAGE, after=child_cursor(first))
        assert [first.session_id, *(row.session_id for row in rows)] == ["c1", "c3", "c2"]

    async def test_ancestors(self, store: SessionStore) -> None:
        """The record and its ancestors, each once, up to a number; a circle of parents ends."""
        parents = {"head": None, "z": "head", "a": "z", "m": "head", "lost": "gone", "c": "d", "d": "e", "e": "c"}
        for name, parent in parents.items():
            await store.save(state(name, parent=parent))
        found = [sorted(row.session_id for row in await store.ancestors(name, PAGE)) for name in (*parents, "missing")]
        assert found == [
            ["head"],
            ["head", "z"],
            ["a", "head", "z"],
            ["head", "m"],
            ["lost"],
            *[["c", "d", "e"]] * 3,
            [],
        ]
        assert sorted(row.session_id for row in await store.ancestors("a", 2)) == ["a", "z"]
        listed = {row.session_id: row for row in await store.list(EVERYTHING, PAGE)}
        for row in await store.ancestors("a", PAGE):
            assert replace(row, idle=0.0) == replace(listed[row.session_id], idle=0.0)

    async def test_no_record_has_a_holder_without_a_lease(self, store: SessionStore) -> None:
        """Neither a worker id nor an empty text finds one, whichever epoch wrote it."""
        await store.save(state(), epoch=7)
        assert await ids(store, SessionFilter(holder="a")) == []
        assert await ids(store, SessionFilter(holder="")) == []


async def _population(store: SessionStore) -> list[SessionState]:
    """Save one record of each combination."""
    written = []
    for number, (kind, name, parent, labels, schema) in enumerate(product(KINDS, NAMES, PARENTS, LABELS, SCHEMAS)):
        new = state(f"s{number}", schema_version=schema, kind=kind, name=name, parent=parent, labels=labels)
        written.append(new)
        await store.save(new)
    return written


def _conditions() -> Iterable[SessionFilter]:
    """Each condition, or none in its place, combined with all others; some that no record meets."""
    names, schemas = [None, "", "plan", "Plan", "pla"], [None, 2, 3]
    kinds, parents = [None, "", "chat", "cha_"], [None, "p", ""]
    labels: list[Mapping[str, str]] = [{}, {"x": "1"}, {"y": "2"}, {"y": "2", "x": "1"}, {"x": "2"}, {"z": "1"}]
    for kind, name, parent, label, schema in product(kinds, names, parents, labels, schemas):
        conditions = [kind, name, parent, label or None, schema]
        if sum(condition is not None for condition in conditions) in {0, 1, 2, len(conditions)}:
            yield SessionFilter(kind=kind, name=name, parent=parent, labels=label, schema_version=schema)


def _meets(new: SessionState, where: SessionFilter) -> bool:
    about: SessionMetadata = new.metadata
    return (
        where.kind in {None, about.kind}
        and where.name in {None, about.name}
        and where.parent in {None, about.parent}
        and where.schema_version in {None, new.schema_version}
        and all(about.labels.get(key) == value for key, value in where.labels.items())
    )


async def _all_children(store: SessionStore, parents: Sequence[str], limit: int) -> list[SessionSummary]:
    """Page by page."""
    found = list(await store.children(parents, limit))
    rows: Sequence[SessionSummary] = found
    while len(rows) == limit:
        rows = await store.children(parents, limit, after=child_cursor(found[-1]))
        found += rows
    return found
