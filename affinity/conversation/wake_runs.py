"""Runs of several wakes: their steps keep their results until the run ends.

A run is the rows of its steps (`journal.Step`), which have no wake, and the id of the run in their keys: the wake in
which it has begun, and its number there. The end of a wake writes the rows again of the runs that go on. A run without
rows need not be known: it begins anew.

A request of a run is a row too. The wake that has processed its answer, whether it runs the block or not, puts the
answer into that row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, overload

from anyio.lowlevel import checkpoint
from pydantic_core import to_json

from affinity.conversation.events import (
    AnswerEvent,
    ConfirmationAnswer,
    CustomToolResult,
    CustomToolUse,
    JournalEvent,
    RequestEvent,
    RequestExpired,
    ToolConfirmation,
)
from affinity.conversation.journal import JournalQuery, Step
from affinity.conversation.reading import all_entries
from affinity.conversation.run_rows import INPUTS, OF_RUN, REQUEST, RUN, order_of, run_begun_in, runs_in
from affinity.conversation.step_calls import StepCalls
from affinity.conversation.step_keys import step_key
from affinity.conversation.steps import StepScope, WakeSteps, digest_of
from affinity.errors import WakeMisuse, errors_in
from affinity.limits import MAX_PAGE
from affinity.orchestration.signals import ControlSignal
from affinity.records import parse_stored

if TYPE_CHECKING:
    from affinity.conversation.wake_parts import WakeParts


class RunPaused(ControlSignal):
    """Leaves the block of a run that waits, and the blocks of others within it: see `WakeRun.pause`."""

    def __init__(self, run: WakeRun) -> None:
        super().__init__(f"run {run.name!r} waits")
        self.run = run


class WakeRun(StepCalls):
    """A run of several wakes: see `Wake.run`.

    Attributes:
        name: of the run.
        id: the same in each wake in which it goes on.
        events: the events of the wake in which it began.
        is_paused: the block was left to wait; a later wake goes on in it.
    """

    def __init__(self, name: str, run_id: str, parts: WakeParts, steps: WakeSteps, require: Callable[..., Any]) -> None:
        """Called by the wake."""
        self.name: str = name
        self.id: str = run_id
        self.events: Sequence[JournalEvent] = [entry.event for entry in parts.inputs.pending]
        self.is_paused: bool = False
        self._has_ended = False
        self._parts, self._steps, self._require = parts, steps, require
        self._scope = StepScope(OF_RUN, RUN, name, run_id)

    async def _step(self, name: str, function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Any:
        self._check_open()
        return await self._steps.run(name, function, args, **options, scope=self._scope)

    @overload
    async def require(
        self, request: ToolConfirmation, /, *, expires_in: float | timedelta | None = ...
    ) -> ConfirmationAnswer: ...
    @overload
    async def require(
        self, request: CustomToolUse, /, *, expires_in: float | timedelta | None = ...
    ) -> CustomToolResult: ...
    @overload
    async def require(
        self, request: RequestEvent, /, *, expires_in: float | timedelta | None = ...
    ) -> JournalEvent: ...
    async def require(self, request: RequestEvent, /, *, expires_in: float | timedelta | None = None) -> JournalEvent:
        """Ask a person, or the client, and return the answer. Until it is there, this leaves the block: the wake goes
        on behind it, and a later wake that runs the block again gets the answer here.

        A request is known in its run by its content, and its place among equal ones. Several may wait at the same time.

        Args:
            request: as of `Wake.require`.
            expires_in: as of `Wake.require`.

        Returns:
            The `AnswerEvent`; or `RequestExpired`, for a request of the application to which no answer came in time.

        Raises:
            WakeMisuse: it is called in the function of a step, or see `Wake.require`.
            SessionError, InvalidInput, InvalidOptions, NotSerializable, PayloadTooLarge: see `Wake.require`.
        """
        self._check_open()
        if self._steps.is_in_step:
            raise WakeMisuse("require leaves the block of the run: call it there, and not in the function of a step")
        digest = digest_of([request.model_dump(mode="json", exclude={"request_id"})])
        key = self._scope.key(REQUEST, *self._scope.next_equal(request.kind, digest))
        row = self._parts.writing.run_steps.get(key)
        if row is not None and (answer := self._answer(row)) is not None:
            return answer
        if row is None or not self._is_pending(row):  # an interrupt has dropped it, which no wake has read then
            made = self._require(request, expires_in=expires_in)
            result = to_json({"request": made.request_id}).decode()
            self._parts.writing.run_steps[key] = Step(OF_RUN, key, digest, result)
        await self.pause()

    async def pause(self) -> NoReturn:
        """Leave the block, when the steps of this run have ended that run now. The results stay, and a later wake goes
        on in the block: at a revisit, such as ``wake.revisit(60)``, or another input.

        Raises:
            WakeMisuse: the block was left before.
            SessionError: the handler has ended.
        """
        self._check_open()
        for _ in range(_TURNS):
            await checkpoint()
        await self._scope.wait_until_idle()
        raise RunPaused(self)

    def _answer(self, row: Step) -> JournalEvent | None:
        known = parse_stored(row.result or "{}")
        if "answer" in known:
            return self._parts.kind.types.decode(known["kind"], known["answer"])
        for entry in self._parts.inputs.pending:
            if isinstance(entry.event, AnswerEvent | RequestExpired) and entry.event.request_id == known["request"]:
                return entry.event
        return None

    def _is_pending(self, row: Step) -> bool:
        request_id = parse_stored(row.result or "{}")["request"]
        return any(request.request_id == request_id for request in self._parts.inputs.requests)

    def _check_open(self) -> None:
        self._parts.require_running()
        if self._has_ended or self.is_paused:
            raise WakeMisuse(f"the block of run {self.name!r} was left: its steps and requests are made within it")

    async def _begin(self) -> None:
        """Read the events of the wake in which it began."""
        writing, key = self._parts.writing, self._scope.key(INPUTS)
        row = writing.run_steps.get(key)
        if row is None:
            given = {"after": writing.work.processed, "read": writing.processed}
            writing.run_steps[key] = Step(OF_RUN, key, result=to_json(given).decode())
        elif run_begun_in(self.id) != self._parts.wake_id:
            given = parse_stored(row.result or "{}")
            query = JournalQuery(
                session_id=writing.session_id, after=given["after"], before=given["read"] + 1, limit=MAX_PAGE
            )
            entries = all_entries(self._parts.journals.read, query)
            self.events = [self._parts.kind.types.read(entry).event async for entry in entries if entry.is_input]

    @asynccontextmanager
    async def _block(self) -> AsyncIterator[WakeRun]:
        await self._begin()
        try:
            yield self
        except BaseException as error:
            pauses = [each for each in errors_in(error) if isinstance(each, RunPaused)]
            self.is_paused = len(pauses) == len(errors_in(error))
            self._has_ended = not self.is_paused
            if self._has_ended or any(each.run is not self for each in pauses):
                raise
        else:
            self._has_ended = True


_TURNS: Final = 10
"""Turns of the event loop before a block is left: tasks that have begun together reach their steps and requests."""


class WakeRuns:
    """The runs of a wake."""

    def __init__(self, parts: WakeParts, steps: WakeSteps, require: Callable[..., Any]) -> None:
        self._parts, self._steps, self._require = parts, steps, require
        self._known: dict[str, list[str]] = {}
        for name, run_id in sorted(runs_in(parts.writing.run_steps), key=lambda run: order_of(run[1])):
            self._known.setdefault(name, []).append(run_id)
        self._opened: dict[str, list[WakeRun]] = {}

    def open(self, name: str) -> AbstractAsyncContextManager[WakeRun]:
        """See `Wake.run`."""
        opened = self._opened.setdefault(name, [])
        if opened and not opened[-1]._has_ended:
            how = "waits" if opened[-1].is_paused else "goes on"
            raise WakeMisuse(f"a run {name!r} {how} in this wake: give this one another name")
        known = self._known.get(name, [])
        number = len(opened) + 1
        run_id = known.pop(0) if known else f"{self._parts.wake_id}.{number}"
        run = WakeRun(name, run_id, self._parts, self._steps, self._require)
        opened.append(run)
        return run._block()

    def end(self, rows: dict[str, Step]) -> None:
        """Remove the rows of the runs that have ended: those whose block was left, and those that an earlier attempt of
        this wake has begun, and this one has not.
        """
        opened = {(run.name, run.id): run for each in self._opened.values() for run in each}
        for name, run_id in runs_in(rows):
            run = opened.get((name, run_id))
            if not (run.is_paused if run is not None else run_begun_in(run_id) != self._parts.wake_id):
                prefix = step_key(RUN, name, run_id)[:-1] + ","
                for key in [key for key in rows if key.startswith(prefix)]:
                    del rows[key]
