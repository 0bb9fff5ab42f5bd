"""Clients in Node, with packages of npm in the versions of a lock file."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.extras import REQUIRED

MISSING: Final = [name for name in ("node", "npm") if shutil.which(name) is None]

needs_node: Final = pytest.mark.skipif(
    bool(MISSING) and not REQUIRED, reason=f"this machine has no program {' and no '.join(MISSING)}"
)


def install(source: Path, folder: Path) -> Path:
    """Copy the programs of a folder to another one, and install the packages that its lock file names."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class NodeProgram:
    """A program in Node that takes commands; see ``clients/commands.mjs``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, name: str, **args: Any) -> Any:
        """Give a command, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": name, **args}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program in Node has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]


@contextmanager
def running(folder: Path, program: str) -> Iterator[NodeProgram]:
    """A program, which is ended with the block."""
    command = ["node", program]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield NodeProgram(process)
        finally:
            process.kill()
