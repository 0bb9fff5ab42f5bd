"""The console of ``affinity dev``: its user may do everything, and each page has a button that kills the worker.

No other console has the button: its action is given to this one alone.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from affinity.composed.client import Client
from affinity.console.access import ALL, Access
from affinity.console.actions import Form, Verb
from affinity.console.app import Console
from affinity.console.links import Links
from affinity.console.payloads import show_all
from affinity.console.requests import Refused
from affinity.console.serving import USER, TokenLogin, serve_locally

KILL: Final = "kill-worker"
"""The action of the button."""


def create_dev(database: str | Client, kill: Callable[[], bool]) -> Console:
    """The console, with the button.

    Args:
        database: a URL, or an open client, which stays the caller's.
        kill: sends SIGKILL to the worker; returns False when no worker runs.
    """

    async def run(client: Client, form: Form) -> str:
        if not kill():
            raise Refused(409, "no worker runs now: the terminal of `affinity dev` says why")
        return "killed"

    return Console(
        database,
        lambda request: Access(ALL, str(request.scope.get(USER, ""))),
        show_all,
        origins=(),
        links=Links({}),
        views={},
        own_verbs={KILL: Verb("drain", "what", run)},
    )


@asynccontextmanager
async def serve_dev(url: str, kill: Callable[[], bool], user: str) -> AsyncIterator[str]:
    """Serve it on a free port of this machine; gives the address, which logs any browser in while this lasts.

    The address is printed at the terminal of the user whose code and database it is, and no other machine reaches it.
    That of ``affinity console``, which may show others' databases, works once.
    """
    token = secrets.token_urlsafe(32)
    login = TokenLogin(token, user, once=False)
    async with create_dev(url, kill) as console, serve_locally(console, login) as address:
        yield f"{address}/login?token={token}"
