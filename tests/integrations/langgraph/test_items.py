"""The store: values by namespace and key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, InvalidNamespaceError, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from affinity.errors import InvalidInput, InvalidOptions, NotSerializable
from affinity.integrations.langgraph import AffinitySaver, AffinityStore
from tests.integrations.langgraph.graphs import Log, chain, thread

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(url: str) -> Iterator[AffinityStore]:
    """A store."""
    with AffinityStore(url) as store:
        yield store


@pytest.fixture
def root() -> str:
    """The first label of the namespaces of a test."""
    return uuid4().hex


async def test_a_value_is_put_found_and_deleted(store: AffinityStore, root: str) -> None:
    place = (root, "notes")
    assert await store.aget(place, "a") is None
    await store.aput(place, "a", {"text": "tea", "n": None, "deep": {"list": [1, "\0"]}})
    first = await store.aget(place, "a")
    assert first is not None
    assert (first.namespace, first.key) == (place, "a")
    assert first.value == {"text": "tea", "n": None, "deep": {"list": [1, "\0"]}}
    store.put(place, "a", {"text": "milk"})
    second = store.get(place, "a")
    assert second is not None
    assert second.value == {"text": "milk"}
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    await store.adelete(place, "a")
    store.delete(place, "b")
    assert store.get(place, "a") is None


def test_a_search_goes_by_whole_labels(store: AffinityStore, root: str) -> None:
    """The last value that was written comes first."""
    for place, label in enumerate(["users", "users", "users2", "user"]):
        store.put((root, label), str(place), {"place": place})
    store.put((root, "users", "ann"), "below", {"place": 9})
    assert [item.key for item in store.search((root, "users"))] == ["below", "1", "0"]
    assert [item.key for item in store.search((root,), limit=2, offset=1)] == ["3", "2"]
    assert store.search((root, "nobody")) == []
    assert {"below", "3"} <= {item.key for item in store.search((), limit=1000)}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"n": 2}, [2]),
        ({"n": {"$gt": 1}}, [3, 2]),
        ({"n": {"$gte": 1, "$lt": 3}}, [2, 1]),
        ({"n": {"$lte": 1}}, [1, 0]),
        ({"n": {"$ne": 2}, "kind": "odd"}, [3, 1]),
        ({"n": {"$eq": 3}}, [3]),
        ({"deep": {"n": 1}}, [1]),
        ({"list": [0, 1]}, [1]),
        ({"list": (0, 1)}, [1]),
        ({"kind": {"$gt": 1}}, []),
        ({"missing": {"$lt": 1}}, []),
        ({"n": {"deep": 1}}, []),
    ],
)
def test_a_filter_compares_values(store: AffinityStore, root: str, wanted: Any, found: list[int]) -> None:
    for n in range(4):
        kind = "odd" if n % 2 else "even"
        store.put((root,), str(n), {"n": n, "kind": kind, "deep": {"n": n, "more": 1}, "list": list(range(n + 1))})
    assert [item.value["n"] for item in store.search((root,), filter=wanted)] == found


def test_a_filter_reads_on_until_it_has_found_enough(store: AffinityStore, root: str) -> None:
    store.batch([PutOp((root,), f"{n:04}", {"n": n}) for n in range(450)])
    found = store.search((root,), filter={"n": {"$gte": 395}}, limit=3, offset=50)
    assert [item.value["n"] for item in found] == [445, 446, 447]  # written together: by their keys


def test_namespaces_are_listed(store: AffinityStore, root: str) -> None:
    for labels in (("a", "x"), ("a", "y", "deep"), ("b", "x")):
        store.put((root, *labels), "key", {})
    every = [(root, "a", "x"), (root, "a", "y", "deep"), (root, "b", "x")]
    assert store.list_namespaces(prefix=(root,)) == every
    assert store.list_namespaces(prefix=(root, "*", "x")) == [every[0], every[2]]
    assert store.list_namespaces(prefix=(root,), suffix=("x",)) == [every[0], every[2]]
    assert store.list_namespaces(prefix=(root,), max_depth=2) == [(root, "a"), (root, "b")]
    assert store.list_namespaces(prefix=(root,), limit=1, offset=1) == [every[1]]
    assert store.list_namespaces(prefix=(root, "a", "y", "deep", "er")) == []


async def test_a_batch_reads_first_and_its_last_write_counts(store: AffinityStore, root: str) -> None:
    place = (root,)
    store.put(place, "a", {"n": 0})
    found = await store.abatch(
        [
            PutOp(place, "a", {"n": 1}),
            GetOp(place, "a"),
            PutOp(place, "a", {"n": 2}),
            PutOp(place, "b", {"n": 3}),
            PutOp(place, "b", None),
            SearchOp(place),
            ListNamespacesOp(match_conditions=(MatchCondition("prefix", place),)),
        ]
    )
    assert [found[1].value, [item.value for item in found[5]], found[6]] == [{"n": 0}, [{"n": 0}], [place]]
    assert [each for number, each in enumerate(found) if number in (0, 2, 3, 4)] == [None] * 4
    assert [item.value for item in store.search(place)] == [{"n": 2}]


def test_misuse_is_refused_and_writes_nothing(store: AffinityStore, root: str, url: str) -> None:
    place = (root,)
    with pytest.raises(NotSerializable, match="'b'"):
        store.batch([PutOp(place, "a", {}), PutOp(place, "b", {"x": object()})])
    with pytest.raises(NotSerializable):
        store.put(place, "a", {"x": float("nan")})
    store.put((root, "other"), "o", {"n": 1})
    with pytest.raises(InvalidInput, match="operator"):
        store.batch([PutOp(place, "a", {"n": 1}), SearchOp(place, {"n": {"$near": 1}})])
    with pytest.raises(InvalidInput, match="1024"):
        store.put(place, "x" * 1025, {})
    with pytest.raises(InvalidNamespaceError):
        store.batch([PutOp(("a.b",), "a", {})])
    with pytest.raises(NotImplementedError, match="TTL"):
        store.put(place, "a", {}, ttl=1.0)
    with pytest.raises(NotImplementedError, match="time to live"):
        store.batch([PutOp(place, "a", {}, ttl=1.0)])
    with pytest.raises(InvalidOptions):
        AffinityStore(url, connections=0)
    assert store.search(place, limit=100) == store.search((root, "other"))


async def test_nodes_of_a_graph_have_the_store(saver: AffinitySaver, store: AffinityStore, root: str) -> None:
    async def remembers(state: Log, runtime: Runtime) -> Log:
        assert runtime.store is not None
        items = await runtime.store.asearch((root,))
        await runtime.store.aput((root,), state["said"][-1], {"seen": len(items)})
        return {"said": [str(len(items))]}

    graph = chain(saver, remembers=remembers).builder.compile(checkpointer=saver, store=store)
    for number in range(2):
        done = await graph.ainvoke({"said": [f"n{number}"]}, thread(str(uuid4())))
        assert done["said"] == [f"n{number}", str(number)]
