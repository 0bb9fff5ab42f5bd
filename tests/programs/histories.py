"""The rows and histories of instances at rest, decoded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from affinity import Client
from affinity.limits import MAX_PAGE
from affinity.orchestration import events as ev
from affinity.orchestration.wire import decode_event
from affinity.provider.contract import FINISHED, EventOrigin, InstanceFilter, InstanceInfo
from affinity.provider.history import read_whole_history


@dataclass(frozen=True)
class Run:
    """One execution of an instance."""

    execution_id: int
    events: Sequence[ev.Event]
    origins: Mapping[int, EventOrigin]

    @property
    def copied(self) -> int:
        """How many events it has of one that was reset."""
        return max((n for n, event in enumerate(self.events) if type(event) is ev.ExecutionReset), default=0)

    @property
    def is_reset(self) -> bool:
        """Whether it began by a reset."""
        return any(type(event) is ev.ExecutionReset for event in self.events)

    @property
    def began_at(self) -> datetime | None:
        """When its code began; None: it did not. What a worker without the code records before, as a request to cancel,
        takes no slot.
        """
        started = (number for number, event in enumerate(self.events, 1) if isinstance(event, ev.OrchestrationStarted))
        return next((self.origins[number].recorded_at for number in started), None)

    @property
    def lineage(self) -> ev.Lineage:
        """The executions from which the last reset has copied."""
        return next((event.lineage for event in reversed(self.events) if isinstance(event, ev.ExecutionReset)), ())

    @property
    def outcome(self) -> ev.Event | None:
        """How it ended; None: it runs, or was reset."""
        return self.events[-1] if self.events and type(self.events[-1]) in ev.OUTCOMES else None

    def answers(self) -> Mapping[int, ev.Event]:
        """The event that answered or cancelled a command, by the id of the command."""
        return {event.schedule_id: event for event in self.events if hasattr(event, "schedule_id")}

    def open_commands(self) -> Mapping[int, ev.Event]:
        """Activities, timers and children without an answer, and waits that no event has ended."""
        found: dict[int, ev.Event] = {}
        unread: list[str] = []
        for number, event in enumerate(self.events, 1):
            match event:
                case ev.OrchestrationStarted():
                    unread += [each.name for each in event.carried]
                case ev.ActivityScheduled() | ev.TimerCreated() | ev.SubOrchestrationScheduled():
                    found[number] = event
                case ev.EventAwaited() if event.name in unread:
                    unread.remove(event.name)
                case ev.EventAwaited():
                    found[number] = event
                case ev.EventRaised():
                    waits = [n for n, each in found.items() if isinstance(each, ev.EventAwaited)]
                    first = next((n for n in waits if getattr(found[n], "name", None) == event.name), None)
                    if first is None:
                        unread.append(event.name)
                    else:
                        del found[first]
                case _:
                    found.pop(getattr(event, "schedule_id", 0), None)
        return {} if self.outcome else found


@dataclass(frozen=True)
class Past:
    """An instance with the executions that are kept, oldest first."""

    info: InstanceInfo
    runs: Sequence[Run]

    @property
    def id(self) -> str:
        return self.info.instance_id

    @property
    def has_ended(self) -> bool:
        return self.info.status in FINISHED

    @property
    def last(self) -> Run:
        return self.runs[-1]

    @property
    def generations(self) -> Sequence[Sequence[Run]]:
        """The executions of each start: they follow each other by continue-as-new, or by a reset."""
        found: list[list[Run]] = []
        for run in self.runs:
            if found and (run.is_reset or isinstance(found[-1][-1].outcome, ev.ContinuedAsNew)):
                found[-1].append(run)
            else:
                found.append([run])
        return found


async def read_pasts(client: Client, name: str) -> Mapping[str, Past]:
    """The instances of an orchestration, by id."""
    return {info.instance_id: await _read(client, info) async for info in _instances(client, name)}


async def _instances(client: Client, name: str) -> AsyncIterator[InstanceInfo]:
    after = None
    while found := await client._provider.list_instances(InstanceFilter(name=name, after=after), MAX_PAGE):
        for info in found:
            yield info
        after = (found[-1].created_at, found[-1].instance_id)


async def _read(client: Client, info: InstanceInfo) -> Past:
    rows = await client._provider.list_executions(info.instance_id, MAX_PAGE)
    numbers = sorted(row.execution_id for row in rows)
    return Past(info, [await _read_run(client, info.instance_id, number) for number in numbers])


async def _read_run(client: Client, instance_id: str, execution_id: int) -> Run:
    texts = await read_whole_history(client._provider, instance_id, execution_id)
    origins = await client._provider.read_origins(instance_id, execution_id)
    return Run(execution_id, [decode_event(text) for text in texts], {one.event_id: one for one in origins})
