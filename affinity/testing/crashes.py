"""`crash_matrix`: a scenario, once with a crash at each commit of its workers."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import anyio

from affinity.composed.app import App
from affinity.composed.options import RuntimeOptions
from affinity.errors import ConnectionLost, CrashMatrixFailed, InvalidInput
from affinity.testing.env import Env
from affinity.testing.env.environment import create_postgres
from affinity.testing.env.processes import ProcessEnv, find_app
from affinity.testing.env.traffic import Commit, OnCommit
from affinity.testing.env.waiting import EnvDatabase

T = TypeVar("T")

CrashMode: TypeAlias = Literal["before", "after", "lost", "kill"]
"""What happens at a commit: the worker crashes before it, or after it; it is done and its answer is lost; or the
process of the worker is killed about then, with SIGKILL.
"""

MODES: Final[Sequence[CrashMode]] = ("before", "after", "lost")

RESTARTS: Final = 0.7
"""Share of the crashes after which the worker starts again. After the others, another worker takes over."""

KILL_SECONDS: Final = 0.003
"""Up to so long after the begin of a commit its process is killed: before it, in it, or after it."""

MAX_FAILURES: Final = 10
"""The matrix ends after so many: most come from one defect."""


class CrashPoint(NamedTuple):
    """A commit, by its number from 1, and what happens there."""

    commit: int
    mode: CrashMode


@dataclass(frozen=True, slots=True)
class CrashFailure:
    """A run that has failed."""

    point: CrashPoint
    what: str  # the commit, and what happened there
    error: Exception

    def __str__(self) -> str:
        return f"{self.what}: {type(self.error).__name__}: {self.error}"


@dataclass(slots=True)
class CrashMatrix:
    """The result of `crash_matrix`."""

    seed: int
    commits: int = 0
    """Commits of the undisturbed run."""
    runs: int = 0
    """Runs with a crash or a lost answer."""
    hit: int = 0
    """Runs of them that came to their commit: the number of commits may vary."""
    failures: list[CrashFailure] = field(default_factory=list)

    def __str__(self) -> str:
        return f"crash_matrix: {self.commits} commits, {self.runs} runs, {self.hit} of them hit; seed={self.seed}"


async def crash_matrix(
    app: App | Callable[[], App],
    scenario: Callable[[Env], Awaitable[T]],
    check: Callable[[Env, T], Awaitable[None] | None],
    *,
    workers: int = 1,
    url: str | None = None,
    options: RuntimeOptions | None = None,
    max_jump: timedelta = timedelta(days=3650),
    kills: int = 3,
    seed: int | None = None,
    only: tuple[int, CrashMode] | None = None,
    timeout: float = 60.0,
) -> CrashMatrix:
    """Run a scenario once for each commit of its workers, with a crash before it, with a crash after it, and with a
    lost answer: the commit is done, and the worker cannot know it.

    ::

        async def scenario(env: Env) -> str:
            run = await env.client.start(order, "tea", instance_id="o-1")
            return await run.wait()

        async def check(env: Env, outcome: str) -> None:
            assert outcome == "delivered"

        await crash_matrix(app, scenario, check)

    A first run, undisturbed, learns the number of commits. Each run has an `Env` of its own. After a crash the worker
    starts again under its name, or another one takes over; the seed decides. The result is printed.

    Args:
        app: what the workers run; or a function that returns it, called for each run, where code keeps state outside of
            affinity.
        scenario: the client's part. Its calls go on while a worker is down.
        check: receives the env and what the scenario has returned, and asserts; it returns None. It may be
            async. It is called when nothing runs and nothing is due (`Env.run_until_idle`).
        workers: how many.
        url: a PostgreSQL database; see `Env`.
        options: of the workers.
        max_jump: see `Env`.
        kills: so many runs more, in which each worker is a process of its own, and one is killed by SIGKILL at a commit
            that the seed decides. These processes import the app, so it is at the top level of a module.
            `Env.fake` and `Env.fail_calls` are refused there.
        seed: for the same decisions again.
        only: one point alone, as a failure names it.
        timeout: seconds of real time for each run.

    Raises:
        CrashMatrixFailed: runs have failed; it names them, and how to repeat each.
        InvalidInput: an argument is refused; the check has returned a value; or the app cannot be imported, and
            ``kills`` is not 0.
        Exception: what the scenario or the check raises in the undisturbed run.
    """
    matrix = CrashMatrix(secrets.randbits(32) if seed is None else seed)
    target = _check_arguments(app, kills, only)
    async with _kept_schema(url) as database:
        setup = _Setup(app, scenario, check, workers, database, options, max_jump, timeout, matrix.seed)
        matrix.commits = len(await setup.learn())
        for point in [CrashPoint(*only)] if only else _points(matrix, kills):
            await _run_point(matrix, setup, point, target)
            if len(matrix.failures) >= MAX_FAILURES:
                break
    print(matrix)
    if matrix.failures:
        raise _failed(matrix) from matrix.failures[0].error
    return matrix


@asynccontextmanager
async def _kept_schema(url: str | None) -> AsyncIterator[EnvDatabase | None]:
    """A schema that all runs use, one after another; None: each has an SQLite file of its own."""
    if url is None:
        yield None
        return
    database = await create_postgres(url)
    try:
        await database.keep()
        yield database
    finally:
        await database.drop()


def _check_arguments(app: App | Callable[[], App], kills: int, only: tuple[int, CrashMode] | None) -> str:
    """Where worker processes find the app; "" if there will be none."""
    if kills < 0:
        raise InvalidInput(f"kills = {kills}: must be at least 0")
    if only is not None and (only[0] < 1 or only[1] not in (*MODES, "kill")):
        raise InvalidInput(f"only = {only!r}: must be the number of a commit, from 1, and one of {(*MODES, 'kill')}")
    needed = only[1] == "kill" if only is not None else kills > 0
    return find_app(app) if needed else ""


def _points(matrix: CrashMatrix, kills: int) -> Iterator[CrashPoint]:
    for commit in range(1, matrix.commits + 1):
        for mode in MODES:
            yield CrashPoint(commit, mode)
    drawn = Random(matrix.seed)  # noqa: S311 -- not a secret
    for commit in drawn.sample(range(1, matrix.commits + 1), min(kills, matrix.commits)):
        yield CrashPoint(commit, "kill")


async def _run_point(matrix: CrashMatrix, setup: _Setup[Any], point: CrashPoint, target: str) -> None:
    fault = _Fault(point, setup.seed)
    matrix.runs += 1
    try:
        await setup.run(fault, target if point.mode == "kill" else "")
    except Exception as error:
        failure = CrashFailure(point, str(fault), error)
        matrix.failures.append(failure)
        if len(matrix.failures) == 1:
            print(f"crash_matrix: {failure}; {_repeat(matrix, point)}")  # the others may take their time
    matrix.hit += fault.is_hit


def _failed(matrix: CrashMatrix) -> CrashMatrixFailed:
    first, *others = matrix.failures
    lines = [
        f"{len(matrix.failures)} of {matrix.runs} runs failed ({matrix.commits} commits, seed={matrix.seed}); first:",
        str(first),
        _repeat(matrix, first.point),
        *(["the others: " + ", ".join(str(tuple(each.point)) for each in others)] if others else []),
        *([f"the matrix ended after {MAX_FAILURES} failures"] if len(matrix.failures) == MAX_FAILURES else []),
    ]
    failed = CrashMatrixFailed("\n".join(lines), [each.point for each in matrix.failures])
    for note in getattr(first.error, "__notes__", ()):
        failed.add_note(note)
    return failed


def _repeat(matrix: CrashMatrix, point: CrashPoint) -> str:
    return f"repeat it by crash_matrix(…, seed={matrix.seed}, only={tuple(point)!r})"


class _Fault:
    """The faults of one run, as `Traffic.on_commit`."""

    def __init__(self, point: CrashPoint, seed: int) -> None:
        self._point = point
        drawn = Random(f"{seed}/{point.commit}/{point.mode}")  # noqa: S311 -- not a secret
        self._restarts = drawn.random() < RESTARTS
        self._delay = drawn.uniform(0, KILL_SECONDS)
        self._commit: Commit | None = None
        self.env: Env

    @property
    def is_hit(self) -> bool:
        """Whether the run has come to its commit."""
        return self._commit is not None

    def __str__(self) -> str:
        number, mode = self._point
        at = f"commit {number}" + ("" if self._commit is None else f" ({self._commit})")
        if self._commit is None:
            return f"no crash: the run did not come to {at}"
        if mode == "lost":
            return f"the answer to {at} was lost"
        how = "was killed about" if mode == "kill" else f"crashed {mode}"
        return f"the worker {how} {at} and {'started again' if self._restarts else 'another one took over'}"

    async def at_commit(self, commit: Commit, done: bool) -> None:
        """Do it, if this is the commit.

        Raises:
            ConnectionLost: what the worker gets.
        """
        number, mode = self._point
        if commit.number != number or done is (mode in ("before", "kill")):
            return
        self._commit = commit
        if mode != "lost":
            delay = self._delay if mode == "kill" else None
            self.env._crash_in_commit(commit.worker_id, restart=self._restarts, delay=delay)
        if mode != "kill":
            raise ConnectionLost(f"crash_matrix: {mode}")


@dataclass(frozen=True, slots=True)
class _Setup(Generic[T]):
    """The common arguments of all runs."""

    app: App | Callable[[], App]
    scenario: Callable[[Env], Awaitable[T]]
    check: Callable[[Env, T], Awaitable[None] | None]
    workers: int
    database: EnvDatabase | None
    options: RuntimeOptions | None
    max_jump: timedelta
    timeout: float
    seed: int

    async def learn(self) -> Sequence[Commit]:
        """The commits of the undisturbed run."""
        commits: list[Commit] = []

        async def note(commit: Commit, done: bool) -> None:
            if not done:
                commits.append(commit)

        try:
            await self._run(self._env(""), note)
        except Exception as error:
            error.add_note("crash_matrix: this was the undisturbed run, which ends when nothing is due any more")
            raise
        return commits

    async def run(self, fault: _Fault, target: str) -> None:
        """One run with a fault; with a ``target`` the workers are processes."""
        fault.env = self._env(target)
        await self._run(fault.env, fault.at_commit)

    def _env(self, target: str) -> Env:
        app = self.app if isinstance(self.app, App) else self.app()
        make: Callable[..., Env] = partial(ProcessEnv, app, target) if target else partial(Env, app)
        env = make(workers=self.workers, options=self.options, max_jump=self.max_jump)
        env._given = self.database
        return env

    async def _run(self, env: Env, on_commit: OnCommit) -> None:
        async with env:
            with anyio.fail_after(self.timeout):
                env._traffic.on_commit = on_commit
                outcome = await self.scenario(env)
                await env.run_until_idle()
                env._traffic.on_commit = None
                found: object = self.check(env, outcome)
                if inspect.isawaitable(found):
                    found = await found
                if found is not None:
                    raise InvalidInput(f"check asserts; it returned {found!r}, which has no effect")
