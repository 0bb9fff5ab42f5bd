"""Steps, and parts of a wake: durable before the wake ends, so that its next attempt does not repeat them.

A step is a row of the journal (`journal.Step`), which the end of the wake removes. A part is a `JournalWrite`
of its own, with the entries so far and the state. Both commit under the lock of the wake's activity, each in one
transaction, together with what other tasks of the wake have ready by then.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import anyio
from pydantic_core import from_json, to_json

from affinity.conversation import step_errors
from affinity.conversation.endings import RunningCode
from affinity.conversation.events import ToolResult, kind_of
from affinity.conversation.journal import Entry, JournalWrite, Step
from affinity.conversation.kept_state import KeptState, is_kept
from affinity.conversation.known_wakes import given_work
from affinity.conversation.run_rows import OF_RUN
from affinity.conversation.sections import StepCount
from affinity.conversation.step_keys import GIVEN, TOKEN, step_key
from affinity.conversation.wake_parts import WakeParts
from affinity.conversation.writing import WakeWriting
from affinity.errors import (
    InvalidInput,
    InvalidOptions,
    PayloadTooLarge,
    StepInterrupted,
    StepMismatch,
    TokenUnknown,
    WakeMisuse,
    errors_in,
)
from affinity.limits import (
    MAX_BATCH_BYTES,
    MAX_TOKEN,
    MAX_WAKE_STEPS,
    check_choice,
    check_id,
    check_payload,
    check_text,
    seconds_of,
)
from affinity.orchestration import RetryPolicy
from affinity.orchestration.codec import Codec
from affinity.orchestration.definitions import is_async
from affinity.orchestration.signals import RetryAfter
from affinity.records import StateWrite
from affinity.redaction import redacted
from affinity.tasks import call_any
from affinity.user_code import describe_error

if TYPE_CHECKING:
    from affinity.effects.connections import AsyncConnection, SyncConnection

AnyConnection: TypeAlias = "AsyncConnection | SyncConnection"

Repeat: TypeAlias = Literal["always", "never"]

Place: TypeAlias = tuple[str, str] | tuple[str, str, int]
"""What names a step in its wake: its name and its key; or its name, the digest of its arguments, and its ordinal from 1
among the steps that have both, in the order in which they begin. So steps may run at the same time without keys.
"""

ONCE: Final = RetryPolicy(max_attempts=1)

BEGUN: Final = "begun"
"""First part of the keys of the steps of `WakeSteps.begin_once`."""

STEP: Final = "step"
"""Part of the keys of the steps of `WakeSteps.run`, before the place of the step."""

TOOL_RESULT: Final = kind_of(ToolResult)

PART: Final = "part"
"""Key of the step that says that a wake has committed a part. The other keys are lists in JSON: see `step_keys`."""

logger: logging.Logger = logging.getLogger("affinity.conversation")


def part_step(parts: WakeParts) -> Step:
    """Return the step of a part: it tells readers up to which number its attempt has read the inputs."""
    return Step(parts.wake_id, PART, result=str(parts.writing.processed))


class StepScope:
    """Where places name steps: a wake, or a run of several wakes (`affinity.conversation.wake_runs`)."""

    def __init__(self, wake_id: str, *prefix: str) -> None:
        """``wake_id``: in the rows. ``prefix``: the first parts of their keys."""
        self.wake_id, self._prefix = wake_id, prefix
        self._numbers: Counter[tuple[str, str]] = Counter()
        """How many steps without a key have begun, by name and digest of the arguments."""
        self._running: set[Place] = set()
        self._idle = anyio.Event()

    def key(self, *parts: str | int) -> str:
        """Return the key of a row."""
        return step_key(*self._prefix, *parts)

    def next_equal(self, name: str, arguments: str) -> Place:
        """Return the place of the next one without a key."""
        self._numbers[name, arguments] += 1
        return name, arguments, self._numbers[name, arguments]

    @contextmanager
    def step(self, name: str, key: str | None, arguments: str) -> Iterator[Place]:
        """Yield the place of a step, which runs in the block."""
        place = self.next_equal(name, arguments) if key is None else (name, check_id(key, "key of a step"))
        if place in self._running:
            raise WakeMisuse(f"step {name!r} with the key {key!r} runs already")
        self._running.add(place)
        try:
            yield place
        finally:
            self._running.discard(place)
            if not self._running:
                self._idle.set()
                self._idle = anyio.Event()

    async def wait_until_idle(self) -> None:
        """Wait until no step runs."""
        if self._running:
            await self._idle.wait()


class WakeSteps:
    """The steps of one attempt of a wake, and of the attempts before it, with those of its runs."""

    def __init__(self, parts: WakeParts) -> None:
        self._parts = parts
        self._writing = parts.writing
        self.kept: KeptState = parts.kept
        """The state in the attempts."""
        self._has_given = any(step.key == GIVEN and step.wake_id == parts.wake_id for step in parts.writing.work.steps)
        self._scope = StepScope(parts.wake_id)
        steps = [step for step in parts.writing.work.steps if not (is_kept(step) or step.key == GIVEN)]
        steps = [step for step in steps if step.wake_id != OF_RUN]
        # Earlier wakes that were cancelled or have failed had the same inputs: what they have begun once counts.
        before = [step for step in steps if step.wake_id != parts.wake_id and step.key != PART]
        before.sort(key=lambda step: step.wake_id == parts.tried_with)  # its rows count, where others have the same key
        self._before = {step.key: step for step in before}
        self._done = parts.writing.run_steps | {step.key: step for step in steps if step.wake_id == parts.wake_id}
        self._others = _StepsOfOthers(self._before, self._writing, is_used=parts.tried_with is not None)
        self.has_parts: bool = PART in self._done
        """True if earlier attempts of the wake have committed entries."""
        self._size = sum([len(step.result or "") for step in self._done.values()])
        self._count = StepCount(recorded=0, run=0)

    async def commit(self) -> None:
        """Commit the additions of the wake so far, and the state."""
        async with self._parts.committing:
            self._writing.check_known()
            await self._commit_state()

    def note_given(self) -> None:
        """The wake has more inputs than before: the next commit says so, for the next attempts."""
        self._has_given = False

    def count(self) -> StepCount:
        """Return the number of steps that were recorded before, and of those that have run."""
        return self._count

    def has_begun(self, key: str) -> bool:
        """Return whether `begin_once` was called with this key."""
        return self._find_begun(step_key(BEGUN, key)) is not None

    async def begin_once(self, key: str) -> bool:
        """Record that something begins; False: it has begun before."""
        begun = step_key(BEGUN, check_id(key, "key of a step"))
        if self._find_begun(begun) is not None:
            return False
        await self._write(self._scope, begun)
        return True

    def _find_begun(self, key: str) -> Step | None:
        return self._done.get(key) or self._before.get(key)

    async def keep_token(self, token: str) -> None:
        """See `Wake.keep_token`."""
        running = _running_step.get()
        if running is None or running.steps is not self:
            raise WakeMisuse("keep_token is for the function of a step, and its resume: call it there")
        check_payload(check_text(token, "token of a step"), "token of a step", MAX_TOKEN)
        await self._write(running.scope, running.token_key, running.arguments, to_json(token).decode())

    @property
    def is_in_step(self) -> bool:
        """True within the function of a step."""
        running = _running_step.get()
        return running is not None and running.steps is self

    async def _write(self, scope: StepScope, key: str, arguments: str = "", result: str | None = None) -> None:
        self._add(Step(scope.wake_id, key, arguments, result))
        await self._commit_steps()

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        *,
        key: str | None,
        retry: RetryPolicy | None,
        timeout: float | timedelta | None,
        repeat: Repeat,
        once: AnyConnection | None,
        resume: Callable[[str], Any] | None,
        scope: StepScope | None = None,
    ) -> Any:
        """See `Wake.step`. ``scope``: of a run; by default of the wake."""
        scope = scope or self._scope
        check_choice("repeat", repeat, Repeat, InvalidOptions)
        if once is not None and repeat == "never":
            raise InvalidOptions("once=… and repeat='never': with a connection a step is repeated, and has one effect")
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        codec = Codec(_result_type(function), f"result of step {name!r}")
        arguments = digest_of(args)
        with scope.step(check_id(name, "name of a step"), key, arguments) as place:
            row = scope.key(STEP, *place)
            found = self._find(row, arguments, name)
            if found is None and scope is self._scope:
                found = self._others.find(place, row, arguments)
            begun = scope.key(BEGUN, STEP, *place) if repeat == "never" or once is not None else None
            running = _RunningStep(self, scope, scope.key(TOKEN, *place), arguments)
            token = self._find_token(running) if found is None and resume is not None else None
            if found is None and begun is not None and once is None:
                found = self._find_earlier(row, begun, arguments, name, has_token=token is not None)
            if found is not None and found.result is not None:
                self._count = self._count._replace(recorded=self._count.recorded + 1)
                self.kept.meet_step(found)
                return codec.decode(found.result)
            self._count = self._count._replace(run=self._count.run + 1)
            if begun is not None and once is not None:
                function = self._in_block(function, once, await self._begin(scope, begun, arguments), codec, name)
            elif begun is not None and token is None:
                await self._write(scope, begun, arguments)
            before, code = self.kept.digest(), self._parts.endings.begin()
            within = _running_step.set(running)
            try:
                around = partial(self._parts.around, "step", name, None)
                call = partial(call_any, code.watch(around(function)), *args, limit=seconds)
                if resume is not None:
                    found_again = partial(call_any, code.watch(around(resume)), limit=seconds)
                    call = partial(self._resume_or_call, running, found_again, call, code, repeat)
                value = await self._attempt(code, call, retry or ONCE, row)
                await self._add_done(Step(scope.wake_id, row, arguments, result := codec.encode(value)), before)
            except Exception as error:
                if (
                    begun is not None and once is None and not isinstance(error, StepInterrupted)
                ):  # its outcome is known
                    failed = Step(scope.wake_id, begun, arguments, step_errors.to_row(error))
                    await self._add_done(failed, before)
                    code.settle()
                    await self._commit_steps()
                raise
            finally:
                _running_step.reset(within)
                code.settle()
            await self._commit_steps()
            return codec.decode(result)

    def _find_token(self, running: _RunningStep) -> str | None:
        """Return the token that the function of this step has kept last."""
        found = self._find_begun(running.token_key)
        if found is None or found.arguments != running.arguments or found.result is None:
            return None
        return str(from_json(found.result))

    async def _resume_or_call(
        self,
        running: _RunningStep,
        resume: Callable[[str], Awaitable[Any]],
        call: Callable[[], Awaitable[Any]],
        code: RunningCode,
        repeat: Repeat,
    ) -> Any:
        """Return what ``resume`` has for the token of the step; without a token, call the function."""
        token = self._find_token(running)
        if token is None:
            return await call()
        try:
            return await resume(token)
        except TokenUnknown as error:
            if repeat == "never":
                raise StepInterrupted(
                    self._writing.session_id,
                    f"a step has begun, and its token {token!r} is not known any more: find out, and go on with "
                    "another step",
                ) from error
            code.begin_again()
            return await call()

    async def _begin(self, scope: StepScope, begun: str, arguments: str) -> Step:
        """Return the row of a step that is repeated until it is done: it says in which wake it has begun first."""
        earlier = self._find_begun(begun)
        if earlier is None or earlier.arguments != arguments:
            await self._write(scope, begun, arguments)
            return self._done[begun]
        return earlier

    def _in_block(
        self, function: Callable[..., Any], once: AnyConnection, begun: Step, codec: Codec, name: str
    ) -> Callable[..., Any]:
        """Return the function in a block of `affinity.once`, named by the row ``begun``, perhaps of an earlier wake."""
        from affinity.effects.once import OnceWork, run_once  # few steps need it

        key = to_json([self._writing.work.journal_id, begun.wake_id, begun.key, begun.arguments])
        work = OnceWork(
            key=sha256(key).hexdigest(),
            instance_id=self._writing.session_id,
            activity=f"step {name}",
            attempt=0,  # it may go on in a later wake, whose attempts begin at 1
            context=self._parts.context,
            codec=codec,
        )
        return run_once(function, work, once, is_async_function=is_async(function))

    def _find_earlier(self, row: str, begun: str, arguments: str, name: str, *, has_token: bool) -> Step | None:
        """Return the row of a step that is not begun a second time. None: it has not begun, or goes on by its token.

        Raises:
            StepFailed: an earlier attempt, or an earlier wake, has begun it, and it has raised.
            StepInterrupted: it has begun, and its outcome is not known.
        """
        earlier = self._find_begun(begun)
        if earlier is None:
            return None
        if earlier.result is not None:
            self.kept.meet_step(earlier)
            raise step_errors.from_row(self._writing.session_id, earlier.result)
        done = self._before.get(row)
        if done is not None and done.arguments == arguments:
            return done
        if has_token:
            return None
        raise StepInterrupted(
            self._writing.session_id,
            f"step {name!r} of wake {earlier.wake_id} has begun in an earlier attempt, and its outcome is not known: "
            "find out, and go on with another step",
        )

    def _find(self, row: str, arguments: str, name: str) -> Step | None:
        found = self._done.get(row)
        if found is not None and found.arguments != arguments:
            raise StepMismatch(
                f"step {name!r} was done with other arguments under this key: use a key for each set of arguments"
            )
        return found

    async def _attempt(
        self, code: RunningCode, call: Callable[[], Awaitable[Any]], policy: RetryPolicy, row: str
    ) -> Any:
        """Return the result of the call, in as many attempts as the policy allows."""
        begun, failures = anyio.current_time(), 0
        while True:
            try:
                return await call()
            except Exception as error:
                if any(isinstance(each, RetryAfter) for each in errors_in(error)):
                    raise  # of the wake, which gives up its slots meanwhile
                failures += 1
                pause = policy.delay(failures, row)
                if not policy.retries(error, failures, anyio.current_time() - begun + pause):
                    raise
                text = "step %s failed and is retried in %.1f s (attempt %d): %s: %s"
                logger.warning(text, row, pause, failures, *describe_error(redacted(error)))
                code.begin_again()
                await anyio.sleep(pause)

    # -- committing

    def _add(self, step: Step) -> None:
        """Write a step with the next commit.

        Raises:
            InvalidInput, PayloadTooLarge: a wake has as many steps as it may have, or their results are too large.
        """
        size = self._size + len(step.result or "")
        if len(self._done) >= MAX_WAKE_STEPS and step.key not in self._done:
            raise InvalidInput(
                f"the wake has {MAX_WAKE_STEPS} steps with those of its runs, the limit: do more in each, or in a "
                "later wake"
            )
        if size > MAX_BATCH_BYTES // 2:
            raise PayloadTooLarge(
                f"the steps of the wake have {size} bytes of results, over the limit of {MAX_BATCH_BYTES // 2}: keep "
                "large results in a store, and return their names"
            )
        self._size = size
        self._done[step.key] = step
        if step.wake_id == OF_RUN:
            self._writing.run_steps[step.key] = step
        self._writing.steps.append(step)

    async def _add_done(self, step: Step, before: bytes | None) -> None:
        """Write a step that is done with the next commit, with the state, unless that has the digest ``before``."""
        rows = await self.kept.step_rows(step, before)
        self._add(step)
        self._writing.steps.extend(rows)

    async def _commit_steps(self) -> None:
        async with self._parts.committing:
            await self._parts.endings.settle()
            self._writing.check_known()  # another task may have taken the steps, and lost them
            if self._writing.steps:
                await self._commit(None, self._writing.take_steps())

    async def _commit_state(self) -> None:
        opening, writing = self._parts.opening, self._writing
        assert opening is not None
        if writing.creations:  # they begin with the inputs that the wake has processed
            return
        if self.kept.meet_commit(has_additions=writing.has_additions_beside(self._parts.trace.entries)):
            return
        self.kept.add_rest()
        if not self.kept.is_recorded():
            writing.steps += await self.kept.commit_rows()
        if writing.has_entries:
            await self._parts.stream.settle()
        await self._parts.endings.settle()
        taken: list[JournalWrite] = []

        async def commit(state: StateWrite | None) -> None:
            await self._commit_part(state, taken[0])

        with self._losing(taken):
            await opening.checkpoint(commit=commit, on_dump=lambda: taken.append(self._take_part()))

    def begin_section(self, name: str) -> Callable[[], Awaitable[None]]:
        """Begin a section. Return a function that commits all additions of the wake so far, and keeps the state for the
        next attempt.
        """
        key, known = self.kept.begin_section(name)

        async def commit() -> None:
            nonlocal known
            async with self._parts.committing:
                self._writing.check_known()
                known = await self._commit_section(key, known)

        return commit

    async def _commit_section(self, key: str, known: bytes | None) -> bytes | None:
        """Commit all additions, with the state, unless it has this digest. Return its digest."""
        writing, snapshots, digest = self._writing, self.kept.snapshots, known
        if writing.creations:
            return known
        if writing.has_additions:
            await self._parts.stream.settle()

        async def commit(state: StateWrite | None) -> None:
            nonlocal digest
            await self._parts.endings.settle()
            dumped, taken = snapshots.dump(), [self._take_part()]
            with self._losing(taken):
                row, digest = await self.kept.section_row(key, dumped, known)
                await self._commit_part(state, taken[0], [] if row is None else [row])

        await (snapshots.write_resources(commit) if snapshots.has_new_resources else commit(None))
        return digest

    def _take_part(self) -> JournalWrite:
        """Return the additions so far, as a part."""
        part, trace = self._writing.take_part(), self._parts.trace
        gone = {id(entry) for entry in part.entries}
        trace.entries[:] = [entry for entry in trace.entries if id(entry) not in gone]
        return part

    @contextmanager
    def _losing(self, taken: Sequence[JournalWrite]) -> Iterator[None]:
        """Keep the wake from ending well after an error in the block: which of the taken parts were committed is not
        known.
        """
        try:
            yield
        except BaseException as error:
            if taken:
                self._writing.lost = error
            raise

    async def _commit_part(self, state: StateWrite | None, part: JournalWrite, rows: Sequence[Step] = ()) -> None:
        if state is None and not (rows or part.entries or part.requests or part.revisits or part.appends or part.steps):
            return
        steps = [*part.steps, *rows]
        if (step := part_step(self._parts)) != self._done.get(PART):
            self._done[PART] = step
            steps.append(step)
        part = replace(part, steps=steps)
        await self._commit(state, part)
        self._parts.journals.note_written(part)
        if part.clear_stream:
            self._parts.stream.show_again()

    async def _commit(self, state: StateWrite | None, part: JournalWrite) -> None:
        """Commit a part. After an error the outcome is not known: the wake must not end well."""
        self._parts.require_running()
        if not self._has_given:
            given = to_json(given_work(self._writing.work)).decode()
            part = replace(part, steps=[*part.steps, Step(self._parts.wake_id, GIVEN, result=given)])
            self._has_given = True
        try:
            await self._parts.context._commit_now(state=state, part=part)
        except BaseException as error:
            self._writing.lost = error
            raise


class _RunningStep(NamedTuple):
    """The step whose function runs."""

    steps: WakeSteps
    scope: StepScope
    token_key: str
    arguments: str


_running_step: Final[ContextVar[_RunningStep | None]] = ContextVar("affinity.conversation.step", default=None)


class _StepsOfOthers:
    """The steps of earlier wakes that had several inputs, for a later wake that has one of them: of the one that has
    failed with them, and of wakes before it that were cancelled, or have failed before a reset.

    A step that was done there is not done again. One without a key has another ordinal there, which counts the steps of
    the other inputs: the first that is left is taken. The others stay for the wakes of these.
    """

    def __init__(self, before: dict[str, Step], writing: WakeWriting, *, is_used: bool) -> None:
        self._is_used = is_used
        self._before, self._writing = before, writing
        self._by_place: dict[tuple[str, str, int], list[Step]] = {}
        for step in [*before.values()] if is_used else ():
            match from_json(step.key):
                case [*_, str(name), str(arguments), int(number)]:
                    self._by_place.setdefault((name, arguments, number), []).append(before.pop(step.key))

    def find(self, place: Place, row: str, arguments: str) -> Step | None:
        """Return the row of a step that was done there. A step that had begun there is known here afterwards."""
        if not self._is_used:
            return None
        match place:
            case (_, _, int(number)):
                self._move(place[0], arguments, number)
        found = self._before.get(row)
        return found if found is not None and found.arguments == arguments else None

    def _move(self, name: str, arguments: str, number: int) -> None:
        first = min((place for place in self._by_place if place[:2] == (name, arguments)), default=None)
        if first is None:
            return
        for step in self._by_place.pop(first):
            *parts, _ = from_json(step.key)
            self._before[step_key(*parts, number)] = step
            if step in self._writing.kept_steps:
                self._writing.kept_steps.remove(step)


class Committed:
    """The entries that earlier attempts of a wake have committed, without its trace. An equal entry that this attempt
    appends is not written again. Results of tools are always written: models use the id of a call again.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._left = [entry for entry in entries if entry.kind != TOOL_RESULT]

    def take(self, kind: str, is_same: Callable[[str], bool]) -> Entry | None:
        """Take the first remaining entry of this kind with the same payload: it is used once."""
        for place, each in enumerate(self._left):
            if each.kind == kind and is_same(each.payload):
                return self._left.pop(place)
        return None


