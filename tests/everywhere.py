"""Rules that mostly wait, played on several databases at the same time: each on a thread of its own, with an event
loop, worker processes, a client and a board of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from inspect import Parameter, Signature, signature
from typing import Any, Final

import anyio

from affinity.client import Client
from tests.board import serve_board
from tests.processes import open_workers

STAGE: Final = frozenset({"workers", "client", "board"})
"""What a rule may ask for by name; anything else comes from pytest."""


def everywhere(rule: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that plays the rule on all of `all_urls`, and fails where it fails on any.

    Not for rules that measure how long something takes.
    """

    def test(all_urls: Mapping[str, str], **arguments: Any) -> None:
        with ThreadPoolExecutor(len(all_urls)) as threads:
            played = {name: threads.submit(anyio.run, _play, rule, url, arguments) for name, url in all_urls.items()}
        if errors := [error for name, outcome in played.items() if (error := _error(name, outcome)) is not None]:
            raise BaseExceptionGroup(rule.__name__, errors)

    asked = signature(rule).parameters
    own = [one.replace(kind=Parameter.KEYWORD_ONLY) for name, one in asked.items() if name not in STAGE]
    urls = signature(test).parameters["all_urls"]
    test.__signature__ = Signature([urls, *own])  # type: ignore[attr-defined]  # what pytest asks for fixtures
    test.__name__, test.__doc__ = rule.__name__, rule.__doc__
    return test


async def _play(rule: Callable[..., Awaitable[None]], url: str, arguments: Mapping[str, Any]) -> None:
    async with serve_board() as board, Client(url) as client:
        with open_workers(url, board) as workers:
            stage = {"workers": workers, "client": client, "board": board}
            asked = {name: thing for name, thing in stage.items() if name in signature(rule).parameters}
            await rule(**asked, **arguments)


def _error(name: str, outcome: Future[None]) -> BaseException | None:
    error = outcome.exception()
    if error is not None:
        error.add_note(f"on the database {name}")
    return error
