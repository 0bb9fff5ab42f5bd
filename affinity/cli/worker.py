"""``affinity worker``."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import click

from affinity.cli.loading import load_app
from affinity.cli.shell import FAILED, SIGNALLED, Command, Shell, command
from affinity.worker import RuntimeOptions, Worker

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("affinity.worker")

STUCK_SECONDS: Final = 1.0
"""How long activities that ignore their cancellation may still keep a worker that has otherwise ended."""


YOUNG_OBJECTS: Final = 10_000
"""Objects made, less those freed, before the youngest are looked through for garbage."""


class _Flag(NamedTuple):
    option: str  # of `RuntimeOptions`
    name: str
    type: type[int | float | str]
    help: str


FLAGS: Final = (
    _Flag("worker_node_id", "--node-id", str, "Stable name; a restart under it keeps the sessions  [default: random]"),
    _Flag("worker_concurrency", "--concurrency", int, "Activities that run at once."),
    _Flag("max_sessions_per_runtime", "--max-sessions", int, "Sessions held at once; 0: take no session work."),
    _Flag("session_lock_timeout", "--session-lock-timeout", float, "A session without work is free after this."),
    _Flag("session_min_idle", "--session-min-idle", float, "Without work for this, it makes room for new ones."),
    _Flag("worker_lease_timeout", "--worker-lease-timeout", float, "A dead worker's work is free after this."),
    _Flag("work_item_lock_timeout", "--work-item-lock-timeout", float, "An item not renewed is free after this."),
    _Flag("startup_timeout", "--startup-timeout", float, "How long to wait for a database that does not answer."),
    _Flag("poll_interval", "--poll-interval", float, "Longest wait for a wake-up before looking anyway."),
    _Flag("instance_cache_size", "--instance-cache-size", int, "Orchestrations kept in memory between turns."),
    _Flag("instance_cache_bytes", "--instance-cache-bytes", int, "Bytes of their histories."),
    _Flag("max_batch_bytes", "--max-batch-bytes", int, "Bytes of one fetch, history page or commit."),
    _Flag("max_outstanding_bytes", "--max-outstanding-bytes", int, "Bytes fetched and not written yet."),
    _Flag("max_attempts", "--max-attempts", int, "Interrupted deliveries before an activity fails as poison."),
    _Flag("unregistered_timeout", "--unregistered-timeout", float, "How long work waits for a worker that knows it."),
    _Flag("drain_timeout", "--drain-timeout", float, "Time of running activities after the first signal."),
    _Flag("stall_timeout", "--stall-timeout", float, "A worker stuck for this long gives up its lease."),
    _Flag("session_retention", "--session-retention", float, "How long an expired session's row is kept."),
    _Flag(
        "instance_retention",
        "--instance-retention",
        float,
        "Completed instances are removed after this  [default: never]",
    ),
    _Flag(
        "history_retention",
        "--history-retention",
        float,
        "Histories before continue_as_new are removed after this  [default: never]",
    ),
    _Flag("code_version", "--code-version", str, "Tells this release's code from others'  [default: a digest of it]"),
    _Flag("metrics_port", "--metrics-port", int, "Serve metrics and /live there; 0 picks a port  [default: none]"),
    _Flag("metrics_host", "--metrics-host", str, "Address of that port  [default: 127.0.0.1]"),
)
"""One for each option of a worker; `RuntimeOptions` says more, checks them together, and reads the environment."""


def _runtime_flags(function: F) -> F:
    for flag in reversed(FLAGS):
        default = RuntimeOptions.model_fields[flag.option].default
        unit = " s" if flag.type is float else ""
        shown = f"  [default: {default:g}{unit}]" if isinstance(default, (int, float)) else ""
        function = click.option(flag.name, flag.option, type=flag.type, help=flag.help + shown)(function)
    return function


@click.command(cls=Command, short_help="Run the orchestrations and activities of an app.")
@click.argument("target", metavar="MODULE:APP")
@_runtime_flags
@click.option("--migrate/--no-migrate", default=True, help="Bring the schema up to date first (safe for many at once).")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@command
def worker(shell: Shell, *, target: str, migrate: bool, log_level: str, **flags: Any) -> None:
    """Run the orchestrations and activities of the app that MODULE:APP names.

    Start as many as you like, on as many machines as you like; with SQLite, on one machine. The first SIGTERM or Ctrl-C
    drains: running activities end or are given back, sessions are free at once. The second stops now: what runs is
    cut off, and its work is free for others. Exit code 0 after SIGTERM, 143 when a second one cut it short, 130 after
    Ctrl-C, 1 when an activity did not end though it was cancelled.

    Durations are seconds. Every flag can be given by the environment instead: AFFINITY_WORKER_NODE_ID,
    AFFINITY_MAX_SESSIONS_PER_RUNTIME, AFFINITY_<OPTION>, as `affinity.RuntimeOptions` names them.

    Examples:
      affinity worker support:app
      affinity worker support:app --node-id "$HOSTNAME" --max-sessions 50 --url postgresql://db/app
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    options = RuntimeOptions.from_environment(**flags)
    running = Worker(load_app(target), shell.url, options, migrate=migrate)
    _spare_the_collector()
    ended_by = anyio.run(_run, running, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    report = {"worker_id": options.worker_node_id, "signal": ended_by.name, "drained": running.drained}
    shell.show(report, lambda: None)
    if ended_by is signal.SIGINT or not running.drained:
        click.get_current_context().exit(SIGNALLED + ended_by)


def _spare_the_collector() -> None:
    """Modules and the app live as long as the process, and live coroutines for a long time: looking through them again
    and again for garbage took a thirteenth of a busy worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


async def _run(running: Worker) -> signal.Signals:
    try:
        return await running.serve()
    finally:
        if stuck := running.stuck:
            logger.error(
                "activities that do not end when they are cancelled: %s; ending without them", ", ".join(stuck)
            )
            _end_soon()


def _end_soon() -> None:
    """End the process even if a thread, or a coroutine that swallows its cancellation, would keep it for ever."""
    timer = threading.Timer(STUCK_SECONDS, os._exit, [FAILED])
    timer.daemon = True
    timer.start()
