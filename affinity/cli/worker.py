"""``affinity worker``: options, signals, exit codes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar, get_args

import anyio
import click

from affinity.cli.arguments import DURATION
from affinity.cli.loading import load_app
from affinity.cli.logs import LogFormat, configure_logging
from affinity.cli.shell import Shell, command
from affinity.composed.options import RuntimeOptions
from affinity.composed.worker import Worker
from affinity_workflows import SIGNALLED, STUCK

F = TypeVar("F", bound=Callable[..., Any])

_NUMBERS: Final = {int: "INTEGER", float: "FLOAT"}

logger: logging.Logger = logging.getLogger("affinity.worker")

STUCK_SECONDS: Final = 1.0
"""How long activities that ignore their cancellation may still keep a worker that has otherwise ended."""

YOUNG_OBJECTS: Final = 50_000
"""Allocations, less deallocations, between two collections of the youngest objects: 200 wakes that run have 20,000."""


def _runtime_options(function: F) -> F:
    """Give the command a flag for each of `RuntimeOptions`, which reads the environment and checks the values."""
    for option in reversed(RuntimeOptions.describe()):
        text = f"{option.description.replace('`', '')}  [default: {option.default}]"
        kind, metavar = option.type, None
        if option.has_none:  # the flag lifts what a variable sets; `RuntimeOptions` reads the number
            kind, metavar = str, f"{_NUMBERS.get(option.type, 'TEXT')}|none"
        function = click.option(option.flag, option.name, type=kind, metavar=metavar, help=text)(function)
    return function


@command()
@click.argument("target", metavar="MODULE:APP")
@_runtime_options
@click.option(
    "--migrate/--no-migrate",
    default=True,
    envvar="AFFINITY_MIGRATE",
    show_envvar=True,
    help="Bring the schema up to date first (safe for many workers).",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    envvar="AFFINITY_LOG_LEVEL",
    show_envvar=True,
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    envvar="AFFINITY_LOG_FORMAT",
    show_envvar=True,
    show_default=True,
    help="Lines for people, or a JSON object a line; with worker, instance and session.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="End with 0 when nothing is left that this worker could run, now or within a second.",
)
@click.option(
    "--for",
    "most",
    type=DURATION,
    help="With --until-idle: end after this time at the latest, and within it wait for what becomes due: 90s, 10m.",
)
def worker(
    shell: Shell,
    *,
    target: str,
    migrate: bool,
    log_level: str,
    log_format: LogFormat,
    until_idle: bool,
    most: float | None,
    **flags: Any,
) -> None:
    """Run the orchestrations and activities of the app that MODULE:APP names.

    Start as many as you like, on as many machines as you like; with SQLite, on one machine. SIGTERM,
    SIGHUP or Ctrl-C drains: running activities end or are given back, and sessions are released. Ctrl-C during the
    drain stops immediately: running activities are cancelled, and their work is free for other workers. A further
    SIGTERM or SIGHUP changes nothing. Exit code 0 after SIGTERM or SIGHUP, 128 and the signal's number when Ctrl-C cut
    its drain short (143, 129), 130 after Ctrl-C, 8 when an activity did not end though it was cancelled. Code that
    blocks the event loop keeps it from draining: then a second Ctrl-C ends the process, or any signal does so once the
    loop has stood still for AFFINITY_STALL_TIMEOUT (exit code 8).

    --until-idle is for cron jobs and containers that run for a while: the worker runs what is due, and ends with 0.
    Work that another worker has is left to that one, and suspended instances stay suspended. With --for it also waits
    for timers, delayed starts, retries and schedules that are due within that time. When the time is over, it drains
    and ends with 0 too; the next worker continues with what is left.

    Durations are seconds. Every flag can be given by the environment instead: AFFINITY_WORKER_NODE_ID,
    AFFINITY_MAX_SESSIONS_PER_RUNTIME, AFFINITY_<OPTION>, as `affinity.RuntimeOptions` names them; AFFINITY_MIGRATE=no,
    AFFINITY_LOG_LEVEL, AFFINITY_LOG_FORMAT, AFFINITY_URL.

    Examples:
      affinity worker support:app
      affinity worker support:app --node-id "$HOSTNAME" --max-sessions 50 --url postgresql://db/app
      affinity worker support:app --until-idle --for 10m
    """
    if most is not None and not until_idle:
        raise click.UsageError("--for is only meaningful with --until-idle")
    options = RuntimeOptions.from_environment(**flags)
    configure_logging(log_level, log_format, options.worker_node_id)
    running = Worker(load_app(target), shell.url, options, migrate=migrate)
    _spare_the_collector()
    serve = partial(running.serve_until_idle, most) if until_idle else running.serve
    ended_by = anyio.run(_run, running, serve, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    name = None if ended_by is None else ended_by.name
    shell.show({"worker_id": options.worker_node_id, "signal": name, "drained": running.drained}, lambda: None)
    if ended_by is not None and (ended_by is signal.SIGINT or not running.drained):
        click.get_current_context().exit(SIGNALLED + ended_by)


def _spare_the_collector() -> None:
    """Modules and the app live as long as the process, and live coroutines for a long time: collections that traverse
    them took a thirteenth of a busy worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


async def _run(
    running: Worker, serve: Callable[[], Coroutine[Any, Any, signal.Signals | None]]
) -> signal.Signals | None:
    try:
        return await serve()
    finally:
        if stuck := running.stuck:
            logger.error(
                "activities that do not end when they are cancelled: %s; ending without them", ", ".join(stuck)
            )
            _end_soon()


def _end_soon() -> None:
    """End the process even if a thread, or a coroutine that swallows its cancellation, would keep it forever."""
    timer = threading.Timer(STUCK_SECONDS, os._exit, [STUCK])
    timer.daemon = True
    timer.start()
