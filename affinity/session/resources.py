"""Process-local resources of sessions: a model, a child process, an open file.

A resource is opened at its first use and shared by key, within one database: each cached state that uses it is one
*holder*. When the last holder releases it, it is closed, exactly once. Its life, per database and key::

    opening ──► open ──► closing ──► gone
       └── open failed ─────────────────▲

A caller that asks for it while it is closing waits, and then opens it again: ``close`` and ``open`` of one key never
overlap.

A session's use of it is in its `HeldResources`, which outlives the state: an error in an activity puts the state in
doubt, not what it used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, Literal, TypeVar, overload

import anyio

from affinity.errors import InvalidOptions, ResourceClosed, SessionError
from affinity.limits import MAX_ID_BYTES, check_id, truncate
from affinity.redaction import redacted
from affinity.tasks import call_here, call_inline, finish, run_code
from affinity.user_code import call_sync, check_function

T = TypeVar("T")
H = TypeVar("H")

RESOURCE_LABEL: Final = "affinity.resource/"
"""Begins the labels of records that name what the session uses; then comes the name of the resource."""

OPEN: Final = "affinity.open"
"""Label of a record whose session has opened a resource of its process: see `open_mark`."""

DISPOSE_SECONDS: Final = 30.0
"""A ``dispose`` or ``close`` that takes longer is cancelled and logged, so that a worker can stop."""

logger: logging.Logger = logging.getLogger("affinity.session")


class _Shared(Generic[T]):
    value: T  # set once open

    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.acquiring = 0  # calls of `acquire` that have not returned
        self.opening = SharedCall()
        self.closing = False
        self.variables: Context = copy_context()  # of the code that has opened it; code that closes it has them too
        self.gone = anyio.Event()

    @property
    def unused(self) -> bool:
        return not self.holders and not self.acquiring


class Resource(Generic[T]):
    """Something that sessions use within the process and that is not stored: ``await opening.resource(models)``.

    One resource object serves one event loop. Callbacks may be async or sync; a sync one must not block the loop.
    """

    @overload
    def __init__(
        self,
        *,
        open: Callable[[str], Awaitable[T]],
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        open: Callable[[str], T],
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str | None = ...,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        open: Callable[[H], Awaitable[T]],
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str,
        create: Callable[[str, str], Awaitable[H] | H],
        destroy: Callable[[str, H | None], Awaitable[None] | None],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        open: Callable[[H], T],
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str,
        create: Callable[[str, str], Awaitable[H] | H],
        destroy: Callable[[str, H | None], Awaitable[None] | None],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str,
        create: Callable[[str, str], Awaitable[T]],
        destroy: Callable[[str, T | None], Awaitable[None] | None],
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        close: Callable[[str, T], Awaitable[None] | None] | None = ...,
        key: Callable[[str], str] = ...,
        on_error: Literal["keep", "dispose"] = ...,
        name: str,
        create: Callable[[str, str], T],
        destroy: Callable[[str, T | None], Awaitable[None] | None],
    ) -> None: ...
    def __init__(
        self,
        *,
        open: Callable[[Any], Awaitable[T] | T] | None = None,
        close: Callable[[str, T], Awaitable[None] | None] | None = None,
        key: Callable[[str], str] = lambda session_id: session_id,
        on_error: Literal["keep", "dispose"] = "keep",
        name: str | None = None,
        create: Callable[[str, str], Any] | None = None,
        destroy: Callable[[str, Any], Awaitable[None] | None] | None = None,
    ) -> None:
        """A resource that is not open yet.

        Args:
            open: returns the value, given its key; with ``create`` given the handle, and by default the handle itself.
            close: frees it, given its key and the value. It has `affinity.session.resources.DISPOSE_SECONDS`;
                what it raises is logged.
            key: which one a session uses, given its id; by default one of its own. Sessions of different databases
                share none.
            on_error: whether a session goes on using it after an activity has failed, or its result was not committed:
                the state is dropped then, and hydrated again. An error of the application that has a true attribute
                ``disposes_resources`` ends the use in any case.

            name: the same in each release; needed to close it for good (`OpenSession.close_resource`), and with
                ``create``.
            create: makes what outlives the process, given an id and the session's; it returns a handle, any JSON value.
                The session uses it once the activity's result is committed, and so do the sessions that are made from
                it, unless they begin with an initial state. Should the process end meanwhile, ``destroy`` gets the
                id, so name or tag with it what you make. An app includes such a resource, like `Sessions`.
            destroy: frees it for good, given its id and its handle, when no session uses it any more, or the result was
                never committed. The handle is None if ``create`` did not end. It may be called again after a crash.

        Raises:
            InvalidOptions: another ``on_error``; neither ``open`` nor ``create``; ``create`` without ``destroy`` or
                ``name``, or ``destroy`` without it; a function takes other arguments.
            InvalidId: the name is too long for a label of a record.
        """
        if on_error not in {"keep", "dispose"}:
            raise InvalidOptions(f"on_error = {on_error!r}: must be 'keep' or 'dispose'")
        is_whole = open is not None if create is None else name is not None
        if not is_whole or (create is None) != (destroy is None):
            raise InvalidOptions("a resource needs open=; or, to outlive the process, name=, create= and destroy=")
        for function, what, parameters in (
            (open, "open", ("key",) if create is None else ("handle",)),
            (close, "close", ("key", "value")),
            (key, "key", ("session_id",)),
            (create, "create", ("resource_id", "session_id")),
            (destroy, "destroy", ("resource_id", "handle")),
        ):
            if function is not None:
                check_function(function, f"{what} of a resource", *parameters)
        self._create, self._destroy = create, destroy
        self.name: str = "" if name is None else check_id(name, "name")
        check_id(RESOURCE_LABEL + self.name, "the label of the resource")
        self._open = open if open is not None else lambda handle: handle
        self._close = close
        self.key: Callable[[str], str] = key
        self.on_error: Literal["keep", "dispose"] = on_error
        self._shared: dict[tuple[str, str], _Shared[T]] = {}  # by database and key

    def __len__(self) -> int:
        """How many are opening, open or closing."""
        return len(self._shared)

    @property
    def label(self) -> str:
        """Its name for people: of one without a name, the name of the function that opens it."""
        return self.name or truncate(getattr(self._open, "__name__", type(self._open).__name__), MAX_ID_BYTES)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives the process."""
        return self._create is not None

    async def _create_now(self, resource_id: str, session_id: str) -> Any:
        """Call ``create``."""
        assert self._create is not None
        return await call_here(self._create, resource_id, session_id)

    async def _destroy_now(self, resource_id: str, handle: Any) -> bool:
        """Call ``destroy``; False: it raised, which is logged, or took too long."""
        assert self._destroy is not None
        return await run_bounded(f"destroy of resource {self.name!r} {resource_id}", self._destroy, resource_id, handle)

    async def acquire(self, key: str, holder: object, given: Any = None, *, database: str = "") -> T:
        """The value of this key, opened if need be; ``holder`` holds it until it releases it once. ``given``: what
        ``open`` gets in place of the key, of one that outlives the process. ``database``: in which the key stands.

        Raises:
            Exception: what ``open`` raised, in every call that waited for it; the next call opens it again.
        """
        at = (database, key)
        shared = await self._find(at)
        shared.acquiring += 1
        try:
            await shared.opening.run(partial(self._open_now, key, given if self.is_durable else key, shared))
            shared.holders.add(holder)
        finally:
            shared.acquiring -= 1
            await self._close_if_unused(at, shared)
        return shared.value

    async def release(self, key: str, holder: object, *, database: str = "") -> None:
        """End the holder's use; the last release closes the resource. Raises nothing."""
        at = (database, key)
        shared = self._shared.get(at)
        if shared is not None:
            shared.holders.discard(holder)
            await self._close_if_unused(at, shared)

    async def _find(self, at: tuple[str, str]) -> _Shared[T]:
        while True:
            shared = self._shared.get(at)
            if shared is None:
                shared = self._shared[at] = _Shared()
            if not shared.closing:
                return shared
            await shared.gone.wait()

    async def _open_now(self, key: str, given: Any, shared: _Shared[T]) -> None:
        shared.value = await call_inline(self._open, given)
        if shared.gone.is_set():  # nothing has waited for it any more
            await self._close_now(key, shared)

    async def _close_if_unused(self, at: tuple[str, str], shared: _Shared[T]) -> None:
        if not shared.unused or shared.closing:
            return
        if shared.opening.is_done:
            shared.closing = True
            await finish(partial(self._close_and_forget, at, shared), shared.variables)
        else:
            self._forget(at, shared)

    async def _close_and_forget(self, at: tuple[str, str], shared: _Shared[T]) -> None:
        try:
            await self._close_now(at[1], shared)
        finally:
            self._forget(at, shared)

    def _forget(self, at: tuple[str, str], shared: _Shared[T]) -> None:
        if self._shared.get(at) is shared:
            del self._shared[at]
        shared.gone.set()

    async def _close_now(self, key: str, shared: _Shared[T]) -> None:
        if self._close is not None:
            await run_bounded(f"close of resource {key!r}", self._close, key, shared.value)


