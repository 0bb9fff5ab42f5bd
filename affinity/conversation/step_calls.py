"""`step` of a wake, and of a run of several wakes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from affinity.conversation.steps import AnyConnection, Repeat
from affinity.orchestration import RetryPolicy

T = TypeVar("T")
Args = TypeVarTuple("Args")


class StepCalls:
    """What has steps."""

    @overload
    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Args]], Awaitable[T]],
        /,
        *args: *Args,
        key: str | None = ...,
        retry: RetryPolicy | None = ...,
        timeout: float | timedelta | None = ...,
        repeat: Repeat = ...,
        once: AnyConnection | None = ...,
        resume: Callable[[str], Awaitable[T] | T] | None = ...,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Args]], T],
        /,
        *args: *Args,
        key: str | None = ...,
        retry: RetryPolicy | None = ...,
        timeout: float | timedelta | None = ...,
        repeat: Repeat = ...,
        once: AnyConnection | None = ...,
        resume: Callable[[str], Awaitable[T] | T] | None = ...,
    ) -> T: ...
    async def step(  # type: ignore[misc]  # mypy compares options behind *args with the arguments
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | timedelta | None = None,
        repeat: Repeat = "always",
        once: AnyConnection | None = None,
        resume: Callable[[str], Any] | None = None,
    ) -> Any:
        """Run a function once: its result is committed before this returns, and the next attempt of the wake gets that
        result without running it. It takes a commit, which writes the result alone.

        A step that has begun and has no result when its process ends runs again, unless ``repeat`` is "never".

        Args:
            name: of the step, in logs.
            function: async, or sync, which runs in a thread. Its result needs a JSON form, by its annotation.
            args: of the function.
            key: names the step within its name. Without one it is named by its arguments, and by its place among the
                steps of this name that have equal ones: with other arguments it is another step. Values without a JSON
                form are equal if they are of one type.
            retry: the policy for errors of the function; by default it is not tried again.
            timeout: seconds, or a timedelta, of one attempt of the function; a thread is left behind.
            repeat: "never": it is not begun a second time.
            once: a connection to a database of yours, by which the function changes tables of yours: what it writes
                commits with its result, once, as a block of `affinity.once`. A step that has begun and has no result
                runs again, unless the table ``affinity_once`` has its result. It takes a second commit, as "never"
                does. For a function that is not async, a connection without ``await``.
            resume: a function, async or sync, that returns the result of a call that has begun. It is asked in place of
                the function, with the token that this has kept last (`Wake.keep_token`): in a later attempt of the
                step, and after a crash. If it raises `TokenUnknown`, the step runs again; one that is not repeated is
                interrupted.

        Raises:
            StepInterrupted: ``repeat`` is "never", and the process of an earlier attempt ended in the step. The attempt
                may be of an earlier wake that was interrupted or has failed, and whose inputs this wake has too.
            StepFailed: ``repeat`` is "never", and the function has raised in that attempt.
            StepMismatch: a step of this key was done with other arguments.
            OnceMisuse, SchemaMismatch, RetryAfter: see `affinity.effects.OnceBlock`.
            InvalidOptions: ``once`` and ``repeat="never"``; or the connection is async, and the function is not.
            WakeMisuse: another step of this name and key runs.
            SessionWriteConflict, SessionError: see `Wake.commit`.
            InvalidInput: the wake has too many steps, or an argument is out of bounds.
            NotSerializable, PayloadTooLarge: the result has no JSON form, or is too large.
            Exception: the error of the function, or ``TimeoutError``. It is kept if ``repeat`` is "never".
        """
        return await self._step(
            name, function, args, key=key, retry=retry, timeout=timeout, repeat=repeat, once=once, resume=resume
        )

    async def _step(self, name: str, function: Callable[..., Any], args: Sequence[Any], **options: Any) -> Any:
        raise NotImplementedError
