"""`affinity.once`: a block of an activity whose effect is in tables of the application, and happens once.

The table ``affinity_once`` of the application's database has a row for each block that has committed, with its result.
The row is written in the transaction of the block. So it is there exactly when the effect is.

* An attempt that finds a result gets it, and runs nothing.
* Of two attempts that run at the same time, the second waits at the row. If the first one commits, the second gets its
  result. If the first one rolls back, the second runs.
* From the second attempt on, a block that begins the transaction itself first commits a row with the number of the
  attempt. An earlier attempt that is late finds it, and is refused with `LateAttempt`, also if the later one failed.
* An attempt that has lost its lease, or was cancelled, is refused at the beginning of the block and at its end, if its
  process knows by then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Any, Final, Generic, NoReturn, Protocol, Self, TypeAlias, TypeVar, cast, overload

from affinity.effects.connections import (
    FAILED,
    AsyncConnection,
    AsyncTransaction,
    Row,
    SyncConnection,
    Transaction,
    is_async,
    open_async,
    open_sync,
)
from affinity.errors import InvalidOptions, LateAttempt, OnceMisuse, SchemaMismatch, TransactionFailed
from affinity.limits import check_id
from affinity.orchestration import ActivityContext
from affinity.orchestration.codec import Codec
from affinity.orchestration.signals import RetryAfter

T = TypeVar("T")

TABLE: Final = "affinity_once"

AGAIN_AFTER: Final = 0.5
"""Seconds until an activity runs again whose block has lost to another transaction."""

_CONTENTION: Final = frozenset({"40001", "40P01", "55P03"})
"""SQLSTATEs: serialization_failure, deadlock_detected, lock_not_available."""

_NO_TABLE: Final = "42P01"

_FAILED: Final = "25P02"
"""in_failed_sql_transaction."""

_REFUSED: Final = frozenset({"PendingRollbackError", "TransactionManagementError"})
"""Classes of errors with which SQLAlchemy and Django refuse a statement in a transaction that has failed."""

_NOT_DONE: Final = ""
"""The result of a row whose block has begun: see ``claim`` in once.sql."""

_Steps: TypeAlias = Generator[Callable[[Any], Any], Any, T]
"""Yields calls of a `Transaction`, or of an `AsyncTransaction`, and takes what they return."""


class CallContext(Protocol):
    """The context of a tool: an `affinity.agent.ToolContext`."""

    @property
    def idempotency_key(self) -> str:
        """See there."""
        ...

    @property
    def wake(self) -> Any:
        """See there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceWork:
    """The work whose block runs once."""

    key: str
    """The same in each attempt, and of no other work."""
    instance_id: str
    activity: str
    attempt: int
    """Greater than that of earlier attempts; 0: they cannot be told apart."""
    context: ActivityContext
    """Of the attempt."""
    codec: Codec
    """Of the result."""
    is_alone: bool = True
    """Whether its key is of this block alone, so that two blocks with it are no mistake."""


