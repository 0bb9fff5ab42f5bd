"""Calls to the provider: retries, batches, and the errors for refusals."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from typing import Final, TypeAlias, TypeVar

import anyio

from affinity import errors
from affinity.batching import Batcher
from affinity.errors import UnknownInstance
from affinity.limits import MAX_QUOTA, MAX_UNREAD_EVENTS, check_integer, is_number
from affinity.provider.contract import NO_QUOTAS, Deletion, Delivery, Quotas, Resumption
from affinity.tasks import check_loop

T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result")

PruneProgress: TypeAlias = Callable[[int], None]
"""Called after each step of pruning with the number removed so far."""

RETRY_SECONDS: Final = 15.0
"""Seconds for which a call that may safely be made twice outlasts a database that does not answer."""

FIRST_PAUSE: Final = 0.02
"""Longest pause in seconds before the second attempt; later ones grow."""

JOIN_STEPS: Final = 3
"""Steps of the event loop for which a batch waits for requests that others are about to make."""

LONGEST_PAUSE: Final = 1.0
"""Longest pause in seconds before any attempt."""


async def retry(
    verb: Callable[[], Awaitable[T]], *, idempotent: bool = True, unless: tuple[type[Exception], ...] = ()
) -> T:
    """Await ``verb()``, and repeat it for `RETRY_SECONDS` while its error is transient. That is the bound of the whole
    call: a provider waits in a call too, such as for a file that is locked, and an attempt that would pass the bound,
    if it took as long as the last one, is not begun.

    Args:
        verb: what to do.
        idempotent: whether doing it twice does no harm. If not, it is not repeated once it may have been done.
        unless: transient errors after which it is not repeated.

    Raises:
        ProviderError: an error that is not transient, or the last error when the time is over.
    """

    def is_transient(error: BaseException) -> bool:
        if not isinstance(error, errors.ProviderError) or not error.retryable or error.misconfigured:
            return False
        if isinstance(error, unless):
            return False
        return idempotent or not error.maybe_done

    began = start = time.monotonic()
    longest = FIRST_PAUSE
    while True:
        try:
            return await verb()
        except errors.ProviderError as error:
            now = time.monotonic()
            if not is_transient(error) or now + (now - start) >= began + RETRY_SECONDS:
                raise
        await anyio.sleep(random.uniform(0.0, longest))  # noqa: S311 -- jitter, not a secret
        longest = min(2.0 * longest, LONGEST_PAUSE)
        start = time.monotonic()


async def retry_on(
    loop: asyncio.AbstractEventLoop, what: str, verb: Callable[[], Awaitable[T]], *, idempotent: bool = True
) -> T:
    """`retry`, for a caller on the event loop that has opened ``what``.

    Raises:
        WrongEventLoop: the caller does not run on this loop.
        ProviderError: see `retry`.
    """
    check_loop(loop, what)
    return await retry(verb, idempotent=idempotent)


def client_batcher(
    verb: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]], size_of: Callable[[Request], int] | None = None
) -> Batcher[Request, Result]:
    """Return a `Batcher` of a client, whose calls may be done twice."""
    return Batcher(verb, retry, owner="client", size_of=size_of, join_steps=JOIN_STEPS, closed=_closed)


def _closed() -> errors.ClientError:
    return errors.ClientError("the client was closed during the call")


def unknown_instance(instance_id: str) -> UnknownInstance:
    """Return the error for an id that no instance has."""
    return UnknownInstance(f"no instance has the id {instance_id!r}")


def check_delivery(instance_id: str, delivery: Delivery, quotas: Quotas = NO_QUOTAS) -> None:
    """Raise unless the message was delivered. ``quotas``: of the database, for the text of the error.

    Raises:
        UnknownInstance, InstanceFinished, TooManyUnreadEvents, QuotaExceeded: why it was not.
    """
    if delivery == "unknown":
        raise unknown_instance(instance_id)
    if delivery == "finished":
        raise errors.InstanceFinished(f"instance {instance_id!r} has ended and takes no more messages")
    if delivery == "full":
        limit = min(MAX_UNREAD_EVENTS, quotas.unread_events or MAX_UNREAD_EVENTS)
        raise errors.TooManyUnreadEvents("unread_events", limit, instance_id)
    if delivery == "over_quota":
        raise errors.QuotaExceeded("instance_bytes", quotas.instance_bytes or 0, instance_id)


def check_timeout(timeout: float | None) -> None:
    """Raise unless it is a number of seconds that one may wait.

    Raises:
        InvalidInput: it is negative, or not a number.
    """
    if timeout is not None and not (is_number(timeout) and timeout >= 0):
        raise errors.InvalidInput(f"timeout = {timeout!r:.80}: must be a number of seconds, not negative")


def no_progress(_: int) -> None:
    """Report nothing."""


def check_quotas(quotas: Quotas) -> Quotas:
    """Return the quotas, if each is an integer from 1 to `MAX_QUOTA`, or None.

    Raises:
        InvalidOptions: a quota is anything else.
    """
    for quota in fields(quotas):
        if (limit := getattr(quotas, quota.name)) is not None:
            check_integer(limit, quota.name, 1, MAX_QUOTA)
    return quotas


def check_deletion(instance_id: str, deletion: Deletion) -> None:
    """Raise unless the instance was deleted.

    Raises:
        UnknownInstance, InstanceNotFinished: the reason why it was not.
    """
    if deletion == "unknown":
        raise unknown_instance(instance_id)
    if deletion == "running":
        raise errors.InstanceNotFinished(
            f"instance {instance_id!r}, or a sub-orchestration of it, is still running: "
            "wait, cancel it, or delete by force"
        )


def check_resumption(instance_id: str, resumption: Resumption) -> None:
    """Raise unless the instance was resumed.

    Raises:
        UnknownInstance, InstanceNotSuspended: why it was not.
    """
    if resumption == "unknown":
        raise unknown_instance(instance_id)
    if resumption == "not_suspended":
        raise errors.InstanceNotSuspended(f"instance {instance_id!r} is not suspended")