class HeldResources:
    """The resources that one session uses, under one lease. It is their holder.

    Args:
        database: of the session.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._keys: dict[Resource[Any], str] = {}
        self._failed: set[Resource[Any]] = set()  # to be released with the state
        self._closed: set[Resource[Any]] = set()
        self._beginning: dict[Resource[Any], anyio.Lock] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to keep when the state is dropped."""
        return bool(self._keys or self._closed)

    async def get(self, resource: Resource[T], session_id: str) -> T:
        """The resource of this session, held from now on.

        Raises:
            SessionError: there is no session.
            ResourceClosed: the session has closed it.
            Exception: what its ``open`` raised.
        """
        if not session_id:
            raise SessionError("a resource belongs to a session, and this work is bound to none")
        if resource in self._closed:
            raise ResourceClosed(session_id)
        key = self._keys.setdefault(resource, call_sync(resource.key, session_id))
        return await self._acquire(resource, key, session_id)

    def beginning(self, resource: Resource[Any]) -> anyio.Lock:
        """Held while the session finds or creates one that outlives the process, so that it has one."""
        return self._beginning.setdefault(resource, anyio.Lock())

    def key_of(self, resource: Resource[Any]) -> str | None:
        """Which one the session holds."""
        return self._keys.get(resource)

    async def hold(self, resource: Resource[T], key: str, session_id: str, given: Any) -> T:
        """The value of one that outlives the process, held from now on.

        Raises:
            ResourceClosed, Exception: as `get`.
        """
        self._keys[resource] = key
        return await self._acquire(resource, key, session_id, given)

    async def _acquire(self, resource: Resource[T], key: str, session_id: str, given: Any = None) -> T:
        value = await resource.acquire(key, self, given, database=self._database)
        if self._keys.get(resource) != key:  # the session has closed it while it was opened
            await resource.release(key, self, database=self._database)
            raise ResourceClosed(session_id)
        return value

    async def close(self, resource: Resource[Any]) -> None:
        """End the session's use for good; a second time changes nothing."""
        self._closed.add(resource)
        await self.release(resource)

    def fail(self, error: BaseException | None) -> None:
        """Note the resources to release, as an activity has failed (None: its result was not committed)."""
        disposes = disposes_resources(error)
        self._failed.update(each for each in self._keys if disposes or each.on_error == "dispose")

    async def release_failed(self) -> None:
        """Release what the failure has put in doubt. Raises nothing, and each close is bounded in time."""
        while self._failed:
            await self.release(self._failed.pop())

    async def release_all(self) -> None:
        """Release everything. Raises nothing, and each close is bounded in time."""
        while self._keys:
            await self.release(next(iter(self._keys)))

    async def release(self, resource: Resource[Any]) -> None:
        """Hold it no longer. Raises nothing."""
        key = self._keys.pop(resource, None)
        if key is not None:
            await resource.release(key, self, database=self._database)


