"""The room of a worker: slots for work items, sessions, and bytes of payloads in memory."""

from __future__ import annotations

import os

from affinity.limits import MIN_SHARE
from affinity.provider.contract import OFFER_SECONDS
from affinity.worker.activities import ActivityRunner
from affinity.worker.commits import Commits
from affinity.worker.lease import worker_tags
from affinity.worker.options import PACK
from affinity.worker.services import WorkerPart, WorkerServices
from affinity.worker.sessions import HeldSessions
from affinity.worker.turns import TurnPlacement

CORES = min(MIN_SHARE, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
"""Session-free items of one turn that a worker starts by itself while others could have them: one for each core, and a
few at most, since one Python process hardly uses more.
"""

LEAST_BATCH = 4
"""A fetch waits until there is room for a batch divided by this: many small fetches cost more than they save."""


class Capacity(WorkerPart):
    """The room that a worker has now."""

    def __init__(
        self, services: WorkerServices, activities: ActivityRunner, sessions: HeldSessions, commits: Commits
    ) -> None:
        super().__init__(services)
        self.input_size = 0
        """Characters of the messages and results that are in no committed turn yet."""
        self.placement: TurnPlacement = TurnPlacement(worker_tags(services.options), sessions.tag_of)
        """Which new work of a turn this worker may run, by tags."""
        self._concurrency = services.options.worker_concurrency
        self._max_bytes = services.options.max_outstanding_bytes
        self._batch_bytes = services.options.max_batch_bytes
        self._most_outstanding = self._max_bytes - self._batch_bytes // LEAST_BATCH
        self._activities = activities
        self._sessions = sessions
        self._commits = commits

    # -- slots

    def free_slots(self) -> int:
        """Slots that no work item has, and that no turn in flight has asked for."""
        return self._activities.free_slots - self._state.reserved_slots

    def slots_for_new_work(self) -> int:
        """How many new work items this worker would run immediately.

        None while items in the queue wait for a slot. One less while a fetch is due, which may find such an item.
        """
        state = self._state
        if state.has_backlog or not self._lease.is_serving or self.outstanding_bytes > self._most_outstanding:
            return 0
        slots = self._activities.free_slots - state.reserved_slots - (state.may_have_work or state.own_wanted)
        return slots if slots > 0 else 0

    def slots_for_plain_work(self) -> int:
        """How many new session-free items of one turn this worker would run immediately, if it has slots for them.

        A worker that is alone runs all of them. Otherwise it runs as many as it has idle cores, and at least one: a
        chain of single steps stays on its worker.
        """
        if self._state.workers == 1:
            return self._concurrency
        return max(1, CORES - self._activities.busy_threads)

    # -- sessions

    def try_reserve_session(self, session_id: str) -> bool:
        """Reserve room for a session that a turn offers to this worker, until the offer ends.

        False: there is no room, workers of newer code have room, the session is held here, or placement is ``pack``.
        """
        if session_id in self._sessions or self._state.is_outdated or self._options.placement == PACK:
            return False  # an item of it is locked here, or another worker has it by now, or should have it
        if self._session_room() <= 0:
            self._drop_old_reservations()
        if self._session_room() <= 0:
            return False
        self._state.reserved_sessions[session_id] = self._monotonic() + OFFER_SECONDS
        return True

    def _session_room(self) -> int:
        held = len(self._sessions) + len(self._state.reserved_sessions)
        return self._options.max_sessions_per_runtime - held

    def _drop_old_reservations(self) -> None:
        now, reserved = self._monotonic(), self._state.reserved_sessions
        self._state.reserved_sessions = {s: end for s, end in reserved.items() if end > now and s not in self._sessions}

    # -- bytes

    @property
    def outstanding_bytes(self) -> int:
        """Approximate bytes of fetched inputs and of their results that are not committed yet."""
        return self._activities.size + self.input_size + self._commits.size

    def free_bytes(self, running: int = 0) -> int:
        """How many bytes the next fetch may bring; 0 while there is too little room (`LEAST_BATCH`).

        Payloads of activities that are ``running`` count for the fetch of other activities only: activities may wait
        for messages, while all else is written sooner or later.
        """
        outstanding = self.outstanding_bytes - self._activities.size + running
        return min(self._max_bytes - outstanding, self._batch_bytes) if outstanding <= self._most_outstanding else 0
