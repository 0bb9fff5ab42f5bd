"""A second attempt to connect, while the first has no answer."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import psycopg
import pytest

from affinity.provider.postgres.driver.attempts import first_connection

pytestmark = pytest.mark.anyio

SOON = 0.01
PATIENCE = 30


class Replies:
    """The attempts of a test, which end as it says."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.both = anyio.Event()

    def begin(self) -> asyncio.Task[Any]:
        self.futures.append(asyncio.get_running_loop().create_future())
        if len(self.futures) == 2:
            self.both.set()
        return asyncio.ensure_future(self._wait(self.futures[-1]))

    async def _wait(self, reply: asyncio.Future[Any]) -> Any:
        return await reply


@pytest.mark.parametrize("fails", [0, 1])
async def test_when_one_attempt_fails_the_other_counts(fails: int) -> None:
    """At a server without a free place the second may be refused while the first gets one."""
    replies = Replies()
    found = asyncio.create_task(first_connection(replies.begin, SOON))
    with anyio.fail_after(PATIENCE):
        await replies.both.wait()
        replies.futures[fails].set_exception(psycopg.OperationalError("too many clients"))
        await asyncio.wait([found], timeout=SOON)  # it would end now
        replies.futures[1 - fails].set_result("the connection")
        assert await found == "the connection"  # type: ignore[comparison-overlap]


async def test_when_both_attempts_fail_an_error_is_raised() -> None:
    replies = Replies()
    found = asyncio.create_task(first_connection(replies.begin, SOON))
    with anyio.fail_after(PATIENCE):
        await replies.both.wait()
        for reply in replies.futures:
            reply.set_exception(psycopg.OperationalError("too many clients"))
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            await found
