"""Tests that mostly wait run on several databases at the same time.

Each run has its own thread, event loop, worker processes, client and socket for calls of activities.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import Parameter, Signature, signature
from typing import Any, Final

import anyio

from affinity import Client
from tests.support.activity_calls import serve_calls
from tests.support.worker_processes import open_workers

OWN_ARGUMENTS: Final = frozenset({"workers", "client", "calls"})
"""Arguments that each run has for itself; the others are fixtures of pytest."""


def on_all_databases(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test that runs the function on each of `all_urls`, and fails if it fails on any.

    Not for functions that measure how long something takes.
    """

    def test(all_urls: Mapping[str, str], **arguments: Any) -> None:
        with ThreadPoolExecutor(len(all_urls)) as threads:
            runs = {name: threads.submit(anyio.run, _run, function, url, arguments) for name, url in all_urls.items()}
        if errors := [error for name, outcome in runs.items() if (error := _error(name, outcome)) is not None]:
            raise BaseExceptionGroup(function.__name__, errors)

    parameters = signature(function).parameters
    fixtures = [
        one.replace(kind=Parameter.KEYWORD_ONLY) for name, one in parameters.items() if name not in OWN_ARGUMENTS
    ]
    urls = signature(test).parameters["all_urls"]
    test.__signature__ = Signature([urls, *fixtures])  # type: ignore[attr-defined]  # pytest reads it
    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


async def _run(function: Callable[..., Awaitable[None]], url: str, arguments: Mapping[str, Any]) -> None:
    async with serve_calls() as calls, Client(url) as client:
        with open_workers(url, calls) as workers:
            own = {"workers": workers, "client": client, "calls": calls}
            own = {name: value for name, value in own.items() if name in signature(function).parameters}
            await function(**own, **arguments)


def _error(name: str, outcome: Future[None]) -> BaseException | None:
    error = outcome.exception()
    if error is not None:
        error.add_note(f"on the database {name}")
    return error
