"""Runs functions and programs, each in a forked process that prints and ends as a program does.

They are forked by a process that has imported affinity, which takes a new interpreter half a second of a core.
"""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.support.worker_processes import FORKS

PATIENCE: Final = 100.0
"""Seconds after which a test that waits for a process is broken."""


class Fork:
    """A process that calls a function of a module without tests. Warnings are errors."""

    def __init__(self, target: Callable[..., object], *arguments: str, folder: Path | None = None) -> None:
        """``folder``: its working directory."""
        self._directory = TemporaryDirectory()
        printed = Path(self._directory.name)
        self._printed = (printed / "out", printed / "err")
        self._process = FORKS.Process(target=_run, args=(target, arguments, folder or Path.cwd(), *self._printed))
        self._process.start()

    def output(self) -> str:
        """Wait for its end, which must be without an error; returns its standard output."""
        try:
            self._process.join(PATIENCE)
            out, err = (path.read_text() for path in self._printed)
            assert self._process.exitcode == 0, out + err
            return out
        finally:
            self._process.kill()
            self._directory.cleanup()


def run_program(program: str) -> None:
    """As ``python program`` does."""
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


def _run(target: Callable[..., object], arguments: tuple[str, ...], folder: Path, out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    warnings.simplefilter("error")
    target(*arguments)
