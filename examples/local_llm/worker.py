"""A worker process: ``python -m examples.local_llm.worker``. Its settings come as one line of JSON on stdin."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from io import FileIO
from pathlib import Path

import anyio
from pydantic import BaseModel

import affinity
from examples.local_llm.chats import Mode, build_app
from examples.local_llm.model import Model


class Settings(BaseModel):
    """What the command passes to a worker."""

    url: str
    mode: Mode
    name: str
    sessions: int  # that it may have to hold
    context: int  # tokens of one conversation
    threads: int  # of its model
    folder: Path  # for its files


async def serve(settings: Settings) -> None:
    """Load the model, then work until SIGTERM."""
    slots = settings.sessions + 1
    folder = Path(tempfile.mkdtemp(dir=settings.folder))
    model = Model(slots=slots, context=settings.context, threads=settings.threads, folder=folder)
    options = affinity.RuntimeOptions.make(
        worker_node_id=settings.name,
        worker_concurrency=1,  # the model has the processor to itself, so a turn's times are its own
        max_sessions_per_runtime=settings.sessions,
    )
    await affinity.Worker(build_app(settings.mode, model, slots), settings.url, options).serve()


def _end_with(lifeline: FileIO) -> None:
    lifeline.read()  # the kernel closes the other end when the command is gone, however it ended
    os._exit(1)


if __name__ == "__main__":
    # Unbuffered: a thread that waits in a buffered read would hold a lock that the interpreter needs at its end.
    stdin = FileIO(0, closefd=False)
    chosen = Settings.model_validate_json(stdin.readline())
    threading.Thread(target=_end_with, args=[stdin], daemon=True).start()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    anyio.run(serve, chosen)
