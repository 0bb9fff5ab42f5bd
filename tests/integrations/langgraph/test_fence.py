"""A thread has one writer: a second one is refused, and the thread stays one line."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance.test_utils import generate_checkpoint, generate_config, generate_metadata
from langgraph.types import Command, interrupt

from affinity.errors import AffinityError, ConnectionLost
from affinity.integrations import database
from affinity.integrations.langgraph import AffinitySaver, ThreadConflict, threads
from affinity.integrations.langgraph.fence import TOKEN, Place, Token
from tests.integrations.langgraph.graphs import Log, chain, line, says, thread

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


def asks_once(state: Log) -> Log:
    """A node that says the answer to a question."""
    return {"said": [str(interrupt("which?"))]}


class Held:
    """A node that waits in its first run."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.runs = 0

    async def __call__(self, state: Log) -> Log:
        self.runs += 1
        run = self.runs
        if run == 1:
            self.began.set()
            await self.may_end.wait()
        return {"said": [f"held {run}"]}


async def stored(graph: Any, name: str, node: str) -> None:
    """Wait until the thread is before this node. LangGraph writes checkpoints beside the tasks that follow on them."""
    while (await graph.aget_state(thread(name))).next != (node,):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_run_that_was_paused_writes_nothing_once_another_one_has_resumed_its_thread(
    saver: AffinitySaver, other: AffinitySaver, durability: Any
) -> None:
    """Neither a checkpoint nor the result of a task: what langgraph's issue 8796 shows of other checkpointers."""
    held, name = Held(), str(uuid4())
    paused, resuming = (chain(each, first=says("first"), held=held, last=says("last")) for each in (saver, other))
    with anyio.fail_after(PATIENCE):
        stale = asyncio.create_task(paused.ainvoke({"said": ["in"]}, thread(name), durability=durability))
        await held.began.wait()
        await stored(resuming, name, "held")
        done = await resuming.ainvoke(None, thread(name), durability=durability)
        assert done["said"] == ["in", "first", "held 2", "last"]
        before = [each async for each in other.alist(thread(name))]
        held.may_end.set()
        with pytest.raises(ThreadConflict, match="another run has written") as refused:
            await stale
    assert (refused.value.thread_id, refused.value.checkpoint_ns) == (name, "")
    assert isinstance(refused.value, AffinityError)
    assert [each async for each in other.alist(thread(name))] == before
    assert len(line(resuming, name)) == 5


async def test_of_two_runs_that_have_read_the_same_checkpoint_one_goes_on(
    saver: AffinitySaver, other: AffinitySaver
) -> None:
    """Both read before one of them writes."""
    name = str(uuid4())
    together = Together(2)
    graphs = [chain(together.reading(each), first=says("first"), last=says("last")) for each in (saver, other)]
    await graphs[0].ainvoke({"said": ["once"]}, thread(name))
    together.wait = True
    await _one_of_two(graphs, name, ["once", "first", "last"])


@pytest.mark.parametrize("shared", [True, False], ids=["one saver", "two savers"])
async def test_of_two_first_runs_of_a_thread_one_goes_on(
    saver: AffinitySaver, other: AffinitySaver, shared: bool
) -> None:
    """Also when both use one saver, as in one web process."""
    together = Together(2)
    together.wait = True
    savers = [saver, saver if shared else other]
    graphs = [chain(together.reading(each), first=says("first"), last=says("last")) for each in savers]
    await _one_of_two(graphs, str(uuid4()), [])


async def _one_of_two(graphs: list[Any], name: str, before: list[str]) -> None:
    with anyio.fail_after(PATIENCE):
        runs = (graph.ainvoke({"said": [str(place)]}, thread(name)) for place, graph in enumerate(graphs))
        ended = await asyncio.gather(*runs, return_exceptions=True)
    (result,) = (each for each in ended if isinstance(each, dict))
    (error,) = (each for each in ended if not isinstance(each, dict))
    assert isinstance(error, ThreadConflict)
    winner = str(ended.index(result))
    assert result["said"] == [*before, winner, "first", "last"]
    state = await graphs[0].aget_state(thread(name))
    assert state.values == result
    await asyncio.to_thread(line, graphs[0], name)


