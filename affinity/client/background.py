"""The lifetime of a client and its background tasks, and the polls for instances that have ended."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import anyio

from affinity.actions import ACTORS
from affinity.around import around
from affinity.async_block import AsyncBlock
from affinity.batching import batches
from affinity.client.calls import retry, unknown_instance
from affinity.client.changes import Changes, ChangeScope
from affinity.client.middleware import CallOperation, ClientCall, ClientMiddleware
from affinity.client.parts import ClientPart, ClientServices
from affinity.client.replies import Replies
from affinity.errors import ClientError, InvalidApp, InvalidOptions, ProviderError
from affinity.limits import check_id, check_items
from affinity.orchestration.middleware import check_middleware
from affinity.payloads import Blobs, PayloadCodec, check_blobs, check_codec, open_coded
from affinity.provider.contract import FINISHED, InstanceInfo, Provider
from affinity.provider.hint_sender import HintSender
from affinity.tasks import BackgroundTask, check_loop, close_dropped, run_in_thread
from affinity.user_code import refuse_in_orchestration

logger: logging.Logger = logging.getLogger("affinity.client")

FIRST_DELAY: Final = 0.005
"""Seconds between the first two polls of an instance: a short orchestration has ended by then."""

LONGEST_DELAY: Final = 0.25
GROWTH: Final = 1.5
EARLY: Final = 0.25
"""Share of its delay by which a poll may come early, so that many instances are polled together."""

T = TypeVar("T")
P = TypeVar("P", bound=ClientPart)

LookUp = Callable[[Sequence[str]], Awaitable[Sequence[InstanceInfo | None]]]

IsAwaited = Callable[[InstanceInfo], bool]
"""Return whether the instance is in the awaited state."""


def has_ended(info: InstanceInfo) -> bool:
    """Return whether the instance has ended, well or not."""
    return info.status in FINISHED


def has_ended_for_good(info: InstanceInfo) -> bool:
    """Return whether the instance has ended, and no start waits for that."""
    return info.status in FINISHED and info.next is None


@dataclass(slots=True, eq=False)
class _InstanceWait:
    """A wait for one instance, or all waits for its end."""

    instance_id: str
    is_awaited: IsAwaited
    due: float
    delay: float = FIRST_DELAY
    waiting: int = 0
    settled: anyio.Event = field(default_factory=anyio.Event)
    outcome: InstanceInfo | Exception | None = None

    def settle(self, outcome: InstanceInfo | Exception) -> None:
        self.outcome = outcome
        self.settled.set()

    def postpone(self, now: float) -> None:
        self.due = now + self.delay * random.uniform(0.8, 1.2)  # noqa: S311 -- not a secret
        self.delay = min(self.delay * GROWTH, LONGEST_DELAY)


class Waiters:
    """Waits for instances to end or to change, by polling. All waits of one client share polls, whose delay grows."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._watches: dict[tuple[str, IsAwaited], _InstanceWait] = {}
        self._arrived = anyio.Event()

    async def until(self, instance_id: str, is_awaited: IsAwaited = has_ended) -> InstanceInfo:
        """Return the instance once it is in the awaited state; by default once it has ended.

        Raises:
            UnknownInstance: no instance has this id, or it was deleted meanwhile.
            ProviderError: the poll failed after its retries.
        """
        key = instance_id, is_awaited
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _InstanceWait(instance_id, is_awaited, due=anyio.current_time())
            self._arrived.set()
        watch.waiting += 1
        try:
            await watch.settled.wait()
        finally:
            watch.waiting -= 1
            if not watch.waiting:
                self._remove(watch)
        return _unwrap(watch.outcome)

    @property
    def awaited(self) -> list[str]:
        """The instances that are waited for."""
        return [instance_id for instance_id, _ in self._watches]

    def look_now(self) -> None:
        """Poll all instances now, whatever their delays."""
        for watch in self._watches.values():
            watch.due = 0.0
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """End all waits with this error."""
        for watch in list(self._watches.values()):
            self._settle(watch, error)

    async def run(self) -> None:
        """Poll until cancelled; waits that remain then raise `ClientError`."""
        try:
            while True:
                self._arrived = anyio.Event()
                delay = await self._poll()
                with anyio.move_on_after(delay):
                    await self._arrived.wait()
        finally:
            for watch in list(self._watches.values()):
                self._settle(watch, ClientError("the client was closed during the wait"))

    async def _poll(self) -> float:
        """Poll all instances that are due; return the seconds until the next instance is due."""
        now = anyio.current_time()
        due: dict[str, list[_InstanceWait]] = {}
        for watch in self._watches.values():
            if watch.due - EARLY * watch.delay <= now:
                due.setdefault(watch.instance_id, []).append(watch)
        for ids in batches(list(due)):
            await self._poll_batch({instance_id: due[instance_id] for instance_id in ids})
        return min((watch.due for watch in self._watches.values()), default=math.inf) - anyio.current_time()

    async def _poll_batch(self, watches: dict[str, list[_InstanceWait]]) -> None:
        try:
            found = await self._look_up(list(watches))
        except ProviderError as error:
            for watch in [watch for of_one in watches.values() for watch in of_one]:
                self._settle(watch, error)
            return
        for (instance_id, of_one), info in zip(watches.items(), found, strict=True):
            for watch in of_one:
                if info is None:
                    self._settle(watch, unknown_instance(instance_id))
                elif watch.is_awaited(info):
                    self._settle(watch, info)
                else:
                    watch.postpone(anyio.current_time())

    def _settle(self, watch: _InstanceWait, outcome: InstanceInfo | Exception) -> None:
        self._remove(watch)
        watch.settle(outcome)

    def _remove(self, watch: _InstanceWait) -> None:
        key = watch.instance_id, watch.is_awaited
        if self._watches.get(key) is watch:
            del self._watches[key]


