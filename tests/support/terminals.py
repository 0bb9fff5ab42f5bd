"""Programs whose stderr is a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import threading
from contextlib import suppress

from tests.support.worker_processes import PATIENCE


def on_terminal(arguments: list[str], term: str) -> str:
    """What a program writes to stderr that is a terminal."""
    ours, theirs = pty.openpty()
    found = io.BytesIO()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(ours, 4096):
                found.write(data)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": term}
    try:
        subprocess.run(arguments, stderr=theirs, env=environment, timeout=PATIENCE, check=True)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return found.getvalue().decode()