def disposes_resources(error: BaseException | None) -> bool:
    """Whether an error of the application says that what its session uses is of no use any more."""
    try:
        return bool(getattr(error, "disposes_resources", False))
    except BaseException:
        return True


def open_mark(session_id: str, epoch: int) -> str:
    """The value of the label `OPEN`: a lease. The resource is open for as long as this is the lease."""
    return f"{sha256(session_id.encode()).hexdigest()[:16]}/{epoch}"


# --- callbacks of the application: async or sync, bounded in time, shared, called for a thread ------------------------


async def run_bounded(what: str, callback: Callable[..., Awaitable[None] | None], *args: Any) -> bool:
    """Call a callback that frees something, for `DISPOSE_SECONDS` at most; returns whether it has succeeded. It raises
    nothing: no caller could handle the error, so it is logged.
    """
    try:
        await call_here(callback, *args, limit=DISPOSE_SECONDS)
    except Exception as error:
        logger.exception("%s failed", what, exc_info=redacted(error))
        return False
    return True


class SharedCall:
    """A call that concurrent callers share: one makes it, and the others wait; if it is cancelled, another one does.

    It calls code of the application, in a task of its own: see `affinity.tasks.run_code`. Its end is not lost when its
    caller is cancelled meanwhile.
    """

    def __init__(self) -> None:
        self.is_done: bool = False  # it has succeeded
        self._failure: Exception | None = None
        self._ended: anyio.Event | None = None  # while the call runs

    async def run(self, call: Callable[[], Awaitable[None]]) -> None:
        """Return once the call has succeeded.

        Raises:
            Exception: what the call raised, in every caller.
        """
        while not self.is_done:
            if self._failure is not None:
                raise self._failure
            if self._ended is None:
                await self._make(call)
            else:
                await self._ended.wait()

    async def _make(self, call: Callable[[], Awaitable[None]]) -> None:
        self._ended = ended = anyio.Event()

        async def note_end() -> None:
            try:
                await call()
                self.is_done = True
            except Exception as error:
                self._failure = error
                raise

        try:
            await run_code(note_end)
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._ended = None
            ended.set()


async def shielded(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Call ``function`` for a thread, shielded from cancellation.

    For the thread of an activity that is cancelled already, anyio's checkpoints would spin on its scope forever.
    """
    with anyio.CancelScope(shield=True):
        result = await function(*args)
    return result