class _Once(Generic[T]):
    """The state of a block, and its protocol. See `OnceBlock`."""

    def __init__(self, work: OnceWork, name: str) -> None:
        self._work = work
        self._name = name
        self._codec = work.codec
        self._value: Any = None
        self._is_recorded = False
        self._was_asked = False
        self._is_open = False

    @property
    def is_recorded(self) -> bool:
        """Whether an earlier attempt has done the block, whose `result` is there: there is nothing left to do."""
        self._was_asked = True
        return self._is_recorded

    @property
    def result(self) -> T:
        """The result of the block: of an earlier attempt, or what the block has set; None before."""
        return cast(T, self._value)

    @result.setter
    def result(self, value: T) -> None:
        if self._is_recorded:
            raise OnceMisuse(
                f"{self._description} has a result from an earlier attempt, and has run again: what it has done is "
                "undone; put it below `if not step.is_recorded:`"
            )
        self._value = value

    @property
    def _description(self) -> str:
        block = "the block" if not self._name else f"block {self._name!r}"
        return f"{block} of activity {self._work.activity!r}"

    @cached_property
    def _place(self) -> dict[str, object]:
        work = self._work
        return {
            "work": work.key,
            "name": self._name,
            "instance_id": work.instance_id,
            "activity": work.activity,
            "attempt": work.attempt,
        }

    @property
    def _key_and_name(self) -> tuple[str, str]:
        return self._work.key, self._name

    @property
    def _done(self) -> set[tuple[str, str]]:
        """The blocks of this attempt that have begun, or were found done, and were not undone."""
        return self._work.context._done

    @property
    def _key(self) -> dict[str, object]:
        return {"work": self._work.key, "name": self._name}

    def _check_running(self) -> None:
        """Refuse an attempt that was cancelled, or whose run is over.

        Raises:
            ActivityCancelledSignal: it is.
        """
        self._work.context.raise_if_cancelled()
        self._work.context._check_running()

    def _enter(self, transaction: Transaction | AsyncTransaction) -> _Steps[None]:
        if self._is_open:
            raise OnceMisuse(f"{self._description} is open: make another block")
        self._check_running()
        try:
            if self._work.attempt > 1 and not transaction.is_joined:
                yield from self._mark()
            yield lambda on: on.begin()
            try:
                self._take(*(yield from self._claim()))
            except BaseException as error:
                raised = error
                yield lambda on: on.end(raised)
                raise
        except Exception as error:
            _raise_translated(error)
        self._is_open = True

    def _mark(self) -> _Steps[None]:
        """Commit that this attempt has begun."""
        yield lambda on: on.begin()
        try:
            yield lambda on: on.fetch("mark", self._place)
        except BaseException as error:
            raised = error
            yield lambda on: on.end(raised)
            raise
        yield lambda on: on.end(None)

    def _claim(self) -> _Steps[tuple[Row, Row]]:
        """Return the row if this attempt has it now, else the row as another attempt has left it."""
        claimed: Row = yield lambda on: on.fetch("claim", self._place)
        if claimed is not None:
            return claimed, None
        found: Row = yield lambda on: on.fetch("read", self._key)
        return None, found

    def _take(self, claimed: Row, found: Row) -> None:
        if claimed is not None:
            self._done.add(self._key_and_name)
            return
        if found is None:  # it was removed between the two statements, or the transaction does not see it
            raise RetryAfter(AGAIN_AFTER)
        if found[0] is None:
            raise LateAttempt(
                f"{self._description} runs nothing in attempt {self._work.attempt}: a later attempt has begun"
            )
        if self._key_and_name in self._done and not self._work.is_alone:
            raise OnceMisuse(
                f"{self._description} was run by this attempt already: give each block of an activity a name, as in "
                "affinity.once(ctx, connection, name='debit')"
            )
        text = found[0].decode() if isinstance(found[0], bytes) else str(found[0])
        if text == _NOT_DONE:
            raise OnceMisuse(
                f"{self._description} has committed by itself in an earlier attempt, so that its result is not known: "
                f"find out, and set it as JSON in the row of {TABLE} with work = '{self._work.key}'"
            )
        self._value, self._is_recorded = self._codec.decode(text), True
        self._done.add(self._key_and_name)

    def _exit(self, error: BaseException | None) -> _Steps[bool]:
        self._is_open = False
        if error is not None:
            self._done.discard(self._key_and_name)
        try:
            if error is None and not self._is_recorded:
                yield from self._finish()
        except BaseException as raised:
            failed = raised
            self._done.discard(self._key_and_name)
            yield lambda on: on.end(failed)
            if isinstance(raised, Exception):
                _raise_translated(raised)
            raise
        try:
            is_handled = yield lambda on: on.end(error)
        except Exception as raised:
            if error is None:
                self._done.discard(self._key_and_name)
                _raise_translated(raised)
            raise
        return bool(is_handled)

    def _finish(self) -> _Steps[None]:
        if self._value is None and not self._was_asked:
            raise OnceMisuse(
                f"{self._description} has no result, and a later attempt could not tell it from one that has not run: "
                "set `step.result`, or ask `if not step.is_recorded:` in place of `if step.result is None:`"
            )
        text = self._codec.encode(self._value)
        self._check_running()
        if (yield lambda on: on.fetch("finish", {**self._key, "result": text})) is None:
            raise OnceMisuse(
                f"{self._description} has ended its transaction by itself, or has removed its row: it must neither "
                "commit nor roll back"
            )
        self._value = self._codec.decode(text)  # what later attempts get


