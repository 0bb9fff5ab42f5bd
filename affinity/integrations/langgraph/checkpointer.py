"""`AffinitySaver`: LangGraph's checkpoints in a database of affinity, or in any other one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from affinity.errors import InvalidId, InvalidOptions
from affinity.integrations.database import CONNECTIONS, Connection, Database
from affinity.integrations.langgraph import threads
from affinity.integrations.langgraph.fence import TOKEN, Fence, Place, Token, is_run
from affinity.integrations.langgraph.threads import PAGE, TABLES, Conditions, Put, Results, Row, Stored
from affinity.integrations.langgraph.writing import Writer

MAX_ID: Final = 256
"""UTF-8 bytes of the id of a thread, a checkpoint or a task: four of them and a namespace fit a row of an index."""

MAX_NAMESPACE: Final = 1024
"""UTF-8 bytes of a namespace of a thread: it names the tasks around a subgraph."""


class LastRun(NamedTuple):
    """The run that has written last to a thread."""

    run_id: str
    metadata: CheckpointMetadata  # of its newest checkpoint
    has_run: bool  # the run that has asked has written too


class AffinitySaver(BaseCheckpointSaver[Any]):
    """A checkpointer for LangGraph on SQLite and PostgreSQL, whose threads have one writer each.

    ::

        graph = builder.compile(checkpointer=AffinitySaver("sqlite:///affinity.db"))

    Of two runs that write to one thread at the same time, one is refused with `ThreadConflict`; other checkpointers
    would fork the thread silently. A run that was paused, and whose thread another run has resumed, is refused too.

    The tables, ``affinity_langgraph_*``, are made when the first call needs them, and belong to this module alone.
    Every call is one transaction, which may be repeated, and what runs write at the same time shares one. The async
    form of a call is the sync form on a thread.

    Raises:
        InvalidUrl: the URL names neither a PostgreSQL database nor an SQLite file.
    """

    def __init__(self, url: str, *, serde: SerializerProtocol | None = None, connections: int = CONNECTIONS) -> None:
        """Open nothing yet.

        Args:
            url: ``postgresql://…`` or ``sqlite:///…``, as of workers and clients.
            serde: LangGraph's serializer; an ``EncryptedSerializer`` encrypts what is stored. The codec of affinity's
                payloads is not used here: LangGraph serializes without ``await``.
            connections: to the database, at most; each with a thread.

        Raises:
            InvalidUrl: see above.
            InvalidOptions: ``connections`` is less than 1.
        """
        super().__init__(serde=serde)
        if connections < 1:
            raise InvalidOptions(f"connections={connections}: at least one is needed")
        self._database = Database(url, TABLES, connections)
        self._fence = Fence()
        self._writer = Writer(self._database, self._fence)

    def setup(self) -> None:
        """Make the tables, unless they are there. The first call of a role that may do so makes them too.

        Raises:
            ProviderError: the database cannot be reached, or has refused it.
        """
        self._database.run(lambda _: None)

    async def asetup(self) -> None:
        """See `setup`."""
        await self._database.arun(lambda _: None)

    def close(self) -> None:
        """Close the connections. The saver cannot be used any more."""
        self._database.close()

    def __enter__(self) -> Self:
        """Return the saver."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the saver."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    # -- reads

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the newest checkpoint of a thread, or the one whose id the config has; None: there is none.

        Raises:
            InvalidId, InvalidOptions: the config names no thread that can be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        place, found = _place(config), _checkpoint_id(config)
        return self._read(config, self._database.run(partial(_read, place=place, checkpoint_id=found), "read"))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        place, found = _place(config), _checkpoint_id(config)
        row = await self._database.arun(partial(_read, place=place, checkpoint_id=found), "read")
        return self._read(config, row)

    def _read(self, config: RunnableConfig, found: Row | int) -> CheckpointTuple | None:
        configurable, place = config["configurable"], _place(config)
        by_run = is_run(configurable)
        if isinstance(found, Row):
            if not by_run and _checkpoint_id(config) is not None:
                self._fence.note_read(place, found.checkpoint_id, found.parent_id)
            return self._tuple(found, by_run=by_run)
        if by_run:  # the config is the run's own: there is no checkpoint that could carry the token to its writes
            configurable[TOKEN] = str(Token.new(place, found))
        return None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first, in pages.

        Args:
            config: the thread, the namespace and the checkpoint, each if it is named; None: all threads.
            filter: values that the metadata has; compared here, and not by the database.
            before: a checkpoint; only earlier ones are returned.
            limit: checkpoints at most.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        listing = _Listing(self, config, filter, before, limit)
        while listing.most > 0:
            yield from listing.take(self._database.run(listing.page, "read"))
        listing.end()

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        listing = _Listing(self, config, filter, before, limit)
        while listing.most > 0:
            for found in listing.take(await self._database.arun(listing.page, "read")):
                yield found
        listing.end()

    async def _last_run(self, thread_id: str, run_id: str) -> LastRun | None:
        """Return the run that has written last to a thread; None: no run has written to it."""
        place = Place(_checked(thread_id, "thread id"), "")
        found = await self._database.arun(lambda each: threads.last_run(each, place, run_id), "read")
        return None if found is None else LastRun(found[0], self._load(found[1]), found[2])

    def _tuple(self, row: Row, *, by_run: bool) -> CheckpointTuple:
        token = Token.new(row.place, row.writes) if by_run else None
        return CheckpointTuple(
            config=_config(row.place, row.checkpoint_id, token),
            checkpoint=self._load(row.checkpoint),
            metadata=self._load(row.metadata),
            parent_config=_config(row.place, row.parent_id, token) if row.parent_id else None,
            pending_writes=[(task, channel, self._load(value)) for task, channel, value in row.results],
        )

    # -- writes

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write a checkpoint, whose parent the config names. The same one again replaces itself.

        Raises:
            ThreadConflict: another writer has written to the thread; nothing was written.
            InvalidId, InvalidOptions: see `get_tuple`.
            ProviderError: the database cannot be reached, or has refused it.
        """
        new = self._new(config, checkpoint, metadata)
        if new.token is not None:
            self._writer.write(new)
        else:
            self._database.run(lambda connection: threads.put(connection, self._fence, new))
        return _config(new.place, new.checkpoint_id)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        new = self._new(config, checkpoint, metadata)
        if new.token is not None:
            await self._writer.awrite(new)
        else:
            await self._database.arun(lambda connection: threads.put(connection, self._fence, new))
        return _config(new.place, new.checkpoint_id)

    def _new(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata) -> Put:
        place = _place(config)
        about = get_checkpoint_metadata(config, metadata)
        run_id = about.get("run_id")
        return Put(
            place,
            Token.read(place, config["configurable"]),
            _checked(checkpoint["id"], "checkpoint id"),
            _checkpoint_id(config),
            None if run_id is None else str(run_id),
            self._dump(checkpoint),
            self._dump(about),
            is_run(config["configurable"]),
            metadata.get("source") == "fork",
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written, beside the checkpoint that the config names. What is there stays, but for
        errors, interrupts and the like, of which the last one counts.

        Raises:
            ThreadConflict: see `put`.
            InvalidId, InvalidOptions: see `get_tuple`; or the config names no checkpoint.
            ProviderError: the database cannot be reached, or has refused it.
        """
        new = self._results(config, writes, task_id, task_path)
        if new.token is not None:
            self._writer.write(new)
        else:
            self._database.run(lambda connection: threads.put_results(connection, self._fence, new))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        new = self._results(config, writes, task_id, task_path)
        if new.token is not None:
            await self._writer.awrite(new)
        else:
            await self._database.arun(lambda connection: threads.put_results(connection, self._fence, new))

    def _results(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Results:
        place, checkpoint_id = _place(config), _checkpoint_id(config)
        if checkpoint_id is None:
            raise InvalidOptions("writes of a task belong to a checkpoint: the config has no checkpoint_id")
        return Results(
            place,
            Token.read(place, config["configurable"]),
            checkpoint_id,
            _checked(task_id, "task id"),
            task_path,
            [(WRITES_IDX_MAP.get(name, idx), name, self._dump(value)) for idx, (name, value) in enumerate(writes)],
        )

    # -- threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. A run of it that goes on is refused at its next checkpoint.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        thread = _checked(thread_id, "thread id")
        self._database.run(lambda connection: threads.delete_thread(connection, thread))

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        thread = _checked(thread_id, "thread id")
        await self._database.arun(lambda connection: threads.delete_thread(connection, thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata has one of these as ``run_id``, of all threads.

        A ``DeltaChannel`` of a thread that goes on needs its earlier checkpoints: see LangGraph.

        Raises:
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        runs = [_checked(run_id, "run id") for run_id in run_ids]
        self._database.run(lambda connection: threads.delete_runs(connection, runs))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`."""
        runs = [_checked(run_id, "run id") for run_id in run_ids]
        await self._database.arun(lambda connection: threads.delete_runs(connection, runs))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its checkpoints. The same copy again changes nothing.

        Raises:
            ThreadConflict: the target has checkpoints that the source has not.
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        self._database.run(_copying(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await self._database.arun(_copying(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of these threads.

        Args:
            thread_ids: the threads.
            strategy: ``keep_latest`` keeps the newest one of each namespace, with the earlier ones from which its
                ``DeltaChannel`` values are made; ``delete`` keeps none.

        Raises:
            InvalidOptions: there is no such strategy.
            InvalidId: an id that cannot be stored.
            ProviderError: the database cannot be reached, or has refused it.
        """
        self._database.run(self._pruning(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await self._database.arun(self._pruning(thread_ids, strategy))

    def _pruning(self, thread_ids: Sequence[str], strategy: str) -> Any:
        if strategy not in {"keep_latest", "delete"}:
            raise InvalidOptions(f"strategy={strategy!r}: it is keep_latest or delete")
        found = sorted({_checked(thread_id, "thread id") for thread_id in thread_ids})

        def prune(connection: Connection) -> None:
            for thread in found:
                if strategy == "delete":
                    threads.delete_thread(connection, thread)
                else:
                    for place in threads.namespaces(connection, thread):
                        threads.keep_only(connection, place, self._needed(connection, place))

        return prune

    def _needed(self, connection: Connection, place: Place) -> Iterator[str]:
        """Yield the newest checkpoint, and its ancestors as far as a value of a ``DeltaChannel`` goes back."""
        row = threads.read(connection, place, None)
        missing: set[str] | None = None
        while isinstance(row, Row):
            yield row.checkpoint_id
            if missing is None:
                missing = {*self._load(row.metadata).get("counters_since_delta_snapshot", ())}
            missing -= self._load(row.checkpoint)["channel_values"].keys()
            if not missing or row.parent_id is None:
                return
            row = threads.read(connection, place, row.parent_id)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the next version of a channel: an integer. It goes on with texts of threads that come from other
        checkpointers.
        """
        if not isinstance(current, str):
            return 1 if current is None else current + 1
        return f"{int(current.split('.')[0]) + 1:032}.{random.random():016}"  # noqa: S311 -- no secret

    def _dump(self, value: Any) -> Stored:
        return Stored(*self.serde.dumps_typed(value))

    def _load(self, value: Stored) -> Any:
        return self.serde.loads_typed((value.type, value.data))


class _Listing:
    """The pages of a listing."""

    def __init__(
        self,
        saver: AffinitySaver,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        configurable = config["configurable"] if config else {}
        thread, ns = configurable.get("thread_id"), configurable.get("checkpoint_ns")
        self._saver, self._filter = saver, filter or {}
        self._configurable, self._by_run = configurable, is_run(configurable)
        self._place = Place(str(thread), ns) if self._by_run and thread is not None and ns is not None else None
        self._writes = 0
        self._where = Conditions(
            None if thread is None else _checked(str(thread), "thread id"),
            ns,
            _checkpoint_id(config) if config else None,
            _checkpoint_id(before) if before else None,
        )
        self._last: Row | None = None
        self._has_found = False
        self.most: float = float("inf") if limit is None else limit
        """Checkpoints that are still to be returned, at most."""

    def page(self, connection: Connection) -> Sequence[Row]:
        most = PAGE if self._filter else int(min(PAGE, self.most))
        if self._place is not None and self._last is None:
            self._writes = threads.writes_so_far(connection, self._place)
        return threads.page(connection, self._where, self._last, most)

    def take(self, rows: Sequence[Row]) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a page that meet the conditions."""
        for row in rows:
            found = self._saver._tuple(row, by_run=self._by_run)
            if self.most > 0 and all(found.metadata.get(key) == value for key, value in self._filter.items()):
                self.most -= 1
                self._has_found = True
                yield found
        if rows:
            self._last = rows[-1]
        else:
            self.most = 0

    def end(self) -> None:
        """Give a run the token, if it has found no checkpoint that could carry it: a subgraph begins anew."""
        if self._place is not None and not self._has_found:
            self._configurable[TOKEN] = str(Token.new(self._place, self._writes))


def _read(connection: Connection, *, place: Place, checkpoint_id: str | None) -> Row | int:
    return threads.read(connection, place, checkpoint_id)


def _copying(source: str, target: str) -> Any:
    _checked(source, "thread id"), _checked(target, "thread id")

    def copy(connection: Connection) -> None:
        if source != target:
            threads.copy_thread(connection, source, target)

    return copy


def _place(config: RunnableConfig) -> Place:
    configurable = config.get("configurable", {})
    if "thread_id" not in configurable:
        raise InvalidOptions('a thread is named by {"configurable": {"thread_id": …}} in the config')
    ns = configurable.get("checkpoint_ns") or ""
    thread = _checked(str(configurable["thread_id"]), "thread id")
    return Place(thread, _checked(ns, "checkpoint_ns", MAX_NAMESPACE, least=0))


def _checkpoint_id(config: RunnableConfig) -> str | None:
    found = config.get("configurable", {}).get("checkpoint_id")
    return _checked(str(found), "checkpoint id") if found else None


def _checked(text: str, what: str, most: int = MAX_ID, *, least: int = 1) -> str:
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):
        size = -1
    if not least <= size <= most or "\0" in text:
        raise InvalidId(f"a {what} is a text of {least} to {most} bytes without NUL, not {text!r:.80}")
    return text


def _config(place: Place, checkpoint_id: str, token: Token | None = None) -> RunnableConfig:
    configurable = {"thread_id": place.thread, "checkpoint_ns": place.ns, "checkpoint_id": checkpoint_id}
    if token is not None:
        configurable[TOKEN] = str(token)
    return {"configurable": configurable}