def _unwrap(outcome: InstanceInfo | Exception | None) -> InstanceInfo:
    if isinstance(outcome, InstanceInfo):
        return outcome
    raise outcome if outcome is not None else AssertionError("a watch ended without an outcome")


async def _run(works: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    ACTORS.set(())  # an actor who opens the client does not make the calls of others
    async with anyio.create_task_group() as tasks:
        for work in works:
            tasks.start_soon(work)


def _parts_of(client: type) -> list[type[ClientPart]]:
    return [vars(base)["_PART"] for base in client.__mro__ if "_PART" in vars(base)]


class ClientBase(AsyncBlock):
    """An open provider, with the tasks that run beside the calls. For the event loop that has opened it."""

    def __init__(
        self,
        url: str,
        *,
        codec: PayloadCodec | None = None,
        blobs: Blobs | None = None,
        middleware: Sequence[ClientMiddleware] = (),
    ) -> None:
        refuse_in_orchestration("a Client")
        self._middleware = check_items(middleware, "middleware", error=InvalidApp)
        for function in self._middleware:
            check_middleware(function)
        self._url = url
        self._codec = check_codec(codec)
        self._blobs = check_blobs(blobs)
        self._given: Provider | None = None
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        refuse_in_orchestration("a Client")
        if self._stack is not None:
            raise ClientError("the client is open already: use it, or make another Client for another `async with`")
        async with AsyncExitStack() as stack:
            provider = self._given
            if provider is None:
                provider = await open_coded(
                    self._url,
                    self._codec,
                    self._blobs,
                    application_name="affinity client",
                    one_connection=True,
                    as_client=True,
                )
                stack.push_async_callback(provider.aclose)
            self._begin_on(provider, stack)
            self._stack = stack.pop_all()
        return self

    def _begin_on(self, provider: Provider, stack: AsyncExitStack) -> None:
        """Begin the tasks that run beside the calls; the end of the stack ends them."""
        self._loop, self._opened = asyncio.get_running_loop(), provider
        self._hints = HintSender(provider)
        self._waiters = Waiters(partial(_look_up, provider))
        self._changes = Changes(provider.watch_changes)
        services = ClientServices(provider=provider, hints=self._hints, changes=self._changes)
        self._parts = {kind: kind(services) for kind in _parts_of(type(self)) if kind.is_wanted(provider)}
        self._replies = Replies(provider, self._hints)
        stack.push_async_callback(self._hints.flush)
        works = [part.run for part in (self._hints, self._waiters, self._changes, self._replies)]
        works += [part.run for part in self._parts.values()]
        background = BackgroundTask(partial(_run, works))  # without the client, which may be dropped open
        stack.push_async_callback(background.join)
        stack.callback(background.cancel)

    def _open_given(self) -> None:
        """Open it on the provider that it was given, without waiting, as a worker does for its activities."""
        assert self._given is not None
        stack = AsyncExitStack()
        self._begin_on(self._given, stack)
        self._stack = stack

    async def _run_call(
        self,
        operation: CallOperation,
        names: Sequence[str],
        ids: Sequence[str | None],
        function: Callable[[], Awaitable[T]],
    ) -> T:
        """Make a call with the middleware around it."""
        if not self._middleware:
            return await function()
        call = ClientCall(operation=operation, names=names, ids=ids)
        return cast(T, await around(self._middleware, call, partial(_awaited, function), run_in_thread)())

    async def __aexit__(self, *error: object) -> None:
        if self._stack is None:
            return
        check_loop(self._loop, "client")
        stack, self._stack = self._stack, None
        await stack.aclose()

    def __del__(self) -> None:
        stack, self._stack = getattr(self, "_stack", None), None
        if stack is not None:
            close_dropped(self, "client", self._loop, stack.aclose)

    @property
    def _open_provider(self) -> Provider:
        """The provider, for parts that check the event loop themselves.

        Raises:
            ClientError: the client is not open.
        """
        refuse_in_orchestration("a Client")
        if self._stack is None or self._opened is None:
            raise ClientError("the client is not open: use it within `async with Client(url) as client`")
        return self._opened

    @property
    def _provider(self) -> Provider:
        """The provider of an open client; each call begins with this check.

        Raises:
            ClientError: the client is not open.
            WrongEventLoop: the caller does not run on its loop.
        """
        provider = self._open_provider
        check_loop(self._loop, "client")
        return provider

    @property
    def _database(self) -> str:
        return self._open_provider.database

    def _changes_of(self, session_id: str) -> ChangeScope:
        """Return the changes of a session from now on; see `Changes.of`."""
        _ = self._open_provider  # raises when the client is not open
        return self._changes.of(session_id)

    def _part(self, kind: type[P]) -> P:
        """Return the part of a guest.

        Raises:
            ClientError: the client is not open.
            InvalidOptions: its provider lacks the verbs of the guest.
        """
        _ = self._open_provider
        found = self._parts.get(kind)
        if found is None:
            raise InvalidOptions(f"the provider of this database lacks the verbs that {kind.__name__} need")
        return cast(P, found)

    # -- for `affinity.testing.Env`, whose clock jumps only while this client waits

    @property
    def _awaited(self) -> list[str]:
        """The instances and sessions that are waited for."""
        return [*self._waiters.awaited, *self._changes.awaited]

    def _look_now(self) -> None:
        """Make all waits look now."""
        self._waiters.look_now()
        self._changes.notify({})

    def _fail_waits(self, error: Exception) -> None:
        """End all waits with this error."""
        self._waiters.fail(error)
        self._changes.fail(error)

    async def _look_up(self, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
        return await _look_up(self._provider, instance_ids)

    async def _present(self, instance_id: str) -> InstanceInfo:
        (info,) = await self._look_up([check_id(instance_id, "instance id")])
        if info is None:
            raise unknown_instance(instance_id)
        return info


async def _awaited(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


async def _look_up(provider: Provider, instance_ids: Sequence[str]) -> Sequence[InstanceInfo | None]:
    return await retry(partial(provider.get_instance, instance_ids))