class OnceBlock(_Once[T]):
    """A block of an activity that happens once; made by `affinity.once`, and used in ``async with``.

    ::

        async with affinity.once(ctx, connection, Receipt) as step:
            if not step.is_recorded:
                step.result = await insert_payment(connection, order)
        return step.result

    At its beginning:

    Raises:
        LateAttempt: a later attempt of the activity has begun.
        OnceMisuse: another block of this attempt has the same name; a block of an earlier attempt has committed by
            itself; the connection commits each statement.
        SchemaMismatch: the database has no table ``affinity_once``.
        NotSerializable: the recorded result is not of the type.
        TransactionFailed: a statement of the open transaction has failed before.
        RetryAfter: the transaction has lost to another one: the activity runs again in a moment.
        ActivityCancelledSignal: the activity is cancelled.

    At its end, after which nothing of it is committed:

    Raises:
        OnceMisuse: it has ended the transaction by itself; or its result is None, and `is_recorded` was not asked.
        NotSerializable, PayloadTooLarge: the result has no JSON form of the type, or is too large.
        TransactionFailed: a statement in the block has failed, and the block has caught its error.
        RetryAfter, ActivityCancelledSignal: as at the beginning.
    """

    def __init__(self, work: OnceWork, connection: AsyncConnection, name: str = "") -> None:
        """Called by `affinity.once`."""
        super().__init__(work, name)
        self._transaction: AsyncTransaction = open_async(connection)

    async def __aenter__(self) -> Self:
        await _drive_async(self._enter(self._transaction), self._transaction)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return await _drive_async(self._exit(error), self._transaction)


class SyncOnceBlock(_Once[T]):
    """The same for connections without ``await``, used in ``with``: see `OnceBlock`."""

    def __init__(self, work: OnceWork, connection: SyncConnection, name: str = "") -> None:
        """Called by `affinity.once`."""
        super().__init__(work, name)
        self._transaction: Transaction = open_sync(connection)

    def __enter__(self) -> Self:
        _drive(self._enter(self._transaction), self._transaction)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return _drive(self._exit(error), self._transaction)


@overload
def once(
    ctx: ActivityContext | CallContext, connection: AsyncConnection, returns: type[T], /, *, name: str = ...
) -> OnceBlock[T]: ...
@overload
def once(ctx: ActivityContext | CallContext, connection: AsyncConnection, /, *, name: str = ...) -> OnceBlock[Any]: ...
@overload
def once(
    ctx: ActivityContext | CallContext, connection: SyncConnection, returns: type[T], /, *, name: str = ...
) -> SyncOnceBlock[T]: ...
@overload
def once(
    ctx: ActivityContext | CallContext, connection: SyncConnection, /, *, name: str = ...
) -> SyncOnceBlock[Any]: ...


def once(
    ctx: ActivityContext | CallContext, connection: Any, returns: Any = None, /, *, name: str | None = None
) -> OnceBlock[Any] | SyncOnceBlock[Any]:
    """Return a block in which an activity changes tables of the application once, however often it is attempted. What
    the block writes with this connection commits together with its result, or not at all. A later attempt gets the
    result, and runs nothing.

    Without an open transaction, the block begins one, and commits at its end. In an open transaction it is a savepoint,
    and commits when you commit. The application's database needs the table that ``affinity once-table`` creates.

    ::

        async with affinity.once(ctx, connection, Receipt) as step:
            if not step.is_recorded:
                step.result = await insert_payment(connection, order)
        return step.result

    In the handler of a conversation, use ``wake.step(..., once=connection)``.

    Args:
        ctx: of the activity; or of a tool, an `affinity.agent.ToolContext`.
        connection: of psycopg, sqlite3, aiosqlite or Django, or a connection or session of SQLAlchemy; on PostgreSQL
            or SQLite. For an async connection the block is an `affinity.effects.OnceBlock`, for
            others an `affinity.effects.SyncOnceBlock`.
        returns: type of the result, which needs a JSON form; by default the activity's result type, for a block with a
            name, or in a tool, any JSON value.
        name: of the block, if the activity has several.

    Raises:
        OnceMisuse: the connection, or its database, is not known; or the first argument is no context.
        InvalidId: the name is out of bounds.
        InvalidApp: the type has no JSON form.
    """
    label = "" if name is None else check_id(name, "name of a block of once")
    what = f"result of once {label!r}" if label else "result of once"
    codec = None if returns is None else Codec(returns, what)
    work = _work_of(ctx, codec, is_named=bool(label), what=what)
    block = OnceBlock[Any] if is_async(connection) else SyncOnceBlock[Any]
    return block(work, connection, label)


