"""What `access` may return; and functions of the application that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from affinity import Client
from affinity.console import ALL, NONE, READ, Access
from affinity.console.callbacks import _logged as callback_log
from affinity.errors import InvalidOptions
from tests.console.conftest import Open
from tests.support.console_app import stays


@pytest.mark.parametrize("actions", ["read", ["read"], None, {"raed"}, {"read", "delete_all"}, {"read": 1}, {1}])
def test_actions_that_do_not_exist_are_refused(actions: Any) -> None:
    """A misspelt action would be one that the user silently lacks; and "read" in a text is a part of it."""
    with pytest.raises(InvalidOptions, match="Access"):
        Access(actions, "ann")


@pytest.mark.parametrize("actions", [NONE, READ, ALL, {"read", "answer"}, frozenset({"answer"})])
def test_actions_that_exist_pass(actions: Any) -> None:
    assert Access(actions).may("answer") is ({"read", "answer"} <= actions)


class Panic(BaseException):
    """As compiled modules raise."""


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*args: object) -> Any:
        raise error

    return function


async def raises_later(request: object) -> Access:
    raise ValueError("secret-of-the-application")


ENDS: list[BaseException] = [
    ValueError("secret-of-the-application"),
    Panic("secret-of-the-application"),
    SystemExit(3),
    asyncio.CancelledError(),
    StopIteration(),
]

CALLBACKS: list[dict[str, Any]] = [
    *({"redact": raises(error)} for error in ENDS),
    *({"access": raises(error)} for error in ENDS),
    {"access": raises_later},
    {"access": lambda request: None},
    {"access": lambda request: True},
]


@pytest.mark.anyio
@pytest.mark.parametrize("callbacks", CALLBACKS, ids=range(len(CALLBACKS)))
async def test_a_function_of_the_application_that_fails(
    client: Client, open_console: Open, caplog: pytest.LogCaptureFixture, callbacks: dict[str, Any]
) -> None:
    """An error page, of a live page the event that loads it, and one line of the log. Nothing is shown unredacted."""
    await client.start(stays, "hidden", instance_id="stays")
    callback_log.clear()
    async with open_console(**callbacks) as http:
        page = await http.get("/instance?id=stays")
        assert (page.status_code, "see its log" in page.text) == (500, True)
        assert "hidden" not in page.text
        assert "secret-of-the-application" not in page.text
        live = await http.get("/instance?id=stays", headers={"accept": "text/event-stream"})
        assert live.status_code == 500 if "access" in callbacks else "event: gone" in live.text
    (line,) = [record for record in caplog.records if record.name == "affinity.console"]
    assert "of this console has failed" in line.getMessage()
    assert line.exc_info is None