class Together:
    """Lets the first reads of several runs end together."""

    def __init__(self, number: int) -> None:
        self.wait = False
        self._barrier = asyncio.Barrier(number)

    def reading(self, saver: AffinitySaver) -> AffinitySaver:
        """A view of the saver whose reads wait for each other."""
        barrier, together = self._barrier, self

        class Reading(type(saver)):  # type: ignore[misc]
            async def aget_tuple(self, config: Any) -> Any:
                found = await super().aget_tuple(config)
                if together.wait:
                    await barrier.wait()
                    together.wait = False
                return found

        view = copy.copy(saver)
        view.__class__ = Reading
        return view


@pytest.mark.parametrize("place", [1, 2, 3])
def test_what_is_written_while_a_run_reads_an_empty_thread_is_found_or_fences_it(
    saver: AffinitySaver, other: AffinitySaver, place: int
) -> None:
    """Between any two statements of the read."""
    name = str(uuid4())
    made = generate_checkpoint()

    class Interleaved:
        def __init__(self, connection: Any) -> None:
            self.connection, self.left = connection, place

        def fetch(self, *given: Any) -> Any:
            found = self.connection.fetch(*given)
            self.left -= 1
            if self.left == 0:
                other.put(generate_config(name), made, generate_metadata(), {})
            return found

    def read(connection: Any) -> Any:
        interleaved: Any = Interleaved(connection)
        return threads.read(interleaved, Place(name, ""), None)

    found = saver._database.run(read, "read")
    if isinstance(found, threads.Row):
        assert found.checkpoint_id == made["id"]
    else:
        token = Token.new(Place(name, ""), found)
        with pytest.raises(ThreadConflict):
            saver._database.run(lambda connection: saver._fence.claim(connection, token))
    assert [each.checkpoint["id"] for each in saver.list(generate_config(name))] == [made["id"]]


def test_sync_runs_are_fenced_too(saver: AffinitySaver, other: AffinitySaver) -> None:
    began, may_end, runs, name = threading.Event(), threading.Event(), list[int](), str(uuid4())

    def held(state: Log) -> Log:
        runs.append(len(runs))
        if len(runs) == 1:
            began.set()
            assert may_end.wait(PATIENCE)
        return {"said": ["held"]}

    paused, resuming = chain(saver, held=held), chain(other, held=held)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            paused.invoke({"said": []}, thread(name), durability="sync")
        except BaseException as error:
            errors.append(error)

    stale = threading.Thread(target=run)
    stale.start()
    assert began.wait(PATIENCE)
    while resuming.get_state(thread(name)).next != ("held",):  # LangGraph does not wait for the first checkpoint
        time.sleep(0.01)
    assert resuming.invoke(None, thread(name))["said"] == ["held"]
    may_end.set()
    stale.join(PATIENCE)
    assert [type(error) for error in errors] == [ThreadConflict]
    line(resuming, name)


async def test_a_subgraph_is_fenced_as_its_graph_is(saver: AffinitySaver, other: AffinitySaver) -> None:
    held, name = Held(), str(uuid4())
    inner = chain(None, held=held, inside=says("inside"))
    paused, resuming = (chain(each, first=says("first"), inner=inner) for each in (saver, other))
    with anyio.fail_after(PATIENCE):
        stale = asyncio.create_task(paused.ainvoke({"said": []}, thread(name), durability="sync"))
        await held.began.wait()
        await stored(resuming, name, "inner")
        done = await resuming.ainvoke(None, thread(name), durability="sync")
        held.may_end.set()
        with pytest.raises(ThreadConflict) as refused:
            await stale
    assert refused.value.checkpoint_ns.startswith("inner:")
    assert done["said"] == ["first", "first", "held 2", "inside"]
    assert (await resuming.aget_state(thread(name))).values == done


async def test_a_run_of_a_deleted_thread_does_not_bring_it_back(saver: AffinitySaver) -> None:
    held, name = Held(), str(uuid4())
    graph = chain(saver, held=held, last=says("last"))
    with anyio.fail_after(PATIENCE):
        run = asyncio.create_task(graph.ainvoke({"said": []}, thread(name), durability="sync"))
        await held.began.wait()
        await stored(graph, name, "held")
        await saver.adelete_thread(name)
        held.may_end.set()
        with pytest.raises(ThreadConflict, match="was deleted"):
            await run
    assert await saver.aget_tuple(thread(name)) is None
    assert (await graph.ainvoke({"said": ["new"]}, thread(name)))["said"] == ["new", "held 2", "last"]


