"""Chats as virtual objects of Restate, for ``ask``, on a server of its own that is gone afterwards.

The server is the program of the npm package ``@restatedev/restate-server``, as it is configured by default: it waits
for the disk, as PostgreSQL does. The endpoint is in the process that asks, by HTTP/2 as its documentation has it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.work import STATE, Ask, answer_to
from tests.servers.base import STARTUP, free_port

SERVER: Final = "restate-server"
PATIENCE: Final = 60.0


class _Addresses(NamedTuple):
    ingress: str
    admin: str


@asynccontextmanager
async def restate_chats(_: str) -> AsyncIterator[Ask]:
    """Ask chats, each of which has one ask at a time."""
    restate = import_module("restate")
    chats = restate.VirtualObject("Chat")

    async def answer(context: Any, question: str) -> str:
        before = await context.get("answers", type_hint=int) or 0
        transcript = await context.get("transcript") or []
        await context.get("state", type_hint=str)
        text = answer_to(question, before)
        context.set("transcript", [*transcript, ["user", question], ["agent", text]])
        context.set("state", f"{before}{STATE}")
        context.set("answers", before + 1)
        return text

    durable_answer = chats.handler()(answer)
    with _server() as addresses:
        async with _endpoint(restate.app([chats])) as endpoint:
            await _register(addresses.admin, endpoint)
            httpx = import_module("httpx")
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(base_url=addresses.ingress, timeout=PATIENCE, limits=limits) as connections:
                client = import_module("restate.client").Client(connections)

                async def ask(chat: str, question: str) -> str:
                    return str(await client.object_call(durable_answer, key=chat, arg=question))

                yield ask


@contextmanager
def _server() -> Iterator[_Addresses]:
    """A new server in a folder of its own."""
    program = shutil.which(SERVER)
    assert program is not None, "the scenario asks for it only where it is"
    ingress, admin, node = (f"127.0.0.1:{free_port()}" for _ in range(3))
    places = {
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_BIND_ADDRESS": node,
        "RESTATE_DISABLE_TELEMETRY": "true",
    }
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        command = [program, "--base-dir", folder, "--listen-mode", "tcp", "--node-name", "bench"]
        process = subprocess.Popen(  # noqa: S603 -- the program that npm has installed
            command, env={**os.environ, **places}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _Addresses(f"http://{ingress}", f"http://{admin}")
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # npm's program starts the server as a process of its own
            process.wait()


@asynccontextmanager
async def _endpoint(app: Any) -> AsyncIterator[str]:
    """Serve an endpoint; gives its address."""
    configuration = import_module("hypercorn.config").Config()
    configuration.bind = [f"127.0.0.1:{free_port()}"]
    configuration.loglevel = "ERROR"
    stop = asyncio.Event()
    serving = import_module("hypercorn.asyncio").serve(app, configuration, shutdown_trigger=stop.wait)
    task = asyncio.create_task(serving)
    try:
        yield f"http://{configuration.bind[0]}"
    finally:
        stop.set()
        await task


async def _register(admin: str, endpoint: str) -> None:
    """Tell the server where the endpoint is, as soon as it listens."""
    httpx = import_module("httpx")
    until = time.monotonic() + STARTUP
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        while True:
            try:
                (await client.post(f"{admin}/deployments", json={"uri": endpoint})).raise_for_status()
            except httpx.HTTPError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
            else:
                return
