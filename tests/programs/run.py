"""Runs a random program, and judges the database at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
from opentelemetry.sdk.trace import ReadableSpan

import affinity
from affinity import PayloadCodec
from affinity.blobs import Blobs
from affinity.testing import Env
from affinity.testing.env.processes import ProcessEnv
from tests.programs import interpreter, payments, rest, rest_blobs, rollouts
from tests.programs.areas import AREAS
from tests.programs.areas.conversations.handler import calls_of
from tests.programs.calls import used
from tests.programs.databases import Databases
from tests.programs.faults import Faults
from tests.programs.play import Play
from tests.programs.program import Program, Size, over_outages
from tests.support.span_exporter import traced

TARGET: Final = f"{rollouts.__name__}:GOOD"
"""Where worker processes find the app."""

PATIENCE: Final[Mapping[Size, float]] = {"small": 300.0, "any": 300.0, "large": 3600.0}
"""Real seconds after which a program hangs."""


@dataclass
class Totals:
    """Counts of the runs so far."""

    programs: int = 0
    turns: int = 0  # turns of instances that were committed
    commits: int = 0
    faults: int = 0
    suspensions: int = 0  # commits that suspended instances
    jumps: int = 0

    def add(self, env: Env, faults: Faults) -> None:
        """Count one program."""
        self.programs += 1
        self.turns += env._traffic.turns
        self.commits += env._traffic.commits
        self.faults += faults.done
        self.suspensions += faults.suspensions
        self.jumps += env.jumps


async def run(
    program: Program,
    where: str | Databases | None = None,
    totals: Totals | None = None,
    *,
    processes: bool = False,
    size: Size = "any",
    codec: PayloadCodec | None = None,
    blobs: Blobs | None = None,
) -> None:
    """Run a program with its faults; then let everything go on, and check it.

    Args:
        program: the program.
        where: a PostgreSQL database, or a server with databases; None: SQLite.
        totals: is added to.
        processes: each worker is a process, which a crash ends by SIGKILL.
        size: how long it may take.
        codec: encodes all payloads; not with ``processes``.
        blobs: keep large payloads; not with ``processes``.

    Raises:
        AssertionError: a rule is broken.
    """
    totals = Totals() if totals is None else totals
    outside = nullcontext if where is None or isinstance(where, str) else where.faults
    if where is not None and not isinstance(where, str) and where.has_outages:
        program = over_outages(program)
    with traced() if program.traced else nullcontext() as spans, payments.used():
        async with _env(program, where, codec, blobs, processes=processes) as env:
            await _run(env, program, totals, size, outside)
            assert payments.paid_twice() == []
    if spans is not None:
        _check_spans(spans.get_finished_spans())


async def _run(
    env: Env,
    program: Program,
    totals: Totals,
    size: Size,
    outside: Callable[[], AbstractAsyncContextManager[None]],
) -> None:
    play = Play(env, calls_of(env.client), has_faults=bool(program.faults or program.rollout), size=size)
    play.calls.on_repeated = play.tick_often
    play.calls.now = lambda: env.now().timestamp()
    faults = Faults(play, program.faults, program.rollout)
    env._traffic.on_commit = faults.on_commit
    try:
        with anyio.fail_after(PATIENCE[size]), used(play.calls), _user(env, program), _headers(program):
            with ExitStack() as frozen:
                async with outside():
                    seen = await _play(play, program)
                    frozen.enter_context(env.freeze())  # calls of clients may wait for what never happens
                faults.end()
                await play.end()
                await env.run_until_idle()
                await rollouts.go_on(play, program.rollout)
            await play.end_calls()
            for name, part in program.parts.items():
                await AREAS[name].check(play, part, seen[name])
            await rest.check(env)
            await rest_blobs.check(env)
            await _check_audit(env, program)
    except TimeoutError as error:
        error.add_note(describe(env))
        raise
    finally:
        await play.close()
        totals.add(env, faults)


def describe(env: Env) -> str:
    """The state of an env that does not come to rest, for a message."""
    traffic = env._traffic
    lines = [f"{env.jumps} jumps, {traffic.in_flight} calls in flight, {traffic.changes} changes"]
    for one in env._workers:
        what = f"alive {one.is_alive}, unwritten {one.has_unwritten}, has looked {one.has_looked}"
        lines.append(f"{one.identity.worker_id}: runs code {one.runs_code}, {what}")
    return "\n".join(lines)


def _user(env: Env, program: Program) -> AbstractContextManager[None]:
    return env.client.acting_as(program.user, source="program") if program.user else nullcontext()


def _headers(program: Program) -> AbstractContextManager[None]:
    """Half of the programs send headers with all calls; a middleware of the workers looks at them."""
    return affinity.use_headers(interpreter.HEADERS) if program.traced else nullcontext()


async def _check_audit(env: Env, program: Program) -> None:
    """Calls of clients have entries of the user, each of one of the actions; without a user there is none."""
    entries = [each async for each in env.client.audit()]
    verbs = [each for each in entries if "_" in each.action and each.action != "save_record"]  # which workers call
    wrong = verbs if program.user else entries
    assert not wrong, f"not of an action of a user: {wrong}"


def _check_spans(spans: Sequence[ReadableSpan]) -> None:
    """An execution has one span at most, whatever is replayed, and by whatever worker."""
    executions = Counter(each.context.span_id for each in spans if each.name.startswith("execute "))
    assert [number for number in executions.values() if number > 1] == []


def _env(
    program: Program, where: str | Databases | None, codec: PayloadCodec | None, blobs: Blobs | None, *, processes: bool
) -> Env:
    make: Callable[..., Env] = (
        partial(ProcessEnv, rollouts.GOOD, TARGET)
        if processes
        else partial(Env, rollouts.GOOD, codec=codec, blobs=blobs)
    )
    url = where if isinstance(where, str) else None
    env = make(url=url, workers=program.workers, options=program.options.runtime())
    if where is not None and not isinstance(where, str):
        env._create_database = where.create  # type: ignore[method-assign]
    return env


async def _play(play: Play, program: Program) -> Mapping[str, Any]:
    """All areas at the same time; the clock moves beside them."""
    seen: dict[str, Any] = {}

    async def one(name: str, part: Any) -> None:
        seen[name] = await AREAS[name].run(play, part)

    async with anyio.create_task_group() as driver:
        driver.start_soon(play.drive)
        async with anyio.create_task_group() as tasks:
            for name, part in program.parts.items():
                tasks.start_soon(one, name, part)
        play.stop()
    return seen