async def test_a_program_that_changes_the_state_fences_the_run_under_way(saver: AffinitySaver) -> None:
    held, name = Held(), str(uuid4())
    graph = chain(saver, held=held, last=says("last"))
    with anyio.fail_after(PATIENCE):
        run = asyncio.create_task(graph.ainvoke({"said": []}, thread(name), durability="sync"))
        await held.began.wait()
        await stored(graph, name, "held")
        await graph.aupdate_state(thread(name), {"said": ["by hand"]}, as_node="held")
        held.may_end.set()
        with pytest.raises(ThreadConflict):
            await run
    assert (await graph.ainvoke(None, thread(name)))["said"] == ["by hand", "last"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_copy_of_an_earlier_checkpoint_is_put_beside_it(saver: AffinitySaver, place: int) -> None:
    name = str(uuid4())
    graph = chain(saver, first=says("first"), last=says("last"))
    with anyio_loop() as run:
        run(graph.ainvoke({"said": ["in"]}, thread(name)))
        early = list(graph.get_state_history(thread(name)))[::-1][place]
        copied = graph.get_state(graph.update_state(early.config, None, as_node="__copy__"))
        assert (copied.values, copied.parent_config) == (early.values, early.parent_config)
        assert run(graph.ainvoke(None, copied.config))["said"] == ["in", "first", "last"]


def test_time_travel_still_branches(saver: AffinitySaver, other: AffinitySaver) -> None:
    """It is what the program asks for: it names an earlier checkpoint."""
    name = str(uuid4())

    async def last(state: Log) -> Log:
        return {"said": [f"last of {len(state['said'])}"]}

    graph = chain(saver, first=says("first"), last=last)
    with anyio_loop() as run:
        run(graph.ainvoke({"said": ["in"]}, thread(name)))
        history = [each for each in graph.get_state_history(thread(name)) if each.next == ("last",)]
        (early,) = history
        again = run(graph.ainvoke(None, early.config))
        assert again["said"] == ["in", "first", "last of 2"]
        branch = chain(other, first=says("first"), last=last)
        config = branch.update_state(early.config, {"said": ["branch"]}, as_node="first")
        assert run(branch.ainvoke(None, config))["said"] == ["in", "first", "branch", "last of 3"]
        assert graph.get_state(thread(name)).values["said"] == ["in", "first", "branch", "last of 3"]
        graph.update_state(thread(name), {"said": ["more"]})
        assert graph.get_state(thread(name)).values["said"][-1] == "more"


@contextmanager
def anyio_loop() -> Iterator[Any]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_subgraph_begins_anew_where_its_graph_is_replayed_from_before_it(
    saver: AffinitySaver, is_async: bool
) -> None:
    """It has a history of its own (``checkpointer=True``), of which nothing is older. The replay goes on from there."""

    def before(state: Log) -> Log:
        return {"said": ["before"]}

    inner: Any = chain(None, asks=asks_once)
    inner.checkpointer = True
    graph, config = chain(saver, before=before, inner=inner), thread(str(uuid4()))

    async def run(value: Any, config: Any) -> Any:
        if is_async:
            return await graph.ainvoke(value, config)
        return await anyio.to_thread.run_sync(lambda: graph.invoke(value, config))

    await run({"said": ["in"]}, config)
    old = await run(Command(resume="old"), config)
    earlier = next(each for each in [e async for e in graph.aget_state_history(config)] if each.next == ("inner",))
    assert "__interrupt__" in await run(None, earlier.config)
    new = await run(Command(resume="new"), config)
    assert [text for text in old["said"] if text in {"old", "new"}] == ["old"]
    assert [text for text in new["said"] if text in {"old", "new"}] == ["new"]


def test_a_program_cannot_go_on_from_a_checkpoint_that_is_no_longer_the_newest(
    saver: AffinitySaver, other: AffinitySaver
) -> None:
    """Unless it has read it by its id."""
    config, about = generate_config(str(uuid4())), generate_metadata()
    first = saver.put(config, generate_checkpoint(), about, {})
    saver.put(first, generate_checkpoint(), about, {})
    for stale in (first, config):
        with pytest.raises(ThreadConflict, match="read the thread again"):
            other.put(stale, generate_checkpoint(), about, {})
    with pytest.raises(ThreadConflict, match="results of"):
        other.put_writes(first, [("x", 1)], "task")
    assert other.get_tuple(first) is not None
    other.put_writes(first, [("x", 1)], "task")
    other.put(first, generate_checkpoint(), about, {})
    assert len(list(saver.list(config))) == 3


async def test_a_config_of_an_application_is_left_as_it_is(saver: AffinitySaver) -> None:
    """The token of a run is in no config that an application sees."""
    config = thread(str(uuid4()))
    given = copy.deepcopy(config)
    graph = chain(saver, first=says("first"))
    assert (await graph.aget_state(config)).values == {}
    await graph.ainvoke({"said": []}, config)
    state = await graph.aget_state(config)
    assert config == given
    assert TOKEN not in str(state)
    assert TOKEN not in str([each async for each in saver.alist(config)])


# -- crashes between two statements


class Crashes:
    """Fails one statement of a call, in each of its attempts, as if its process had ended there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.after_commit = 0
        monkeypatch.setattr(database, "_PAUSE", 0.0)
        monkeypatch.setattr(database, "_ATTEMPTS", 2)
        for driver in (database._Sqlite, database._Postgres):
            for name in ("fetch", "run_all"):
                monkeypatch.setattr(driver, name, self._counted(getattr(driver, name)))
            monkeypatch.setattr(driver, "transaction", self._ended(driver.transaction))

    def _counted(self, method: Any) -> Any:
        def run(driver: Any, name: str, *args: Any) -> Any:
            if self.left is not None and name != "version":
                if self.left == 0:
                    raise ConnectionLost("the process has ended here")
                self.left -= 1
            return method(driver, name, *args)

        return run

    def _ended(self, method: Any) -> Any:
        @contextmanager
        def transaction(driver: Any, mode: database.Mode = "write") -> Iterator[None]:
            left = self.left
            with method(driver, mode):
                yield
            if self.after_commit and mode != "read":
                self.after_commit -= 1
                raise ConnectionLost("the answer of the commit was lost")
            self.left = left if self.left is None else self.left

        return transaction


def _calls(saver: AffinitySaver, name: str) -> dict[str, Any]:
    """Calls that write, each on a thread of its own."""
    config = generate_config(name)
    first = generate_checkpoint(channel_values={"x": 1}, channel_versions={"x": 1})
    about = generate_metadata(run_id=name)
    saved = saver.put(config, first, about, {"x": 1})
    saver.put_writes(saved, [("x", 2)], "task")
    second = generate_checkpoint()
    by_run: Any = {"configurable": {**config["configurable"], "__pregel_runtime": None}}
    read = saver.get_tuple(by_run)
    assert read is not None
    return {
        "put of a run": lambda: saver.put(read.config, second, about, {}),
        "put_writes of a run": lambda: saver.put_writes(read.config, [("x", 3), ("y", 4)], "another"),
        "put": lambda: saver.put(saved, second, about, {}),
        "put_writes": lambda: saver.put_writes(saved, [("x", 3), ("y", 4)], "another"),
        "delete_thread": lambda: saver.delete_thread(name),
        "delete_for_runs": lambda: saver.delete_for_runs([name]),
        "copy_thread": lambda: saver.copy_thread(name, f"{name}-copy"),
        "prune": lambda: saver.prune([name], strategy="keep_latest"),
    }


CALLS = [
    "put of a run",
    "put_writes of a run",
    "put",
    "put_writes",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
]


def _all(saver: BaseCheckpointSaver[Any], name: str) -> list[Any]:
    return [list(saver.list(generate_config(each))) for each in (name, f"{name}-copy")]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_ends_before_its_last_statement_has_done_nothing(
    saver: AffinitySaver, other: AffinitySaver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """And does everything when it is called again."""
    name = str(uuid4())
    calls = _calls(saver, name)
    if call == "prune":
        calls["put"]()
    before = _all(other, name)
    crashes = Crashes(monkeypatch)
    statements = 0
    while True:
        crashes.left = statements
        try:
            calls[call]()
        except ConnectionLost:
            crashes.left = None
            assert _all(other, name) == before, f"statement {statements}"
            statements += 1
        else:
            break
    crashes.left = None
    assert statements >= 1
    assert _all(other, name) != before


@pytest.mark.parametrize("call", CALLS)
def test_a_call_whose_answer_is_lost_is_repeated_and_counts_once(
    saver: AffinitySaver, other: AffinitySaver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    done, repeated = str(uuid4()), str(uuid4())
    calls = {name: _calls(saver, name) for name in (done, repeated)}
    if call == "prune":
        calls[done]["put"](), calls[repeated]["put"]()
    crashes = Crashes(monkeypatch)
    calls[done][call]()
    crashes.after_commit = 1
    calls[repeated][call]()
    assert crashes.after_commit == 0
    lengths = [
        [[len(each.pending_writes or []) for each in found] for found in _all(other, name)] for name in (done, repeated)
    ]
    assert lengths[0] == lengths[1]
