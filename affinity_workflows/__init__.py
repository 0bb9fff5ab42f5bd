"""The distribution `affinity-workflows`: its version, and a check of the environment. The command is in `__main__`.

This package is outside of `affinity` because the distribution `affinity` on PyPI, another project, has a package of
that name. When both are installed, the files of the later one replace files of the earlier one. This module imports
nothing from `affinity`: `affinity` imports it first.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from itertools import pairwise
from types import FrameType
from typing import Final

VERSION: Final = "0.1.0"

SIGNALLED: Final = 128
"""The exit code of a process that a signal ended is this plus the signal's number, as shells report it."""

STUCK: Final = 8
"""The exit code of a worker of which something did not end, or whose event loop stood still."""


def check_installation() -> None:
    """Refuse an environment that has the distribution `affinity`, too.

    Raises:
        ImportError: both are installed; the message names the remedy.
    """
    if not any(map(_has_metadata, sys.path)):
        return
    from importlib.metadata import PackageNotFoundError, distribution  # takes longer than the rest of an import

    try:
        other, _ = distribution("affinity"), distribution("affinity-workflows")
    except PackageNotFoundError:
        return
    if any(script.value == "affinity.cli:main" for script in other.entry_points):
        return  # an editable install of this project under its name before 0.1.0
    raise ImportError(
        f"the distribution affinity {other.version} is installed beside affinity-workflows, and both have a package"
        " affinity: run `pip uninstall affinity`, then `pip install --force-reinstall --no-deps affinity-workflows`"
    )


def _has_metadata(directory: str) -> bool:
    """Return whether a directory of the import path has metadata of a distribution `affinity`."""
    with suppress(OSError):
        return any(name.lower().startswith("affinity-") for name in os.listdir(directory or "."))
    return False


def heed_signals() -> None:
    """Let SIGTERM and SIGHUP end this process until a command handles them.

    This is the default for all processes but the first one of a container. The kernel ignores signals to that one
    unless they have a handler, so a signal during the imports would be lost.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under `nohup` SIGHUP is ignored
            signal.signal(number, _end_by)


def _end_by(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(SIGNALLED + number)  # the first process of a container is still alive here


def _is_command() -> bool:
    """Return whether ``python -m affinity`` imports this module, before any code of the package."""
    arguments = pairwise(sys.orig_argv)
    return sys.argv[:1] == ["-m"] and any(pair in {("-m", "affinity"), ("-m", __name__)} for pair in arguments)


if _is_command():
    heed_signals()