def _work_of(ctx: object, codec: Codec | None, *, is_named: bool, what: str) -> OnceWork:
    if isinstance(ctx, ActivityContext):
        own = None if is_named else ctx._result_codec
        return OnceWork(
            key=ctx.idempotency_key,
            instance_id=ctx.instance_id,
            activity=ctx.name,
            attempt=ctx.attempt,
            context=ctx,
            codec=codec or own or Codec(Any, what),
            is_alone=False,
        )
    key, context = getattr(ctx, "idempotency_key", None), getattr(getattr(ctx, "wake", None), "context", None)
    if not isinstance(key, str) or not isinstance(context, ActivityContext):
        remedy = ": use wake.step(..., once=connection)" if hasattr(ctx, "step") else ""
        raise OnceMisuse(f"once takes the context of an activity or of a tool, not {type(ctx).__qualname__}{remedy}")
    return OnceWork(
        key=key,
        instance_id=context.instance_id,
        activity=context.name,
        attempt=0,  # the call may go on in a later wake, whose attempts begin at 1
        context=context,
        codec=codec or Codec(Any, what),
        is_alone=False,
    )


def run_once(
    function: Callable[..., Any], work: OnceWork, connection: Any, *, is_async_function: bool
) -> Callable[..., Any]:
    """Return a function that calls this one in a block of `once`, or returns the result of an earlier call. It is async
    as the function is.

    Raises:
        OnceMisuse: the connection, or its database, is not known.
        InvalidOptions: a function that is not async was given an async connection.
    """
    if not is_async(connection):
        make = partial(SyncOnceBlock[Any], work, connection)
        if not is_async_function:
            return _in_block(function, make)
        return _awaited_in_block(function, make)
    if not is_async_function:
        raise InvalidOptions(
            f"once={type(connection).__qualname__}, and the function of the step is not async: it could not use the "
            "connection"
        )
    return _in_async_block(function, partial(OnceBlock[Any], work, connection))


def _in_block(function: Callable[..., Any], make: Callable[[], SyncOnceBlock[Any]]) -> Callable[..., Any]:
    @wraps(function, updated=())
    def call(*args: Any) -> Any:
        with make() as step:
            if not step.is_recorded:
                step.result = function(*args)
        return step.result

    return call


def _awaited_in_block(
    function: Callable[..., Awaitable[Any]], make: Callable[[], SyncOnceBlock[Any]]
) -> Callable[..., Any]:
    @wraps(function, updated=())
    async def call(*args: Any) -> Any:
        with make() as step:
            if not step.is_recorded:
                step.result = await function(*args)
        return step.result

    return call


def _in_async_block(function: Callable[..., Awaitable[Any]], make: Callable[[], OnceBlock[Any]]) -> Callable[..., Any]:
    @wraps(function, updated=())
    async def call(*args: Any) -> Any:
        async with make() as step:
            if not step.is_recorded:
                step.result = await function(*args)
        return step.result

    return call


def _drive(steps: _Steps[T], transaction: Transaction) -> T:
    send: Callable[[], Any] = partial(next, steps)
    try:
        while True:
            call = send()
            try:
                send = partial(steps.send, call(transaction))
            except BaseException as error:
                send = partial(steps.throw, error)
    except StopIteration as end:
        return cast(T, end.value)


async def _drive_async(steps: _Steps[T], transaction: AsyncTransaction) -> T:
    send: Callable[[], Any] = partial(next, steps)
    try:
        while True:
            call = send()
            try:
                send = partial(steps.send, await call(transaction))
            except BaseException as error:
                send = partial(steps.throw, error)
    except StopIteration as end:
        return cast(T, end.value)


def _raise_translated(error: Exception) -> NoReturn:
    """Raise an error of a database as one that says what to do, and any other one as it is."""
    codes = {_code_of(each) for each in _causes(error)}
    if codes & _CONTENTION or codes & {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        raise RetryAfter(AGAIN_AFTER) from error
    if _FAILED in codes or any(type(each).__name__ in _REFUSED for each in _causes(error)):
        raise TransactionFailed(FAILED) from error
    if _NO_TABLE in codes or any(_lacks_table(each) for each in _causes(error)):
        raise SchemaMismatch(
            f"the application's database has no table {TABLE}: create it with `affinity once-table URL`, or with the "
            "statements that `affinity once-table --print` prints"
        ) from error
    raise error


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error, and the errors of drivers that SQLAlchemy and Django have made it of."""
    found: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in found:
        found.append(following)
        following = getattr(following, "orig", None) or following.__cause__
    return found


def _code_of(error: BaseException) -> object:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF  # without the extension
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _lacks_table(error: BaseException) -> bool:
    """SQLite has one code for all errors in a statement."""
    return isinstance(error, sqlite3.OperationalError) and str(error) == f"no such table: {TABLE}"
