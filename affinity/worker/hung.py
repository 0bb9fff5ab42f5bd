"""The end of a process whose event loop stands still: a signal reaches it, and nothing that could drain.

The interpreter runs the handlers of signals between two steps of whatever the main thread does, also of code that never
yields. The loop learns of each signal too, through its own file descriptor. What this leaves behind is what a crash
leaves: leases that end. Code that never gives back the interpreter, as some extensions, is beyond reach.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

from affinity.worker.lease import LoopProgress
from affinity_workflows import SIGNALLED, STUCK

logger = logging.getLogger("affinity.worker")

BLOCKED_SECONDS: Final = 1.0
"""A loop that stands still for so long counts as blocked."""

LOOK_SECONDS: Final = 0.5

LOG_SECONDS: Final = 1.0
"""The last line may wait for so long: what it is written to may be what the loop waits for."""


@contextlib.contextmanager
def ended_though_hung(worker_id: str, stall_timeout: float, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Within the block these signals end the process even if the loop cannot take them: as soon as it has stood still
    for ``stall_timeout`` seconds (exit code 8), or at once at a SIGINT that is not the first signal (128 and the number
    of the first one). To be entered behind the loop's own handlers, in the main thread.
    """
    progress = LoopProgress()
    with progress.beating():
        guard = _Guard(worker_id, stall_timeout, progress)
        for number in numbers:
            signal.signal(number, guard.came)  # which interrupts calls of the system, such as a `recv` that blocks
        try:
            yield
        finally:
            guard.is_over.set()


class _Guard:
    def __init__(self, worker_id: str, stall_timeout: float, progress: LoopProgress) -> None:
        self._worker_id = worker_id
        self._stall_timeout = stall_timeout
        self._progress = progress
        self._first: signal.Signals | None = None
        self._asked_at = 0.0
        self.is_over = threading.Event()

    def came(self, number: int, _: object) -> None:
        """The handler of the signals."""
        if self.is_over.is_set():
            return
        still, now = self._progress.stands_still_for(), time.monotonic()
        if self._first is None:
            self._first, self._asked_at = signal.Signals(number), now
            threading.Thread(target=self._wait, name="affinity end", daemon=True).start()
        elif number == signal.SIGINT and still > max(now - self._asked_at, BLOCKED_SECONDS):
            text = f"the event loop has been blocked for {still:.0f} s; ending without it"
            threading.Thread(target=self._end, args=(text, SIGNALLED + self._first), daemon=True).start()

    def _wait(self) -> None:
        """End the process once its lease is given up, unless the loop takes the signal."""
        assert self._first is not None
        if self._progress.stands_still_for() > BLOCKED_SECONDS:
            text = (
                "the event loop is blocked, and nothing can drain until it moves; the process ends when it has stood "
                f"still for {self._stall_timeout:g} s (stall_timeout), and Ctrl-C ends it now"
            )
            self._log(logging.WARNING, f"{self._first.name}: {text}")
        while not self.is_over.wait(LOOK_SECONDS):
            if self._progress.stands_still_for() > self._stall_timeout:
                self._end("the event loop has stood still for stall_timeout; ending without it", STUCK)

    def _end(self, text: str, code: int) -> NoReturn:
        log = threading.Thread(target=self._log, args=(logging.ERROR, text), daemon=True)
        log.start()
        log.join(LOG_SECONDS)
        os._exit(code)

    def _log(self, level: int, text: str) -> None:
        logger.log(level, "worker %s: %s", self._worker_id, text)
