"""External events, and the waits for them.

Events and waits of one name are matched first come, first served. No event is lost. An event that arrives before the
wait is buffered. An event of a wait that is cancelled before the code reads it returns to its place. An event that does
not fit the type of a wait is offered to the others, and then stays in the buffer, for a later wait of another type.
Events that are unread when the execution continues as new are carried over.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from affinity.headers import Headers
from affinity.orchestration.events import Carried, CarriedEvent


class EventWait(Protocol):
    """A wait for one external event: `EventFuture`."""

    name: str

    def accepts(self, arrival: Arrival) -> bool:
        """Whether the event fits the type of the wait; a refusal is added to its `Arrival.refusals`."""
        ...

    def receive(self, data: str, key: str | None) -> None:
        """Take the event, which fits, and the key with which it was raised."""
        ...

    def cancel(self) -> None:
        """Stop waiting; an event that no code has read goes back to the inbox."""
        ...

    def _owned_by(self, task: object) -> bool:
        """Whether this task created it."""
        ...


@dataclass(slots=True, eq=False)
class Arrival:
    """An external event that has arrived."""

    order: int
    """Its number among the events of the execution; 0 or less if the former execution had received it."""
    data: str
    key: str | None
    refusals: list[object] = field(default_factory=list)
    """The types that it does not fit, of the waits that have refused it."""
    headers: Headers | None = None
    """The headers with which it was raised."""


class Inbox:
    """The external events of one execution."""

    __slots__ = ("_arrivals", "_buffers", "_unread", "_waiting", "buffered", "buffered_size")

    def __init__(self) -> None:
        self.buffered: int = 0
        """Events that no wait has received, refused ones included."""
        self.buffered_size: int = 0
        """Characters of their data."""
        self._arrivals = 0
        self._buffers: dict[str, deque[Arrival]] = {}
        self._waiting: dict[str, deque[EventWait]] = {}
        self._unread: dict[EventWait, Arrival] = {}

    def arrive(self, name: str, data: str, key: str | None = None, headers: Headers | None = None) -> None:
        """Give a new event to the first wait for its name, or buffer it."""
        self._arrivals += 1
        self._place(name, Arrival(self._arrivals, data, key, headers=headers))

    def carry(self, carried: Carried) -> None:
        """Take over the unread events of the former execution; they precede all that arrived in this one."""
        for order, (name, data, key, headers) in enumerate(carried, 1 - len(carried)):
            self._place(name, Arrival(order, data, key, headers=headers))

    def wait(self, future: EventWait) -> None:
        """Give the future the oldest event of its name that it accepts, now or on arrival."""
        buffer = self._buffers.get(future.name, ())
        arrival = next((arrival for arrival in buffer if future.accepts(arrival)), None)
        if arrival is None:
            self._waiting.setdefault(future.name, deque()).append(future)
        else:
            self._take(future.name, arrival)
            self._hand_over(future, arrival)

    def leave(self, future: EventWait) -> None:
        """Remove a wait that has received no event."""
        queue = self._waiting.get(future.name)
        if queue and future in queue:
            queue.remove(future)
            if not queue:
                del self._waiting[future.name]

    def read(self, future: EventWait) -> Arrival | None:
        """Mark the event of this future as read. Return it; None: it was read before."""
        return self._unread.pop(future, None)

    def give_back(self, future: EventWait) -> None:
        """Give the unread event of a cancelled future to the next wait."""
        arrival = self._unread.pop(future, None)
        if arrival is not None:
            self._place(future.name, arrival)

    def unread(self) -> list[EventWait]:
        """Futures whose event was not read."""
        return list(self._unread)

    def leftovers(self) -> Carried:
        """All unread events, in the order of their arrival."""
        held = [(arrival, name) for name, buffer in self._buffers.items() for arrival in buffer]
        held += [(arrival, future.name) for future, arrival in self._unread.items()]
        held.sort(key=lambda each: each[0].order)
        return tuple(CarriedEvent(name, arrival.data, arrival.key, arrival.headers) for arrival, name in held)

    def _place(self, name: str, arrival: Arrival) -> None:
        taker = next((future for future in self._waiting.get(name, ()) if future.accepts(arrival)), None)
        if taker is None:
            self._buffer(self._buffers.setdefault(name, deque()), arrival)
        else:
            self.leave(taker)
            self._hand_over(taker, arrival)

    def _take(self, name: str, arrival: Arrival) -> None:
        """Remove an event from its buffer."""
        buffer = self._buffers[name]
        if buffer[0] is arrival:
            buffer.popleft()
        else:
            buffer.remove(arrival)
        if not buffer:
            del self._buffers[name]
        self.buffered -= 1
        self.buffered_size -= len(arrival.data)

    def _buffer(self, buffer: deque[Arrival], arrival: Arrival) -> None:
        self.buffered += 1
        self.buffered_size += len(arrival.data)
        if buffer and arrival.order < buffer[-1].order:  # returned: it arrived before the buffered ones
            insort(buffer, arrival, key=attrgetter("order"))
        else:
            buffer.append(arrival)

    def _hand_over(self, future: EventWait, arrival: Arrival) -> None:
        self._unread[future] = arrival
        future.receive(arrival.data, arrival.key)