_result_types: Final[WeakKeyDictionary[Callable[..., Any], Any]] = WeakKeyDictionary()
"""Result types of functions: to read a signature takes longer than all else that a step does in memory."""


def _result_type(function: Callable[..., Any]) -> Any:
    """Return the annotated type of its result; ``Any`` without an annotation."""
    if not inspect.isfunction(function):
        return _read_result_type(function)
    if function not in _result_types:
        _result_types[function] = _read_result_type(function)
    return _result_types[function]


def _read_result_type(function: Callable[..., Any]) -> Any:
    try:
        found = inspect.signature(function, eval_str=True).return_annotation
    except (TypeError, ValueError, NameError):
        return Any
    return Any if found is inspect.Signature.empty else found


def digest_of(args: Sequence[Any]) -> str:
    """Return a digest that tells arguments apart. A value without a JSON form counts by its type; so does an argument
    that contains itself, or half of a character.
    """
    try:
        text = _digested(list(args))
    except ValueError:
        text = b"[" + b",".join(map(_digested_alone, args)) + b"]"
    return sha256(text).hexdigest()[:32]


def _digested(value: object) -> bytes:
    return to_json(value, inf_nan_mode="strings", fallback=lambda part: str(type(part)))


def _digested_alone(argument: object) -> bytes:
    try:
        return _digested(argument)
    except ValueError:
        return _digested(str(type(argument)))
