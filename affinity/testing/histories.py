"""Many histories against the code of an app: those of a database, which is only read, and those of exported files."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from affinity.client import Instance
from affinity.client.calls import retry
from affinity.composed.app import App
from affinity.composed.client import Client
from affinity.errors import OrchestrationError, UnknownOrchestration
from affinity.limits import MAX_PAGE
from affinity.orchestration.engine import Execution
from affinity.orchestration.exported import RESET, parse_export
from affinity.orchestration.replaying import find_definition, replay_execution
from affinity.payloads import Blobs, PayloadCodec, open_coded
from affinity.payloads.exports import decode_export
from affinity.provider.contract import FINISHED, HistoryCursor, HistoryPage, InstanceStatus, Provider
from affinity.worker.replays import ROUND, Replay, Replays

Found: TypeAlias = Callable[["ReplayedExecution", int, Exception | None], None]
"""Receives each result: the execution, the number of its events, and the error; None: code and history match."""


def ignore_count(count: int) -> None:
    """Drop a count of instances."""


SEED: Final = 0
"""Seed of the random choice: the same instances give the same sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedExecution:
    """One execution of an instance, whose history is replayed."""

    instance_id: str
    name: str  # of the orchestration
    execution_id: int
    suspended_for: str | None  # the class of the error for which the instance is suspended in this execution
    suspension_message: str | None = None  # and its text
    file: str | None = None  # that its history is in


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySelection:
    """Which instances of a database."""

    status: Collection[InstanceStatus]
    names: Sequence[str]
    """Names of their orchestrations; empty: any."""
    since: float | None
    """Seconds within which they had their last turn."""
    sample: int
    """How many, chosen at random; 0: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenInstance:
    """The fields of an instance that a replay needs: its row may have a large result."""

    subject: ReplayedExecution
    version: str | None
    session_id: str | None

    @classmethod
    def of(cls, instance: Instance) -> ChosenInstance:
        """The fields of this instance."""
        why = instance.suspension
        subject = ReplayedExecution(
            instance_id=instance.instance_id,
            name=instance.name,
            execution_id=instance.execution_id,
            suspended_for=None if why is None else why.error_type,
            suspension_message=None if why is None else why.message,
        )
        return cls(subject=subject, version=instance.version, session_id=instance.session_id)


async def choose(
    client: Client, selection: ReplaySelection, progress: Callable[[int], None]
) -> AsyncIterator[ChosenInstance]:
    """The instances that have a history; ``progress`` is called with how many of them were seen."""
    chance = random.Random(SEED)  # noqa: S311 -- a sample, not a secret
    sample: list[ChosenInstance] = []
    seen = 0
    async for instance in _list(client, selection):
        chosen = ChosenInstance.of(instance)
        progress(seen := seen + 1)
        if not selection.sample:
            yield chosen
        elif len(sample) < selection.sample:
            sample.append(chosen)
        elif (place := chance.randrange(seen)) < selection.sample:  # each has the same chance to be in it
            sample[place] = chosen
    for chosen in sample:
        yield chosen


async def _list(client: Client, selection: ReplaySelection) -> AsyncIterator[Instance]:
    begin = None if selection.since is None else datetime.now(UTC) - timedelta(seconds=selection.since)
    names: Sequence[str | None] = selection.names or [None]
    for name in names:
        async for instance in client.list_instances(status=selection.status, name=name):
            if instance.event_count and (begin is None or instance.updated_at >= begin):
                yield instance


async def replay_database(
    app: App,
    url: str,
    selection: ReplaySelection,
    found: Found,
    *,
    earlier: bool = False,
    listed: Callable[[int], None] = ignore_count,
    codec: PayloadCodec | None = None,
    blobs: Blobs | None = None,
) -> None:
    """Replay the histories of a database against the orchestrations of an app, as a worker does before it goes on with
    an instance. The database is only read: no worker starts, nothing is migrated or locked, and no activity runs.

    Args:
        app: the app with the code that is tested.
        url: of the database. On PostgreSQL the role of a client will do.
        selection: which instances.
        found: called with each result.
        earlier: replay also the executions before the current one, which no worker replays.
        listed: called with the number of instances that were listed so far.
        codec: decodes the payloads; by default what ``AFFINITY_CODEC`` names.
        blobs: the blob store of the database; by default what ``AFFINITY_BLOBS`` names.

    Raises:
        CodecMismatch: the codec has not the keys of the database.
        ProviderError: the database refuses, or fails for longer than `affinity.client.calls.RETRY_SECONDS`.
    """
    provider = await open_coded(url, codec, blobs, application_name="affinity replay", one_connection=True)
    try:
        await DatabaseReplay(app, provider, found, earlier=earlier, listed=listed).run(selection)
    finally:
        await provider.aclose()


def replay_export(
    app: App,
    text: str,
    file: str,
    found: Found,
    *,
    codec: PayloadCodec | None = None,
    blobs: Blobs | None = None,
) -> None:
    """Replay the executions of an exported history, as `replay`.

    Args:
        app: the app with the code that is tested.
        text: the content of the file.
        file: its name, for the results.
        found: called with the result of each execution.
        codec: see `replay`.
        blobs: see `replay`.

    Raises:
        InvalidInput: this is not a history, or one without events.
        InvalidOptions: its payloads are encoded, and there is no codec.
        CodecFailed, BlobStoreFailed: the codec, or the blob store, fails.
    """
    history = parse_export(text, file)
    decoded = decode_export(history, codec, blobs)
    current = history.executions[-1].execution_id
    for execution, unreadable in decoded.executions:
        is_current = execution.execution_id == current  # if it is not, the export has no suspension
        subject = ReplayedExecution(
            instance_id=history.instance_id,
            name=history.name,
            execution_id=execution.execution_id,
            suspended_for=history.suspended_for if is_current else None,
            suspension_message=decoded.suspension_message,
            file=file,
        )
        error: Exception | None = unreadable
        try:
            if unreadable is None:
                replay_execution(app, history, execution)
        except OrchestrationError as raised:
            error = raised
        found(subject, len(execution.events), error)


class DatabaseReplay:
    """Replays histories as a worker does, several at a time.

    Args:
        app: with the code.
        provider: of the database; it is only read.
        found: receives the results.
        earlier: also the executions before the current one.
        listed: called with the number of instances that were seen so far.
    """

    def __init__(
        self,
        app: App,
        provider: Provider,
        found: Found,
        *,
        earlier: bool = False,
        listed: Callable[[int], None] = ignore_count,
    ) -> None:
        self._app = app
        self._provider = provider
        self._client = Client.from_provider(provider)
        self._found = found
        self._earlier = earlier
        self._listed = listed
        self._replays = Replays(self._read, _nothing_is_written)

    async def run(self, selection: ReplaySelection) -> None:
        """Replay the instances of the selection.

        Raises:
            ProviderError: the database fails for longer than `affinity.client.calls.RETRY_SECONDS`.
        """
        async with self._client:
            async for chosen in choose(self._client, selection, self._listed):
                await self._add(chosen)
                while len(self._replays) >= ROUND:
                    await self._replays.take_round()
            while len(self._replays):
                await self._replays.take_round()

    async def _read(self, cursors: Sequence[HistoryCursor]) -> Sequence[HistoryPage]:
        return await retry(partial(self._provider.read_history, cursors))

    async def _add(self, chosen: ChosenInstance) -> None:
        self._begin(chosen, chosen.subject, chosen.version)
        if not self._earlier:
            return
        async for execution_id in self._find_earlier(chosen.subject):
            subject = replace(chosen.subject, execution_id=execution_id, suspended_for=None)
            self._begin(chosen, subject, await self._find_version(subject))

    def _begin(self, chosen: ChosenInstance, subject: ReplayedExecution, version: str | None) -> None:
        try:
            definition = find_definition(self._app, subject.name, version)
        except UnknownOrchestration as error:
            self._found(subject, 0, error)
            return
        at = (subject.instance_id, subject.execution_id, chosen.session_id)
        execution = Execution(definition, *at, traced=True)

        def done(error: Exception | None) -> None:
            execution.close()
            if error is not None or running.events:  # else it was deleted meanwhile
                self._found(subject, running.events, error)

        running = Replay(execution, done, is_suspect=False)
        self._replays.add(running)

    async def _find_earlier(self, subject: ReplayedExecution) -> AsyncIterator[int]:
        """The executions before the current one that continued as new, by the rule of `exported.replayed`. A history is
        read only where the rule asks whether a reset has begun it.
        """
        after, before = subject.execution_id, subject.execution_id
        while rows := await self._client.executions(subject.instance_id, limit=MAX_PAGE, before=before):
            for row in rows:
                if row.status == "continued":
                    yield row.execution_id
                elif row.status in FINISHED and not await self._is_reset(subject.instance_id, after):
                    return
                after = row.execution_id
            before = after

    async def _is_reset(self, instance_id: str, execution_id: int) -> bool:
        """Whether a reset has begun this execution."""
        events = self._client.history(instance_id, execution_id=execution_id)
        return any([event.type == RESET async for event in events])

    async def _find_version(self, subject: ReplayedExecution) -> str | None:
        """The version with which an execution began."""
        events = self._client.history(subject.instance_id, execution_id=subject.execution_id)
        async for event in events:
            if event.type == "orchestration_started":
                return str(event.fields.get("version"))
        return None


async def _nothing_is_written() -> None:
    """A worker waits here until its turns are written."""
